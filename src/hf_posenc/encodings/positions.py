# SPDX-License-Identifier: Apache-2.0
"""Attention contexts: positions, masks and cached state of one attention. Shape letters as in encodings/base.py."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from .cache import EncodingState
from .masks import AttentionMask, num_attendable, valid_keys


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
    `need_weights`: True if the caller wants the weight of every key, hidden ones too.
    `plan`: how this attention is computed, an AttentionPlan (transformer/plans/); None for all scores at once.
    `is_contiguous`: True for a block of queries that follow each other, padding apart (blocked_attention.py):
        key j is `num_cached` + i - j tokens before query i in every sentence.
    `attended_keys`: the keys in the window, None for all (window_pruning.py): a slice that all sentences share, or the
        indices of each sentence's own (B, N).
    `embedded_BTD`: the embedded tokens, for blocked attention, which calls `prepare` in each layer; else None.
    `prepared`: the result of the encoding's `prepare`.
    `prepared_layer`: the result of the encoding's `prepare_layer`.
    `return_weights`: True if the alignment reads the attention weights.
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
    need_weights: bool = False
    plan: Any = None
    is_contiguous: bool = False
    attended_keys: slice | Tensor | None = None
    embedded_BTD: Tensor | None = None
    prepared: Any = None
    prepared_layer: Any = None
    return_weights: bool = False

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
        return distance(self.query_pos_BQ, self.key_pos_BS)

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
