# SPDX-License-Identifier: Apache-2.0
"""Where one attention happens, and what encodings make of the distances in it. Shape letters as in position.py."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from .cache import Memory
from .masks import num_visible


@dataclass(frozen=True)
class Place:
    """Where one attention happens; each stack makes one a forward, and hooks never change it.

    `queries_BQ`, `keys_BS`: positions; in cross-attention both are places in the source, and a query's may be between
    two tokens. `tokens_BT`: which of the new tokens are no padding, None if all are. `mask`: the attention mask as it
    was given. `start`: how many tokens stand in the cache before the new ones. `layer`: the number of the attention
    that asks, None before the first, and `inputs_BTD` what its queries are made of. `memory`: what cached decoding
    remembers for this encoding, None where nothing is cached. `all_keys`: whether every key's weight is asked for,
    hidden or not. `by_distance`: whether attention goes by distance (attention_by_distance.py). `slots_BN`: which of
    the cached keys are attended to, None for all. `prepared`: what its `prepare` returned. `watched`: whether the
    attention weights are asked for by the alignment.
    """

    queries_BQ: Tensor
    keys_BS: Tensor
    tokens_BT: Tensor | None = None
    mask: Any = None
    start: int | Tensor = 0
    is_causal: bool = False
    is_cross: bool = False
    layer: int | None = None
    inputs_BTD: Tensor | None = None
    memory: Memory | None = None
    all_keys: bool = False
    by_distance: bool = False
    slots_BN: Tensor | None = None
    prepared: Any = None
    watched: bool = False

    def but(self, **changes: Any) -> "Place":
        """The same but for what is named. `dataclasses.replace`, which torch can compile, takes as long as two of its
        calls, and a step of decoding has thirty of them."""
        if torch.compiler.is_compiling():
            return replace(self, **changes)
        made = object.__new__(Place)
        vars(made).update(vars(self) | changes)
        return made

    @property
    def new_keys_BT(self) -> Tensor:
        """Positions of the keys that are not cached yet: the new tokens' own, in cross-attention the whole source's."""
        return self.keys_BS if self.is_cross else self.queries_BQ

    @property
    def distance_BQS(self) -> Tensor:
        return distance(self.queries_BQ, self.keys_BS)

    @property
    def num_visible_BQ(self) -> Tensor:
        """How many keys each query may see, by what the mask says (B or 1, Q or 1)."""
        shape = self.queries_BQ.shape[-1], self.keys_BS.shape[-1]
        return num_visible(self.mask, *shape, self.start, self.is_causal, self.queries_BQ.device)

    def near(self, x: Tensor, axis: int = 2) -> Tensor:
        """Of keys, values or a mask (B, H, S, ...), with the keys along an axis, what is attended to."""
        slots_BN = self.slots_BN
        assert slots_BN is not None
        shape = [slots_BN.shape[0], *x.shape[1:]]
        shape[axis] = slots_BN.shape[1]
        spread = x.expand(slots_BN.shape[0], -1, -1, -1)
        return spread.gather(axis, slots_BN[:, None, None].movedim(-1, axis).expand(shape))

    def to(self, device: Any, **options: Any) -> "Place":
        """The same on another device, where accelerate spreads a model over several."""
        held = {name: value for name, value in vars(self).items() if name != "memory"}
        return self.but(**tree_map_only(Tensor, lambda tensor: tensor.to(device, **options), held))


def distance(pos_BQ: Tensor, pos_BS: Tensor) -> Tensor:
    """Key position minus query position, in tokens (B, Q, S)."""
    return pos_BS[:, None, :] - pos_BQ[:, :, None]


def between(distance: Tensor, dtype: torch.dtype) -> list[tuple[Tensor, Tensor | None]]:
    """Distances in whole tokens with their shares, for whoever looks a distance up: where a place is between two
    tokens, both share by nearness; else there is one, which has all of it, None."""
    if not distance.is_floating_point():
        return [(distance, None)]
    lower = distance.floor()
    share = (distance - lower).to(dtype)
    return [(lower.long(), 1 - share), (lower.long() + 1, share)]


def times(x: Tensor, share: Tensor | None) -> Tensor:
    return x if share is None else x * share


def angle_dtype(x: Tensor) -> torch.dtype:
    """Angles grow with the position, so they are computed in float32 even for half precision, and in float64 for it."""
    return torch.promote_types(x.dtype, torch.float32)
