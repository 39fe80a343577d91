"""Pairs drawn so that long sources are as frequent as short ones, as far as copies of the rare ones are allowed."""

import logging
from bisect import bisect_right

import numpy as np
from datasets import Dataset

from . import lengths

logger = logging.getLogger(__name__)


def balance_lengths(encoded: Dataset, max_copies: int) -> Dataset:
    """As many pairs as there were, their source lengths as equally frequent as `max_copies` of a pair allow.

    Every length has the same share of the pairs, or, where that is more than `max_copies` of each of its pairs, so
    many of each. What does not divide goes, a pair each, to the lengths that have the most pairs. The pairs of one
    length are taken equally often, some of them once more, which are drawn once, always the same. The pairs stay in
    their order, copies side by side.
    """
    lengths_N = lengths(encoded, "source")
    _, length_index_N, pairs_L = np.unique(lengths_N, return_inverse=True, return_counts=True)
    target_L = water_fill(max_copies * pairs_L, len(encoded), pairs_L)
    copies_N = (target_L // pairs_L)[length_index_N]
    rng = np.random.default_rng(0)
    for length, remainder in enumerate(target_L % pairs_L):
        copies_N[rng.permutation(np.flatnonzero(length_index_N == length))[:remainder]] += 1
    logger.info("drew %d of %d pairs, up to %d times", (copies_N > 0).sum(), len(encoded), copies_N.max())
    return encoded.select(np.repeat(np.arange(len(encoded)), copies_N))


def water_fill(max_L: np.ndarray, total: int, pairs_L: np.ndarray) -> np.ndarray:
    """Whole numbers that sum to `total`, at most `max_L`, as equal as that allows."""
    level = bisect_right(range(total + 1), total, key=lambda level: np.minimum(max_L, level).sum()) - 1
    target_L = np.minimum(max_L, level)
    unfilled_L = np.flatnonzero(max_L > level)
    target_L[unfilled_L[np.argsort(-pairs_L[unfilled_L], kind="stable")][: total - target_L.sum()]] += 1
    return target_L
