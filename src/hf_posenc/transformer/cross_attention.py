# SPDX-License-Identifier: Apache-2.0
"""The inputs of cross-attention: positions, mask and plan; and what its cache keeps of the source."""

from typing import Any

import torch
from torch import Tensor
from transformers import Cache, EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask

from ..alignments.base import resolve_source_positions, validate_no_source_positions, without_adapters
from ..encodings.cache import EvictingLayer, state_of_cache
from ..encodings.positions import AttentionContext, AttentionMask, positions_from_mask, validate_source_mask
from .attention import AttentionInputs
from .plans.local_attention import prune_to_window
from .plans.selection import choose_cross_plan


def cross_attention(
    decoder: Any,
    x_BTD: Tensor,
    ctx: AttentionContext,
    encoder_states_BSD: Tensor,
    cache: EncoderDecoderCache | None,
    *,
    mask: AttentionMask,
    encoder_position_ids: Tensor | None,
    source_positions_BT: Tensor | None,
    output_attentions: object,
) -> AttentionInputs:
    """The inputs of cross-attention: keys at their positions in the source, queries at their source positions.

    `decoder` is a PosEncDecoder. `ctx` has the target's positions, and the state of the decoder's self-attention.
    `source_positions_BT` (B, T), if given, replace the alignment's.
    """
    positions, alignment = decoder.cross_positions, decoder.alignment
    if not positions.modifies_attention:
        validate_no_source_positions(source_positions_BT)
        source_mask = create_bidirectional_mask(decoder.config, x_BTD, mask, encoder_hidden_states=encoder_states_BSD)
        return AttentionInputs(positions, ctx, [ctx] * len(positions), source_mask)
    ctx = ctx.replace(
        key_pos_BS=encoder_positions(encoder_position_ids, mask, encoder_states_BSD, cache),
        mask=mask,
        is_cross=True,
        is_causal=False,
        state=None if ctx.state is None else ctx.state.scoped("cross"),
        has_cached_keys=cache is not None and bool(cache.is_updated.get(0)),
    )
    source_positions_BT = resolve_source_positions(
        alignment, x_BTD, encoder_states_BSD, ctx, cross_position_ids=source_positions_BT
    )
    ctx = ctx.replace(query_pos_BQ=source_positions_BT)
    plan, pruned_ctx = None, None
    if not decoder.computes_hidden_keys(output_attentions):
        plan = choose_cross_plan(positions, x_BTD, ctx)
        pruned_ctx = prune_to_window(ctx, positions.sliding_window, decoder.min_keys_to_prune)
    contexts = positions.prepare(x_BTD, ctx, pruned_ctx, () if plan is None else plan.prepared)
    if pruned_ctx is not None:
        ctx, mask = pruned_ctx, pruned_ctx.gather_mask(mask)
        encoder_states_BSD = encoder_states_BSD[:, : ctx.key_pos_BS.shape[1]]
    source_mask = None
    if plan is None:
        source_mask = create_bidirectional_mask(decoder.config, x_BTD, mask, encoder_hidden_states=encoder_states_BSD)
    needs_weights = without_adapters(alignment).update is not None and ctx.state is not None
    return AttentionInputs(positions, ctx, contexts, source_mask, plan, needs_weights)


def encoder_positions(
    position_ids: Tensor | None, mask: AttentionMask, encoder_states_BSD: Tensor, cache: EncoderDecoderCache | None
) -> Tensor:
    """The positions of the source (B or 1, S): given ones or those of its mask; cached at the first decoding step."""
    if cache is None:
        return compute_encoder_positions(position_ids, mask, encoder_states_BSD)
    state = state_of_cache(cache.cross_attention_cache)
    if cache.is_updated.get(0):
        key_pos_BS = state.get("positions")
        assert key_pos_BS is not None  # a source has at least one token, and `get` refuses a state of another length
        return key_pos_BS
    key_pos_BS = compute_encoder_positions(position_ids, mask, encoder_states_BSD)
    number_equal_rows(cache.cross_attention_cache, encoder_states_BSD, key_pos_BS)
    return state.append("positions", key_pos_BS.expand(encoder_states_BSD.shape[0], -1))


def compute_encoder_positions(position_ids: Tensor | None, mask: AttentionMask, encoder_states_BSD: Tensor) -> Tensor:
    """The given positions of the source, or those of its mask; a ValueError for a source of padding."""
    validate_source_mask(mask)
    return (
        positions_from_mask(mask, encoder_states_BSD.shape[1], device=encoder_states_BSD.device)
        if position_ids is None
        else position_ids
    )


def number_equal_rows(cache: Cache, encoder_states_BSD: Tensor, key_pos_BS: Tensor) -> None:
    """Number the rows of a source, the same for neighbours that are equal, as the beams of one sentence are.

    Keys and values follow from encoder states and positions. A beam search reorders the cache at every step; where the
    numbers stay what they are, nothing need be copied.
    """
    layers = [layer for layer in cache.layers if isinstance(layer, EvictingLayer)]
    if torch.compiler.is_compiling() or encoder_states_BSD.shape[0] == 1 or not layers:  # an export has any batch size
        return
    is_new_B = (encoder_states_BSD[1:] != encoder_states_BSD[:-1]).flatten(1).any(1)
    if key_pos_BS.shape[0] > 1:
        is_new_B = is_new_B | (key_pos_BS[1:] != key_pos_BS[:-1]).any(1)
    row_ids = torch.nn.functional.pad(is_new_B.long().cumsum(0), (1, 0))
    for layer in layers:
        layer.row_ids = row_ids
