"""Conversion of a trained model to other position encodings or another alignment, for fine-tuning.

Kept are all weights outside the encodings, and those of an encoding (or the alignment) that both models have on the
same side in the same sizes, anywhere in a sum. New encodings with `zero_init_is_identity` start at zero, and change
nothing at first. Other new modules (a recurrent network, an alignment with parameters) start as in a new model. Dropped
encodings are gone, and parameter-free ones (a window, a rotation) act at once. Both change the function; fine-tune
afterwards.
"""

import copy
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from ..encodings.registry import side_entries
from ..generation.limits import EXPECTED_LENGTH_OPTION, POSITION_LIMIT_OPTION, SOURCE_END_OPTION
from ..hub.errors import CONFIG_FILES, explain_unreadable, require
from ..transformer.configuration_encodings import COMMON_ROPE_KEYS, EncodingsConfig
from ..transformer.configuration_posenc import PosEncConfig
from ..transformer.configuration_posenc_causal import PosEncCausalConfig
from ..transformer.modeling_posenc import PosEncForConditionalGeneration
from ..transformer.modeling_posenc_causal import PosEncForCausalLM

ModelT = TypeVar("ModelT", bound=PreTrainedModel)
PosEncTransformer: TypeAlias = PosEncForConditionalGeneration | PosEncForCausalLM
ConfigT = TypeVar("ConfigT", bound=EncodingsConfig)

# Each config field is in exactly one of these groups (a test checks it): a conversion keeps it, lets it change, or sets
# it anew. First the fields that the weights depend on and that Marian also has. Other families lack some of them.
STRUCTURAL_FIELDS = (
    "vocab_size", "decoder_vocab_size", "d_model", "encoder_layers", "decoder_layers", "encoder_attention_heads",
    "decoder_attention_heads", "encoder_ffn_dim", "decoder_ffn_dim", "activation_function", "scale_embedding",
    "share_encoder_decoder_embeddings", "tie_word_embeddings", "pad_token_id", "bos_token_id", "eos_token_id",
    "decoder_start_token_id",
)  # fmt: skip
# The fields that the weights depend on and that configs of transformers' translation models lack.
FAMILY_FIELDS = ("norm_first", "normalize_embedding", "layer_norm_eps", "output_bias", "dtype")
# The same of a decoder-only model.
CAUSAL_FIELDS = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act",
    "scale_embedding", "tie_word_embeddings", "pad_token_id", "bos_token_id", "eos_token_id", "norm_first",
    "normalize_embedding", "layer_norm_eps", "dtype",
)  # fmt: skip
# The fields that affect only training, or only other fields.
TUNABLE_FIELDS = ("dropout", "attention_dropout", "activation_dropout", "max_position_embeddings", "use_cache")
# The fields that conversion changes; parameters of encodings and alignments belong to them.
ENCODING_FIELDS = (*PosEncConfig.encoding_type_fields.values(), "alignment_type", "rope_parameters")
CAUSAL_ENCODING_FIELDS = ("position_encoding_type", "rope_parameters")
# The fields that describe initialization and config, which conversion keeps.
DESCRIPTIVE_FIELDS = ("initializer", "is_encoder_decoder", "hf_posenc_version")


@dataclass(frozen=True)
class Architecture:
    """What a conversion has to know of the models of one architecture.

    `preserved_fields`, `encoding_fields`: the config fields that a conversion keeps, and those that it changes.
    `module_paths`: the modules of each side's encodings.
    """

    model_class: type[PosEncTransformer]
    preserved_fields: tuple[str, ...]
    encoding_fields: tuple[str, ...]
    module_paths: Mapping[str, str]


ARCHITECTURES: Mapping[str, Architecture] = {
    PosEncConfig.model_type: Architecture(
        PosEncForConditionalGeneration,
        (*STRUCTURAL_FIELDS, *FAMILY_FIELDS),
        ENCODING_FIELDS,
        {
            "encoder": "model.encoder.positions",
            "decoder": "model.decoder.positions",
            "cross": "model.decoder.cross_positions",
        },
    ),
    PosEncCausalConfig.model_type: Architecture(
        PosEncForCausalLM, CAUSAL_FIELDS, CAUSAL_ENCODING_FIELDS, {"decoder": "model.positions"}
    ),
}
ALIGNMENT_PATH = "model.decoder.alignment"
NEW_WEIGHT_PREFIXES = (
    *(f"{path}." for architecture in ARCHITECTURES.values() for path in architecture.module_paths.values()),
    f"{ALIGNMENT_PATH}.",
)


def convert_encodings(
    origin: str | os.PathLike | PosEncTransformer,
    position_encoding_type: str | None = None,
    decoder_position_encoding_type: str | None = None,
    cross_position_encoding_type: str | None = None,
    alignment_type: str | None = None,
    **overrides: object,
) -> PosEncTransformer:
    """A trained Transformer of this family with other position encodings or another alignment.

    Args:
        origin: a folder, a name on the Hub, or a loaded model, which is not changed. An encoder-decoder or a
            decoder-only model.
        position_encoding_type: encoding of encoder and decoder, a name or a sum. None keeps each side's.
        decoder_position_encoding_type: encoding of an encoder-decoder's decoder, where it differs.
        cross_position_encoding_type: encoding of the cross-attention. None keeps it.
        alignment_type: alignment of the cross-attention. None keeps it.
        **overrides: parameters of encodings and alignment (`relative_clip`), and fields that affect training only
            (`dropout`).

    Returns a new model with the precision, device, mode and generation config of `origin`. Weights of encodings that
    both models have are copied. New ones start at zero where the encoding then changes nothing, else as in a new model.
    Encodings that are left out are gone: fine-tune afterwards.

    Raises a ValueError, before any weight is read, if there is no checkpoint of this family, for a field that the
    weights depend on (`d_model`), and for encodings that do not work together. A TypeError for another kind of model.
    """
    requested = requested_encodings(
        position_encoding_type, decoder_position_encoding_type, cross_position_encoding_type, alignment_type
    )
    config = override_config(load_posenc_config(origin), requested | overrides)
    if not isinstance(origin, PosEncTransformer):
        loaded = ARCHITECTURES[config.model_type].model_class.from_pretrained(origin)
        return convert_encodings(
            loaded, position_encoding_type, decoder_position_encoding_type, cross_position_encoding_type,
            alignment_type, **overrides,
        )  # fmt: skip
    model = zero_init_model(config)
    weights = transferable_weights(origin.state_dict(), origin.config, model)
    return load_into(model, weights, origin, new_weight_prefixes=NEW_WEIGHT_PREFIXES)


def requested_encodings(*encoding_types: str | None) -> dict[str, str]:
    """The config fields of encodings and alignment that are not None, from the first arguments of a conversion."""
    names = (*PosEncConfig.encoding_type_fields.values(), "alignment_type")
    return {name: value for name, value in zip(names, encoding_types, strict=True) if value is not None}


def load_posenc_config(origin: object) -> PosEncConfig | PosEncCausalConfig:
    """The config, before any weight is read; a ValueError unless it is a Transformer's of this family."""
    return load_config(
        origin,
        ARCHITECTURES,
        f"convert_encodings needs a checkpoint of {' or '.join(ARCHITECTURES)}",
        "a model on the Hub",
        "use a whole Transformer of this family, or from_transformers for a model of transformers",
    )


def load_config(origin: object, known: Mapping[str, Any], rule: str, on_hub: str, remedy: str) -> Any:
    """The config of a folder, a name on the Hub or a loaded model, before any weight is read.

    `known` has by `model_type` what has the `model_class`. A ValueError for another one, and a TypeError for another
    object, with this rule and remedy.
    """
    if isinstance(origin, PreTrainedModel):
        entry = known.get(origin.config.model_type)
        if entry is not None and isinstance(origin, entry.model_class):
            return origin.config
    if not isinstance(origin, str | os.PathLike):
        raise TypeError(f"{rule}, by folder, name or model, but it was given a {type(origin).__name__}; {remedy}.")
    fields = load_config_dict(origin, rule, on_hub)
    model_type = str(fields["model_type"])
    require(model_type in known, f"{rule}, but {origin} holds a `{model_type}` model; {remedy}.")
    with explain_unreadable(origin, CONFIG_FILES):
        return known[model_type].model_class.config_class.from_dict(fields)


def load_config_dict(name: str | os.PathLike, rule: str, on_hub: str) -> dict[str, object]:
    """The fields of config.json in a folder or on the Hub; a ValueError that begins with `rule` without one."""
    with explain_unreadable(name, CONFIG_FILES):
        try:
            fields = PreTrainedConfig.get_config_dict(name)[0]
            if not isinstance(fields["model_type"], str):
                raise TypeError(f"model_type must be text, but it is {fields['model_type']!r:.100}")
        except (OSError, KeyError) as error:
            raise ValueError(
                f"{rule}, but none can be read from {name}; name a folder with a config.json, or {on_hub}."
            ) from error
    return fields


def override_config(config: ConfigT, changes: Mapping[str, object]) -> ConfigT:
    """The config with `changes`, validated; a ValueError for a change of a field that the weights depend on."""
    fields, preserved = config.to_dict(), ARCHITECTURES[config.model_type].preserved_fields
    config.check_keywords(changes)
    if any(config.max_length_of(side) for side in config.sides):
        del fields["max_position_embeddings"]  # of a table, which the new encoding may not have
    for name, value in changes.items():
        require(
            name in type(config).known_keywords(),
            f"{name!r} is no field of {type(config).__name__}; the nearest one is "
            f"{type(config).nearest_field(name)!r}.",
        )
        field = config.attribute_map.get(name, name)
        trained = getattr(config, field, None)
        require(
            field not in preserved or value == trained,
            f"`{name}` must be the trained model's, {trained!r}, but {name}={value!r} was given; leave it out.",
        )
        fields[field] = value
    if isinstance(rope := changes.get("rope_parameters"), Mapping):  # another scaling of the same rotations
        trained = dict(config.rope_parameters or {})
        fields["rope_parameters"] = {key: trained[key] for key in COMMON_ROPE_KEYS if key in trained} | dict(rope)
    decoder_field = config.encoding_type_fields["decoder"]
    if "position_encoding_type" in changes and decoder_field not in changes:
        fields[decoder_field] = None
    return type(config).from_dict(fields)


def transferable_weights(
    weights: Mapping[str, Tensor], config: EncodingsConfig, model: PosEncTransformer
) -> dict[str, Tensor]:
    """The weights of a model of that `config` that are copied, by their names in `model`."""
    transferred = {name: weight for name, weight in weights.items() if not name.startswith(NEW_WEIGHT_PREFIXES)}
    new_weights, new_paths = model.state_dict(), module_paths(model.config)
    for key, path in module_paths(config).items():
        if key in new_paths:
            old, new = submodule_weights(weights, path), submodule_weights(new_weights, new_paths[key])
            if old.keys() == new.keys() and all(old[name].shape == new[name].shape for name in old):
                transferred |= {f"{new_paths[key]}.{name}": weight for name, weight in old.items()}
    return transferred


def submodule_weights(weights: Mapping[str, Tensor], path: str) -> dict[str, Tensor]:
    """The weights below a module's path, by their names in the module."""
    return {name.removeprefix(f"{path}."): weight for name, weight in weights.items() if name.startswith(f"{path}.")}


def module_paths(config: EncodingsConfig) -> dict[tuple[str, str], str]:
    """The module of each side's encodings and of the alignment, by side and name."""
    paths = {
        (side, name): f"{path}.{number}"
        for side, path in ARCHITECTURES[config.model_type].module_paths.items()
        for number, name in enumerate(config.side(side).encodings)
    }
    if isinstance(config, PosEncConfig):
        paths["alignment", config.alignment_type] = ALIGNMENT_PATH
    return paths


def zero_init_model(config: EncodingsConfig) -> PosEncTransformer:
    """A new model whose encodings are zero where that changes nothing (`zero_init_is_identity`)."""
    architecture = ARCHITECTURES[config.model_type]
    model = architecture.model_class(config)
    for side, path in architecture.module_paths.items():
        entries = side_entries(config.side(side)).values()
        for entry, encoding in zip(entries, model.get_submodule(path).children(), strict=True):
            for parameter in encoding.parameters() if entry.zero_init_is_identity else ():
                torch.nn.init.zeros_(parameter)
    return model


def load_into(
    model: ModelT, weights: dict[str, Tensor], origin: PreTrainedModel, *, new_weight_prefixes: tuple[str, ...]
) -> ModelT:
    """`model` with these `weights`, and with dtype, device, mode and generation config of `origin`.

    Weights whose names start with `new_weight_prefixes` may be missing.
    """
    model = model.to(dtype=origin.dtype, device=origin.device)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    validate_weight_names(
        type(origin).__name__, unexpected, [name for name in missing if not name.startswith(new_weight_prefixes)]
    )
    model.generation_config = copy.deepcopy(origin.generation_config)
    old_rule, new_rule = (getattr(translator, "default_source_end_rule", None) for translator in (origin, model))
    if old_rule != new_rule:
        setattr(model.generation_config, SOURCE_END_OPTION, new_rule)
    expects_length = getattr(getattr(model.get_decoder(), "alignment", None), "target_lengths", None) is not None
    for option, is_possible in (
        (POSITION_LIMIT_OPTION, new_rule is not None),
        (EXPECTED_LENGTH_OPTION, expects_length),
    ):
        if not is_possible and getattr(model.generation_config, option, None) is not None:
            setattr(model.generation_config, option, None)
    return model.train(origin.training)


def validate_weight_names(origin: str, unexpected: Iterable[str], missing: Iterable[str]) -> None:
    """Raise a ValueError for unexpected or missing weights; `origin` names the model."""
    for kind, names in (("too many", sorted(unexpected)), ("too few", sorted(missing))):
        require(
            not names,
            f"A model must have the weights of its config, but {origin} has {len(names)} {kind}, such as "
            f"{next(iter(names), None)}; convert it without adapters, or download it again.",
        )


__all__ = ["convert_encodings"]
