# SPDX-License-Identifier: Apache-2.0
"""Attention of a host with other position encodings: what a call gives to its layers, and the functions that they call.

A host computes queries, keys and values, and passes them to a function of transformers' registry. Ours applies the
hooks of the layer's encodings and calls the host's own function with the biases. Masks have a registry of their own:
a function without a mask function under the same name is given no mask, for padded batches and static caches too.

Nothing of a call is kept on a module. A host passes keywords that it does not have on to its attention, and so the
inputs of a call arrive there. Shape letters as in encodings/base.py.
"""

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, Cache
from transformers.masking_utils import AttentionMaskInterface, eager_mask, flex_attention_mask, sdpa_mask

from ..encodings.cache import cached_seq_length
from ..encodings.positions import (
    AttentionContext,
    AttentionMask,
    cumsum_positions,
    document_mask,
    positions_from_mask,
    to_bool_mask,
)
from ..encodings.sum import PositionEncodingSum
from ..transformer.attention import AttentionFunction, AttentionInputs

# The attention functions of transformers that a host can compute with other encodings, and their mask functions. A
# host's implementation is one of these names with the prefix.
MASK_FUNCTIONS = {"sdpa": sdpa_mask, "eager": eager_mask, "flex_attention": flex_attention_mask}
IMPLEMENTATION_PREFIX = "posenc_"
# The keyword by which the inputs of a call reach its attention.
INPUTS = "posenc_inputs"
CACHE_KEYWORDS = ("cache", "past_key_values", "layer_past")


@dataclass(frozen=True)
class HostInputs:
    """What a call of a host gives to its layers.

    `layers`: for each layer with encodings of ours, the inputs of its attention.
    `rotations`: for each layer that is not to rotate as the host does, the host's `position_embeddings` for it; None
        for no rotation.
    `reached`: the layers whose attention has read these inputs.
    """

    layers: Mapping[int, AttentionInputs]
    rotations: Mapping[int, Any]
    reached: set[int] = field(default_factory=set)

    def to(self, device: torch.device | str, **options: bool) -> "HostInputs":
        """The inputs on another device; accelerate calls it where a model is on several devices."""
        layers = {layer: inputs.to(device, **options) for layer, inputs in self.layers.items()}
        return replace(self, layers=layers)


@dataclass(frozen=True)
class HostCall:
    """The arguments of a host's forward that say where its tokens stand.

    `num_new`: new tokens, T. `like`: a tensor of the embeddings' dtype and device. `is_causal`: the attention's.
    """

    batch: int
    num_new: int
    like: Tensor
    mask: Any
    position_ids: Tensor | None
    cache: Cache | None
    is_causal: bool

    def mask_of(self, layer_type: str) -> AttentionMask:
        """The mask of a layer of this type; `generate` makes one for each type where a cache is static."""
        return self.mask[layer_type] if isinstance(self.mask, dict) else self.mask

    def key_range(self, layer: int) -> tuple[int, int]:
        """How many keys a layer attends to, and the index of the first one among all tokens so far."""
        return (self.num_new, 0) if self.cache is None else self.cache.get_mask_sizes(self.num_new, layer)

    @property
    def query_index_T(self) -> Tensor:
        """The index of each new token among all tokens so far, padding included."""
        return torch.arange(self.num_new, device=self.like.device) + cached_seq_length(self.cache)

    @property
    def default_position_ids(self) -> Tensor:
        """The `position_ids`, or those that a host computes without them (B or 1, T)."""
        return self.query_index_T[None] if self.position_ids is None else self.position_ids

    def context(self, num_keys: int, first_key: int, mask: AttentionMask) -> AttentionContext:
        """The positions of the new tokens and of `num_keys` keys from `first_key` on.

        `position_ids` win where no token is cached. Else a token's position is the number of unmasked tokens before it.
        """
        num_cached, position_ids = cached_seq_length(self.cache), self.position_ids
        if position_ids is not None and isinstance(num_cached, int) and not num_cached and num_keys == self.num_new:
            query_pos_BQ = key_pos_BS = position_ids
            if mask is None and self.is_causal:
                mask = packed_mask(position_ids.expand(self.batch, -1))
        elif isinstance(mask, Tensor) and mask.ndim == 4:
            key_pos_BS = cumsum_positions(to_bool_mask(mask[:, 0, -1]))
            query_pos_BQ = key_pos_BS[:, self.query_index_T - first_key]
            if position_ids is not None:  # a mask has no column for the tokens before a host's own window
                shift_B1 = position_ids[:, -1:] - query_pos_BQ[:, -1:]
                query_pos_BQ, key_pos_BS = query_pos_BQ + shift_B1, key_pos_BS + shift_B1
        elif isinstance(mask, Tensor):
            missing = max(0, first_key + num_keys - mask.shape[1])  # of a static cache, for tokens to come
            key_pos_BM = cumsum_positions(nn.functional.pad(mask != 0, (0, missing), value=True))
            key_pos_BS = key_pos_BM[:, first_key : first_key + num_keys]
            query_pos_BQ = positions_from_mask(mask, self.num_new)
        else:
            query_pos_BQ = self.query_index_T[None]
            key_pos_BS = torch.arange(num_keys, device=self.like.device)[None] + first_key
        return AttentionContext(
            query_pos_BQ, key_pos_BS, mask=mask, num_cached=num_cached, is_causal=self.is_causal,
            is_cross=True,  # a host caches keys as they are, so that all of them are rotated at each step
        )  # fmt: skip

    def layer_inputs(
        self, encodings: Mapping[int, PositionEncodingSum], layer_types: Mapping[int, str]
    ) -> dict[int, AttentionInputs]:
        """The inputs of each layer with encodings; layers that attend to the same keys share what is prepared."""
        inputs: dict[int, AttentionInputs] = {}
        shared: dict[tuple[object, ...], AttentionInputs] = {}
        for layer, positions in encodings.items():
            num_keys, first_key = self.key_range(layer)
            mask = self.mask_of(layer_types[layer])
            key = (id(positions), num_keys, first_key, id(mask))
            if key not in shared:
                ctx = self.context(num_keys, first_key, mask)
                shared[key] = AttentionInputs(positions, ctx, positions.prepare(self.like, ctx))
            inputs[layer] = shared[key]
        return inputs


def packed_mask(position_ids_BT: Tensor) -> Tensor | None:
    """The mask of documents that follow each other in a row, as transformers finds them; None for one a row."""
    starts_BT = nn.functional.pad(position_ids_BT.diff(dim=1) != 1, (1, 0), value=True)
    if not torch.compiler.is_compiling() and not bool(starts_BT[:, 1:].any()):
        return None
    return document_mask(starts_BT)


def host_attention_forward(
    module: nn.Module,
    q_BHQK: Tensor,
    k_BGSK: Tensor,
    v_BGSK: Tensor,
    attention_mask: Any,
    *,
    implementation: str,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """The attended values (B, Q, H, K) and the weights by the host's own function, with a layer's encodings.

    Keys and values have G heads, each for H / G heads of queries.
    """
    host_function, inputs = own_attention(module, implementation), kwargs.pop(INPUTS, None)
    layer = getattr(module, "posenc_layer", None)
    if layer is None:  # a stack whose encodings nobody replaced
        return host_function(module, q_BHQK, k_BGSK, v_BGSK, attention_mask, **kwargs)
    if inputs is None:
        raise lost_inputs_error(module)
    inputs.reached.add(layer)
    layer_inputs = inputs.layers.get(layer)
    if layer_inputs is None:
        return host_function(module, q_BHQK, k_BGSK, v_BGSK, attention_mask, **kwargs)
    positions = layer_inputs.positions
    contexts = positions.at_layer(layer_inputs.contexts, layer, q_BHQK)
    if (num_keys := layer_inputs.ctx.key_pos_BS.shape[1]) != k_BGSK.shape[2]:
        raise ValueError(
            f"Layer {layer} must have the keys that its cache announces, but it has {k_BGSK.shape[2]}, not {num_keys}; "
            "leave the cache out, or take another kind of cache."
        )
    unrotated_q_BHQK = q_BHQK
    if positions.rotates_queries:
        q_BHQK = positions.rotate_queries(q_BHQK, contexts)
    if positions.rotates_keys:
        k_BGSK = positions.rotate_keys(k_BGSK, contexts)
    if positions.has_score_bias:
        bias = positions.score_bias(unrotated_q_BHQK, repeat_heads(k_BGSK, q_BHQK), contexts)
        if implementation == "eager":
            attention_mask = biased_mask(bias, attention_mask)
        else:
            kwargs["position_bias"] = bias.expand(*q_BHQK.shape[:3], -1) if implementation != "sdpa" else bias
    return host_function(module, q_BHQK, k_BGSK, v_BGSK, attention_mask, **kwargs)


def own_attention(module: nn.Module, implementation: str) -> AttentionFunction:
    """The attention function that a host calls under this name: one of its module, or one of transformers' registry."""
    host_module = sys.modules[type(module).__module__]
    registry = vars(host_module)["ALL_ATTENTION_FUNCTIONS"]
    return registry.get_interface(implementation, vars(host_module).get("eager_attention_forward"))


class LostInputsError(RuntimeError):
    """A host does not pass the inputs of a call on to its attention."""


def lost_inputs_error(module: nn.Module) -> LostInputsError:
    return LostInputsError(
        f"{type(module).__name__} must be called by its model, which computes positions, but no {INPUTS} arrived; call "
        "the whole model, or choose a model that passes unknown keywords on to its attention."
    )


def repeat_heads(k_BGSK: Tensor, q_BHQK: Tensor) -> Tensor:
    """Keys or values with a head for each head of the queries (B, H, S, K)."""
    repeats = q_BHQK.shape[1] // k_BGSK.shape[1]
    return k_BGSK if repeats == 1 else k_BGSK.repeat_interleave(repeats, dim=1)


def biased_mask(bias: Tensor, mask: Tensor | None) -> Tensor:
    """A mask that is added to the scores, with the bias; `eager_mask` is never None for causal attention."""
    if mask is None:
        return bias
    if mask.dtype == torch.bool:
        return bias.masked_fill(~mask, torch.finfo(bias.dtype).min)
    return bias + mask


def new_host_call(base: Any, arguments: Mapping[str, Any], is_causal: bool) -> HostCall:
    """The call of a host's base model with these arguments of its forward, by name."""
    tokens = arguments.get("inputs_embeds")
    if tokens is None:
        tokens = arguments.get("input_ids")
    if tokens is None:
        raise ValueError("A model must be given input_ids or inputs_embeds, but both are missing; give one of them.")
    cache = next((arguments[name] for name in CACHE_KEYWORDS if arguments.get(name) is not None), None)
    like = base.get_input_embeddings().weight[:1, None]
    mask = arguments.get("attention_mask")
    batch, num_new = tokens.shape[:2]
    return HostCall(batch, num_new, like, mask, arguments.get("position_ids"), cache, is_causal)


def named_arguments(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a module's forward by name; `posenc_arguments` are the names in order."""
    return dict(zip(module.posenc_arguments, args, strict=False)) | dict(kwargs)


def argument_names(module: nn.Module) -> list[str]:
    """The names of the arguments of a module's forward, in order."""
    return list(inspect.signature(type(module).forward).parameters)[1:]


def register_attention() -> None:
    """Register attention and mask functions under the same names."""
    for name, mask_function in MASK_FUNCTIONS.items():
        forward: Callable[..., Any] = partial(host_attention_forward, implementation=name)
        AttentionInterface.register(IMPLEMENTATION_PREFIX + name, forward)
        AttentionMaskInterface.register(IMPLEMENTATION_PREFIX + name, mask_function)


register_attention()
