# SPDX-License-Identifier: Apache-2.0
"""What a window leaves of the keys in a cache, so that a step of decoding costs the same however long the text is."""

import torch
from torch import Tensor

from .attention_context import AttentionContext

# Of fewer cached keys than these, all are attended to as fast as some.
MIN_KEYS = 256


def prune_to_window(ctx: AttentionContext, window: int | None) -> AttentionContext:
    """The place with the keys that a new token may see, and those between them, where all that are `window` tokens away
    or more are hidden; the place as it is where nothing is cached, or all keys are wanted."""
    num_keys = ctx.key_pos_BS.shape[1]
    if window is None or ctx.state is None or ctx.need_weights or num_keys < MIN_KEYS or torch.compiler.is_compiling():
        return ctx
    if not isinstance(ctx.state.length, int):  # a cache that keeps its size
        return ctx
    in_window_BS = (ctx.distance_BQS.abs() < window).any(1)
    if isinstance(ctx.mask, Tensor) and ctx.mask.ndim == 2:
        in_window_BS = in_window_BS & (ctx.mask[:, -num_keys:] != 0)
    start_B, end_B = in_window_BS.long().argmax(1), num_keys - in_window_BS.flip(1).long().argmax(1)
    width = int((end_B - start_B).max())
    if 2 * width > num_keys:
        return ctx
    key_indices_BN = start_B.clamp(max=num_keys - width)[:, None] + torch.arange(width, device=start_B.device)
    return ctx.replace(
        key_pos_BS=ctx.key_pos_BS.expand(key_indices_BN.shape[0], -1).gather(1, key_indices_BN),
        key_indices_BN=key_indices_BN,
    )
