"""The keys of `model:`, which are the fields of a config class of ours, with the parameters of all encodings."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any

from transformers.activations import ACT2FN

from ..modeling.configuration_posenc import PosEncConfig, knob_fields
from ..modeling.configuration_rnn_nmt import RnnNmtConfig
from ..modeling.configuration_shared import INITIALIZERS, SharedConfig
from ..modeling.nearest import refuse_unknown
from ..modeling.position import Knob
from .schema import Rule, Text, above_zero, below_one, between, check, joined, one_of

CONFIG_CLASSES: dict[str, type[SharedConfig]] = {one.model_type: one for one in (PosEncConfig, RnnNmtConfig)}
# What a model has from its tokenizer or its weights, and no config file says.
TOKEN_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
GIVEN = ("vocab_size", "decoder_vocab_size", *TOKEN_IDS, "dtype")
OF_THE_CODE = ("hf_posenc_version", "is_encoder_decoder")
Size = Annotated[int, between(1, 2**24)]
NARROWER: dict[str, Any] = {
    **dict.fromkeys(("encoder_layers", "decoder_layers"), Annotated[int, between(1, 1000)]),
    **dict.fromkeys(("d_model", "encoder_ffn_dim", "decoder_ffn_dim", "max_position_embeddings"), Size),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), Size),
    **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), Annotated[float, below_one]),
    "activation_function": Annotated[str, one_of(ACT2FN)],
    "initializer": Annotated[str, one_of(INITIALIZERS)],
    "layer_norm_eps": Annotated[float, above_zero],
    "rope_parameters": dict[str, Any] | None,
}


def model_keys(config_class: type[SharedConfig]) -> dict[str, tuple[Any, Any]]:
    """The kind and the default of each key that a model of that class has."""
    own = {name for one in config_class.__mro__ if issubclass(one, SharedConfig) for name in one.__annotations__}
    keys = {
        one.name: (NARROWER.get(one.name, one.type), one.default)
        for one in fields(config_class)
        if one.name in own and one.name not in (*GIVEN, *OF_THE_CODE, "auto_classes")
    }
    if config_class is PosEncConfig:
        keys |= {name: (of_knob(name, knob), knob.default) for name, knob in knob_fields().items()}
    keys |= {alias: keys[name] for alias, name in config_class.attribute_map.items() if name in keys}
    return keys | {"model_type": (Annotated[str, one_of(CONFIG_CLASSES)], None), "attn_implementation": (Text, "sdpa")}


def of_knob(name: str, knob: Knob) -> Any:
    """Its default says its type; that of a cross-attention may be null, which is as elsewhere."""
    kind: Any = int | None if knob.default is None else type(knob.default)
    ruled: Any = Annotated[kind, Rule(knob.rule.replace("{", "{{").replace("}", "}}"), knob.holds)]
    return ruled if name == knob.name else ruled | None


def check_model(model: Mapping[str, Any], where: str) -> None:
    """A ValueError for a value that a field of the model cannot have, or a field that is not for a config file to set.
    What is no field at all the config class refuses."""
    model_type = model.get("model_type", PosEncConfig.model_type)
    check(model_type, Annotated[str, one_of(CONFIG_CLASSES)], f"{where}.model_type")
    config_class = CONFIG_CLASSES[model_type]
    known = model_keys(config_class)
    for name, value in model.items():
        if name in GIVEN:
            raise ValueError(
                f"{where}.{name} is that of the tokenizer or the weights, but it is given as {value!r}; leave it out"
                + (", and set data.vocab_size." if "vocab" in name else ".")
            )
        if name in known:
            kind, default = known[name]
            check(value, kind, joined(where, name), default=default)
        elif config_class.tolerates(name):
            refuse_unknown([name], known, where)
