# SPDX-License-Identifier: Apache-2.0
"""Cache layers that keep positions of keys and states of encodings, in addition to keys and values.

If an encoding needs it, the config makes the first cache layer a stateful one. Stateful layers keep named tensors with
the same time axis as the keys. Therefore all that transformers does to a cache is done to the states too: reordering
beams, cropping rejected candidates, repeating or selecting sentences, reset. A forward reads and writes states through
an EncodingState. It holds the number of tokens before the forward, because the layer's own count grows as soon as the
first attention adds its keys, before later layers append their states. Under a window all layers evict the tokens that
no query will attend to.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, DynamicLayer, StaticLayer

# Cached tokens kept beyond the window: assisted decoding may reject as many, and eviction need not run at every step.
EVICTION_SLACK = 64


class EvictingLayer(DynamicLayer):
    """Keys and values of which the oldest can be evicted when no query will see them again.

    `get_seq_length` counts evicted tokens, too, because positions and masks do.
    """

    _layer_type = "evicting_attention"
    keys: Tensor
    values: Tensor

    def __init__(self, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.num_evicted, self.min_kept = 0, 0
        self.row_ids: Tensor | None = (
            None  # see transformer/cross_attention.py: rows of one number have the same content
        )

    def length(self) -> int:
        """How many tokens are kept."""
        return super().get_seq_length()

    def get_seq_length(self) -> int:
        """How many tokens were cached, evicted ones included."""
        return super().get_seq_length() + self.num_evicted

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Width and offset of the mask: evicted tokens have no column."""
        return super().get_seq_length() + query_length, self.num_evicted

    def evict(self, num_evicted: int, min_kept: int) -> None:
        """Drop the oldest tokens. Of the others `min_kept` must stay, which `crop` checks."""
        self.keys, self.values = self.keys[:, :, num_evicted:], self.values[:, :, num_evicted:]
        self.num_evicted, self.min_kept = self.num_evicted + num_evicted, min_kept

    def reset(self) -> None:
        super().reset()
        self.num_evicted, self.row_ids = 0, None

    def keeps_content(self, beam_idx: Tensor) -> bool:
        """Whether these rows are known to equal the present ones, so that reordering need not copy them."""
        row_ids = self.row_ids
        return row_ids is not None and torch.equal(row_ids[beam_idx.to(row_ids.device)], row_ids)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        if not self.keeps_content(beam_idx):
            self.row_ids = None
            super().reorder_cache(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.row_ids = None
        super().batch_repeat_interleave(repeats)

    def batch_select_indices(self, indices: Tensor) -> None:
        self.row_ids = None
        super().batch_select_indices(indices)

    def crop(self, tokens_to_remove: int) -> None:
        super().crop(tokens_to_remove)
        if self.num_evicted and self.length() < self.min_kept:
            raise ValueError(
                f"A cache under a window must keep {self.min_kept} tokens, but after crop({tokens_to_remove}) it has "
                f"{self.length()}, because it has dropped {self.num_evicted} hidden ones; begin with a new cache, or "
                "crop fewer tokens at once."
            )


class StaticEvictingLayer(StaticLayer):
    """A static layer under the same name, because transformers makes it by name. It never evicts."""

    _layer_type = "evicting_attention"


class StatefulLayer(EvictingLayer):
    """Keys, values and, by name, states: tensors (B, S, ...) with an entry for each cached token.

    Whatever happens to the keys happens to the states: reordering, cropping, repeating, selecting, eviction, reset.
    """

    _layer_type = "stateful_attention"

    def __init__(self, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.states: dict[str, Tensor] = {}

    def append_state(self, name: str, new: Tensor, length: int) -> Tensor:
        """Append the new tokens' state (B, T, ...) to that of `length` tokens; returns all of it (B, S, ...)."""
        stored = self.get_state(name, length)
        self.states[name] = new if stored is None else torch.cat((stored, new), dim=1)
        return self.states[name]

    def last_state(self, name: str, width: int, length: int) -> Tensor | None:
        """The newest token's state (B, width), None before the first token."""
        stored = self.get_state(name, length)
        return None if stored is None or stored.shape[1] == 0 else require_width(width, name, stored)[:, -1]

    def get_state(self, name: str, length: int) -> Tensor | None:
        """The state of exactly `length` tokens (B, S, ...), None for 0; a ValueError if another number is stored."""
        stored = self.states.get(name)
        if (num_stored := 0 if stored is None else stored.shape[1]) != length:
            raise stale_state_error(name, num_stored, length)
        return stored

    def reset(self) -> None:
        super().reset()
        self.states = {}

    def reorder_cache(self, beam_idx: Tensor) -> None:
        if not self.keeps_content(beam_idx):
            super().reorder_cache(beam_idx)
            self.batch_select_states(beam_idx)

    def evict(self, num_evicted: int, min_kept: int) -> None:
        super().evict(num_evicted, min_kept)
        self.states = {name: stored[:, num_evicted:] for name, stored in self.states.items()}

    def crop(self, tokens_to_remove: int) -> None:
        super().crop(tokens_to_remove)
        self.states = {name: stored[:, : self.length()] for name, stored in self.states.items()}

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        self.states = {name: stored.repeat_interleave(repeats, dim=0) for name, stored in self.states.items()}

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        self.batch_select_states(indices)

    def batch_select_states(self, indices: Tensor) -> None:
        """The states of these sentences or beams."""
        self.states = {name: stored[indices.to(stored.device)] for name, stored in self.states.items()}


class StaticStatefulLayer(StaticLayer):
    """Stateful layer of a static cache: states have room for `max_cache_len` tokens and are written in place."""

    _layer_type = "stateful_attention"

    def __init__(self, max_cache_len: int, **kwargs: object) -> None:
        super().__init__(max_cache_len, **kwargs)
        self.states: dict[str, Tensor] = {}

    def length(self) -> Tensor:
        return self.cumulative_length.clone()  # which grows in place

    def append_state(self, name: str, new: Tensor, length: Tensor) -> Tensor:
        if self.get_state(name, length) is None:
            self.states[name] = new.new_zeros(new.shape[0], self.max_cache_len, *new.shape[2:])
            if not torch.compiler.is_compiling():
                torch._dynamo.mark_static_address(self.states[name])
        index = torch.arange(new.shape[1], device=new.device) + length.to(new.device)
        return self.states[name].index_copy_(1, index, new)

    def last_state(self, name: str, width: int, length: Tensor) -> Tensor | None:
        if (stored := self.get_state(name, length)) is None:
            return None
        index = (length.to(stored.device) - 1).clamp(min=0)
        return require_width(width, name, stored).index_select(1, index[None])[:, 0]

    def get_state(self, name: str, length: Tensor) -> Tensor | None:
        """The state (B, max_cache_len, ...), filled up to `length` tokens; None before the first token."""
        stored = self.states.get(name)
        if stored is None and not torch.compiler.is_compiling() and int(length):
            raise stale_state_error(name, 0, int(length))
        return stored

    def reset(self) -> None:
        super().reset()
        for stored in self.states.values():
            stored.zero_()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        super().reorder_cache(beam_idx)
        self.states = {name: stored[beam_idx.to(stored.device)] for name, stored in self.states.items()}


def stale_state_error(name: str, num_stored: int, length: int) -> ValueError:
    """The error where cached encoding state does not match the cached keys."""
    return ValueError(
        f"Cached encoding state must match the cached keys, but there are {length} cached tokens and the {name} of "
        f"{num_stored}: another model filled the cache, or its keys were cropped alone. Begin with a new cache, "
        "DynamicCache(config=model.config), and shorten it by cache.crop."
    )


def require_width(width: int, name: str, stored: Tensor) -> Tensor:
    """The stored state; a ValueError if it is not that wide."""
    if stored.shape[-1] != width:
        raise stale_state_error(f"{name} of width {width}", 0, stored.shape[1])
    return stored


@dataclass(frozen=True)
class EncodingState:
    """The cached state of the tokens before this forward, to which the forward appends that of the new tokens.

    `length`: the number of those tokens, frozen before the first attention adds its keys. `scope`: a suffix of all
    names, by which two encodings, or two layers of one, never read each other's state.

    Without a cache a context's state is None. Compare it with None: an EncodingState is true even before any token.
    """

    layer: Any  # a StatefulLayer or a StaticStatefulLayer
    length: Any  # in that layer's type: int, or Tensor in a static cache
    scope: str = ""

    def scoped(self, owner: str) -> "EncodingState":
        """This state under names of its owner's, such as an encoding or one of its layers."""
        return EncodingState(self.layer, self.length, f"{self.scope} of {owner}")

    def last(self, name: str, width: int) -> Tensor | None:
        """The newest token's state (B, width), None before the first token."""
        return self.layer.last_state(name + self.scope, width, self.length)

    def get(self, name: str) -> Tensor | None:
        """The state of all cached tokens (B, S, ...), None before the first token."""
        return self.layer.get_state(name + self.scope, self.length)

    def subtract(self, name: str, number: float) -> None:
        """Subtract a number from the state of all cached tokens, as where positions get another origin."""
        if (stored := self.get(name)) is not None:
            self.layer.states[name + self.scope] = stored - number

    def append(self, name: str, new: Tensor) -> Tensor:
        """Append the new tokens' state (B, T, ...); returns all tokens' (B, S, ...), S = capacity in a static cache."""
        return self.layer.append_state(name + self.scope, new, self.length)


def state_of_cache(cache: Cache) -> EncodingState:
    """The state in a self-attention's or cross-attention's cache, with the number of tokens cached now.

    Call it before the first layer runs: that layer adds its keys to the cache, and the number that this function
    freezes must be the number without them. A ValueError for a cache that keeps no state.
    """
    if isinstance(cache, DynamicCache) and not cache.layers:
        cache.layers.append(StatefulLayer())
    layer = cache.layers[0]
    if layer._layer_type != StatefulLayer._layer_type:
        raise ValueError(
            "This position encoding needs a cache that keeps positions, but the cache's first layer is a "
            f"{type(layer).__name__}; make the cache from the model's config, as in DynamicCache(config=model.config). "
            "PEFT's prefix tuning makes its own cache, which has no positions: take LoRA instead."
        )
    return EncodingState(layer, layer.length())


def evict_outside_window(cache: Cache, window: int) -> None:
    """Drop the cached tokens that no new token will see: all keys that are `window` tokens away or more are hidden.

    Keep EVICTION_SLACK extra tokens for assisted decoding, and evict only when twice as many are cached as are kept.
    All layers drop the same tokens, or none does: masks have one width for all.
    """
    if torch.compiler.is_compiling() or not all(isinstance(layer, EvictingLayer) for layer in cache.layers):
        return
    layers, num_kept = cache.layers, window + EVICTION_SLACK
    if not layers or layers[0].length() < 2 * num_kept:
        return
    pos_BS = layers[0].states["positions"]
    in_window_BS = pos_BS > pos_BS.amax(1, keepdim=True) - num_kept
    if num_evicted := int(in_window_BS.long().argmax(1).min()):
        for layer in layers:
            layer.evict(num_evicted, window)


def cached_seq_length(cache: Cache | None) -> int | Tensor:
    """The number of cached tokens now. In a static cache it is a tensor that grows in place, hence the copy."""
    return 0 if cache is None else cache.get_seq_length() + 0
