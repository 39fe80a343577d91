# SPDX-License-Identifier: Apache-2.0
"""Attention in a window: no key is computed that the window hides.

Window blocks are cross-attention over a whole target, in linear time and memory.

Tokens that follow each other have neighbouring source positions. A block of C of them attends to the keys from the
first to the last one in the window of any of them: W keys, whatever the source's length. Blocks are sentences of the
batch. Attention and the hooks see M = B N sentences of C queries and W keys, at their positions; nothing else changes,
and every back end, dropout and device works as before. Shape letters are those of encodings/base.py.

Window pruning is the same for the one query of a cached step, whose time then does not grow with the length.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...encodings.positions import AttentionContext, has_contiguous_positions
from ...encodings.sum import PositionEncodingSum

# From queries, keys and values, unrotated queries, mask and contexts of a block it computes the output (B, C, H, K) and
# the weights, None where the back end has none.
AttendBlock = Callable[
    [tuple[Tensor, Tensor, Tensor], Tensor, Tensor | None, list[AttentionContext]], tuple[Tensor, Tensor | None]
]

# With fewer cached keys, attention over all of them is as fast. The stack takes this as `min_keys_to_prune`.
MIN_KEYS = 256


def prune_to_window(ctx: AttentionContext, window: int | None, min_keys: int = MIN_KEYS) -> AttentionContext | None:
    """The context without the hidden keys before the first and after the last key in the window.

    All keys that are `window` tokens away or more have zero weight. None without a cache, with fewer than `min_keys`
    keys, and if pruning would keep more than half of the keys.
    """
    num_keys = ctx.key_pos_BS.shape[1]
    if window is None or ctx.state is None or torch.compiler.is_compiling() or num_keys < min_keys:
        return None
    if not ctx.is_cross and not isinstance(ctx.state.length, int):  # a static cache has room for keys to come
        return None
    in_window_BS = (ctx.distance_BQS.abs() < window).any(1)
    if isinstance(ctx.mask, Tensor) and ctx.mask.ndim == 2:
        in_window_BS = in_window_BS & (ctx.mask[:, -num_keys:] != 0)
    attended_keys = keys_in_window(in_window_BS, max_width=4 * window)
    if attended_keys is None:
        return None
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


BLOCK_SIZE = 32  # queries of a block, C
MIN_LENGTH = 512  # in tokens of source and target; below it, computing all scores is as fast


@dataclass(frozen=True)
class WindowBlocks:
    """The blocks of one attention: which queries and keys they have, and their context.

    `key_rows_MW`: each block's keys, as rows of all sentences' keys one below the other (B S).
    `mask`: True for keys that are no padding (M, 1, 1, W); None without padding.
    `contexts`: the positions of each block's queries and keys, with what each encoding has prepared for them.
    `num_blocks`: blocks of a sentence, N. `length`: queries of a sentence, T.
    """

    key_rows_MW: Tensor
    mask: Tensor | None
    contexts: list[AttentionContext]
    num_blocks: int
    length: int

    def run(
        self,
        attend: AttendBlock,
        qkv: tuple[Tensor, Tensor, Tensor],
        unrotated_q_BHTK: Tensor,
        positions: PositionEncodingSum,
        contexts: list[AttentionContext],
    ) -> Tensor:
        """The attended values (B, T, H, K). The contexts are those of all keys, and say which layer this is."""
        q_BHTK, k_BHSK, v_BHSK = qkv
        block_qkv = self.split_queries(q_BHTK), self.gather_keys(k_BHSK), self.gather_keys(v_BHSK)
        block_contexts = [
            block_ctx.replace(layer=ctx.layer) for block_ctx, ctx in zip(self.contexts, contexts, strict=True)
        ]
        return self.join_queries(attend(block_qkv, self.split_queries(unrotated_q_BHTK), self.mask, block_contexts)[0])

    def split_queries(self, q_BHTK: Tensor) -> Tensor:
        """Each block's queries (M, H, C, K); the last block of a sentence is padded."""
        return split_time(q_BHTK.transpose(1, 2), self.num_blocks).flatten(0, 1).transpose(1, 2)

    def gather_keys(self, k_BHSK: Tensor) -> Tensor:
        """Each block's keys or values (M, H, W, K)."""
        rows = k_BHSK.transpose(1, 2).flatten(0, 1).flatten(1)
        # An embedding is a gather of rows whose backward is fast, too.
        k_MWD = nn.functional.embedding(self.key_rows_MW, rows)
        return k_MWD.unflatten(2, (k_BHSK.shape[1], -1)).transpose(1, 2)

    def join_queries(self, out_MCHK: Tensor) -> Tensor:
        """The attended values of all queries in their order (B, T, H, K)."""
        return out_MCHK.unflatten(0, (-1, self.num_blocks)).flatten(1, 2)[:, : self.length]


def split_time(x: Tensor, num_blocks: int) -> Tensor:
    """The blocks (B, N, C, ...) of (B, T, ...); the last token is repeated to fill the last block."""
    missing = num_blocks * BLOCK_SIZE - x.shape[1]
    if missing:
        x = torch.cat((x, x[:, -1:].expand(-1, missing, *x.shape[2:])), dim=1)
    return x.unflatten(1, (num_blocks, BLOCK_SIZE))


def make_window_blocks(positions: PositionEncodingSum, x_BTD: Tensor, ctx: AttentionContext) -> WindowBlocks | None:
    """The blocks of a cross-attention; None where all keys are computed.

    These are short inputs, sources with holes, and windows that cover most of the source.
    """
    window, num_keys, length = positions.sliding_window, ctx.key_pos_BS.shape[1], x_BTD.shape[1]
    assert window is not None  # choose_cross_plan calls it for a window alone
    mask = ctx.mask
    if min(num_keys, length) < MIN_LENGTH or not (mask is None or (isinstance(mask, Tensor) and mask.ndim == 2)):
        return None
    key_pos_BS, valid_mask_BS = ctx.key_pos_BS.expand(len(x_BTD), -1), None if mask is None else mask.bool()
    if not has_contiguous_positions(key_pos_BS, valid_mask_BS):
        return None
    num_blocks = -(-length // BLOCK_SIZE)
    query_pos_BNC = split_time(ctx.query_pos_BQ.expand(len(x_BTD), -1), num_blocks)
    keys = select_keys(query_pos_BNC.detach(), key_pos_BS, valid_mask_BS, window)
    if keys is None:
        return None
    key_indices_MW = keys.flatten(0, 1)
    row_M1 = torch.arange(len(x_BTD), device=keys.device).repeat_interleave(num_blocks)[:, None]
    mask_MW = None if valid_mask_BS is None or bool(valid_mask_BS.all()) else valid_mask_BS[row_M1, key_indices_MW]
    block_ctx = ctx.replace(
        query_pos_BQ=query_pos_BNC.flatten(0, 1), key_pos_BS=key_pos_BS[row_M1, key_indices_MW],
        valid_mask_BT=None, mask=None, inputs_BTD=None,
    )  # fmt: skip
    return WindowBlocks(
        key_indices_MW + row_M1 * num_keys,
        None if mask_MW is None else mask_MW[:, None, None],
        positions.prepare_biases(x_BTD[:1, :1], positions.split(block_ctx)),
        num_blocks,
        length,
    )


def select_keys(query_pos_BNC: Tensor, key_pos_BS: Tensor, valid_mask_BS: Tensor | None, window: int) -> Tensor | None:
    """The indices of each block's keys (B, N, W), all in sources without holes.

    None if they are more than half of the source, or if a query has no key in its window: it attends to all keys.
    """
    num_keys = key_pos_BS.shape[1]
    if valid_mask_BS is None:
        first_B1 = torch.zeros_like(key_pos_BS[:, :1])
        num_valid_B1 = first_B1 + num_keys
    else:
        first_B1, num_valid_B1 = valid_mask_BS.long().argmax(1, keepdim=True), valid_mask_BS.sum(1, keepdim=True)
    first_pos_B1 = key_pos_BS.gather(1, first_B1)
    last_pos_B1 = first_pos_B1 + num_valid_B1 - 1
    lowest_BN, highest_BN = query_pos_BNC.amin(2), query_pos_BNC.amax(2)
    if bool(((highest_BN <= first_pos_B1 - window) | (lowest_BN >= last_pos_B1 + window)).any()):
        return None
    start_BN = torch.maximum((lowest_BN - window).floor().long() + 1, first_pos_B1)
    end_BN = torch.minimum((highest_BN + window).ceil().long(), last_pos_B1 + 1)
    width = int((end_BN - start_BN).max())
    if 2 * width > num_keys:
        return None
    start_BN = (start_BN - first_pos_B1 + first_B1).clamp(max=num_keys - width)
    return start_BN[..., None] + torch.arange(width, device=start_BN.device)
