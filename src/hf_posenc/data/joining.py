"""Long pairs out of short ones: so many consecutive pairs, or those of one document until there are enough words."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from datasets import Dataset

from ..text_io import read_lines
from .files import absolute_path
from .mapping import BATCH, mapped


def join_consecutive(pairs: Dataset, k: int, between: str = " ") -> Dataset:
    """Each `k` consecutive pairs as one, their texts joined with a space, or `between`; the last one may be of fewer.

    28,075 pairs joined by two are 14,038. An empty text adds no space.
    """
    positive("join", k)

    def join(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        rows = batch["translation"]
        return {"translation": [joined(rows[i : i + k], between) for i in range(0, len(rows), k)]}

    return mapped(pairs, join, pairs.features, batch_size=k * max(1, BATCH // k))


def join_documents(
    pairs: Dataset, where: Mapping[str, Any], folder: str | None, source_language: str, between: str = " "
) -> Dataset:
    """Consecutive pairs of one document as one, as few as have `min_words` source words together.

    `documents` is a text, plain or compressed, whose line i names the document of pair i. What is left of a document
    with fewer words than that is left out. Words are what white space separates. The pairs are held in memory.
    """
    if missing := [key for key in ("documents", "min_words") if key not in where]:
        raise ValueError(f"`documents` and `min_words` belong together, but {missing[0]!r} is missing: add it")
    min_words = positive("min_words", where["min_words"])
    path = absolute_path(where["documents"], folder)
    names = list(read_lines(path))
    if len(names) != len(pairs):
        raise ValueError(
            f"`documents` names the document of each pair, but {path} has {len(names)} lines for {len(pairs)} pairs: "
            "give it a line for each of them"
        )
    documents = groupby(zip(names, pairs["translation"], strict=True), key=lambda named: named[0])
    parts = [part for _, of_one in documents for part in enough((row for _, row in of_one), min_words, source_language)]
    if not parts:
        raise ValueError(f"no document of {path} has min_words={min_words} source words: ask for fewer")
    return Dataset.from_dict({"translation": [joined(part, between) for part in parts]}, features=pairs.features)


def enough(rows: Iterable[dict[str, str]], min_words: int, language: str) -> Iterator[list[dict[str, str]]]:
    """Runs of rows, each as short as has `min_words` words of the language; a rest that has fewer is none."""
    run: list[dict[str, str]] = []
    for row in rows:
        run.append(row)
        if sum(len(one[language].split()) for one in run) >= min_words:
            yield run
            run = []


def joined(rows: list[dict[str, str]], between: str) -> dict[str, str]:
    return {language: between.join(filter(None, (row[language] for row in rows))) for language in rows[0]}


def positive(key: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"`{key}` must be a whole number, at least 1, but it is {value!r}: change or omit it")
    return value
