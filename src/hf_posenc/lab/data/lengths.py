"""Lengths of tokenized pairs: read, filter, sample and balance by length.

A length counts subwords without special tokens, as in the whole package.
"""

import logging
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from datasets import Dataset

logger = logging.getLogger(__name__)


def lengths(encoded: Dataset, side: str) -> np.ndarray:
    """The lengths (N) of all sources or targets, in subwords without special tokens."""
    # `data` is the Arrow table, and the private `_indices` are the rows of a selection, None without one. The public
    # way reads a selection row by row.
    column = encoded.data.column(f"{side}_length").to_numpy()
    return column if encoded._indices is None else column[encoded._indices.column(0).to_numpy()]


def filter_lengths(encoded: Dataset, *, min_length: int | None, max_length: int | None) -> Dataset:
    """The training pairs: both sides are non-empty and have `min_length` to `max_length` subwords.

    The number of dropped pairs is logged, with a warning for empty ones. A ValueError if no pair is left. Test sets are
    not filtered: pairs with an empty side are scored like others.
    """
    source, target = lengths(encoded, "source"), lengths(encoded, "target")
    shorter, longer = np.minimum(source, target), np.maximum(source, target)
    minimum, maximum = max(min_length or 0, 1), np.inf if max_length is None else max_length
    kept = (shorter >= minimum) & (longer <= maximum)
    if not kept.any():
        raise ValueError(
            f"training needs pairs with both sides of {minimum} to {maximum} subwords (min_length={min_length}, "
            f"max_length={max_length}), but none of {len(encoded)} is. Pairs by the length of their longer side:\n"
            f"{_histogram(longer)}\nchoose bounds that hold some of them"
        )
    if num_empty := int((shorter == 0).sum()):
        logger.warning("dropped %d of %d pairs: one side is empty", num_empty, len(encoded))
    logger.info("kept %d of %d pairs, of %s to %s subwords a side", kept.sum(), len(encoded), minimum, maximum)
    return encoded.select(np.flatnonzero(kept))


def stratified_sample(pairs: Dataset, edges: Sequence[int], max_per_bucket: int) -> Dataset:
    """At most `max_per_bucket` pairs of each length bucket, sampled without replacement with a fixed seed, in order."""
    buckets = np.searchsorted(edges, pairs["source_length"])
    rng = np.random.default_rng(0)
    rows = [rng.permutation(np.flatnonzero(buckets == bucket))[:max_per_bucket] for bucket in range(len(edges) + 1)]
    return pairs.select(np.sort(np.concatenate(rows)))


def balance_lengths(encoded: Dataset, max_copies: int) -> Dataset:
    """Resample to as many pairs, with source lengths as uniform as at most `max_copies` of a pair allow.

    Every length gets the same number of pairs, or `max_copies` of each of its pairs if that is fewer. A remainder goes,
    one pair each, to the lengths with the most pairs. Within a length all pairs have equally many copies, and a sample
    with a fixed seed has one more. The pairs stay in order, copies next to each other.
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
    """Integers that sum to `total`, at most `max_L`, as equal as possible."""
    level = bisect_right(range(total + 1), total, key=lambda level: np.minimum(max_L, level).sum()) - 1
    target_L = np.minimum(max_L, level)
    unfilled_L = np.flatnonzero(max_L > level)
    target_L[unfilled_L[np.argsort(-pairs_L[unfilled_L], kind="stable")][: total - target_L.sum()]] += 1
    return target_L


def _histogram(lengths: np.ndarray) -> str:
    """A histogram of lengths, one line a bucket of doubling width: bounds, count, bar."""
    lines, low, high = [], 0, 10
    while low <= max(lengths, default=-1):
        count = int(((lengths >= low) & (lengths <= high)).sum())
        lines.append(f"{low:>6} to {high:>6} {count:>9} {'#' * round(40 * count / len(lengths))}".rstrip())
        low, high = high + 1, 2 * high
    return "\n".join(lines)
