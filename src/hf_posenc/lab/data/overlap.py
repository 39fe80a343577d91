"""Overlap of corpora: pairs and long texts of a held-out set that occur in the training text."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from .readers import CorpusSpec

BATCH_ROWS = 100_000  # rows in memory at a time
MIN_WORDS = 8  # of a text that is compared without its pair


@dataclass(frozen=True)
class Overlap:
    """The pairs of a held-out set, in order, that occur in a corpus as a pair, or with one long text."""

    pairs: list[dict[str, str]]
    one_sided: list[dict[str, str]]


class OverlapFinder:
    """Finds the overlap of one held-out set with a corpus that is read in batches."""

    def __init__(self, held_out: Dataset) -> None:
        self.held_out = held_out
        self.languages = list(held_out.features["translation"])
        self.texts = normalized_texts(held_out.with_format("arrow")[:], self.languages)
        self.value_sets = [pc.unique(texts) for texts in self.texts]
        self.pairs_found: set[tuple[str, str]] = set()
        self.texts_found: list[set[str]] = [set() for _ in self.languages]

    def read(self, table: pa.Table) -> None:
        """Look for the held-out set in a batch of the corpus."""
        columns = normalized_texts(table, self.languages)
        is_found = []
        for column, values, texts_found in zip(columns, self.value_sets, self.texts_found, strict=True):
            mask = pc.is_in(column, value_set=values)
            is_found.append(mask)
            for text in pc.unique(column.filter(mask)).to_pylist():
                if len(text.split()) >= MIN_WORDS:
                    texts_found.add(text)
        in_both = pc.and_(*is_found)
        self.pairs_found.update(zip_pairs(*(column.filter(in_both) for column in columns)))

    def overlap(self) -> Overlap:
        """The overlap with all batches. Empty pairs do not count."""
        overlap = Overlap([], [])
        for row, pair in zip(self.held_out["translation"], zip_pairs(*self.texts), strict=True):
            if pair in self.pairs_found and pair != ("", ""):
                overlap.pairs.append(row)
            elif any(text in found for text, found in zip(pair, self.texts_found, strict=True)):
                overlap.one_sided.append(row)
        return overlap


def find_overlaps(
    corpus: Dataset, held_out_sets: Mapping[str, Dataset], batch_rows: int = BATCH_ROWS
) -> dict[str, Overlap]:
    """Compare the pairs, and the texts of each side, of held-out sets with a corpus, which is read once.

    All are in the format of `load_pairs`. Case and surrounding whitespace are ignored, and empty pairs do not count. A
    text of one side counts if it has MIN_WORDS words: shorter texts, such as greetings, occur in every corpus.
    """
    finders = {name: OverlapFinder(held_out) for name, held_out in held_out_sets.items()}
    for table in corpus.with_format("arrow").iter(batch_rows):
        for finder in finders.values():
            finder.read(table)
    return {name: finder.overlap() for name, finder in finders.items()}


def zip_pairs(sources: pa.ChunkedArray, targets: pa.ChunkedArray) -> Iterable[tuple[str, str]]:
    return zip(sources.to_pylist(), targets.to_pylist(), strict=True)


def normalized_texts(pairs: pa.Table, languages: list[str]) -> list[pa.ChunkedArray]:
    """The texts (N) of each language in lower case, without surrounding whitespace."""
    table = pairs.flatten()
    columns = [table.column(f"translation.{language}") for language in languages]
    return [pc.utf8_lower(pc.utf8_trim_whitespace(column)) for column in columns]


def without_concatenation(corpus_spec: CorpusSpec) -> CorpusSpec:
    """The corpus before concatenation. With documents, all of their pairs."""
    corpora = corpus_spec.get("corpora") or []
    dropped = {"concatenate", "document_ids", "min_words"}
    if corpus_spec.get("document_ids") or any(map(is_concatenated, corpora)):
        dropped.add("max_examples")  # which counts concatenated pairs
    spec = {key: value for key, value in corpus_spec.items() if key not in dropped}
    if corpora:
        spec["corpora"] = [without_concatenation(part) for part in corpora]
    return spec


def is_concatenated(corpus_spec: CorpusSpec) -> bool:
    """Whether any pairs of the corpus are concatenated."""
    if corpus_spec.get("concatenate") or corpus_spec.get("document_ids"):
        return True
    return any(map(is_concatenated, corpus_spec.get("corpora") or []))
