# SPDX-License-Identifier: Apache-2.0
"""The end token only where the source's end is in sight: the option `eos_requires_source_end` of `generate`.

A decoder with local cross-attention sees a part of the source. It can take a sentence's end for the end of the source,
and terminate early. With this option a step at source position g may write an end token only if the source's last token
is less than `window` away, and so is a key that the step can attend to:

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
        self.sees_end_N1: Tensor | None = None

    def read_positions(self, alignment: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        """Forward hook of the alignment: takes the source positions of the step that is being computed."""
        hook, *_, ctx = arguments
        if hook == "source_positions":  # in double precision, as streaming compares them
            last_N1 = source_bounds(ctx)[1].cpu()
            self.sees_end_N1 = last_N1 - output[:, -1:].cpu().double() < self.window

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        assert self.sees_end_N1 is not None  # a forward comes before its scores
        allowed = scores.clone()
        allowed[:, self.end_token_ids] = float("-inf")
        # Where nothing but an end token is left, it was forced.
        is_forced_N1 = (allowed == float("-inf")).all(1, keepdim=True)
        return torch.where(self.sees_end_N1.to(scores.device) | is_forced_N1, scores, allowed)


@contextmanager
def end_only_at_source_end(
    alignment: Alignment, end_token_ids: Sequence[int], window: int | None, name: str
) -> Iterator[SourceEndProcessor]:
    """A processor that takes the alignment's source positions while this context is entered."""
    if type(alignment) is Alignment or window is None:
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
