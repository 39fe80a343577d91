"""Keys of `model:`: the fields of a config class, with the parameters of all encodings."""

from dataclasses import fields
from typing import Annotated, Any

from transformers.activations import ACT2FN

from ...baselines.rnn_nmt.configuration_rnn_nmt import RnnNmtConfig
from ...encodings.base import EncodingParameter
from ...hub.errors import validate_names
from ...transformer.configuration_base import INITIALIZERS, BaseConfig
from ...transformer.configuration_encodings import EncodingsConfig
from ...transformer.configuration_posenc import PosEncConfig
from ...transformer.configuration_posenc_causal import PosEncCausalConfig
from .schema import Constraint, NonEmptyStr, Section, above_zero, below_one, in_range, join_key, one_of, validate

CONFIG_CLASSES: dict[str, type[BaseConfig]] = {
    cls.model_type: cls for cls in (PosEncConfig, RnnNmtConfig, PosEncCausalConfig)
}
# Fields that the tokenizer or the weights determine.
TOKEN_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
INFERRED_FIELDS = ("vocab_size", "decoder_vocab_size", *TOKEN_IDS, "dtype")
INTERNAL_FIELDS = ("hf_posenc_version", "is_encoder_decoder")
Size = Annotated[int, in_range(1, 2**24)]
NARROWED_TYPES: dict[str, object] = {
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_hidden_layers"), Annotated[int, in_range(1, 1000)]),
    **dict.fromkeys(("d_model", "encoder_ffn_dim", "decoder_ffn_dim"), Size),
    "max_position_embeddings": Size | None,  # None for a decoder-only model that bounds no length
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "num_attention_heads"), Size),
    **dict.fromkeys(("hidden_size", "intermediate_size"), Size),
    **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), Annotated[float, below_one]),
    **dict.fromkeys(("activation_function", "hidden_act"), Annotated[str, one_of(ACT2FN)]),
    "initializer": Annotated[str, one_of(INITIALIZERS)],
    "layer_norm_eps": Annotated[float, above_zero],
    "rope_parameters": Section | None,
}


def model_keys(config_class: type[BaseConfig]) -> dict[str, tuple[object, object]]:
    """The annotation and the default of each key for a model of that class."""
    own_fields = {name for cls in config_class.__mro__ if issubclass(cls, BaseConfig) for name in cls.__annotations__}
    keys = {
        field.name: (NARROWED_TYPES.get(field.name, field.type), field.default)
        for field in fields(config_class)
        if field.name in own_fields and field.name not in (*INFERRED_FIELDS, *INTERNAL_FIELDS, "auto_classes")
    }
    if issubclass(config_class, EncodingsConfig):
        keys |= {
            name: (parameter_annotation(name, parameter), parameter.default)
            for name, parameter in config_class.parameter_fields().items()
        }
    keys |= {alias: keys[name] for alias, name in config_class.attribute_map.items() if name in keys}
    return keys | {
        "model_type": (Annotated[str, one_of(CONFIG_CLASSES)], None),
        "attn_implementation": (NonEmptyStr, "sdpa"),
    }


def parameter_annotation(name: str, parameter: EncodingParameter) -> object:
    """The annotation of an encoding's parameter, from its default. A cross-attention parameter may also be null."""
    annotation: Any = int | None if parameter.default is None else type(parameter.default)
    constrained: Any = Annotated[
        annotation, Constraint(parameter.constraint.replace("{", "{{").replace("}", "}}"), parameter.is_valid)
    ]
    return constrained if name == parameter.name else constrained | None


def validate_model(model: Section, key: str) -> None:
    """Raise a ValueError for an invalid value, or for a field that a config file must not set. The config class itself
    refuses unknown names."""
    model_type = model.get("model_type", PosEncConfig.model_type)
    validate(model_type, Annotated[str, one_of(CONFIG_CLASSES)], f"{key}.model_type")
    config_class = CONFIG_CLASSES[model_type]
    known_keys = model_keys(config_class)
    for alias, name in config_class.attribute_map.items():
        if alias in model and name in model and model[alias] != model[name]:
            raise ValueError(
                f"{join_key(key, alias)} is another name of {name}, but both are given, {model[alias]!r} and "
                f"{model[name]!r}; use one name."
            )
    for name, value in model.items():
        if name in INFERRED_FIELDS:
            raise ValueError(
                f"{key}.{name} is that of the tokenizer or the weights, but it is given as {value!r}; leave it out"
                + (", and set data.vocab_size." if "vocab" in name else ".")
            )
        if name in known_keys:
            annotation, default = known_keys[name]
            validate(value, annotation, join_key(key, name), default=default)
        elif config_class.accepts_keyword(name):
            validate_names([name], known_keys, key)
