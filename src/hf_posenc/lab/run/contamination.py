"""Train-test overlap: refuses test and validation sets that share pairs with the training text, before training."""

import logging
from collections import deque
from collections.abc import Iterable, Iterator

from ...hub.errors import validate_names
from ..config.section_settings import DataSettings
from ..config.settings import System
from ..data.corpus import rename_languages
from ..data.overlap import MIN_WORDS, Overlap, find_overlap, without_concatenation
from ..data.plain_text import text_chunks
from ..data.readers import CorpusSpec
from .corpora import read_pairs

MAX_ONE_SIDED_SHARE = 0.01
logger = logging.getLogger(__name__)


def validate_no_contamination(systems: Iterable[System]) -> None:
    """Raise a ValueError with the number of shared pairs of each held-out set that shares too many.

    Pairs are compared as they were before concatenation. No pair may occur in the training text. At most
    MAX_ONE_SIDED_SHARE of the pairs may have a source or a target of MIN_WORDS words or more in it. A set in
    `data.allow_overlap` may have more. Overlap that is tolerated or allowed is logged.
    """
    checked: list[tuple[object, ...]] = []
    contaminated: dict[str, str] = {}
    for system in systems:
        corpora = held_out_sets(system)
        validate_names(system.data.allow_overlap, corpora, f"systems.{system.name}: data.allow_overlap")
        for name, corpus_spec in corpora.items():
            key = (name, corpus_spec, system.data.train, name in system.data.allow_overlap)
            if system.segment or key in checked:
                continue
            checked.append(key)
            overlap, num_pairs = overlap_with_training(system, corpus_spec)
            if description := describe_overlap(overlap, num_pairs, system.data):
                if name in system.data.allow_overlap:
                    logger.warning("%s: %s, as data.allow_overlap allows", name, description)
                elif overlap.pairs or len(overlap.one_sided) > MAX_ONE_SIDED_SHARE * num_pairs:
                    contaminated[name] = description
                else:
                    logger.warning("%s: %s, which is too few to matter", name, description)
    if contaminated:
        raise ValueError(
            "What is trained on must not be tested on, but of "
            + "; of ".join(f"{name} {description}" for name, description in contaminated.items())
            + ". Leave them out of data.train or choose another set; or, where it is no matter, such as of greetings, "
            f"allow it: data.allow_overlap=[{', '.join(contaminated)}]."
        )


def held_out_sets(system: System) -> dict[str, CorpusSpec]:
    return ({"validation": system.data.validation} if system.data.validation else {}) | system.data.test


def overlap_with_training(system: System, corpus_spec: CorpusSpec) -> tuple[Overlap, int]:
    """The overlap of a held-out corpus with the training text of a system, and the number of held-out pairs."""
    data = system.data
    if data.is_text:
        return text_overlap(data, corpus_spec)
    held_out = read_pairs(data, without_concatenation(corpus_spec))
    trained_on = read_pairs(data, without_concatenation(data.train))
    names = (data.source_language, data.target_language)
    overlap = find_overlap(trained_on, held_out)
    if not overlap.pairs and data.tags:  # or the pairs may occur in the other direction
        reversed_overlap = find_overlap(rename_languages(trained_on, names, names[::-1]), held_out)
        overlap = max(overlap, reversed_overlap, key=lambda found: (len(found.pairs), len(found.one_sided)))
    return overlap, len(held_out)


def text_overlap(data: DataSettings, corpus_spec: CorpusSpec) -> tuple[Overlap, int]:
    """The runs of lines of a held-out text that occur in the training text, and the number of all its lines that are
    not blank. Case and surrounding whitespace are ignored."""
    num_lines = sum(1 for _ in normalized_lines(corpus_spec, data.data_dir))
    held_out = list(runs_of_lines(normalized_lines(corpus_spec, data.data_dir)))
    shared_runs = set(held_out).intersection(runs_of_lines(normalized_lines(data.train, data.data_dir)))
    return Overlap([], [{data.source_language: run} for run in held_out if run in shared_runs]), num_lines


def runs_of_lines(lines: Iterable[str]) -> Iterator[str]:
    """From each line on, the shortest run of lines with MIN_WORDS words: of verse and subtitles, one line is too
    short to tell where it comes from."""
    run: deque[str] = deque()
    for line in lines:
        run.append(line)
        while len(words := " ".join(run).split()) >= MIN_WORDS:
            yield " ".join(words)
            run.popleft()


def normalized_lines(corpus_spec: CorpusSpec, folder: str | None) -> Iterator[str]:
    """The lines of a plain text that are not blank, in lower case and without surrounding whitespace."""
    for chunk in text_chunks(corpus_spec, folder):
        yield from (line.strip().lower() for line in chunk.split("\n"))


def describe_overlap(overlap: Overlap, num_pairs: int, data: DataSettings) -> str | None:
    """The number of pairs that occur in the training text, whole or by one side, with an example; None without any. Of
    a plain text, the number of lines."""
    language = data.source_language
    one_sided = f"pairs have a source or a target of {MIN_WORDS} words or more in the training text"
    if data.is_text:
        one_sided = f"lines begin {MIN_WORDS} words or more that stand in the training text"
    kinds = {"pairs stand in the training text": overlap.pairs, one_sided: overlap.one_sided}
    descriptions = []
    for kind, rows in kinds.items():
        if rows:
            example = max((row[language] for row in rows), key=len)
            descriptions.append(f"{len(rows)} of {num_pairs} {kind}, such as {example[:80]!r}")
    return ", and ".join(descriptions) or None
