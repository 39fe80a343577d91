# SPDX-License-Identifier: Apache-2.0
"""What cached decoding must remember beyond keys and values: the positions of the keys, and an encoding's states.

The decoder's first cache layer is one of the two classes below, chosen by the config for encodings that need it. They
keep named tensors with a time axis beside the keys, so that everything transformers does to a cache (reorder the beams,
crop rejected candidates, repeat or select sentences, reset) is done to them as well.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, DynamicLayer, StaticLayer


class RememberingLayer(DynamicLayer):
    """Keys, values and, by name, tensors of shape (B, S, ...) that grow with them."""

    _layer_type = "remembering_attention"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.remembered: dict[str, Tensor] = {}

    def remember(self, name: str, new: Tensor) -> Tensor:
        """Add the new tokens' (B, T, ...) and return all tokens' (B, S, ...). Called before `update`."""
        old = self.recalled(name)
        self.remembered[name] = new if old is None else torch.cat((old, new), dim=1)
        return self.remembered[name]

    def last(self, name: str, width: int) -> Tensor | None:
        """The newest token's (B, width), or None before the first."""
        old = self.recalled(name)
        return None if old is None or old.shape[1] == 0 else of_width(width, name, old)[:, -1]

    def recalled(self, name: str) -> Tensor | None:
        """The (B, S, ...) of exactly the tokens whose keys are here; None before the first."""
        old = self.remembered.get(name)
        if (remembered := 0 if old is None else old.shape[1]) != self.get_seq_length():
            raise forgotten(name, remembered, self.get_seq_length())
        return old

    def reset(self) -> None:
        super().reset()
        self.remembered = {}

    def reorder_cache(self, beam_idx: Tensor) -> None:
        super().reorder_cache(beam_idx)
        self.batch_select_remembered(beam_idx)

    def crop(self, tokens_to_remove: int) -> None:
        super().crop(tokens_to_remove)
        if tokens_to_remove:
            self.remembered = {name: old[:, :tokens_to_remove] for name, old in self.remembered.items()}

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

    def remember(self, name: str, new: Tensor) -> Tensor:
        if self.recalled(name) is None:
            self.remembered[name] = new.new_zeros(new.shape[0], self.max_cache_len, *new.shape[2:])
            if not torch.compiler.is_compiling():
                torch._dynamo.mark_static_address(self.remembered[name])
        at = torch.arange(new.shape[1], device=new.device) + self.cumulative_length.to(new.device)
        return self.remembered[name].index_copy_(1, at, new)

    def last(self, name: str, width: int) -> Tensor | None:
        if (old := self.recalled(name)) is None:
            return None
        at = (self.cumulative_length.to(old.device) - 1).clamp(min=0)
        return of_width(width, name, old).index_select(1, at[None])[:, 0]

    def recalled(self, name: str) -> Tensor | None:
        """The room for all tokens, filled as far as there are keys; None before the first."""
        old = self.remembered.get(name)
        if old is None and not torch.compiler.is_compiling() and (length := int(self.get_seq_length())):
            raise forgotten(name, 0, length)
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


def remembering_layer(cache: Cache) -> RememberingLayer | StaticRememberingLayer:
    """The layer of a decoder's self-attention cache that remembers; a ValueError for a cache that has none."""
    if isinstance(cache, DynamicCache) and not cache.layers:
        cache.layers.append(RememberingLayer())
    layer = cache.layers[0]
    if not hasattr(layer, "remember"):
        raise ValueError(
            "This position encoding needs a cache that remembers positions, but the cache's first layer is a "
            f"{type(layer).__name__}; make the cache from the model's config, as in DynamicCache(config=model.config)."
        )
    return layer
