"""Pairs that stand in two corpora: a test set must not be what was trained on."""

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

BATCH_ROWS = 100_000  # read at once


def overlapping_pairs(corpus: Dataset, held_out: Dataset) -> list[dict[str, str]]:
    """The pairs of `held_out`, in their order, whose two texts are those of a pair of `corpus` as well.

    Case and white space around a text make no difference; empty pairs are none. Both corpora are of the form of
    `load_pairs`.
    """
    languages = list(held_out.features["translation"])
    sources, targets = normalized_texts(held_out.with_format("arrow")[:], languages)
    held_out_sources = pc.unique(sources)
    overlapping: set[tuple[str, str]] = set()
    for table in corpus.with_format("arrow").iter(BATCH_ROWS):
        columns = normalized_texts(table, languages)
        source_is_held_out = pc.is_in(columns[0], value_set=held_out_sources)
        overlapping.update(zip_pairs(*(column.filter(source_is_held_out) for column in columns)))
    overlapping.discard(("", ""))
    return [
        row
        for row, pair in zip(held_out["translation"], zip_pairs(sources, targets), strict=True)
        if pair in overlapping
    ]


def zip_pairs(sources: pa.ChunkedArray, targets: pa.ChunkedArray) -> Iterable[tuple[str, str]]:
    return zip(sources.to_pylist(), targets.to_pylist(), strict=True)


def normalized_texts(pairs: pa.Table, languages: list[str]) -> list[pa.ChunkedArray]:
    """The texts (N) of each language, without case and white space around them."""
    columns = dict(zip(pairs.flatten().column_names, pairs.flatten().columns, strict=True))
    return [pc.utf8_lower(pc.utf8_trim_whitespace(columns[f"translation.{language}"])) for language in languages]


def without_concatenation(corpus_spec: Mapping[str, Any]) -> dict[str, Any]:
    """A description of the pairs that those of `corpus_spec` are joined from; of all documents where it has these."""
    first_counts_concatenated = corpus_spec.get("document_ids") or any(
        map(is_concatenated, corpus_spec.get("corpora") or [])
    )
    dropped_keys = {"concatenate", "document_ids", "min_words"} | (
        {"max_examples"} if first_counts_concatenated else set()
    )
    kept = {key: value for key, value in corpus_spec.items() if key not in dropped_keys}
    return kept | (
        {"corpora": [without_concatenation(spec) for spec in corpus_spec["corpora"]]}
        if corpus_spec.get("corpora")
        else {}
    )


def is_concatenated(corpus_spec: Mapping[str, Any]) -> bool:
    """Whether any of those pairs are joined from several."""
    return bool(
        corpus_spec.get("concatenate")
        or corpus_spec.get("document_ids")
        or any(map(is_concatenated, corpus_spec.get("corpora") or []))
    )
