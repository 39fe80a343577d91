# SPDX-License-Identifier: Apache-2.0
"""What a cross-attention's cache keeps of the source: positions, and which rows of the batch have the same source."""

import torch
from torch import Tensor
from transformers import Cache, EncoderDecoderCache

from .cache import EvictingLayer, state_of_cache
from .masks import AttentionMask, positions_from_mask, validate_source_mask


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
    if len(encoder_states_BSD) == 1 or not layers or torch.compiler.is_compiling():
        return
    is_new_B = (encoder_states_BSD[1:] != encoder_states_BSD[:-1]).flatten(1).any(1)
    if key_pos_BS.shape[0] > 1:
        is_new_B = is_new_B | (key_pos_BS[1:] != key_pos_BS[:-1]).any(1)
    row_ids = torch.nn.functional.pad(is_new_B.long().cumsum(0), (1, 0))
    for layer in layers:
        layer.row_ids = row_ids
