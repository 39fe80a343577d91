"""Overlap of corpora: pairs and long texts of a held-out set that occur in the training text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from datasets import Dataset

from .readers import CorpusSpec

BATCH_SIZE = 10_000  # rows in memory at a time
MIN_WORDS = 8  # of a text that is compared without its pair


@dataclass(frozen=True)
class Overlap:
    """The pairs of a held-out set, in order, that occur in a corpus as a pair, or with one long text."""

    pairs: list[dict[str, str]]
    one_sided: list[dict[str, str]]


def find_overlaps(corpus: Dataset, held_out_sets: Mapping[str, Dataset]) -> dict[str, Overlap]:
    """Compare the pairs, and the texts of each side, of held-out sets with a corpus, which is read once.

    All are in the format of `load_pairs`. Case and surrounding whitespace are ignored, and empty pairs do not count. A
    text of one side counts if it has MIN_WORDS words: shorter texts, such as greetings, occur in every corpus.
    """
    languages = list(corpus.features["translation"])
    held_out = {
        name: [(row, normalized(row, languages)) for row in rows["translation"]] for name, rows in held_out_sets.items()
    }
    pairs = {pair for rows in held_out.values() for _, pair in rows} - {("", "")}
    texts = [{text for text in side if len(text.split()) >= MIN_WORDS} for side in zip(*pairs, strict=True)]
    found: set[tuple[str, ...]] = set()
    found_texts: list[set[str]] = [set() for _ in texts]
    for batch in corpus.iter(BATCH_SIZE):
        for row in batch["translation"]:
            pair = normalized(row, languages)
            found |= {pair} & pairs
            for text, searched, found_in_side in zip(pair, texts, found_texts, strict=False):
                found_in_side |= {text} & searched
    overlaps = {}
    for name, rows in held_out.items():
        overlaps[name] = overlap = Overlap([], [])
        for row, pair in rows:
            if pair in found:
                overlap.pairs.append(row)
            elif any(text in of_side for text, of_side in zip(pair, found_texts, strict=False)):
                overlap.one_sided.append(row)
    return overlaps


def normalized(row: Mapping[str, str], languages: Sequence[str]) -> tuple[str, ...]:
    """The texts of a pair in lower case, without surrounding whitespace."""
    return tuple(row[language].strip().lower() for language in languages)


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
