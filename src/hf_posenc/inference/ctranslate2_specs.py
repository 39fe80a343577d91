"""Specifications of CTranslate2: the weights and encodings of a model in the form of that engine.

`ENCODING_SPEC_BUILDERS` has a builder for each class of encodings that CTranslate2 can compute. Its conventions are
those of this family: a distance is key minus query, and neighbouring channels are rotated together. Therefore both
engines compute the same function; quantised weights approximate it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..encodings.base import HOOKS, PositionEncoding
from ..encodings.cape import Cape
from ..encodings.learned import Learned
from ..encodings.positions import AttentionContext
from ..encodings.relative import Relative
from ..encodings.rotary import Rotary, rotary_dim
from ..encodings.shape import Shape
from ..encodings.sinusoidal import Sinusoidal, sinusoids
from ..transformer.attention import Attention
from ..transformer.modeling_posenc import PosEncForConditionalGeneration
from .ctranslate2_translator import import_ctranslate2
from .export_validation import remedy_without_ctranslate2

if TYPE_CHECKING:
    from ctranslate2.specs import attention_spec, common_spec
    from ctranslate2.specs.model_spec import LayerSpec, ModelSpec

# CTranslate2's names of transformers' activations.
ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_new": "GELUTanh",
    "gelu_pytorch_tanh": "GELUTanh",
    "quick_gelu": "GELUSigmoid",
    "silu": "SWISH",
    "swish": "SWISH",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
}


@dataclass
class EncodingSpec:
    """One stack's encoding for CTranslate2.

    `options`: arguments of the stack's specification. `added_embeddings_ND`: a table added to the token embeddings.
    `layer_tables`: the tables of a layer's self-attention by name.
    """

    options: dict[str, object] = field(default_factory=dict)
    added_embeddings_ND: Tensor | None = None
    layer_tables: Callable[[int], dict[str, Tensor]] = lambda layer: {}


def no_encoding_spec() -> EncodingSpec:
    """No encoding, as a rotation by zero angles: a table of zeros would bound the length."""
    linear = import_ctranslate2().specs.attention_spec.RotaryScalingType.Linear
    return EncodingSpec({"rotary_dim": 2, "rotary_scaling_type": linear, "rotary_scaling_factor": math.inf})


def additive_spec(encoding: PositionEncoding, positions: int) -> EncodingSpec:
    """A table of `positions` rows, or of the encoding's maximum length."""
    rows = min(positions, getattr(encoding.config, type(encoding).max_length_field or "", positions))
    pos_1N = torch.arange(rows)[None]
    zeros_1ND = torch.zeros(1, rows, encoding.config.d_model)
    return EncodingSpec(added_embeddings_ND=encoding.embed(zeros_1ND, AttentionContext(pos_1N, pos_1N))[0])  # type: ignore[misc]


def relative_spec(encoding: Relative, positions: int) -> EncodingSpec:
    """Tables of relative vectors for keys and, if the encoding has them, values."""
    sinusoidal_RK = sinusoids(torch.arange(-encoding.clip, encoding.clip + 1), encoding.side.head_dim, torch.float32)
    learned = {"keys": encoding.keys, "values": encoding.values}
    used = [name for name in learned if name == "keys" or encoding.value_bias is not None]

    def layer_tables(layer: int) -> dict[str, Tensor]:
        tables = {name: learned[name] for name in used}
        return {
            f"relative_position_{name}": sinusoidal_RK if table is None else table[layer]
            for name, table in tables.items()
        }

    return EncodingSpec({"relative_position": True}, layer_tables=layer_tables)


def rotary_spec(encoding: Rotary, positions: int) -> EncodingSpec:
    """Rotation of neighbouring channels; a ValueError for `xpos` in a decoder and for other frequency scalings."""
    rope_parameters = encoding.config.rope_parameters
    if encoding.decays:
        raise ValueError("it has no decay with the distance, which `xpos` has in a decoder")
    if encoding.rope_type != "default":
        raise ValueError(f"it has rope_type='default' only, but this encoding has {encoding.rope_type!r}")
    num_rotated = rotary_dim(encoding.side.head_dim, rope_parameters.get("partial_rotary_factor", 1.0))
    return EncodingSpec({"rotary_dim": num_rotated, "rotary_interleave": True, "rotary_base": encoding.theta})


# By class; subclasses do not count.
ENCODING_SPEC_BUILDERS: dict[type[PositionEncoding], Callable[[Any, int], EncodingSpec]] = {
    Sinusoidal: additive_spec,
    Learned: additive_spec,
    Shape: additive_spec,
    Cape: additive_spec,
    Relative: relative_spec,
    Rotary: rotary_spec,
}


def build_encoding_spec(model: PosEncForConditionalGeneration, side: str, positions: int) -> EncodingSpec:
    """One stack's encoding for CTranslate2, without encodings that act in training only; a ValueError without one."""
    encodings = getattr(model.model, side).positions
    active = [encodings[index] for index in sorted(set().union(*map(encodings.hook_indices, HOOKS)))]
    name = model.config.side(side).encoding
    try:
        if len(active) > 1:
            raise ValueError("it has no sums")
        if not active:
            return no_encoding_spec()
        if type(active[0]) not in ENCODING_SPEC_BUILDERS:
            raise ValueError("it has no such encoding")
        return ENCODING_SPEC_BUILDERS[type(active[0])](active[0], positions)
    except ValueError as reason:
        raise ValueError(
            f"CTranslate2 cannot run {name!r} in the {side}: {reason}; {remedy_without_ctranslate2(model)}."
        ) from None


def build_model_spec(model: PosEncForConditionalGeneration, encoding_specs: dict[str, EncodingSpec]) -> "ModelSpec":
    """CTranslate2's specification of the model. Weights are copied because quantisation overwrites them."""
    config, specs = model.config, import_ctranslate2().specs
    common = {
        "pre_norm": config.norm_first,
        "layernorm_embedding": config.normalize_embedding,
        "activation": getattr(specs.common_spec.Activation, ACTIVATIONS[config.activation_function]),
    }
    sizes = {side: (config.side(side).layers, config.side(side).heads) for side in encoding_specs}
    encoder = specs.TransformerEncoderSpec(*sizes["encoder"], **common, **encoding_specs["encoder"].options)
    decoder = specs.TransformerDecoderSpec(*sizes["decoder"], **common, **encoding_specs["decoder"].options)
    model_spec = specs.TransformerSpec(encoder, decoder)
    for side, spec in (("encoder", encoder), ("decoder", decoder)):
        fill_stack(spec, getattr(model.model, side), encoding_specs[side])
    encoder.embeddings[0].weight = to_float_copy(model.model.encoder.embed_tokens.weight)
    decoder.embeddings.weight = to_float_copy(model.model.decoder.embed_tokens.weight)
    fill_linear(decoder.projection, model.lm_head)
    if model.final_logits_bias is not None:
        decoder.projection.bias = to_float_copy(model.final_logits_bias).flatten()
    return model_spec


def to_float_copy(tensor: Tensor) -> Tensor:
    """A contiguous float32 copy without a graph."""
    return tensor.detach().float().clone(memory_format=torch.contiguous_format)


def fill_linear(spec: "common_spec.LinearSpec", linear: nn.Linear) -> None:
    spec.weight = to_float_copy(linear.weight)
    if linear.bias is not None:
        spec.bias = to_float_copy(linear.bias)


def fill_norm(spec: "common_spec.LayerNormSpec", norm: nn.LayerNorm) -> None:
    spec.gamma, spec.beta = to_float_copy(norm.weight), to_float_copy(norm.bias)


def fill_stack(spec: "LayerSpec", stack: Any, encoding_spec: EncodingSpec) -> None:
    spec.scale_embeddings = float(stack.embed_scale)
    if stack.layer_norm is not None:
        fill_norm(spec.layer_norm, stack.layer_norm)
    if stack.layernorm_embedding is not None:
        fill_norm(spec.layernorm_embedding, stack.layernorm_embedding)
    if encoding_spec.added_embeddings_ND is not None:
        spec.position_encodings.encodings = to_float_copy(encoding_spec.added_embeddings_ND)
    for number, (layer, module) in enumerate(zip(spec.layer, stack.layers, strict=True)):
        fill_attention(layer.self_attention, module.self_attn, [3])
        fill_norm(layer.self_attention.layer_norm, module.self_attn_layer_norm)
        layer_tables = encoding_spec.layer_tables(number)
        for name in ("relative_position_keys", "relative_position_values"):
            if name in layer_tables:
                setattr(layer.self_attention, name, to_float_copy(layer_tables[name]))
            elif hasattr(layer.self_attention, name):
                delattr(layer.self_attention, name)
        if hasattr(module, "encoder_attn"):
            fill_attention(layer.attention, module.encoder_attn, [1, 2])
            fill_norm(layer.attention.layer_norm, module.encoder_attn_layer_norm)
        fill_linear(layer.ffn.linear_0, module.fc1)
        fill_linear(layer.ffn.linear_1, module.fc2)
        fill_norm(layer.ffn.layer_norm, module.final_layer_norm)


def fill_attention(
    spec: "attention_spec.MultiHeadAttentionSpec", attention: Attention, fused_counts: list[int]
) -> None:
    """Fill in the projections of one attention; `fused_counts` says how queries, keys, values are fused."""
    package = import_ctranslate2()
    maps = [package.specs.common_spec.LinearSpec() for _ in range(3)]
    for linear_spec, linear in zip(maps, (attention.q_proj, attention.k_proj, attention.v_proj), strict=True):
        fill_linear(linear_spec, linear)
    for number, count in enumerate(fused_counts):
        package.converters.utils.fuse_linear(spec.linear[number], maps[:count])
        maps = maps[count:]
    fill_linear(spec.linear[-1], attention.out_proj)
