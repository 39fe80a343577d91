# SPDX-License-Identifier: Apache-2.0
"""Window pruning: a cached step attends to the keys inside the window; its time does not grow with the length."""

import torch
from torch import Tensor

from ...encodings.positions import AttentionContext

# With fewer cached keys, attention over all of them is as fast. The stack takes this as `min_keys_to_prune`.
MIN_KEYS = 256


def prune_to_window(ctx: AttentionContext, window: int | None, min_keys: int = MIN_KEYS) -> AttentionContext:
    """The context without the hidden keys before the first and after the last key in the window.

    All keys that are `window` tokens away or more have zero weight. Returns `ctx` itself without a cache, with fewer
    than `min_keys` keys, if every key's weight is needed, and if pruning would keep more than half of the keys.
    """
    num_keys = ctx.key_pos_BS.shape[1]
    if window is None or ctx.state is None or ctx.need_weights or torch.compiler.is_compiling() or num_keys < min_keys:
        return ctx
    if not ctx.is_cross and not isinstance(ctx.state.length, int):  # a static cache has room for keys to come
        return ctx
    in_window_BS = (ctx.distance_BQS.abs() < window).any(1)
    if isinstance(ctx.mask, Tensor) and ctx.mask.ndim == 2:
        in_window_BS = in_window_BS & (ctx.mask[:, -num_keys:] != 0)
    attended_keys = keys_in_window(in_window_BS, max_width=4 * window)
    if attended_keys is None:
        return ctx
    pruned_ctx = ctx.replace(attended_keys=attended_keys)
    return pruned_ctx.replace(key_pos_BS=pruned_ctx.gather_keys(ctx.key_pos_BS, 1))


def keys_in_window(in_window_BS: Tensor, max_width: int) -> slice | Tensor | None:
    """The keys from each sentence's first to its last one in the window; None if these are more than half of all keys.

    A slice, which copies nothing, if the windows of all sentences lie within `max_width` keys, as those of the beams of
    one sentence do. Else indices (B, N), where all sentences take as many keys as the one that needs most.
    """
    num_keys = in_window_BS.shape[1]
    if len(in_window_BS) > 1 and not bool(in_window_BS.any(1).all()):
        return None  # a sentence without a key in the window attends to all keys
    columns = in_window_BS.any(0).nonzero()[:, 0]
    if len(columns) == 0:
        return None
    start, end = int(columns[0]), int(columns[-1]) + 1
    if end - start <= min(max_width, num_keys // 2):
        return slice(start, end)
    start_B, end_B = in_window_BS.long().argmax(1), num_keys - in_window_BS.flip(1).long().argmax(1)
    width = int((end_B - start_B).max())
    if 2 * width > num_keys:
        return None
    return start_B.clamp(max=num_keys - width)[:, None] + torch.arange(width, device=start_B.device)
