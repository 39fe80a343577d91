"""Lengths of tokenized pairs: read, filter, sample, balance and batch by length.

A length counts subwords without special tokens, as in the whole package.

Batches have pairs of similar length, in an order that depends only on the seed and the epoch. There are two kinds, for
`train.tokens_per_batch` and for `train.per_device_train_batch_size`:

    pairs in a batch x the longest side of any of them <= tokens per batch,    or    pairs in a batch = batch size

A side is a source or a target, and its tokens include padding and special tokens. With a token budget, batches of short
sentences have many pairs, and those of long sentences few. Therefore all batches take a similar time.
"""

import logging
from bisect import bisect_right
from collections.abc import Iterator, Sequence

import numpy as np
from datasets import Dataset
from torch.utils.data import Sampler

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
            f"max_length={max_length}), but none of {len(encoded)} is, whose longest side has "
            f"{longer.max(initial=0)}; choose bounds that hold some of them"
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


BIN_WIDTHS = (1, 2, 3, 4, 5, 6, 8)  # candidates, in source lengths; with fewer pairs wider bins are better
MEGABATCH_SIZE = 50  # batches: of so many, sampled at random, the pairs are sorted by length


class DistributedBatchSampler(Sampler[list[int]]):
    """The batches of one rank, as lists of row numbers. `set_epoch(n)` selects the order of epoch n.

    Every pair that is not left out is in exactly one batch of an epoch. All ranks get equally many batches. If the
    number is not divisible, the batches with the most pairs are halved. If all batches have a single pair, fewer pairs
    than ranks are left out, others in each epoch.

    The order depends on the seed and the epoch alone, so that a resumed run gets the same batches. (transformers' own
    sampler by length uses torch's global generator, whose state at the start of an epoch is lost.)

    `batch_ends` (N) are the row numbers at which the batches end. Raises a ValueError if there are fewer pairs than
    ranks.
    """

    def __init__(self, batch_ends: np.ndarray, *, seed: int, rank: int = 0, num_ranks: int = 1) -> None:
        if batch_ends[-1] < num_ranks:
            raise ValueError(
                f"Each process needs a pair to train on, but there are {batch_ends[-1]} pairs and {num_ranks} "
                "processes; use fewer processes, or more data."
            )
        while num_missing := -len(batch_ends) % num_ranks:
            sizes = np.diff(batch_ends, prepend=0)
            if sizes.max() == 1:
                break
            largest = np.argsort(-sizes, kind="stable")[:num_missing]
            batch_ends = np.sort(
                np.append(batch_ends, [batch_ends[i] - sizes[i] // 2 for i in largest if sizes[i] > 1])
            )
        self.batch_ends = batch_ends
        self.seed, self.rank, self.num_ranks = seed, rank, num_ranks
        self.epoch = 0

    def epoch_order(self, generator: np.random.Generator) -> np.ndarray:
        """All row numbers in the order in which they are divided into batches."""
        raise NotImplementedError

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.batch_ends) // self.num_ranks

    def __iter__(self) -> Iterator[list[int]]:
        generator = np.random.default_rng((self.seed, self.epoch))
        batches = np.split(self.epoch_order(generator), self.batch_ends[:-1])
        assigned = generator.permutation(len(batches))[: len(self) * self.num_ranks]
        for number in assigned[self.rank :: self.num_ranks]:
            yield batches[number].tolist()


class LengthSortedSampler(DistributedBatchSampler):
    """Batches of `batch_size` pairs of similar length: random megabatches are sorted, so that epochs differ."""

    def __init__(self, lengths: np.ndarray, batch_size: int, **rank_args: int) -> None:
        self.lengths, self.batch_size = lengths, batch_size
        num_pairs = len(lengths)
        super().__init__(np.append(np.arange(batch_size, num_pairs, batch_size), num_pairs), **rank_args)

    def epoch_order(self, generator: np.random.Generator) -> np.ndarray:
        order = generator.permutation(len(self.lengths))
        megabatch = np.arange(len(order)) // (MEGABATCH_SIZE * self.batch_size)
        return order[np.lexsort((self.lengths[order], megabatch))]


class MaxTokensSampler(DistributedBatchSampler):
    """Batches of at most `tokens_per_batch` tokens a side, with as little padding as sorting by length gives.

    Pairs of equal lengths are shuffled in each epoch. The lengths, and therefore the number of batches, stay the same.
    `source_lengths` and `target_lengths` (N) include special tokens. Raises a ValueError if the longest pair does not
    fit.
    """

    def __init__(
        self, source_lengths: np.ndarray, target_lengths: np.ndarray, tokens_per_batch: int, **rank_args: int
    ) -> None:
        self.source_lengths, self.target_lengths = source_lengths, target_lengths
        longest = int(max(source_lengths.max(), target_lengths.max()))
        if longest > tokens_per_batch:
            raise ValueError(
                f"A batch holds at least one pair, but the longest side has {longest} tokens, special ones included, "
                f"and train.tokens_per_batch={tokens_per_batch}; raise it to {longest}, or lower data.max_length."
            )
        _, self.bin_width, batch_ends = min(
            (self.batch_boundaries(bin_width, tokens_per_batch) for bin_width in BIN_WIDTHS),
            key=lambda candidate: candidate[0],
        )
        super().__init__(batch_ends, **rank_args)

    def epoch_order(self, generator: np.random.Generator) -> np.ndarray:
        return self.sort_by_length(self.bin_width, generator.random(len(self.source_lengths)))

    def sort_by_length(self, bin_width: int, tie_breaker: np.ndarray | float = 0.0) -> np.ndarray:
        """The rows sorted by source length in bins of `bin_width`, and by target length within a bin. The order of
        target lengths alternates, so that a batch across two bins has similar targets."""
        bin_index = self.source_lengths // bin_width
        alternating_target = np.where(bin_index % 2 == 0, self.target_lengths, -self.target_lengths)
        return np.lexsort(
            (np.broadcast_to(tie_breaker, alternating_target.shape), self.source_lengths, alternating_target, bin_index)
        )

    def batch_boundaries(self, bin_width: int, tokens_per_batch: int) -> tuple[int, int, np.ndarray]:
        """The number of tokens in all batches, padding included, the bin width, and the ends of the batches. The order
        of rows of equal length makes no difference."""
        order = self.sort_by_length(bin_width)
        source, target = self.source_lengths[order], self.target_lengths[order]
        longer = np.maximum(source, target)
        batch_ends = [0]
        while batch_ends[-1] < len(longer):
            longest = np.maximum.accumulate(longer[batch_ends[-1] : batch_ends[-1] + tokens_per_batch])
            fits = longest * np.arange(1, len(longest) + 1) <= tokens_per_batch  # monotonic: True, then False
            batch_ends.append(batch_ends[-1] + int(fits.sum()))
        starts = batch_ends[:-1]
        num_tokens = (np.maximum.reduceat(source, starts) + np.maximum.reduceat(target, starts)) @ np.diff(batch_ends)
        return int(num_tokens), bin_width, np.array(batch_ends[1:])
