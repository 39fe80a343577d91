# SPDX-License-Identifier: Apache-2.0
"""What cached decoding must remember beyond keys and values: the positions of the keys, and an encoding's states.

The first cache layer is one of the two remembering ones below, chosen by the config for encodings that need it. They
keep named tensors with a time axis beside the keys, so that everything transformers does to a cache (reorder the beams,
crop rejected candidates, repeat or select sentences, reset) is done to them as well. A forward reads and writes them
through a Memory, which knows how many tokens there were before it: the layer's own count grows as soon as the first
attention adds its keys, while later ones have yet to remember. Under a window all layers drop what no query will see.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, DynamicLayer, EncoderDecoderCache, StaticLayer

from .masks import check_source, positions_of

# So many cached tokens may be rejected after others were dropped.
SPARE = 64


class ShorteningLayer(DynamicLayer):
    """Keys and values whose oldest can be dropped, when no query will see them again; they still count."""

    _layer_type = "shortening_attention"
    keys: Any
    values: Any

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dropped, self.needed = 0, 0

    def length(self) -> int:
        """How many tokens are kept."""
        return super().get_seq_length()

    def get_seq_length(self) -> int:
        return self.length() + self.dropped

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length() + query_length, self.dropped

    def drop(self, oldest: int, needed: int) -> None:
        """Drop the oldest tokens; `needed` of the others must stay for the next one."""
        self.keys, self.values = self.keys[:, :, oldest:], self.values[:, :, oldest:]
        self.dropped, self.needed = self.dropped + oldest, needed

    def reset(self) -> None:
        super().reset()
        self.dropped = 0

    def crop(self, tokens_to_remove: int) -> None:
        super().crop(tokens_to_remove)
        if self.dropped and self.length() < self.needed:
            raise ValueError(
                f"A cache was shortened by crop({tokens_to_remove}), but it has dropped {self.dropped} tokens that a "
                f"window hid until then, and keeps {self.length()} of the {self.needed} that the next one may see; "
                "begin with a new cache, or crop less at once."
            )


class StaticShorteningLayer(StaticLayer):
    """One with room for all tokens, which drops none."""

    _layer_type = "shortening_attention"


class RememberingLayer(ShorteningLayer):
    """Keys, values and, by name, tensors of shape (B, S, ...) that grow with them."""

    _layer_type = "remembering_attention"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.remembered: dict[str, Tensor] = {}

    def remember(self, name: str, new: Tensor, length: int) -> Tensor:
        """Add the new tokens' (B, T, ...) behind those of `length` tokens and return all tokens' (B, S, ...)."""
        old = self.recalled(name, length)
        self.remembered[name] = new if old is None else torch.cat((old, new), dim=1)
        return self.remembered[name]

    def last(self, name: str, width: int, length: int) -> Tensor | None:
        """The newest token's (B, width), or None before the first."""
        old = self.recalled(name, length)
        return None if old is None or old.shape[1] == 0 else of_width(width, name, old)[:, -1]

    def recalled(self, name: str, length: int) -> Tensor | None:
        """The (B, S, ...) of exactly so many tokens; None before the first."""
        old = self.remembered.get(name)
        if (remembered := 0 if old is None else old.shape[1]) != length:
            raise forgotten(name, remembered, length)
        return old

    def reset(self) -> None:
        super().reset()
        self.remembered = {}

    def reorder_cache(self, beam_idx: Tensor) -> None:
        super().reorder_cache(beam_idx)
        self.batch_select_remembered(beam_idx)

    def drop(self, oldest: int, needed: int) -> None:
        super().drop(oldest, needed)
        self.remembered = {name: old[:, oldest:] for name, old in self.remembered.items()}

    def crop(self, tokens_to_remove: int) -> None:
        super().crop(tokens_to_remove)
        self.remembered = {name: old[:, : self.length()] for name, old in self.remembered.items()}

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        self.remembered = {name: old.repeat_interleave(repeats, dim=0) for name, old in self.remembered.items()}

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        self.batch_select_remembered(indices)

    def batch_select_remembered(self, indices: Tensor) -> None:
        self.remembered = {name: old[indices.to(old.device)] for name, old in self.remembered.items()}


class StaticRememberingLayer(StaticLayer):
    """The same with room for `max_cache_len` tokens, written in place."""

    _layer_type = "remembering_attention"

    def __init__(self, max_cache_len: int, **kwargs: Any) -> None:
        super().__init__(max_cache_len, **kwargs)
        self.remembered: dict[str, Tensor] = {}

    def length(self) -> Tensor:
        return self.cumulative_length.clone()  # which grows in place

    def remember(self, name: str, new: Tensor, length: Tensor) -> Tensor:
        if self.recalled(name, length) is None:
            self.remembered[name] = new.new_zeros(new.shape[0], self.max_cache_len, *new.shape[2:])
            if not torch.compiler.is_compiling():
                torch._dynamo.mark_static_address(self.remembered[name])
        at = torch.arange(new.shape[1], device=new.device) + length.to(new.device)
        return self.remembered[name].index_copy_(1, at, new)

    def last(self, name: str, width: int, length: Tensor) -> Tensor | None:
        if (old := self.recalled(name, length)) is None:
            return None
        at = (length.to(old.device) - 1).clamp(min=0)
        return of_width(width, name, old).index_select(1, at[None])[:, 0]

    def recalled(self, name: str, length: Tensor) -> Tensor | None:
        """The room for all tokens, filled as far as there are keys; None before the first."""
        old = self.remembered.get(name)
        if old is None and not torch.compiler.is_compiling() and int(length):
            raise forgotten(name, 0, int(length))
        return old

    def reset(self) -> None:
        super().reset()
        for old in self.remembered.values():
            old.zero_()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        super().reorder_cache(beam_idx)
        self.remembered = {name: old[beam_idx.to(old.device)] for name, old in self.remembered.items()}


def forgotten(name: str, remembered: int, length: int) -> ValueError:
    """What goes on decoding needs more than there is: the cache was filled or shortened behind this layer's back."""
    return ValueError(
        f"Decoding goes on from {length} cached tokens and needs their {name}, but the cache remembers those of "
        f"{remembered}: another model filled it, or its keys were cropped alone. Begin with a new cache, "
        "DynamicCache(config=model.config), and shorten it by cache.crop."
    )


def of_width(width: int, name: str, old: Tensor) -> Tensor:
    if old.shape[-1] != width:
        raise forgotten(f"{name} of width {width}", 0, old.shape[1])
    return old


@dataclass(frozen=True)
class Memory:
    """What one forward finds remembered of the tokens before it, and adds for the new ones.

    `length`: how many tokens there were, frozen before the first attention adds its keys; `scope`: whose names these
    are, so that two encodings, or two layers of one, never meet.
    """

    layer: Any  # of one of the two classes above
    length: Any  # what that layer counts in: a number or a tensor
    scope: str = ""

    def of(self, encoding: str, layer: int | None = None) -> "Memory":
        own = f" of {encoding}" if layer is None else f" of {encoding} in layer {layer}"
        return replace(self, scope=self.scope + own)

    def last(self, name: str, width: int) -> Tensor | None:
        """What was remembered of the newest token (B, width), None before the first."""
        return self.layer.last(name + self.scope, width, self.length)

    def recall(self, name: str) -> Tensor | None:
        """All that was remembered (B, S, ...), None before the first token."""
        return self.layer.recalled(name + self.scope, self.length)

    def keep(self, name: str, new: Tensor) -> Tensor:
        """Remember the new tokens' (B, T, ...); returns all tokens' (B, S, ...), in a static cache all of its room."""
        return self.layer.remember(name + self.scope, new, self.length)


def memory_of(cache: Cache) -> Memory:
    """What a self-attention's or cross-attention's cache remembers; a ValueError for one that cannot."""
    if isinstance(cache, DynamicCache) and not cache.layers:
        cache.layers.append(RememberingLayer())
    layer = cache.layers[0]
    if layer._layer_type != RememberingLayer._layer_type:
        raise ValueError(
            "This position encoding needs a cache that remembers positions, but the cache's first layer is a "
            f"{type(layer).__name__}; make the cache from the model's config, as in DynamicCache(config=model.config). "
            "PEFT's prefix tuning makes its own cache, which has no positions: take LoRA or prompt tuning instead."
        )
    return Memory(layer, layer.length())


def drop_hidden(cache: Cache, clip: int | None) -> None:
    """Drop the cached tokens that no new one will see, since all keys that are `clip` tokens away or more are hidden.
    Some more are kept, so that a few new ones can be rejected again, and it is not done at every step."""
    if (
        clip is None
        or torch.compiler.is_compiling()
        or not all(isinstance(one, ShorteningLayer) for one in cache.layers)
    ):
        return
    layers, keep = cache.layers, clip + SPARE
    if not layers or layers[0].length() < 2 * keep:
        return
    pos_BS = layers[0].remembered["positions"]
    is_near_BS = pos_BS > pos_BS.amax(1, keepdim=True) - keep
    if oldest := int(is_near_BS.long().argmax(1).min()):
        for layer in layers:
            layer.drop(oldest, clip)


def cached_tokens(cache: Cache | None) -> int | Tensor:
    """How many tokens stand in a cache now: of a static one a tensor, which goes on growing in place."""
    return 0 if cache is None else cache.get_seq_length() + 0


def source_positions(
    position_ids: Tensor | None, mask: Any, memory_BSD: Tensor, cache: EncoderDecoderCache | None
) -> Tensor:
    """The positions of the source (B or 1, S): given or by its mask, remembered beside its keys as they were at a
    cached decoding's first step."""
    if cache is None:
        return checked_positions(position_ids, mask, memory_BSD)
    memory = memory_of(cache.cross_attention_cache)
    if cache.is_updated.get(0):
        return memory.recall("positions")
    keys_BS = checked_positions(position_ids, mask, memory_BSD)
    return memory.keep("positions", keys_BS.expand(memory_BSD.shape[0], -1))


def checked_positions(position_ids: Tensor | None, mask: Any, memory_BSD: Tensor) -> Tensor:
    check_source(mask)
    return positions_of(mask, memory_BSD.shape[1], device=memory_BSD.device) if position_ids is None else position_ids
