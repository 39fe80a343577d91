"""Pairs and sentences that two corpora share: a test set must not be what was trained on."""

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from .readers import CorpusSpec

BATCH_ROWS = 100_000  # read at once
MIN_WORDS = 8  # of a text that counts by itself


@dataclass(frozen=True)
class Overlap:
    """The pairs of a held-out set, in their order, that a corpus has too, as a pair or by one long text."""

    pairs: list[dict[str, str]]
    one_sided: list[dict[str, str]]


def find_overlap(corpus: Dataset, held_out: Dataset) -> Overlap:
    """Compare pairs, and the texts of each side by themselves, of two corpora of the form of `load_pairs`.

    Case and white space around a text make no difference; empty pairs are none. A text of one side counts if it has
    MIN_WORDS words: shorter ones, such as greetings, recur in any corpus.
    """
    languages = list(held_out.features["translation"])
    held_out_texts = normalized_texts(held_out.with_format("arrow")[:], languages)
    value_sets = [pc.unique(texts) for texts in held_out_texts]
    pairs_found: set[tuple[str, str]] = set()
    texts_found: list[set[str]] = [set() for _ in languages]
    for table in corpus.with_format("arrow").iter(BATCH_ROWS):
        columns = normalized_texts(table, languages)
        is_found = [pc.is_in(column, value_set=values) for column, values in zip(columns, value_sets, strict=True)]
        for found, column, mask in zip(texts_found, columns, is_found, strict=True):
            found.update(text for text in pc.unique(column.filter(mask)).to_pylist() if len(text.split()) >= MIN_WORDS)
        in_both = pc.and_(*is_found)
        pairs_found.update(zip_pairs(*(column.filter(in_both) for column in columns)))
    pairs_found.discard(("", ""))
    overlap = Overlap([], [])
    for row, pair in zip(held_out["translation"], zip_pairs(*held_out_texts), strict=True):
        if pair in pairs_found:
            overlap.pairs.append(row)
        elif any(text in found for text, found in zip(pair, texts_found, strict=True)):
            overlap.one_sided.append(row)
    return overlap


def zip_pairs(sources: pa.ChunkedArray, targets: pa.ChunkedArray) -> Iterable[tuple[str, str]]:
    return zip(sources.to_pylist(), targets.to_pylist(), strict=True)


def normalized_texts(pairs: pa.Table, languages: list[str]) -> list[pa.ChunkedArray]:
    """The texts (N) of each language, without case and white space around them."""
    columns = dict(zip(pairs.flatten().column_names, pairs.flatten().columns, strict=True))
    return [pc.utf8_lower(pc.utf8_trim_whitespace(columns[f"translation.{language}"])) for language in languages]


def without_concatenation(corpus_spec: CorpusSpec) -> CorpusSpec:
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


def is_concatenated(corpus_spec: CorpusSpec) -> bool:
    """Whether any of those pairs are joined from several."""
    return bool(
        corpus_spec.get("concatenate")
        or corpus_spec.get("document_ids")
        or any(map(is_concatenated, corpus_spec.get("corpora") or []))
    )
