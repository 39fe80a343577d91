# SPDX-License-Identifier: Apache-2.0
"""The end token only where the source's end is in sight: the option `eos_requires_source_end` of `generate`.

A decoder with local cross-attention sees a part of the source. It can take a sentence's end for the end of the source,
and terminate early. The option is in the generation config of each new model with an alignment and such a window; a
saved model keeps what was saved with it. With this option a step at source position g may write an end token only if
the source's last token is less than `window` away, and so is a key that the step can attend to:

    last - g < window

A forced end, of a length limit, stays as it is.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LogitsProcessor

from .alignment_base import Alignment, source_bounds


class SourceEndProcessor(LogitsProcessor):
    """Forbids the end tokens in rows of scores whose source positions are `window` tokens or more before the end."""

    def __init__(self, end_token_ids: Sequence[int], window: int) -> None:
        self.end_token_ids, self.window = list(end_token_ids), window
        # Of the newest forward: the target tokens before it, the source's last position, and the new tokens' positions.
        self.steps: list[tuple[int | Tensor, Tensor, Tensor]] = []
        self.sees_end: dict[int, Tensor] = {}

    def read_positions(self, alignment: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        """Forward hook of the alignment: takes the source positions of the step that is being computed."""
        hook, *_, ctx = arguments
        if hook == "source_positions":
            self.steps.append((ctx.num_cached, source_bounds(ctx)[1], output))

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self.steps:  # a forward may compute several tokens, of which assisted decoding asks for each
            self.sees_end = {
                int(num_cached) + token: last_N1.cpu() - position_N1.cpu().double()
                < self.window  # as streaming compares
                for num_cached, last_N1, positions_NT in self.steps
                for token, position_N1 in enumerate(positions_NT.split(1, dim=1))
            }
            self.steps = []
        sees_end_N1 = self.sees_end.get(input_ids.shape[1] - 1)
        if (
            sees_end_N1 is None
        ):  # scores of a draft model, to which assisted decoding passes the processors of the other
            return scores
        allowed = scores.clone()
        allowed[:, self.end_token_ids] = float("-inf")
        # Where nothing but an end token is left, it was forced.
        is_forced_N1 = (allowed == float("-inf")).all(1, keepdim=True)
        return torch.where(sees_end_N1.to(scores.device) | is_forced_N1, scores, allowed)


def has_source_end(alignment: Alignment, window: int | None) -> bool:
    """Whether a decoding step has a source position, and a window around it."""
    return type(alignment) is not Alignment and window is not None


@contextmanager
def end_only_at_source_end(
    alignment: Alignment, end_token_ids: Sequence[int], window: int | None, name: str
) -> Iterator[SourceEndProcessor]:
    """A processor that takes the alignment's source positions while this context is entered."""
    if window is None or not has_source_end(alignment, window):
        window_in_words = "no window" if window is None else "a window"
        raise ValueError(
            "eos_requires_source_end must be used with an alignment and a window in the cross-attention, but this "
            f"model has alignment_type={name!r} and {window_in_words} there; leave it out."
        )
    processor = SourceEndProcessor(end_token_ids, window)
    handle = alignment.register_forward_hook(processor.read_positions)
    try:
        yield processor
    finally:
        handle.remove()
