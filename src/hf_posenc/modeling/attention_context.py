# SPDX-License-Identifier: Apache-2.0
"""Where one attention happens, and what encodings make of the distances in it. Shape letters as in position_base.py."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from .cache import EncodingState
from .masks import AttentionMask, num_attendable


@dataclass(frozen=True)
class AttentionContext:
    """Where one attention happens; each stack makes one a forward, and hooks never change it.

    `query_pos_BQ`, `key_pos_BS`: positions; in cross-attention both are places in the source, and a query's may be
    between two tokens. `valid_mask_BT`: which of the new tokens are no padding, None if all are. `mask`: the attention
    mask as it was given. `num_cached`: how many tokens stand in the cache before the new ones. `layer`: the number of
    the attention that asks, None before the first, and `inputs_BTD` what its queries are made of. `state`: what cached
    decoding remembers for this encoding, None where nothing is cached. `need_weights`: whether every key's weight is
    asked for, hidden or not. `use_linear_attention`: whether attention goes by distance (linear_attention.py).
    `key_indices_BN`: which of the cached keys are attended to, None for all. `prepared`: what its `prepare` returned.
    `return_weights`: whether the attention weights are asked for by the alignment.
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
    need_weights: bool = False
    use_linear_attention: bool = False
    key_indices_BN: Tensor | None = None
    prepared: Any = None
    return_weights: bool = False

    def replace(self, **changes: Any) -> "AttentionContext":
        """A copy with these fields changed, at a third of the time of `dataclasses.replace`.

        A decoding step copies thirty contexts. The copy does not pass through `__init__`: this class must have neither
        a `__post_init__` nor slots. torch can compile `dataclasses.replace` alone.
        """
        if torch.compiler.is_compiling():
            return replace(self, **changes)
        assert changes.keys() <= vars(self).keys(), f"no fields of a context: {changes.keys() - vars(self).keys()}"
        copy = object.__new__(AttentionContext)
        vars(copy).update(vars(self) | changes)
        return copy

    @property
    def new_key_pos_BT(self) -> Tensor:
        """Positions of the keys that are not cached yet: the new tokens' own, in cross-attention the whole source's."""
        return self.key_pos_BS if self.is_cross else self.query_pos_BQ

    @property
    def distance_BQS(self) -> Tensor:
        return distance(self.query_pos_BQ, self.key_pos_BS)

    @property
    def num_attendable_BQ(self) -> Tensor:
        """How many keys each query may see, by what the mask says (B or 1, Q or 1)."""
        shape = self.query_pos_BQ.shape[-1], self.key_pos_BS.shape[-1]
        return num_attendable(self.mask, *shape, self.num_cached, self.is_causal, self.query_pos_BQ.device)

    def gather_keys(self, x: Tensor, axis: int = 2) -> Tensor:
        """The keys, values or mask columns of `key_indices_BN`, along that axis of (B, H, S, ...)."""
        key_indices_BN = self.key_indices_BN
        assert key_indices_BN is not None
        shape = [key_indices_BN.shape[0], *x.shape[1:]]
        shape[axis] = key_indices_BN.shape[1]
        expanded = x.expand(key_indices_BN.shape[0], -1, -1, -1)
        return expanded.gather(axis, key_indices_BN[:, None, None].movedim(-1, axis).expand(shape))

    def gather_mask(self, mask: AttentionMask) -> AttentionMask:
        """The columns of a 4-D mask for the keys that are attended to."""
        assert mask is None or isinstance(mask, Tensor)  # flex_attention, with masks of its own, never prunes keys
        return None if mask is None else self.gather_keys(mask, axis=3)

    def to(self, device: torch.device | str, **options: bool) -> "AttentionContext":
        """The same on another device, where accelerate spreads a model over several."""
        fields = {name: value for name, value in vars(self).items() if name != "state"}
        return self.replace(**tree_map_only(Tensor, lambda tensor: tensor.to(device, **options), fields))


def distance(pos_BQ: Tensor, pos_BS: Tensor) -> Tensor:
    """Key position minus query position, in tokens (B, Q, S)."""
    return pos_BS[:, None, :] - pos_BQ[:, :, None]


def interpolation_weights(distance: Tensor, dtype: torch.dtype) -> list[tuple[Tensor, Tensor | None]]:
    """Distances in whole tokens with their shares, for whoever looks a distance up: where a place is between two
    tokens, both share by nearness; else there is one, which has all of it, None."""
    if not distance.is_floating_point():
        return [(distance, None)]
    lower = distance.floor()
    weight = (distance - lower).to(dtype)
    return [(lower.long(), 1 - weight), (lower.long() + 1, weight)]


def scale_by(x: Tensor, weight: Tensor | None) -> Tensor:
    return x if weight is None else x * weight


def at_least_float32(x: Tensor) -> torch.dtype:
    """Angles grow with the position, so they are computed in float32 even for half precision, and in float64 for it."""
    return torch.promote_types(x.dtype, torch.float32)
