"""Pairs that stand in two corpora: a test set must not be what was trained on."""

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from .corpus import load_pairs
from .pair_dataset import rename_languages
from .readers import CorpusSpec

BATCH_ROWS = 100_000  # read at once


def describe_overlap(
    training_spec: CorpusSpec,
    held_out_spec: CorpusSpec,
    *,
    source_language: str,
    target_language: str,
    folder: str | None,
    both_directions: bool,
) -> str | None:
    """How many pairs of a held-out corpus are in the training corpus, in words, with one of them; None if none is.

    Pairs are compared as they were before any were concatenated. `both_directions`: a training pair also counts with
    its sides exchanged.
    """
    names = (source_language, target_language)
    held_out, trained_on = (
        load_pairs(
            without_concatenation(corpus_spec),
            source_language=source_language,
            target_language=target_language,
            folder=folder,
        )
        for corpus_spec in (held_out_spec, training_spec)
    )
    overlap = overlapping_pairs(trained_on, held_out)
    if not overlap and both_directions:
        overlap = overlapping_pairs(rename_languages(trained_on, names, names[::-1]), held_out)
    if not overlap:
        return None
    example = max((row[source_language] for row in overlap), key=len)
    return f"{len(overlap)} of {len(held_out)} pairs stand in the training text, such as {example[:80]!r}"


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
