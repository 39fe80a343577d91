# SPDX-License-Identifier: Apache-2.0
"""The config of a host with other positions, checked against what the host can take, and the model with it."""

import re
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers import initialization as init

from ..encodings.base import EncodingParameter, PositionEncoding
from ..encodings.registry import POSITION_ENCODINGS, parse_sum
from ..hub.errors import validate_names
from .attention import IMPLEMENTATION_PREFIX
from .auto_classes import host_auto_map
from .configuration_posenc_host import (
    CLASS_PREFIX,
    OWN,
    EncodingParameters,
    HostConfig,
    host_config_class,
    host_side,
)
from .modeling_posenc_host import has_removed_table, host_model_class, install, is_causal, own_encoding, stack_of

EVERY = re.compile(r"(all but )?every (\d+)(?:st|nd|rd|th)")
# Keys of `rope_parameters` of the scalings that a host may have.
ROPE_KEYS = (
    "rope_type", "rope_theta", "partial_rotary_factor", "factor", "original_max_position_embeddings",
    "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate", "low_freq_factor",
    "high_freq_factor",
)  # fmt: skip


def changed_config(
    model: PreTrainedModel, position_encoding_type: str, layers: Sequence[int] | str | None, parameters: dict[str, Any]
) -> Any:
    """The model's config with the encoding in these layers; a ValueError for what the host cannot take."""
    names, config = parse_sum(position_encoding_type), deepcopy(model.config)
    if not isinstance(config, HostConfig):
        config.__class__ = host_config_class(CLASS_PREFIX + type(config).__name__)
        config.position_encoding_type, config.position_encoding_parameters = OWN, None
    base, numbers = stack_of(model), layer_numbers(layers, config.num_hidden_layers)
    encodings = list(config.layer_encodings)
    for layer in numbers:
        encodings[layer] = position_encoding_type
    known = parameter_fields(names)
    validate_names(parameters, [*known, *(["rope_parameters"] if "rotary" in names else [])], position_encoding_type)
    for name, parameter in known.items():
        if name in parameters:
            parameter.validate(parameters[name])
    if "rope_parameters" in parameters:
        parameters = parameters | {"rope_parameters": full_rope_parameters(base, parameters["rope_parameters"])}
    values = {name: parameter.default for name, parameter in known.items()} | parameters
    old_values = dict(config.position_encoding_parameters or {})
    kept = {name for layer, encoding in enumerate(encodings) if layer not in numbers for name in encoding.split("+")}
    for name, value in old_values.items():
        if name in parameter_fields(kept & POSITION_ENCODINGS.keys()) and values.setdefault(name, value) != value:
            raise ValueError(
                f"All layers must share one {name}, but {value!r} is in use and {values[name]!r} is given; give the "
                "same value, or replace all layers."
            )
    if "rope_parameters" in old_values and "rotary" in kept:
        values.setdefault("rope_parameters", old_values["rope_parameters"])
    validate_encoding(base, config, position_encoding_type, numbers, values)
    config.position_encoding_type = encodings[0] if len(set(encodings)) == 1 else encodings
    config.position_encoding_parameters = values
    config.auto_map = host_auto_map(config)
    return config


def layer_numbers(layers: Sequence[int] | str | None, num_layers: int) -> list[int]:
    """The layers that are meant, in order; a ValueError for layers that do not exist."""
    if layers is None:
        return list(range(num_layers))
    if isinstance(layers, str) and (match := EVERY.fullmatch(layers)) and int(match[2]):
        chosen = [layer for layer in range(num_layers) if ((layer + 1) % int(match[2]) == 0) != bool(match[1])]
    elif isinstance(layers, str):
        chosen = []
    else:
        chosen = sorted(set(layers))
    if not chosen or not all(isinstance(layer, int) and 0 <= layer < num_layers for layer in chosen):
        raise ValueError(
            f"layers must be indices from 0 to {num_layers - 1}, or text such as 'every 4th' or 'all but every 4th', "
            f"but it is {layers!r}; leave it out for all layers."
        )
    return chosen


def parameter_fields(names: Any) -> dict[str, EncodingParameter]:
    """The parameters of these encodings, by name."""
    return {parameter.name: parameter for name in names for parameter in POSITION_ENCODINGS[name].config_parameters}


def full_rope_parameters(base: PreTrainedModel, given: Any) -> dict[str, Any]:
    """`rope_parameters` with the host's own base and partial rotation where these are not given."""
    host = getattr(base.config, "rope_parameters", None) or {}
    if not isinstance(given, dict):
        raise ValueError(f"rope_parameters must be a dictionary as in transformers, but it is {given!r}; give one.")
    validate_names(given, ROPE_KEYS, "rope_parameters")
    if own_encoding(base) == "rotary" and "rope_theta" not in host:
        raise ValueError(
            "rope_parameters need a host with one rotation for all layers, but this one has other rotations in some; "
            "leave them out."
        )
    common = {name: host[name] for name in ("rope_theta", "partial_rotary_factor") if name in host}
    rope = {"rope_type": "default", "rope_theta": 10000.0} | common | given
    if rope["rope_type"] not in ("default", "proportional") and "factor" not in rope:
        raise ValueError(
            f"rope_parameters must have a factor for rope_type={rope['rope_type']!r}, but they are {given!r}; add one, "
            "such as 2.0 for twice the length."
        )
    return rope


def validate_encoding(
    base: PreTrainedModel, config: Any, position_encoding_type: str, layers: list[int], values: dict[str, Any]
) -> None:
    """Raise a ValueError for an encoding that a host cannot take in these layers."""
    names, own = parse_sum(position_encoding_type), own_encoding(base)
    side, view = host_side(config, position_encoding_type, is_causal(base)), EncodingParameters(config, values)
    if all(POSITION_ENCODINGS[name].is_modifier for name in names):
        raise ValueError(
            f"position_encoding_type must have position information, but {position_encoding_type!r} only modifies "
            f"another encoding; write '{own}+{position_encoding_type}'."
        )
    if own == "learned" and own not in names and len(layers) < config.num_hidden_layers:
        raise ValueError(
            f"layers must be left out with {position_encoding_type!r}: the host adds its table of positions before the "
            "first layer; leave layers out, or keep the table, as in 'learned+window'."
        )
    if own == "learned" and own in names and has_removed_table(base):
        raise ValueError(
            f"position_encoding_type={position_encoding_type!r}: the host's table of positions was removed by an "
            "earlier replacement; load the host again."
        )
    for name in names:
        entry = POSITION_ENCODINGS[name]
        if name != own or "rope_parameters" in values:
            entry.encoding.validate(view, side)
        if name in ("none", own):
            continue
        with torch.device("meta"):
            reason = objection_to_encoding(entry(view, side), own in names and own == "rotary", config)
        if reason is not None:
            raise ValueError(
                f"position_encoding_type={position_encoding_type!r}: a host cannot take `{name}`, which {reason}; "
                "leave it out, or choose another, such as alibi, t5, kerple or rotary+window."
            )
        if entry.is_modifier and (windowed := [layer for layer in layers if has_own_window(config, layer)]):
            raise ValueError(
                f"position_encoding_type={position_encoding_type!r}: `{name}` counts all earlier tokens, but the host "
                f"has a window in layers {windowed}; give the other layers in `layers`."
            )


def objection_to_encoding(encoding: PositionEncoding, has_own_rotation: bool, config: PreTrainedConfig) -> str | None:
    """Why a host cannot take an encoding; None if it can."""
    if encoding.embed is not None or encoding.augment_positions is not None:
        return "changes embeddings or positions before the first layer"
    if encoding.is_stateful:
        return "keeps a state from token to token, for which a host's cache has no room"
    if encoding.value_bias is not None:
        return "needs the attention weights"
    if encoding.score_bias is not None and type(encoding).distance_bias is None and has_own_rotation:
        return "takes queries before their rotation"
    if encoding.rotate_keys is not None and hasattr(config, "qk_rope_head_dim"):
        return "rotates whole keys, of which this host computes a part"
    has_groups = getattr(config, "num_key_value_heads", None) not in (None, config.num_attention_heads)
    if encoding.rotate_keys is not None and has_groups and any(True for _ in encoding.parameters()):
        return "rotates the keys of each head by parameters of its own, where this host has keys for several heads"
    return None


def has_own_window(config: PreTrainedConfig, layer: int) -> bool:
    """Whether a layer of a host hides keys by their distance."""
    layer_types = getattr(config, "layer_types", None)
    if layer_types:
        return layer_types[layer] != "full_attention"
    return getattr(config, "sliding_window", None) is not None


def with_config(model: PreTrainedModel, config: Any) -> Any:
    """The same model, with this config and the encodings that it has."""
    old_config, base = model.config, stack_of(model)
    old_encodings = getattr(base, "posenc", None)
    if old_encodings is None:
        model.__class__ = host_model_class(CLASS_PREFIX + type(model).__name__)
        forget_dequantized_file(model, config)
    for module in model.modules():
        if getattr(module, "config", None) is old_config:
            module.config = config
    install(model)
    encodings, like = base.posenc, base.get_input_embeddings().weight
    with torch.no_grad():
        for encoding in encodings.modules():
            if isinstance(encoding, PositionEncoding) and encoding.zero_init_is_identity:
                for parameter in encoding.parameters():
                    init.zeros_(parameter)
    encodings.to(like.device)
    encodings.sums.to(like.dtype)
    if old_encodings is not None:
        encodings.sums.load_state_dict(old_encodings.sums.state_dict(), strict=False)
    encodings.train(model.training)
    implementation = old_config._attn_implementation.removeprefix(IMPLEMENTATION_PREFIX)
    model.set_attn_implementation(IMPLEMENTATION_PREFIX + implementation)
    return model


def forget_dequantized_file(model: PreTrainedModel, config: PreTrainedConfig) -> None:
    """Drop the mark of quantization of a model whose weights are plain, as from a GGUF file: it prevents saving."""
    quantizer = getattr(model, "hf_quantizer", None)
    if quantizer is not None and getattr(quantizer.quantization_config, "dequantize", False):
        model.hf_quantizer = None
        del config.quantization_config
