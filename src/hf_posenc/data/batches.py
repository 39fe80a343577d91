"""Token-budget batches: pairs of like length, as many at a time as a number of tokens holds.

    pairs in a batch x the longest side of any of them <= tokens per batch

which counts padding and the special tokens; a side is a source or a target. A short sentence shares its batch with
many, a long one with few, so that all batches cost about the same and little of them is padding.
"""

from collections.abc import Iterator

import numpy as np
from torch.utils.data import Sampler


class TokenBudgetSampler(Sampler[list[int]]):
    """The batches of one rank, as lists of row numbers; set_epoch(n) gives epoch n its own order.

    Every pair is in exactly one batch of an epoch. Pairs of equal lengths change places and batches change theirs from
    epoch to epoch, by the seed alone; lengths, and so the number of batches, do not. All ranks get equally many
    batches: where the number does not divide, the batches with the most pairs are cut in two.

    `source_lengths` and `target_lengths` (N) count the tokens that a batch will hold, special ones included. Raises a
    ValueError if the longest pair does not fit, or if there are fewer pairs than ranks.
    """

    def __init__(
        self,
        source_lengths: np.ndarray,
        target_lengths: np.ndarray,
        tokens_per_batch: int,
        *,
        seed: int,
        rank: int = 0,
        num_ranks: int = 1,
    ) -> None:
        longest = int(max(source_lengths.max(), target_lengths.max()))
        if longest > tokens_per_batch:
            raise ValueError(
                f"A batch holds at least one pair, but the longest side has {longest} tokens, special ones included, "
                f"and train.tokens_per_batch={tokens_per_batch}; raise it to {longest}, or lower data.max_length."
            )
        if len(source_lengths) < num_ranks:
            raise ValueError(
                f"Each process needs a pair to train on, but there are {len(source_lengths)} pairs and {num_ranks} "
                "processes; use fewer processes, or more data."
            )
        self.source, self.target = source_lengths, target_lengths
        self.seed, self.rank, self.num_ranks = seed, rank, num_ranks
        self.epoch = 0
        self.ends = self.cut(tokens_per_batch)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.ends) // self.num_ranks

    def __iter__(self) -> Iterator[list[int]]:
        generator = np.random.default_rng((self.seed, self.epoch))
        batches = np.split(self.by_length(generator.random(len(self.source))), self.ends[:-1])
        for number in generator.permutation(len(batches))[self.rank :: self.num_ranks]:
            yield batches[number].tolist()

    def by_length(self, tie_breaker: np.ndarray) -> np.ndarray:
        """The rows by source length, and within one source length by target length, up and down in turns: where a
        batch goes over from one source length to the next, its targets are of like length too."""
        turn = np.where(self.source % 2 == 0, self.target, -self.target)
        return np.lexsort((tie_breaker, turn, self.source))

    def cut(self, tokens_per_batch: int) -> np.ndarray:
        """Where the batches end among the rows by length. Which of equally long rows is where makes no difference."""
        order = self.by_length(np.zeros(len(self.source)))
        longer = np.maximum(self.source[order], self.target[order])
        ends = [0]
        while ends[-1] < len(longer):
            window = np.maximum.accumulate(longer[ends[-1] : ends[-1] + tokens_per_batch])
            fits = window * np.arange(1, len(window) + 1) <= tokens_per_batch  # True, then False
            ends.append(ends[-1] + int(fits.sum()))
        while missing := -(len(ends) - 1) % self.num_ranks:
            sizes = np.diff(ends)
            fullest = np.argsort(-sizes, kind="stable")[:missing]
            halves = [ends[i] + sizes[i] // 2 for i in fullest if sizes[i] > 1]
            ends = sorted([*ends, *halves])
        return np.array(ends[1:])

    @property
    def padding(self) -> float:
        """The share of the tokens of an epoch's batches, over all ranks, that is padding."""
        order = self.by_length(np.zeros(len(self.source)))
        starts = np.concatenate(([0], self.ends[:-1]))
        sizes = np.diff(np.concatenate(([0], self.ends)))
        filled = sum((np.maximum.reduceat(side[order], starts) * sizes).sum() for side in (self.source, self.target))
        return 1 - (self.source.sum() + self.target.sum()) / filled
