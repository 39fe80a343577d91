# SPDX-License-Identifier: Apache-2.0
"""Window pruning: cached decoding under a window attends to the keys in it, so a step costs the same at any length."""

import torch
from torch import Tensor

from .attention_context import AttentionContext

# With fewer cached keys, attention over all of them is as fast. The stack takes this as `min_keys_to_prune`.
MIN_KEYS = 256


def prune_to_window(ctx: AttentionContext, window: int | None, min_keys: int = MIN_KEYS) -> AttentionContext:
    """The context with the keys that a new token may see, and those between them.

    All keys that are `window` tokens away or more are hidden, so the others have zero weight. Returns `ctx` itself
    where nothing is cached, where there are fewer than `min_keys` keys, where every key's weight is needed, and where
    pruning would keep more than half of the keys.
    """
    num_keys = ctx.key_pos_BS.shape[1]
    if window is None or ctx.state is None or ctx.need_weights or num_keys < min_keys or torch.compiler.is_compiling():
        return ctx
    if not isinstance(ctx.state.length, int):  # a static cache, whose number of keys is its capacity
        return ctx
    in_window_BS = (ctx.distance_BQS.abs() < window).any(1)
    if isinstance(ctx.mask, Tensor) and ctx.mask.ndim == 2:
        in_window_BS = in_window_BS & (ctx.mask[:, -num_keys:] != 0)
    # Each sentence has its own first and last key; all take as many keys as the one that needs most.
    start_B, end_B = in_window_BS.long().argmax(1), num_keys - in_window_BS.flip(1).long().argmax(1)
    width = int((end_B - start_B).max())
    if 2 * width > num_keys:
        return ctx
    key_indices_BN = start_B.clamp(max=num_keys - width)[:, None] + torch.arange(width, device=start_B.device)
    return ctx.replace(
        key_pos_BS=ctx.key_pos_BS.expand(key_indices_BN.shape[0], -1).gather(1, key_indices_BN),
        key_indices_BN=key_indices_BN,
    )
