"""Test and validation sets must not hold what is trained on: found out before anything is trained."""

import logging
from collections.abc import Iterable
from typing import Any

from ..config.settings import System
from ..data.corpus import load_pairs
from ..data.overlap import overlapping_pairs, without_concatenation
from ..data.pair_dataset import rename_languages
from ..modeling.suggestions import validate_names

logger = logging.getLogger(__name__)


def validate_no_contamination(systems: Iterable[System]) -> None:
    """A ValueError that counts, for each held-out set, its pairs that stand in the training text and may not.

    Pairs are compared as they were before any were joined. A set in `data.allow_overlap` may have some; how many
    is logged.
    """
    checked: list[tuple[Any, ...]] = []
    contaminated: dict[str, str] = {}
    for system in systems:
        corpora = held_out_sets(system)
        validate_names(system.data.allow_overlap, corpora, f"systems.{system.name}: data.allow_overlap")
        for name, corpus_spec in corpora.items():
            key = (name, corpus_spec, system.data.train, name in system.data.allow_overlap)
            if system.segment or key in checked:
                continue
            checked.append(key)
            if description := describe_contamination(system, corpus_spec):
                if name in system.data.allow_overlap:
                    logger.warning("%s: %s, as data.allow_overlap allows", name, description)
                else:
                    contaminated[name] = description
    if contaminated:
        raise ValueError(
            "What is trained on must not be tested on, but of "
            + "; of ".join(f"{name} {description}" for name, description in contaminated.items())
            + ". Leave them out of data.train or choose another set; or, where it is no matter, such as of greetings, "
            f"allow it: data.allow_overlap=[{', '.join(contaminated)}]."
        )


def held_out_sets(system: System) -> dict[str, dict[str, Any]]:
    return ({"validation": system.data.validation} if system.data.validation else {}) | system.data.test


def describe_contamination(system: System, corpus_spec: dict[str, Any]) -> str | None:
    """How many pairs of `corpus_spec` are in the training text, in words, with one of them; None if none is."""
    data = system.data
    options: dict[str, Any] = {
        "source_language": data.source_language,
        "target_language": data.target_language,
        "folder": data.data_dir,
    }
    held_out, trained_on = (
        load_pairs(without_concatenation(corpus_spec), **options),
        load_pairs(without_concatenation(data.train), **options),
    )
    names = (data.source_language, data.target_language)
    if not (overlap := overlapping_pairs(trained_on, held_out)) and data.tags:  # or it stands there the other way round
        overlap = overlapping_pairs(rename_languages(trained_on, names, names[::-1]), held_out)
    if not overlap:
        return None
    example = max((row[data.source_language] for row in overlap), key=len)
    return f"{len(overlap)} of {len(held_out)} pairs stand in the training text, such as {example[:80]!r}"
