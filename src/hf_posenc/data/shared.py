"""Pairs that stand in two corpora: a test set must not be what was trained on."""

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

ROWS = 100_000  # read at once


def shared_pairs(corpus: Dataset, held_out: Dataset) -> list[dict[str, str]]:
    """The pairs of `held_out`, in their order, whose two texts are those of a pair of `corpus` as well.

    Case and white space around a text make no difference; empty pairs are none. Both corpora are of the form of
    `load_pairs`.
    """
    languages = list(held_out.features["translation"])
    sources, targets = plain_texts(held_out.with_format("arrow")[:], languages)
    known = pc.unique(sources)
    found: set[tuple[str, str]] = set()
    for table in corpus.with_format("arrow").iter(ROWS):
        columns = plain_texts(table, languages)
        near = pc.is_in(columns[0], value_set=known)
        found.update(pairs_of(*(column.filter(near) for column in columns)))
    found.discard(("", ""))
    return [row for row, pair in zip(held_out["translation"], pairs_of(sources, targets), strict=True) if pair in found]


def pairs_of(sources: pa.ChunkedArray, targets: pa.ChunkedArray) -> Iterable[tuple[str, str]]:
    return zip(sources.to_pylist(), targets.to_pylist(), strict=True)


def plain_texts(pairs: pa.Table, languages: list[str]) -> list[pa.ChunkedArray]:
    """The texts (N) of each language, without case and white space around them."""
    columns = dict(zip(pairs.flatten().column_names, pairs.flatten().columns, strict=True))
    return [pc.utf8_lower(pc.utf8_trim_whitespace(columns[f"translation.{language}"])) for language in languages]


def unjoined(where: Mapping[str, Any]) -> dict[str, Any]:
    """A description of the pairs that those of `where` are joined from; of all documents where it has these."""
    counts_joined = where.get("documents") or any(map(is_joined, where.get("corpora") or []))
    left_out = {"join", "documents", "min_words"} | ({"first"} if counts_joined else set())
    kept = {key: value for key, value in where.items() if key not in left_out}
    return kept | ({"corpora": [unjoined(part) for part in where["corpora"]]} if where.get("corpora") else {})


def is_joined(where: Mapping[str, Any]) -> bool:
    """Whether any of those pairs are joined from several."""
    return bool(where.get("join") or where.get("documents") or any(map(is_joined, where.get("corpora") or [])))
