"""Concatenation of pairs: k consecutive ones, or those of one document up to a number of words."""

from collections.abc import Iterable, Iterator
from itertools import groupby

from datasets import Dataset

from ...utils.text_io import read_lines
from .pair_dataset import BATCH_SIZE, Batch, map_batches
from .readers import CorpusSpec, absolute_path


def concatenate_consecutive(pairs: Dataset, k: int, separator: str = " ") -> Dataset:
    """Concatenate each `k` consecutive pairs, with `separator` between their texts. The last pair may have fewer.

    For k = 2, 28,075 pairs become 14,038. An empty text adds no separator of whitespace.
    """
    validate_positive("concatenate", k)

    def concatenate(batch: Batch) -> Batch:
        rows = batch["translation"]
        return {"translation": [concatenate_rows(rows[i : i + k], separator) for i in range(0, len(rows), k)]}

    return map_batches(pairs, concatenate, pairs.features, batch_size=k * max(1, BATCH_SIZE // k))


def concatenate_documents(
    pairs: Dataset, corpus_spec: CorpusSpec, folder: str | None, source_language: str, separator: str = " "
) -> Dataset:
    """Concatenate the fewest consecutive pairs of one document that have `min_words` source words together.

    `document_ids` is a text, plain or compressed, whose line i names the document of pair i. The rest of a document
    with fewer words is left out. Words are separated by whitespace. The pairs are held in memory.
    """
    if missing := [key for key in ("document_ids", "min_words") if key not in corpus_spec]:
        raise ValueError(f"`document_ids` and `min_words` belong together, but {missing[0]!r} is missing: add it")
    min_words = validate_positive("min_words", corpus_spec["min_words"])
    path = absolute_path(corpus_spec["document_ids"], folder)
    names = list(read_lines(path))
    if len(names) != len(pairs):
        raise ValueError(
            f"`document_ids` names the document of each pair, but {path} has {len(names)} lines for {len(pairs)} "
            "pairs: give it a line for each of them"
        )
    documents = groupby(zip(names, pairs["translation"], strict=True), key=lambda named_row: named_row[0])
    groups = [
        group
        for _, document in documents
        for group in group_by_min_words((row for _, row in document), min_words, source_language)
    ]
    if not groups:
        raise ValueError(f"no document of {path} has min_words={min_words} source words: ask for fewer")
    return Dataset.from_dict(
        {"translation": [concatenate_rows(group, separator) for group in groups]}, features=pairs.features
    )


def group_by_min_words(rows: Iterable[dict[str, str]], min_words: int, language: str) -> Iterator[list[dict[str, str]]]:
    """The shortest groups of consecutive rows with `min_words` words of the language. A rest with fewer words is left
    out."""
    group: list[dict[str, str]] = []
    for row in rows:
        group.append(row)
        if sum(len(member[language].split()) for member in group) >= min_words:
            yield group
            group = []


def concatenate_rows(rows: list[dict[str, str]], separator: str) -> dict[str, str]:
    """The texts of each language as one. A separator that is no whitespace separates empty texts too, so that both
    languages have equally many."""
    texts = {language: [row[language] for row in rows] for language in rows[0]}
    return {
        language: separator.join(filter(None, parts) if separator.isspace() else parts)
        for language, parts in texts.items()
    }


def validate_positive(key: str, value: object) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"`{key}` must be a whole number, at least 1, but it is {value!r}: change or omit it")
    return value
