# SPDX-License-Identifier: Apache-2.0
"""Options of `generate` that end a translation by its source position: where it may end, and where it must.

`eos_requires_source_end`. A decoder with local cross-attention sees a part of the source. It can take a sentence's end
for the end of the source, and terminate early. The option is in the generation config of each new model with an
alignment and such a window; a saved model keeps what was saved with it. With this option a step at source position g
may write an end token only if the source's last token is less than `window` away, and so is a key that the step can
attend to:

    last - g < window

A forced end, of a length limit, stays as it is.

`max_tokens_per_source_position`. A limit of 2 x source + 50 tokens for the whole allows the translation of a long
document to repeat itself thousands of times. With this option at most so many tokens in a row are written at one
source position, which is that of the nearest source token. Then the translation ends, and is truncated.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LogitsProcessor

from .length_limits import forbid_tokens, force_token
from .options import POSITION_LIMIT_OPTION

# Steps that are kept for assisted decoding, which rejects some of the newest.
NUM_KEPT_STEPS = 64


class SourcePositionReader(LogitsProcessor):
    """Base class of the processors that read the source position of each decoding step.

    `generate` passes the readers of a call to each forward of this call. Therefore calls that share a model never read
    each other's positions.
    """

    def __init__(self) -> None:
        # Of the newest forward: the target tokens before it, the source's last position, and the new tokens' positions.
        self.steps: list[tuple[int | Tensor, Tensor, Tensor]] = []

    def read(self, num_cached: int | Tensor, positions_NT: Tensor, last_N1: Tensor) -> None:
        """Take the source positions of a forward's new tokens, before which there are `num_cached` others, and the
        positions of the sources' last tokens."""
        self.steps.append((num_cached, last_N1, positions_NT))

    def take_steps(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """The steps since the last call: the target tokens before each, the source's last position (N, 1), and the
        step's (N, 1), in float64 as streaming has them.

        A forward may compute several tokens, of which assisted decoding asks for each.
        """
        steps, self.steps = self.steps, []
        for num_cached, last_N1, positions_NT in steps:
            for token, position_N1 in enumerate(positions_NT.cpu().double().split(1, dim=1)):
                yield int(num_cached) + token, last_N1.cpu(), position_N1


class SourcePositionReaders(tuple[SourcePositionReader, ...]):
    """The readers of a call of `generate`, as an argument of `forward`."""

    def __deepcopy__(self, memo: dict[int, object]) -> None:
        """None: assisted decoding copies a call's arguments for its draft model, which has other source positions."""


def last_source_positions(mask: Tensor | None, position_ids: Tensor | None, encoder_states_BSD: Tensor) -> Tensor:
    """The position of each source's last token (B or 1, 1), from the mask (B, S) and the given position ids (B, S)."""
    if position_ids is None:
        if mask is None:
            return torch.tensor([[encoder_states_BSD.shape[1] - 1]])
        return (mask != 0).sum(1, keepdim=True) - 1
    return (position_ids if mask is None else position_ids.masked_fill(mask == 0, 0)).amax(1, keepdim=True)


class SourceEndProcessor(SourcePositionReader):
    """Forbids the end tokens in rows of scores whose source positions are `window` tokens or more before the end."""

    def __init__(self, end_token_ids: Sequence[int], window: int) -> None:
        super().__init__()
        self.end_token_ids, self.window = list(end_token_ids), window
        self.sees_end: dict[int, Tensor] = {}

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self.steps:
            steps = self.take_steps()
            self.sees_end = {number: last_N1 - position_N1 < self.window for number, last_N1, position_N1 in steps}
        sees_end_N1 = self.sees_end.get(input_ids.shape[1] - 1)
        if (
            sees_end_N1 is None
        ):  # scores of a draft model, to which assisted decoding passes the processors of the other
            return scores
        return forbid_tokens(scores, ~sees_end_N1, self.end_token_ids)


@dataclass(frozen=True)
class SourceVisit:
    """The source token that is nearest to each row's source position, and the number of steps in a row near it (N)."""

    token_N: Tensor
    num_steps_N: Tensor

    @classmethod
    def after(cls, previous: "SourceVisit | None", position_N1: Tensor, last_N1: Tensor) -> "SourceVisit":
        """The visit after one more step at these source positions, in a source with this last position (N or 1, 1)."""
        token_N = torch.minimum((position_N1 + 0.5).floor(), last_N1.to(position_N1.dtype))[:, 0]
        if previous is None:
            return cls(token_N, torch.ones_like(token_N, dtype=torch.long))
        return cls(token_N, torch.where(token_N == previous.token_N, previous.num_steps_N, 0) + 1)

    def select(self, rows: Tensor) -> "SourceVisit":
        """The visits of these rows."""
        return SourceVisit(self.token_N[rows], self.num_steps_N[rows])


class SourcePositionLimit(SourcePositionReader):
    """Forces the end token in rows that have written `max_tokens` tokens at one source position.

    Each of `num_sentences` has the same number of rows. `has_ended` says which translations ended thereby.
    """

    def __init__(self, end_token_ids: Sequence[int], max_tokens: int, num_sentences: int) -> None:
        super().__init__()
        self.end_token_ids, self.max_tokens, self.num_sentences = torch.tensor(end_token_ids), max_tokens, num_sentences
        self.visits: dict[int, SourceVisit] = {}  # by the number of target tokens before the step
        self.previous_ids_NT: Tensor | None = None
        self.ended: set[tuple[int, ...]] = set()

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        ids_NT = input_ids.cpu()
        if self.steps:
            self.count_steps(ids_NT)
        visit = self.visits.get(ids_NT.shape[1] - 1)
        if visit is None:  # scores of a draft model
            return scores
        must_end_N = visit.num_steps_N > self.max_tokens
        if not must_end_N.any():
            return scores
        has_ended_N = torch.isin(ids_NT[:, 1:], self.end_token_ids).any(1)  # behind its end, a row goes on with padding
        for row in (must_end_N & ~has_ended_N).nonzero()[:, 0].tolist():
            self.ended.add((row // self.rows_per_sentence(ids_NT), *ids_NT[row].tolist()))
        return force_token(scores, must_end_N.to(scores.device), int(self.end_token_ids[0]))

    def count_steps(self, ids_NT: Tensor) -> None:
        """Take the steps since the last call, which had other rows before them in beam search."""
        for index, (number, last_N1, position_N1) in enumerate(self.take_steps()):
            previous = self.visits.get(number - 1)
            if index == 0 and previous is not None:
                previous = previous.select(self.parents(ids_NT[:, :number]))
            self.visits[number] = SourceVisit.after(previous, position_N1, last_N1)
        self.visits = dict(list(self.visits.items())[-NUM_KEPT_STEPS:])
        self.previous_ids_NT = ids_NT

    def rows_per_sentence(self, ids_NT: Tensor) -> int:
        return len(ids_NT) // self.num_sentences

    def parents(self, ids_NT: Tensor) -> Tensor:
        """For each row, one of the last call with these tokens (N). Equal tokens have equal positions."""
        num_rows = self.rows_per_sentence(ids_NT)
        if num_rows == 1 or self.previous_ids_NT is None:
            return torch.arange(len(ids_NT))
        now, before = (ids.unflatten(0, (-1, num_rows)) for ids in (ids_NT, self.previous_ids_NT[:, : ids_NT.shape[1]]))
        is_parent_BNN = (now[:, :, None] == before[:, None]).all(-1)
        return (is_parent_BNN.int().argmax(-1) + torch.arange(0, len(ids_NT), num_rows)[:, None]).flatten()

    def has_ended(self, sentence: int, ids: Sequence[int]) -> bool:
        """Whether the translation of a sentence, with its start token and end token, ended at this limit."""
        return (sentence, *ids[:-1]) in self.ended


def validate_position_limit(max_tokens: object) -> int:
    """The limit; a ValueError unless it is a whole number from 1 on."""
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
        raise ValueError(
            f"{POSITION_LIMIT_OPTION} must be a whole number from 1 on, or None for no limit, but it is "
            f"{max_tokens!r}; 50 is far above what a translation needs."
        )
    return max_tokens
