# SPDX-License-Identifier: Apache-2.0
"""Attention contexts: positions, masks and cached state of one attention; positions and counts from masks.

Shape letters are those of base.py.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.utils._pytree import tree_map_only

from .cache import EncodingState

# A 2-D tensor marks the cached and new tokens that are no padding; a 4-D one the keys that each query attends to.
# A BlockMask is flex_attention's; it is not read here, and all tokens count as if there were no mask.
AttentionMask = Tensor | BlockMask | None
Device = torch.device | str | None


def positions_from_mask(
    attention_mask: AttentionMask, num_new: int, num_cached: int | Tensor = 0, device: Device = None
) -> Tensor:
    """The position of each new token (B or 1, T): the number of unmasked tokens before it; padding is at 0.

    A 2-D mask covers the cached tokens, too. Under any other mask all cached tokens count.
    """
    if not isinstance(attention_mask, Tensor):
        return torch.arange(num_new, device=device)[None] + num_cached
    if attention_mask.ndim == 2:
        return cumsum_positions(attention_mask != 0)[:, -num_new:]
    valid_mask_BT = new_valid_mask(attention_mask, num_new, num_cached)
    assert valid_mask_BT is not None  # of a tensor
    return cumsum_positions(valid_mask_BT) + num_cached


def cumsum_positions(valid_mask_BT: Tensor) -> Tensor:
    """Each token's number among the valid ones (B, T), 0 for padding."""
    return (valid_mask_BT.long().cumsum(-1) - 1).masked_fill(~valid_mask_BT, 0)


def has_contiguous_positions(pos_BT: Tensor, valid_mask_BT: Tensor | None) -> bool:
    """Whether no sentence has a hole, in its mask or in the positions of its tokens."""
    contiguous_BT = pos_BT.diff() == 1
    if valid_mask_BT is None:
        return bool(contiguous_BT.all())
    num_runs_B = valid_mask_BT[:, 0] + (valid_mask_BT[:, 1:] & ~valid_mask_BT[:, :-1]).sum(1)
    return bool((contiguous_BT | ~(valid_mask_BT[:, 1:] & valid_mask_BT[:, :-1])).all() and (num_runs_B <= 1).all())


def new_valid_mask(attention_mask: AttentionMask, num_new: int, num_cached: int | Tensor = 0) -> Tensor | None:
    """True for new tokens that are no padding (B, T); in a 4-D mask, for those that may attend to themselves."""
    if not isinstance(attention_mask, Tensor):
        return None
    if attention_mask.ndim == 2:
        return attention_mask[:, -num_new:] != 0
    validate_mask_of_keys(attention_mask)
    new = torch.arange(num_new, device=attention_mask.device)
    return to_bool_mask(attention_mask[:, 0, new, new + num_cached])


def validate_mask_of_keys(attention_mask: Tensor) -> None:
    """Raise a ValueError unless a mask that is not 2-D is a Boolean or additive one of the keys of each query."""
    if attention_mask.ndim != 4 or not (attention_mask.dtype == torch.bool or attention_mask.is_floating_point()):
        raise ValueError(
            "An attention mask must be (batch, tokens), 0 at padding, or (batch, 1, queries, keys), Boolean or "
            f"added to the scores, but it is of shape {tuple(attention_mask.shape)} and {attention_mask.dtype}; "
            "mask.bool() makes a Boolean one of zeros and ones."
        )


def document_mask(starts_BT: Tensor) -> Tensor:
    """The causal mask (B, 1, T, T) of documents packed into rows, True at the keys that each query attends to: no token
    attends to another document. `starts_BT` is True where a document begins."""
    document_BT = starts_BT.cumsum(1)
    return (document_BT[:, :, None] == document_BT[:, None, :]).tril()[:, None]


def num_attendable(
    attention_mask: AttentionMask,
    num_new: int,
    num_keys: int,
    num_cached: int | Tensor,
    is_causal: bool,
    device: Device,
) -> Tensor:
    """The number of keys that each query may attend to (B or 1, Q or 1).

    A 4-D mask is counted as it is. A 2-D one masks padding, and a causal attention also the keys after the query.
    """
    if isinstance(attention_mask, Tensor) and attention_mask.ndim == 4:
        return to_bool_mask(attention_mask[:, 0]).sum(-1)
    if isinstance(attention_mask, Tensor):
        valid_mask_BS = attention_mask != 0
        return valid_mask_BS.cumsum(-1)[:, -num_new:] if is_causal else valid_mask_BS.sum(-1, keepdim=True)
    if is_causal:
        return (torch.arange(1, num_new + 1, device=device) + num_cached)[None]
    return torch.full((1, 1), num_keys, device=device)


def valid_keys(attention_mask: AttentionMask, num_keys: int) -> Tensor | None:
    """True for the keys that the mask allows, causality apart (B, Q or 1, S); None for a mask that has no such entries.

    A mask has columns for tokens that a cache has dropped, and none for those that a static cache has room for.
    """
    if not isinstance(attention_mask, Tensor):
        return None
    valid_BQS = to_bool_mask(attention_mask[:, 0]) if attention_mask.ndim == 4 else (attention_mask != 0)[:, None]
    room = max(0, num_keys - valid_BQS.shape[-1])
    return torch.nn.functional.pad(valid_BQS[..., -num_keys:], (0, room), value=True)


def to_bool_mask(mask: Tensor) -> Tensor:
    """A Boolean mask unchanged; an additive one as True where it adds 0."""
    return mask if mask.dtype == torch.bool else mask == 0


def target_valid_mask(
    valid_mask_BT: Tensor | None, input_ids: Tensor | None, pad_token_id: int | None
) -> Tensor | None:
    """True for target tokens that are no padding (B, T): the mask `valid_mask_BT`, or without one the token ids.

    The first token always counts: the start token may be the padding token.
    """
    if valid_mask_BT is not None or input_ids is None:
        return valid_mask_BT
    first_T = torch.arange(input_ids.shape[1], device=input_ids.device) == 0
    return (input_ids != pad_token_id) | first_T


def slice_mask(attention_mask: AttentionMask, token: int, num_new: int, is_static: bool) -> AttentionMask:
    """A decoder's mask for one of its new tokens, without the tokens after it.

    A 4-D mask has a column for each key; in a static cache that is its capacity, and all columns stay.
    """
    if not isinstance(attention_mask, Tensor):
        return attention_mask
    later = num_new - token - 1
    until = attention_mask.shape[-1] - later
    if attention_mask.ndim == 2:
        return attention_mask[:, :until]
    return attention_mask[:, :, token : token + 1, : None if is_static else until]


def validate_source_mask(attention_mask: AttentionMask) -> None:
    """Raise a ValueError for a source of padding alone."""
    if not isinstance(attention_mask, Tensor) or attention_mask.ndim != 2 or torch.compiler.is_compiling():
        return
    empty_B = (attention_mask == 0).all(1)
    if bool(empty_B.any()):
        raise ValueError(
            "Source positions need a source with at least one token, but the attention_mask of sentence "
            f"{int(empty_B.long().argmax())} masks all of them; leave the sentence out, or give it its </s>."
        )


@dataclass(frozen=True)
class AttentionContext:
    """Positions, masks and cached state of one attention, which every hook takes.

    Each stack makes one a forward. Hooks read it and never change it.

    `query_pos_BQ`, `key_pos_BS`: positions, in tokens from 0. In cross-attention both are source positions, and a
        query's may lie between two tokens.
    `valid_mask_BT`: True for new tokens that are no padding; None if all are.
    `mask`: the attention mask, as given to the model.
    `num_cached`: the number of cached tokens before the new ones; a tensor in a static cache.
    `is_causal`, `is_cross`: which attention this is.
    `layer`: the layer's number, None outside of layers (`augment_positions`, `embed`, `prepare`).
    `inputs_BTD`: the input of the layer's query projection, None outside of layers.
    `state`: the encoding's cached state, None where nothing is cached.
    `has_cached_keys`: True in cross-attention if the source's keys are cached, and none is new.
    `is_contiguous`: True for a block of queries that follow each other, padding apart (blocked_attention.py):
        key j is `num_cached` + i - j tokens before query i in every sentence.
    `attended_keys`: the keys in the window, None for all (local_attention.py): a slice that all sentences share, or the
        indices of each sentence's own (B, N).
    `prepared`: the result of the encoding's `prepare`.
    `prepared_layer`: the result of the encoding's `prepare_layer`.
    """

    query_pos_BQ: Tensor
    key_pos_BS: Tensor
    valid_mask_BT: Tensor | None = None
    mask: AttentionMask = None
    num_cached: int | Tensor = 0
    is_causal: bool = False
    is_cross: bool = False
    layer: int | None = None
    inputs_BTD: Tensor | None = None
    state: EncodingState | None = None
    has_cached_keys: bool = False
    is_contiguous: bool = False
    attended_keys: slice | Tensor | None = None
    prepared: Any = None
    prepared_layer: Any = None

    def replace(self, **changes: Any) -> "AttentionContext":
        """A copy with these fields changed, at a third of the time of `dataclasses.replace`.

        A decoding step copies thirty contexts. The copy does not pass through `__init__`: this class must have neither
        a `__post_init__` nor slots. torch can compile `dataclasses.replace` alone.
        """
        if torch.compiler.is_compiling():
            return replace(self, **changes)
        copy = object.__new__(AttentionContext)
        vars(copy).update(vars(self), **changes)
        assert len(vars(copy)) == len(vars(self)), f"no fields of a context: {changes.keys() - vars(self).keys()}"
        return copy

    @property
    def new_key_pos_BT(self) -> Tensor:
        """Positions of the keys that are not cached yet: the new tokens' own, in cross-attention those of the source.

        None are left (B, 0) once the source's keys are cached.
        """
        if self.has_cached_keys:
            return self.key_pos_BS[:, :0]
        return self.key_pos_BS if self.is_cross else self.query_pos_BQ

    @property
    def distance_BQS(self) -> Tensor:
        """Key position minus query position, in tokens (B, Q, S)."""
        return self.key_pos_BS[:, None, :] - self.query_pos_BQ[:, :, None]

    @property
    def num_attendable_BQ(self) -> Tensor:
        """The number of keys that the mask lets each query attend to (B or 1, Q or 1)."""
        shape = self.query_pos_BQ.shape[-1], self.key_pos_BS.shape[-1]
        return num_attendable(self.mask, *shape, self.num_cached, self.is_causal, self.query_pos_BQ.device)

    @property
    def valid_keys_BQS(self) -> Tensor | None:
        """True for the keys that the mask allows, causality apart (B, Q or 1, S); None if all are."""
        return valid_keys(self.mask, self.key_pos_BS.shape[-1])

    def gather_keys(self, x: Tensor, axis: int) -> Tensor:
        """Those entries of (B, ..., S, ...) that belong to `attended_keys`, along that axis."""
        keys = self.attended_keys
        if keys is None:
            return x
        if isinstance(keys, slice):
            return x.narrow(axis, keys.start, keys.stop - keys.start)
        batch, width = keys.shape
        index = keys.view(batch, *[1] * (axis - 1), width, *[1] * (x.ndim - axis - 1))
        shape = [batch, *x.shape[1:]]
        shape[axis] = width
        return x.expand(batch, *x.shape[1:]).gather(axis, index.expand(shape))

    def gather_mask(self, mask: AttentionMask) -> AttentionMask:
        """The columns of a mask, of any number of dimensions, for the keys that are attended to."""
        if self.attended_keys is None or mask is None:
            return mask
        assert isinstance(mask, Tensor)  # flex_attention, with masks of its own, never prunes keys
        return self.gather_keys(mask, mask.ndim - 1)

    def to(self, device: torch.device | str, **options: bool) -> "AttentionContext":
        """The context on another device; accelerate calls it where a model is on several devices."""
        fields = {name: value for name, value in vars(self).items() if name != "state"}
        return self.replace(**tree_map_only(Tensor, lambda tensor: tensor.to(device, **options), fields))


def distance(pos_BQ: Tensor, pos_BS: Tensor) -> Tensor:
    """Key position minus query position, in tokens (B, Q, S)."""
    return pos_BS[:, None, :] - pos_BQ[:, :, None]


def interpolation_weights(distance: Tensor, dtype: torch.dtype) -> list[tuple[Tensor, Tensor | None]]:
    """Whole distances with their interpolation weights, for encodings that look a distance up in a table.

    A fractional distance, of a query between two tokens, gives both neighbours with linear weights. An integer distance
    gives itself with weight None, which `scale_by` reads as 1.
    """
    if not distance.is_floating_point():
        return [(distance, None)]
    lower = distance.floor()
    weight = (distance - lower).to(dtype)
    return [(lower.long(), 1 - weight), (lower.long() + 1, weight)]


def scale_by(x: Tensor, weight: Tensor | None) -> Tensor:
    """x times a weight of `interpolation_weights`."""
    return x if weight is None else x * weight


def at_least_float32(x: Tensor) -> torch.dtype:
    """The dtype for angles and positions: float32 for half precision, where they would be inexact, else that of x."""
    return torch.promote_types(x.dtype, torch.float32)
