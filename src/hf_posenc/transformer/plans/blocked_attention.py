# SPDX-License-Identifier: Apache-2.0
"""Blocked attention: exact self-attention by blocks of queries, whose biases are computed again in the backward pass.

A bias that depends on the query has a number for each head, query and key. Those of all L queries would be saved for
the backward pass, and would be read and written in main memory. A block of `BLOCK_SIZE` queries has a few of them at a
time, which fit into the processor's cache:

    for each block: output = attend(queries of the block, keys that any of them may attend to)

Gradient checkpointing of each block frees its scores, and computes them again in the backward pass. It also restores
the random numbers of dropout, and autocast. Memory grows linearly with the length.

A block is what a chunk of tokens is to a cache: the tokens before it are as if cached. Therefore the hooks of encodings
compute its biases from a context of the block's queries, and need no other code. Positions follow each other without a
gap, and an encoding can use relative_shift.py instead of an index of distances.

Shape letters are those of encodings/base.py; L is the length, C the queries of a block.
"""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ...encodings.positions import AttentionContext
from ...encodings.relative_shift import query_blocks
from ...encodings.sum import PositionEncodingSum
from .local_attention import AttendBlock


def blocked_attention_forward(
    attend: AttendBlock,
    qkv: tuple[Tensor, Tensor, Tensor],
    unrotated_q_BHLK: Tensor,
    positions: PositionEncodingSum,
    contexts: list[AttentionContext],
    *,
    embedded_BTD: Tensor,
) -> Tensor:
    """The attended values (B, L, H, K) of queries, keys and values (B, H, L, K).

    `unrotated_q_BHLK` are the queries before `rotate_queries`, `embedded_BTD` the tokens that `prepare` takes.
    """
    q_BHLK, k_BHLK, v_BHLK = qkv
    # What it keeps for its backward pass can be as large as the output, such as sinusoids of all distances.
    contexts = checkpoint(positions.prepare_layer, contexts, use_reentrant=False)

    def attend_block(start: int, end: int) -> Tensor:
        """The attended values of the queries from `start` to `end` (B, C, H, K)."""
        num_keys = end if contexts[0].is_causal else v_BHLK.shape[2]
        block_contexts = [block_context(ctx, start, end, num_keys) for ctx in contexts]
        block_contexts = positions.prepare_biases(embedded_BTD[:, start:end], block_contexts)
        block_qkv = q_BHLK[:, :, start:end], k_BHLK[:, :, :num_keys], v_BHLK[:, :, :num_keys]
        mask = block_mask(block_contexts[0])
        return attend(block_qkv, unrotated_q_BHLK[:, :, start:end], mask, block_contexts)[0]

    blocks = query_blocks(v_BHLK.shape[2])
    return torch.cat([checkpoint(attend_block, *block, use_reentrant=False) for block in blocks], dim=1)


def block_context(ctx: AttentionContext, start: int, end: int, num_keys: int) -> AttentionContext:
    """The context of a block: that of new tokens from `start` to `end`, after `start` cached ones."""
    assert ctx.mask is None or isinstance(ctx.mask, Tensor)  # there is no plan for another mask

    def tokens(x_BT: Tensor | None, first: int, last: int) -> Tensor | None:
        return None if x_BT is None else x_BT[:, first:last]

    return ctx.replace(
        query_pos_BQ=ctx.query_pos_BQ[:, start:end],
        key_pos_BS=ctx.key_pos_BS[:, :num_keys],
        valid_mask_BT=tokens(ctx.valid_mask_BT, start, end),
        mask=tokens(ctx.mask, 0, num_keys),
        inputs_BTD=tokens(ctx.inputs_BTD, start, end),
        num_cached=start,
        is_contiguous=True,
    )


def block_mask(ctx: AttentionContext) -> Tensor | None:
    """True for the keys that each query of a block may attend to (B or 1, 1, C or 1, S); None for all."""
    valid_BQS = ctx.valid_keys_BQS
    if not ctx.is_causal:
        return None if valid_BQS is None else valid_BQS[:, None]
    num_queries, num_keys = ctx.query_pos_BQ.shape[1], ctx.key_pos_BS.shape[1]
    ones_QS = torch.ones(num_queries, num_keys, dtype=torch.bool, device=ctx.query_pos_BQ.device)
    is_past_QS = ones_QS.tril(int(ctx.num_cached))
    return is_past_QS[None, None] if valid_BQS is None else (is_past_QS & valid_BQS)[:, None]
