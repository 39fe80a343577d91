"""Trained models for CTranslate2, an engine for translation in C++.

`ENCODING_SPEC_BUILDERS` says of each class of encodings what becomes of it there. CTranslate2's conventions are this
family's (a distance is key minus query; neighbouring channels are turned together), so both engines compute the same
function; int8 and the other quantisations come near it.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from ..modeling.attention import Attention
from ..modeling.attention_context import AttentionContext
from ..modeling.configuration_posenc import PosEncConfig
from ..modeling.modeling_posenc import PosEncForConditionalGeneration
from ..modeling.position_base import HOOKS, PositionEncoding
from ..modeling.position_cape import Cape
from ..modeling.position_learned import Learned
from ..modeling.position_relative import Relative
from ..modeling.position_rotary import Rotary, rotary_dim
from ..modeling.position_shape import Shape
from ..modeling.position_sinusoidal import Sinusoidal, sinusoids
from ..modeling.version import __version__
from ..utils.manifest import save_folder
from .ctranslate2_translator import METADATA_FILE, TOKENIZER_FOLDER, import_ctranslate2
from .export_validation import validate_export_call

if TYPE_CHECKING:
    from ctranslate2.specs import attention_spec, common_spec
    from ctranslate2.specs.model_spec import LayerSpec, ModelSpec

# transformers' activations by CTranslate2's names.
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
    """How the encoding of one side is run: options of that side's specification, what is added to its embeddings, and
    what a layer's self-attention holds, by name."""

    options: dict[str, object] = field(default_factory=dict)
    added_embeddings_ND: Tensor | None = None
    layer_tables: Callable[[int], dict[str, Tensor]] = lambda layer: {}


def no_encoding_spec() -> EncodingSpec:
    """No encoding is a rotation by angles of nothing: so nothing ends it, as a table of zeros would."""
    linear = import_ctranslate2().specs.attention_spec.RotaryScalingType.Linear
    return EncodingSpec({"rotary_dim": 2, "rotary_scaling_type": linear, "rotary_scaling_factor": math.inf})


def additive_spec(encoding: PositionEncoding, positions: int) -> EncodingSpec:
    rows = min(positions, getattr(encoding.config, type(encoding).max_length_field or "", positions))
    pos_1N = torch.arange(rows)[None]
    zeros_1ND = torch.zeros(1, rows, encoding.config.d_model)
    return EncodingSpec(added_embeddings_ND=encoding.embed(zeros_1ND, AttentionContext(pos_1N, pos_1N))[0])  # type: ignore[misc]


def relative_spec(encoding: Relative, positions: int) -> EncodingSpec:
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
    rope_parameters = encoding.config.rope_parameters
    if encoding.decays:
        raise ValueError("it has no products that fall with the distance, as those of `xpos` in a decoder do")
    if encoding.rope_type != "default":
        raise ValueError(f"of the rotary encodings it has rope_type='default', but this one has {encoding.rope_type!r}")
    num_rotated = rotary_dim(encoding.side.head_dim, rope_parameters.get("partial_rotary_factor", 1.0))
    return EncodingSpec({"rotary_dim": num_rotated, "rotary_interleave": True, "rotary_base": encoding.theta})


# By the class itself, not by what inherits from it.
ENCODING_SPEC_BUILDERS: dict[type[PositionEncoding], Callable[[Any, int], EncodingSpec]] = {
    Sinusoidal: additive_spec,
    Learned: additive_spec,
    Shape: additive_spec,
    Cape: additive_spec,
    Relative: relative_spec,
    Rotary: rotary_spec,
}

# Of a generation config: what CTranslate2 has by the same name, and what it has not.
SUPPORTED_SEARCH_OPTIONS = ("length_penalty", "repetition_penalty", "no_repeat_ngram_size")
UNSUPPORTED_SEARCH_OPTIONS: dict[str, object] = {  # and where it changes nothing
    "begin_suppress_tokens": None,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "exponential_decay_length_penalty": None,
    "forced_bos_token_id": None,
    "min_length": 0,
    "min_new_tokens": 0,
    "sequence_bias": None,
}


def to_ctranslate2(
    model: PosEncForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    folder: str | Path,
    *,
    quantization: str | None = None,
    positions: int = 4096,
) -> Path:
    """Write a trained model and its tokenizer as a folder for CTranslate2, an inference engine in C++.

    Args:
        model: a Transformer of this family. Its encodings may be `none`, `sinusoidal`, `learned`, `shape`, `cape`, one
            of the `relative` family or `rotary`, also with encodings that act in training only.
        tokenizer: the model's PosEncTokenizer.
        folder: a new folder.
        quantization: precision of the weights as CTranslate2 names it ("int8", "float16"). None keeps it.
        positions: rows of the table that CTranslate2 has for encodings that are added to embeddings, in tokens.

    Returns the folder, for CTranslate2Translator. Needs the extra "ctranslate2".

    Raises a ValueError, before anything is written, for a model that CTranslate2 cannot run, an unknown quantization, a
    folder that exists, and a missing extra.
    """
    folder = Path(folder)
    validate_ctranslate2_export(model, tokenizer, folder, quantization)
    source, target = vocabularies(model.config, tokenizer)
    search = search_options(model, target)
    encoding_specs = {side: build_encoding_spec(model, side, positions) for side in ("encoder", "decoder")}
    spec = build_model_spec(model, encoding_specs)
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    config: PosEncConfig = model.config
    spec.config.decoder_start_token = spec.config.bos_token = target[model.start_token()]
    spec.config.eos_token = target[model.end_tokens()[0][0]]
    spec.config.unk_token = tokenizer.unk_token or tokenizer.pad_token  # a byte-level vocabulary has none
    spec.config.layer_norm_epsilon = config.layer_norm_eps
    spec.validate()
    spec.optimize(quantization)
    rows = {
        side: None if encoding_spec.added_embeddings_ND is None else len(encoding_spec.added_embeddings_ND)
        for side, encoding_spec in encoding_specs.items()
    }
    metadata = {
        "hf_posenc_version": __version__,
        "position_encoding_type": config.position_encoding_type,
        "decoder_position_encoding_type": config.decoder_position_encoding_type,
        "quantization": quantization,
        "longest_source": rows["encoder"],
        "longest_target": rows["decoder"],
        "search": search,
    }

    def save(unfinished: Path) -> None:
        unfinished.mkdir()
        spec.save(str(unfinished))
        tokenizer.save_pretrained(unfinished / TOKENIZER_FOLDER)
        (unfinished / METADATA_FILE).write_text(json.dumps(metadata, indent=2) + "\n", encoding="utf-8")

    save_folder(folder, save)
    return folder


def validate_ctranslate2_export(
    model: PosEncForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, folder: Path, quantization: str | None
) -> None:
    quantizations = import_ctranslate2().specs.model_spec.ACCEPTED_MODEL_TYPES
    validate_export_call(model, tokenizer, folder, "CTranslate2")
    if quantization is not None and quantization not in quantizations:
        raise ValueError(
            f"`quantization` must be one of {', '.join(quantizations)} or None, but it is {quantization!r}."
        )
    if model.config.activation_function not in ACTIVATIONS:
        raise ValueError(
            f"CTranslate2 has the activations {', '.join(ACTIVATIONS)}, but activation_function="
            f"{model.config.activation_function!r}; translate with `model.translate`."
        )
    if model.model.decoder.cross_positions.modifies_attention:
        raise ValueError(
            "CTranslate2 has no positions in cross-attention, but this model has cross_position_encoding_type="
            f"{model.config.cross_position_encoding_type!r}; translate with `model.translate`."
        )


def build_encoding_spec(model: PosEncForConditionalGeneration, side: str, positions: int) -> EncodingSpec:
    """How a side's encoding is run; what acts in training only is left out."""
    active = [
        encoding for encoding in getattr(model.model, side).positions if any(getattr(encoding, hook) for hook in HOOKS)
    ]
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
            f"CTranslate2 cannot run {name!r} in the {side}: {reason}; translate with `model.translate`."
        ) from None


def build_model_spec(model: PosEncForConditionalGeneration, encoding_specs: dict[str, EncodingSpec]) -> "ModelSpec":
    """The model as CTranslate2 describes one, with copies of its weights, for to quantise is to overwrite."""
    config, specs = model.config, import_ctranslate2().specs
    common = {
        "pre_norm": config.norm_first,
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
    """Queries, keys and values, so many of them joined in one map, and the map of the output."""
    package = import_ctranslate2()
    maps = [package.specs.common_spec.LinearSpec() for _ in range(3)]
    for linear_spec, linear in zip(maps, (attention.q_proj, attention.k_proj, attention.v_proj), strict=True):
        fill_linear(linear_spec, linear)
    for number, count in enumerate(fused_counts):
        package.converters.utils.fuse_linear(spec.linear[number], maps[:count])
        maps = maps[count:]
    fill_linear(spec.linear[-1], attention.out_proj)


def search_options(model: PosEncForConditionalGeneration, target: list[str]) -> dict[str, object]:
    """What a model's generation config says of every search, as CTranslate2 has it; a ValueError if it has not."""
    config = model.generation_config
    if unsupported := [
        name
        for name, no_effect_value in UNSUPPORTED_SEARCH_OPTIONS.items()
        if getattr(config, name, None) not in (None, no_effect_value)
    ]:
        raise ValueError(
            f"CTranslate2 has no {', '.join(unsupported)}, which the model's generation config sets; set "
            f"model.generation_config.{unsupported[0]}=None if the translations shall do without."
        )
    options = {name: value for name in SUPPORTED_SEARCH_OPTIONS if (value := getattr(config, name, None)) is not None}
    ends, _ = model.end_tokens()
    if not ends:
        raise ValueError(
            "CTranslate2 ends a sentence at a token, but the model's generation config has eos_token_id=None; set "
            "model.generation_config.eos_token_id."
        )
    options["end_token"] = [target[end] for end in ends]
    words = [ids for ids in config.bad_words_ids or [] if ids not in [[end] for end in ends]]  # as transformers does
    suppressed = [*words, *([token] for token in config.suppress_tokens or [])]
    return options | (
        {"suppress_sequences": [[target[token] for token in ids] for ids in suppressed]} if suppressed else {}
    )


def vocabularies(config: PosEncConfig, tokenizer: PreTrainedTokenizerBase) -> tuple[list[str], list[str]]:
    """The tokens of either side by their numbers; rows of the model that no token has get names of their own."""
    source = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    target = source
    if getattr(tokenizer, "separate_vocabs", False):  # of Marian
        target = [tokenizer.decoder[number] for number in range(len(tokenizer.decoder))]
    elif not getattr(tokenizer, "shares_vocabulary", True):
        target = tokenizer.target.convert_ids_to_tokens(list(range(len(tokenizer.target))))

    def pad_vocabulary(tokens: list[str], rows: int) -> list[str]:
        return [*tokens[:rows], *(f"<row {number}>" for number in range(len(tokens), rows))]

    return pad_vocabulary(source, config.vocab_size), pad_vocabulary(target, config.target_vocab_size)
