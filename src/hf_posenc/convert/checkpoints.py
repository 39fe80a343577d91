"""Conversion of transformers' translation models to this family, and back (families.py has the models).

Logits equal those of transformers' classes. Departures from them, in both directions of conversion:
    - in training, dropout comes before the positions, no layer is left out (layerdrop), and the bias of the logits is
      trained; theirs is fixed;
    - padding on the left, and holes in a mask, are no positions; BART, mBART, Marian and Pegasus count them;
    - a padding token that was generated has a position; M2M-100 does not count it, and a model of that family whose
      start or end token is the padding token is refused;
    - targets begin with `decoder_start_token_id`; mBART's begin with the last token of the labels;
    - `inputs_embeds` are scaled by `scale_embedding` on both sides; only Marian and Pegasus do so, in the decoder;
    - sinusoidal inputs have any length; Marian's and Pegasus' have at most `max_position_embeddings` tokens;
    - infinite activations of the encoder in float16 are kept; transformers clamps them.

MarianMT (the opus-mt models of the Hub) is the only family whose source and target may have vocabularies of their own.
"""

import os
import warnings
from typing import Any

from transformers import MarianConfig, MarianMTModel, PreTrainedConfig, PreTrainedModel
from transformers.utils import find_adapter_config_file

from ..hub.errors import CONFIG_FILES, MODEL_FILES, explain_unreadable
from ..transformer.configuration_posenc import PosEncConfig
from ..transformer.configuration_posenc_causal import PosEncCausalConfig
from ..transformer.modeling_posenc import PosEncForConditionalGeneration
from .encodings import (
    NEW_WEIGHT_PREFIXES,
    STRUCTURAL_FIELDS,
    TUNABLE_FIELDS,
    PosEncTransformer,
    convert_encodings,
    load_config_dict,
    load_into,
    load_posenc_config,
    override_config,
    requested_encodings,
    transferable_weights,
    validate_weight_names,
    zero_init_model,
)
from .families import FAMILIES, POSITION_TABLES, Family

SAVE_AS_IT_IS = "save it with its own save_pretrained, which includes its code"


def from_transformers(
    origin: str | os.PathLike | PreTrainedModel,
    position_encoding_type: str | None = None,
    decoder_position_encoding_type: str | None = None,
    cross_position_encoding_type: str | None = None,
    alignment_type: str | None = None,
    **overrides: object,
) -> PosEncForConditionalGeneration:
    """Convert a translation model of transformers to a model of this family, with equal logits.

    The families are BART, M2M-100 and NLLB-200 (dense), Marian (opus-mt), mBART and mBART-50, and Pegasus.

    Args:
        origin: a folder, a name on the Hub, or a loaded model of transformers.
        position_encoding_type: None keeps the model's own. Another one replaces it and starts as in
            `convert_encodings`: fine-tune afterwards.
        decoder_position_encoding_type, cross_position_encoding_type, alignment_type: as in `convert_encodings`.
        **overrides: parameters of encodings and alignment (`relative_clip`), and fields that affect training only
            (`dropout`).

    Returns a new model with the precision, device, mode and generation config of `origin`. It has no bias of the output
    projection where that of `origin` is all zeros. Load the tokenizer from the folder of `origin`. Warns of layerdrop,
    which the new model does not have.

    Raises a ValueError, before any weight is read, if there is no checkpoint of these families, or if it has what this
    family lacks: quantized weights, an adapter, other encodings or norms. A TypeError for another kind of model.

    Source: transformers' model classes of these names, which the tests compare in float64.
    """
    theirs = load_transformers_config(origin)
    family = FAMILIES[theirs.model_type]
    with explain_unreadable(origin, CONFIG_FILES):
        exact_config = posenc_config_from(theirs)
    requested = requested_encodings(
        position_encoding_type, decoder_position_encoding_type, cross_position_encoding_type, alignment_type
    )
    config = override_config(exact_config, requested | overrides)
    if not isinstance(origin, PreTrainedModel) and find_adapter_config_file(origin) is not None:
        raise ValueError(
            f"A checkpoint must have no adapter to be converted, but {origin} has an adapter_config.json; merge the "
            "adapter with PEFT's merge_and_unload, and convert what that returns."
        )
    model = load_transformers_model(origin, family)
    family.positions.validate(model)
    output_bias = getattr(model, "final_logits_bias", None)
    config.output_bias = output_bias is not None and bool(output_bias.any())
    weights = family.positions.to_ours(model.state_dict())
    if not config.output_bias:
        weights.pop("final_logits_bias", None)
    if not config.share_encoder_decoder_embeddings:
        weights.pop("model.shared.weight", None)  # unused
    converted = zero_init_model(config)
    transferred = transferable_weights(weights, exact_config, converted)
    return load_into(converted, transferred, model, new_weight_prefixes=NEW_WEIGHT_PREFIXES)


def to_transformers(model: PosEncForConditionalGeneration, model_type: str | None = None) -> PreTrainedModel:
    """Convert a model of this family to a translation model of transformers, with equal logits.

    `to_transformers(model).save_pretrained(folder)` writes a checkpoint that needs transformers alone.

    Args:
        model: a whole Transformer of this family.
        model_type: `bart`, `m2m_100`, `marian`, `mbart` or `pegasus`. None takes the one that can represent the model:
            at most one can.

    Raises a ValueError for a model that the family cannot represent, such as one with an alignment, and a TypeError for
    another kind of model.
    """
    if not isinstance(model, PosEncForConditionalGeneration):
        raise TypeError(
            f"to_transformers takes a PosEncForConditionalGeneration, but it was given a {type(model).__name__}; give "
            "it a whole Transformer of this family."
        )
    family = target_family(model.config, model_type)
    validate_representable(model.config, family)
    fields = {name: getattr(model.config, name) for name in STRUCTURAL_FIELDS + TUNABLE_FIELDS}
    fields |= {
        "max_position_embeddings": family.positions.max_positions(model.config),
        "forced_eos_token_id": model.generation_config.forced_eos_token_id,
        "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0,
    }
    # Every config takes a start token for generation, even without a field for it.
    names = family.config_fields | {"bos_token_id"}
    theirs = family.model_class(family.config_class(**{name: fields[name] for name in fields.keys() & names}))
    weights, expected = family.positions.to_theirs(model.state_dict()), theirs.state_dict()
    if "final_logits_bias" in expected:
        weights.setdefault("final_logits_bias", expected["final_logits_bias"])
    if "model.shared.weight" in expected:  # unused if the model does not share it
        weights.setdefault("model.shared.weight", weights["model.encoder.embed_tokens.weight"])
    converted = load_into(theirs, weights, model, new_weight_prefixes=POSITION_TABLES)
    family.positions.validate(converted)
    return converted


def convert_checkpoint(origin: str | os.PathLike, **overrides: Any) -> PosEncTransformer:
    """A checkpoint of this family or of transformers with other encodings: the function for its `model_type`."""
    return (from_transformers if is_convertible(origin) else convert_encodings)(origin, **overrides)


def is_convertible(origin: str | os.PathLike, rule: str = "A conversion needs a checkpoint") -> bool:
    """Whether a checkpoint is of a family that `from_transformers` converts; a ValueError, with the rule, without one.

    Only config.json is read.
    """
    return load_config_dict(origin, rule, "a model on the Hub")["model_type"] in FAMILIES


def load_any_config(
    origin: str | os.PathLike, rule: str = "A conversion needs a checkpoint"
) -> PosEncConfig | PosEncCausalConfig:
    """The config of a checkpoint of this family or of transformers as one of this family; no weight is read."""
    if is_convertible(origin, rule):
        with explain_unreadable(origin, CONFIG_FILES):
            return posenc_config_from(load_transformers_config(origin))
    return load_posenc_config(origin)


def load_transformers_config(origin: object) -> PreTrainedConfig:
    """The config, before any weight is read; a ValueError unless it is of a family that can be converted."""
    family = FAMILIES.get(origin.config.model_type) if isinstance(origin, PreTrainedModel) else None
    if family is not None and isinstance(origin, family.model_class):
        return origin.config
    names = ", ".join(sorted(family.model_name for family in FAMILIES.values()))
    if not isinstance(origin, str | os.PathLike):
        raise TypeError(
            f"from_transformers takes a folder, a name on the Hub or one of {names}, but it was given a "
            f"{type(origin).__name__}; load one of these with from_pretrained."
        )
    rule = f"from_transformers needs a checkpoint of {', '.join(FAMILIES)}"
    fields = load_config_dict(origin, rule, "a model on the Hub such as Helsinki-NLP/opus-mt-de-en")
    if (model_type := fields["model_type"]) not in FAMILIES:
        raise ValueError(
            f"{rule}, but {origin} holds a `{model_type}` model; load that with AutoModelForSeq2SeqLM.from_pretrained."
        )
    with explain_unreadable(origin, CONFIG_FILES):
        return FAMILIES[model_type].config_class.from_dict(fields)


def load_transformers_model(origin: str | os.PathLike | PreTrainedModel, family: Family) -> PreTrainedModel:
    """The model; a ValueError for missing or unexpected weights."""
    if isinstance(origin, PreTrainedModel):
        return origin
    with explain_unreadable(origin, MODEL_FILES):
        model, loading_info = family.model_class.from_pretrained(origin, output_loading_info=True)
    # Old files have the tables of sinusoids, which the class computes.
    unexpected = [name for name in loading_info["unexpected_keys"] if not name.startswith(POSITION_TABLES)]
    validate_weight_names(str(origin), unexpected, loading_info["missing_keys"])
    return model


def posenc_config_from(theirs: PreTrainedConfig) -> PosEncConfig:
    """The config of this family for a model of transformers; a ValueError if this family cannot represent it."""
    family = FAMILIES[theirs.model_type]
    validate_convertible(theirs, family)
    fields = {name: getattr(theirs, name, None) for name in STRUCTURAL_FIELDS + TUNABLE_FIELDS}
    if not family.has_target_vocabulary:
        fields |= {"decoder_vocab_size": theirs.vocab_size, "share_encoder_decoder_embeddings": True}
    if fields["vocab_size"] == fields["decoder_vocab_size"]:  # else PosEncConfig refuses to share
        # A model that does not tie its output projection shares no table, even if its config says so.
        fields["share_encoder_decoder_embeddings"] &= theirs.tie_word_embeddings
    return PosEncConfig(**fields | family.fixed_fields | family.positions.parameters(theirs))


def validate_convertible(theirs: PreTrainedConfig, family: Family) -> None:
    """Raise a ValueError for a config that this family cannot represent; warn of layerdrop."""
    if getattr(theirs, "quantization_config", None) is not None:
        raise ValueError(
            "Only weights in floating point are converted, but the config has a quantization_config; convert the model "
            "that was quantized."
        )
    if theirs.decoder_start_token_id is None:
        raise ValueError(
            f"decoder_start_token_id must be a token id, but this {family.name} model has none; load it with "
            f"{family.model_name}.from_pretrained(..., decoder_start_token_id=ID) and convert that. ID is "
            "the end token of an mBART-50 model, and the target's language tag of an older mBART."
        )
    for name, required in family.required_fields.items():
        if (value := getattr(theirs, name, required)) != required:
            raise ValueError(
                f"A {family.name} model must have {name}={required} to be converted, but has {name}={value}; if that "
                f"has no effect, load it with {family.model_name}.from_pretrained(..., {name}={required}) "
                "and convert that."
            )
    for name in ("encoder_layerdrop", "decoder_layerdrop"):
        if value := getattr(theirs, name, 0.0):
            warnings.warn(
                f"This {family.name} model has {name}={value}, which leaves out layers in training; the converted "
                "model leaves out none.",
                stacklevel=4,
            )


def target_family(config: PosEncConfig, model_type: str | None) -> Family:
    """The family named by `model_type`; for None that with the fewest fields that differ from the model's."""
    if model_type is None:
        return min(FAMILIES.values(), key=lambda family: len(differing_fields(config, family)))
    if model_type not in FAMILIES:
        raise ValueError(
            f"model_type must be one of {', '.join(FAMILIES)}, but it is {model_type!r}; leave it out to take the one "
            "that can represent the model."
        )
    return FAMILIES[model_type]


def differing_fields(config: PosEncConfig, family: Family) -> dict[str, object]:
    """The fields that differ from those of every model of a family, with the family's values."""
    required = family.fixed_fields | dict.fromkeys(("cross_position_encoding_type", "alignment_type"), "none")
    differing = {name: value for name, value in required.items() if getattr(config, name) != value}
    if not differing:  # else the encoding's own fields mean nothing
        required = family.positions.fixed_fields(config)
        differing = {name: value for name, value in required.items() if getattr(config, name) != value}
    return differing


def validate_representable(config: PosEncConfig, family: Family) -> None:
    """Raise a ValueError for a config that a family of transformers cannot represent."""
    required = differing_fields(config, family)
    if config.share_encoder_decoder_embeddings and not config.tie_word_embeddings:
        raise ValueError(
            f"{family.name} shares embeddings only along with the output projection, but this model has "
            f"share_encoder_decoder_embeddings=True and tie_word_embeddings=False; {SAVE_AS_IT_IS}."
        )
    if not family.has_target_vocabulary:
        one_vocabulary = {
            "decoder_vocab_size": config.vocab_size,
            "share_encoder_decoder_embeddings": config.tie_word_embeddings,
        }
        required |= {name: value for name, value in one_vocabulary.items() if getattr(config, name) != value}
    if config.output_bias and not family.has_output_bias:
        required["output_bias"] = False
    for name, value in required.items():
        raise ValueError(
            f"{family.name} has {name}={value!r}, but this model has {name}={getattr(config, name)!r}; {SAVE_AS_IT_IS}."
        )


def from_marian(
    marian: str | os.PathLike | MarianMTModel,
    position_encoding_type: str | None = None,
    decoder_position_encoding_type: str | None = None,
    cross_position_encoding_type: str | None = None,
    alignment_type: str | None = None,
    **overrides: object,
) -> PosEncForConditionalGeneration:
    """Convert a MarianMT model, such as an opus-mt model of the Hub: `from_transformers` for this family alone.

    Args:
        marian: a folder, a name on the Hub, or a loaded MarianMTModel.
        position_encoding_type, decoder_position_encoding_type, cross_position_encoding_type, alignment_type,
        **overrides: as in `from_transformers`.

    Returns a new model with Marian's precision, device, mode and generation config. Load the tokenizer from Marian's
    folder.

    Raises a ValueError if there is no Marian checkpoint, or if it has what this family lacks.

    Source: Junczys-Dowmunt et al., "Marian: Fast Neural Machine Translation in C++", ACL 2018.
    """
    validate_marian(marian)
    return from_transformers(
        marian, position_encoding_type, decoder_position_encoding_type, cross_position_encoding_type, alignment_type,
        **overrides,
    )  # fmt: skip


def to_marian(model: PosEncForConditionalGeneration) -> PreTrainedModel:
    """Convert a model with `sinusoidal` position encoding to transformers' MarianMTModel, with equal logits.

    `to_marian(model).save_pretrained(folder)` writes a checkpoint that needs transformers alone.

    Raises a ValueError for a model that Marian cannot represent, such as one with another encoding, and a TypeError for
    another kind of model.
    """
    return to_transformers(model, MarianConfig.model_type)


def validate_marian(marian: object) -> None:
    """Raise a ValueError for a checkpoint that is not Marian's, and a TypeError for another object."""
    if isinstance(marian, MarianMTModel):
        return
    if not isinstance(marian, str | os.PathLike):
        raise TypeError(
            "from_marian takes a folder, a name on the Hub or a MarianMTModel, but it was given a "
            f"{type(marian).__name__}; load a Marian with MarianMTModel.from_pretrained."
        )
    rule = "from_marian needs a MarianMT checkpoint"
    fields = load_config_dict(marian, rule, "a model on the Hub such as Helsinki-NLP/opus-mt-de-en")
    if (family := fields["model_type"]) != MarianConfig.model_type:
        raise ValueError(
            f"{rule}, but {marian} holds a `{family}` model; load that with AutoModelForSeq2SeqLM.from_pretrained."
        )


__all__ = ["from_marian", "from_transformers", "to_marian", "to_transformers"]
