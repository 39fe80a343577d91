"""Pairs drawn so that long sources are as frequent as short ones, as far as copies of the rare ones are allowed."""

import logging
from bisect import bisect_right

import numpy as np
from datasets import Dataset

from . import lengths

logger = logging.getLogger(__name__)


def flatten_lengths(encoded: Dataset, most_copies: int) -> Dataset:
    """As many pairs as there were, their source lengths as equally frequent as `most_copies` of a pair allow.

    Every length has the same share of the pairs, or, where that is more than `most_copies` of each of its pairs, so
    many of each. What does not divide goes, a pair each, to the lengths that have the most pairs. The pairs of one
    length are taken equally often, some of them once more, which are drawn once, always the same. The pairs stay in
    their order, copies side by side.
    """
    lengths_N = lengths(encoded, "source")
    _, length_of_N, pairs_L = np.unique(lengths_N, return_inverse=True, return_counts=True)
    wanted_L = equal_shares(most_copies * pairs_L, len(encoded), pairs_L)
    copies_N = (wanted_L // pairs_L)[length_of_N]
    chance = np.random.default_rng(0)
    for length, rest in enumerate(wanted_L % pairs_L):
        copies_N[chance.permutation(np.flatnonzero(length_of_N == length))[:rest]] += 1
    logger.info("drew %d of %d pairs, up to %d times", (copies_N > 0).sum(), len(encoded), copies_N.max())
    return encoded.select(np.repeat(np.arange(len(encoded)), copies_N))


def equal_shares(most_L: np.ndarray, total: int, pairs_L: np.ndarray) -> np.ndarray:
    """Whole numbers that sum to `total`, at most `most_L`, as equal as that allows."""
    share = bisect_right(range(total + 1), total, key=lambda share: np.minimum(most_L, share).sum()) - 1
    wanted_L = np.minimum(most_L, share)
    open_L = np.flatnonzero(most_L > share)
    wanted_L[open_L[np.argsort(-pairs_L[open_L], kind="stable")][: total - wanted_L.sum()]] += 1
    return wanted_L
