# SPDX-License-Identifier: Apache-2.0
"""Window pruning: a cached step gathers the keys inside the window; its time does not grow with the length."""

import torch
from torch import Tensor

from .attention_context import AttentionContext

# With fewer cached keys, attention over all of them is as fast. The stack takes this as `min_keys_to_prune`.
MIN_KEYS = 256


def prune_to_window(ctx: AttentionContext, window: int | None, min_keys: int = MIN_KEYS) -> AttentionContext:
    """The context without the hidden keys before the first and after the last key in the window.

    All keys that are `window` tokens away or more have zero weight. Returns `ctx` itself without a cache, with fewer
    than `min_keys` keys, if every key's weight is needed, and if pruning would keep more than half of the keys.
    """
    num_keys = ctx.key_pos_BS.shape[1]
    if window is None or ctx.state is None or ctx.need_weights or num_keys < min_keys or torch.compiler.is_compiling():
        return ctx
    if not isinstance(ctx.state.length, int):  # a static cache: its number of keys is its capacity
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
