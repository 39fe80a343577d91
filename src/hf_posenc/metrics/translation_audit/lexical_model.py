"""A lexical translation model that is trained on the audited documents themselves.

It is IBM Model 1, t(target word | source word), by expectation maximization. A diagonal prior on the
relative word positions replaces its uniform alignments, as in fast_align.

- Peter F. Brown, Stephen A. Della Pietra, Vincent J. Della Pietra, Robert L. Mercer. The Mathematics of Statistical
  Machine Translation: Parameter Estimation. Computational Linguistics 19(2), 1993. https://aclanthology.org/J93-2003
- Chris Dyer, Victor Chahuneau, Noah A. Smith. A Simple, Fast, and Effective Reparameterization of IBM Model 2. NAACL
  2013. https://aclanthology.org/N13-1073

Departures: the tension of the prior is fixed, words are cut to PREFIX_LENGTH letters, and the counts of a fold of
documents are left out of the table for that fold. A word pair is therefore evidence only if other documents have it:
otherwise a hallucinated text would explain itself.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

NULL_WORD = 0  # source word of target words without a counterpart
TENSION, NULL_PROBABILITY = 4.0, 0.08  # of the alignment prior; those of fast_align
NUM_ITERATIONS = 5
NUM_FOLDS = 8
MIN_PROBABILITY, MIN_COUNT = 1e-3, 0.05  # smaller entries are left out of the tables
MAX_TEXT_PAIRS = 250_000  # word pairs of one text, 500 times 500; longer texts teach little
MAX_WORD_PAIRS = 30_000_000  # that are kept in memory in training, about 1 GB


class Vocabulary(dict[str, int]):
    """Token ids from 1 on, of both languages: a name or number has one id in both."""

    def ids(self, keys: Iterable[str]) -> np.ndarray:
        return np.array([self.setdefault(key, len(self) + 1) for key in keys], dtype=np.int64)

    @property
    def size(self) -> int:
        return len(self) + 1


class TranslationTable(NamedTuple):
    """t(target | source): the entries of source word f are `targets[starts[f] : starts[f + 1]]`, and so for values."""

    starts: np.ndarray
    targets: np.ndarray
    values: np.ndarray


class WordPairs(NamedTuple):
    """All pairs of a source and a target word of parallel texts, as flat arrays, target word by target word."""

    sources: np.ndarray
    targets: np.ndarray
    tokens: np.ndarray  # number of the target token
    priors: np.ndarray
    folds: np.ndarray


def word_pairs(texts: Sequence[tuple[np.ndarray, np.ndarray]], folds: Sequence[int]) -> WordPairs:
    """The word pairs of the texts (source ids, target ids), with NULL_WORD before each source.

    Texts beyond MAX_WORD_PAIRS are left out.
    """
    columns: list[tuple[np.ndarray, ...]] = []
    num_tokens = num_pairs = 0
    for (source, target), fold in zip(texts, folds, strict=True):
        rows, width = len(target), len(source) + 1
        num_pairs += rows * width
        if num_pairs > MAX_WORD_PAIRS:
            break
        offsets = (np.arange(rows)[:, None] + 0.5) / rows - (np.arange(width - 1)[None] + 0.5) / max(width - 1, 1)
        diagonal = np.exp(-TENSION * np.abs(offsets))
        diagonal *= (1 - NULL_PROBABILITY) / np.maximum(diagonal.sum(1, keepdims=True), 1e-9)
        priors = np.concatenate([np.full((rows, 1), NULL_PROBABILITY), diagonal], axis=1)
        columns.append(
            (
                np.tile(np.concatenate([[NULL_WORD], source]), rows),
                np.repeat(target, width),
                np.repeat(np.arange(num_tokens, num_tokens + rows), width),
                priors.ravel().astype(np.float32),
                np.full(rows * width, fold, dtype=np.int8),
            )
        )
        num_tokens += rows
    return WordPairs(*(np.concatenate(column) for column in zip(*columns, strict=True)))


def train_tables(
    texts: Sequence[tuple[np.ndarray, np.ndarray]], folds: Sequence[int], vocabulary_size: int
) -> list[TranslationTable | None]:
    """A table for each of NUM_FOLDS folds, without the counts of the texts in that fold; None without any text.

    A text of fold -1 counts for all folds.
    """
    sizes = [len(source) * len(target) for source, target in texts]
    nonempty = [index for index, size in enumerate(sizes) if 0 < size <= MAX_TEXT_PAIRS]
    if not nonempty:
        return [None] * NUM_FOLDS
    pairs = word_pairs([texts[index] for index in nonempty], [folds[index] for index in nonempty])
    types, index = np.unique(pairs.sources * vocabulary_size + pairs.targets, return_inverse=True)
    sources, targets = types // vocabulary_size, types % vocabulary_size
    probabilities = np.ones(len(types), dtype=np.float32)
    for _ in range(NUM_ITERATIONS):
        posteriors = probabilities[index] * pairs.priors
        posteriors /= np.bincount(pairs.tokens, posteriors)[pairs.tokens].astype(np.float32)
        counts = np.bincount(index, posteriors, minlength=len(types))
        totals = np.bincount(sources, counts, minlength=vocabulary_size)
        probabilities = (counts / totals[sources]).astype(np.float32)
    tables: list[TranslationTable | None] = []
    for fold in range(NUM_FOLDS):
        inside = pairs.folds == fold
        kept_counts = counts - np.bincount(index[inside], posteriors[inside], minlength=len(types))
        totals = np.bincount(sources, np.maximum(kept_counts, 0), minlength=vocabulary_size)
        values = kept_counts / (totals[sources] + 1)  # one count for words that the other folds lack
        keep = (values > MIN_PROBABILITY) & (kept_counts > MIN_COUNT) & (sources != NULL_WORD)
        starts = np.searchsorted(sources[keep], np.arange(vocabulary_size + 1))
        tables.append(TranslationTable(starts, targets[keep], values[keep].astype(np.float32)))
    return tables
