"""Test and validation sets must not hold what is trained on: found out before anything is trained."""

import logging
from typing import Any

from ..config.settings import Experiment, System
from ..data import load_pairs
from ..data.mapping import renamed
from ..data.shared import shared_pairs, unjoined
from ..modeling.nearest import refuse_unknown

logger = logging.getLogger(__name__)


def refuse_shared_pairs(experiment: Experiment) -> None:
    """A ValueError that counts, for each held-out set, its pairs that stand in the training text and may not.

    Pairs are compared as they were before any were joined. A set in `data.allow_shared_pairs` may have some; how many
    is logged.
    """
    seen: list[tuple[Any, ...]] = []
    refused: dict[str, str] = {}
    for system in experiment.systems.values():
        sets = held_out_sets(system)
        refuse_unknown(system.data.allow_shared_pairs, sets, f"systems.{system.name}: data.allow_shared_pairs")
        for name, where in sets.items():
            key = (name, where, system.data.train, name in system.data.allow_shared_pairs)
            if system.split or key in seen:
                continue
            seen.append(key)
            if said := shared_with_training(system, where):
                if name in system.data.allow_shared_pairs:
                    logger.warning("%s: %s, as data.allow_shared_pairs allows", name, said)
                else:
                    refused[name] = said
    if refused:
        raise ValueError(
            "What is trained on must not be tested on, but of "
            + "; of ".join(f"{name} {said}" for name, said in refused.items())
            + ". Leave them out of data.train or choose another set; or, where it is no matter, such as of greetings, "
            f"allow it: data.allow_shared_pairs=[{', '.join(refused)}]."
        )


def held_out_sets(system: System) -> dict[str, dict[str, Any]]:
    return ({"validation": system.data.validation} if system.data.validation else {}) | system.data.test


def shared_with_training(system: System, where: dict[str, Any]) -> str | None:
    """How many pairs of `where` are in the training text, in words, with one of them; None if none is."""
    data = system.data
    how: dict[str, Any] = {
        "source_language": data.source_language,
        "target_language": data.target_language,
        "folder": data.folder,
    }
    held_out, trained_on = load_pairs(unjoined(where), **how), load_pairs(unjoined(data.train), **how)
    names = (data.source_language, data.target_language)
    if not (shared := shared_pairs(trained_on, held_out)) and data.tags:  # or it stands there the other way round
        shared = shared_pairs(renamed(trained_on, names, names[::-1]), held_out)
    if not shared:
        return None
    longest = max((row[data.source_language] for row in shared), key=len)
    return f"{len(shared)} of {len(held_out)} pairs stand in the training text, such as {longest[:80]!r}"
