# SPDX-License-Identifier: Apache-2.0
"""What attention masks say of the tokens: which are there, at what positions, and how many of them a query sees."""

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

# A 2-D tensor says which tokens are no padding, of the cached and the new ones; a 4-D one which key each query sees.
# A BlockMask is flex_attention's; its tokens are not read here, and count as if there were no mask.
AttentionMask = Tensor | BlockMask | None
Device = torch.device | str | None


def positions_from_mask(
    attention_mask: AttentionMask, num_new: int, num_cached: int | Tensor = 0, device: Device = None
) -> Tensor:
    """The position of each new token (B or 1, T): how many tokens that the mask lets through stand before it; padding
    is at 0. A 2-D mask covers the cached tokens as well; another says nothing of them, and all of them count."""
    if isinstance(attention_mask, Tensor) and attention_mask.ndim == 2:
        return cumsum_positions(attention_mask != 0)[:, -num_new:]
    valid_mask_BT = new_valid_mask(attention_mask, num_new, num_cached)
    new_BT = torch.arange(num_new, device=device)[None] if valid_mask_BT is None else cumsum_positions(valid_mask_BT)
    return new_BT + num_cached


def cumsum_positions(valid_mask_BT: Tensor) -> Tensor:
    return (valid_mask_BT.long().cumsum(-1) - 1).masked_fill(~valid_mask_BT, 0)


def new_valid_mask(attention_mask: AttentionMask, num_new: int, num_cached: int | Tensor = 0) -> Tensor | None:
    """Which of the new tokens are no padding (B, T); in a 4-D mask, those that may attend to themselves."""
    if not isinstance(attention_mask, Tensor):
        return None
    if attention_mask.ndim == 2:
        return attention_mask[:, -num_new:] != 0
    new = torch.arange(num_new, device=attention_mask.device)
    return to_bool_mask(attention_mask[:, 0, new, new + num_cached])


def num_attendable(
    attention_mask: AttentionMask,
    num_new: int,
    num_keys: int,
    num_cached: int | Tensor,
    is_causal: bool,
    device: Device,
) -> Tensor:
    """How many keys each query may see (B or 1, Q or 1). A 4-D mask says it all; a 2-D one says which keys are tokens,
    and a causal attention hides what stands behind the query."""
    if isinstance(attention_mask, Tensor) and attention_mask.ndim == 4:
        return to_bool_mask(attention_mask[:, 0]).sum(-1)
    if isinstance(attention_mask, Tensor):
        valid_mask_BS = attention_mask != 0
        return valid_mask_BS.cumsum(-1)[:, -num_new:] if is_causal else valid_mask_BS.sum(-1, keepdim=True)
    if is_causal:
        return (torch.arange(1, num_new + 1, device=device) + num_cached)[None]
    return torch.full((1, 1), num_keys, device=device)


def to_bool_mask(mask: Tensor) -> Tensor:
    """A Boolean mask as it is; of an additive one, where it adds nothing."""
    return mask if mask.dtype == torch.bool else mask == 0


def target_valid_mask(
    valid_mask_BT: Tensor | None, input_ids: Tensor | None, pad_token_id: int | None
) -> Tensor | None:
    """Which target tokens are no padding (B, T): what a mask says, `valid_mask_BT`, or where there is none the tokens
    themselves, of which the first is one whatever it is."""
    if valid_mask_BT is not None or input_ids is None:
        return valid_mask_BT
    first_T = torch.arange(input_ids.shape[1], device=input_ids.device) == 0
    return (input_ids != pad_token_id) | first_T


def slice_mask(attention_mask: AttentionMask, token: int, num_new: int, is_static: bool) -> AttentionMask:
    """A decoder's mask as it is for one of its new tokens, when the later ones are not there yet. A 4-D mask has a
    column for each key: all of them from the beginning where the cache keeps its size."""
    if not isinstance(attention_mask, Tensor):
        return attention_mask
    later = num_new - token - 1
    until = attention_mask.shape[-1] - later
    if attention_mask.ndim == 2:
        return attention_mask[:, :until]
    return attention_mask[:, :, token : token + 1, : None if is_static else until]


def validate_source_mask(attention_mask: AttentionMask) -> None:
    """A ValueError for a sentence of padding alone."""
    if not isinstance(attention_mask, Tensor) or attention_mask.ndim != 2 or torch.compiler.is_compiling():
        return
    empty_B = (attention_mask == 0).all(1)
    if bool(empty_B.any()):
        raise ValueError(
            "Places in a source need a source with at least one token, but the attention_mask of sentence "
            f"{int(empty_B.long().argmax())} lets none through; leave the sentence out, or give it its </s>."
        )
