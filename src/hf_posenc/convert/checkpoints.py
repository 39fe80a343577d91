"""Conversion of transformers' translation models to this family, and back.

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

All families name weights and config fields as BART does, and this family as well. They differ in four respects: where
layers are normalized, how positions are stored, which vocabularies there are, and whether the logits have a bias. Only
MarianMT (the opus-mt models of the Hub) may have two vocabularies.

Sinusoids are stored with all sines before all cosines. In Vaswani et al. and here, sine and cosine of one wavelength
are neighbours:

    ours[..., i] = theirs[..., order[i]],    order = 0, h, 1, h+1, 2, h+2, ...,    h = ceil(D/2)

Only weights read and write the D channels between the layers, and LayerNorm treats all channels alike. Therefore both
models are the same function after a permutation of channels: of the columns of weights that read them (embeddings,
queries, keys, values, fc1, output projection), and of the rows of weights that write them (out_proj, fc2, LayerNorm).
Channels inside heads and feed-forward networks keep their order.

Learned tables have two rows before position 0. No input reads these rows; they are zeros in a converted model.
"""

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import CONFIG_MAPPING, MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING, PreTrainedConfig, PreTrainedModel
from transformers.utils import find_adapter_config_file

from ..encodings.sinusoidal import Sinusoidal, sinusoids
from ..hub.errors import CONFIG_FILES, MODEL_FILES, explain_unreadable, require, require_choice
from ..transformer.configuration_posenc import PosEncConfig
from ..transformer.configuration_posenc_causal import PosEncCausalConfig
from ..transformer.modeling_posenc import PosEncForConditionalGeneration
from .encodings import (
    NEW_WEIGHT_PREFIXES,
    STRUCTURAL_FIELDS,
    TUNABLE_FIELDS,
    PosEncTransformer,
    convert_encodings,
    load_config,
    load_config_dict,
    load_into,
    load_posenc_config,
    override_config,
    requested_encodings,
    transferable_weights,
    validate_weight_names,
    zero_init_model,
)

INPUT_WEIGHTS = tuple(
    f"{name}.weight" for name in ("embed_tokens", "shared", "lm_head", "q_proj", "k_proj", "v_proj", "fc1")
)
OUTPUT_WEIGHTS = tuple(f"{name}.{kind}" for name in ("out_proj", "fc2", "layer_norm") for kind in ("weight", "bias"))
STACKS = ("encoder", "decoder")
POSITION_TABLES = tuple(f"model.{stack}.embed_positions." for stack in STACKS)
LEARNED_TABLES = {f"model.{stack}.embed_positions.weight": f"model.{stack}.positions.0.table" for stack in STACKS}
# The rows of a learned table before position 0.
LEARNED_OFFSET = 2
SINUSOID_DEFAULTS = {parameter.name: parameter.default for parameter in Sinusoidal.config_parameters}

Weights = dict[str, Tensor]


class SinusoidalPositions:
    """Positions by a formula: channels are permuted, and tables of sinusoids left out."""

    encoding: ClassVar = "sinusoidal"

    def parameters(self, config: PreTrainedConfig) -> dict[str, object]:
        """The encoding's fields of PosEncConfig for a config, theirs or ours."""
        return dict(SINUSOID_DEFAULTS)

    def fixed_fields(self, config: PosEncConfig) -> dict[str, object]:
        """The fields that a model of the other family has."""
        return self.parameters(config)

    def to_ours(self, weights: Weights) -> Weights:
        """Weights of this family; the tables are left out."""
        weights = {name: weight for name, weight in weights.items() if not name.startswith(POSITION_TABLES)}
        return permute_channels(weights, channel_order(model_width(weights)))

    def to_theirs(self, weights: Weights) -> Weights:
        """Weights of the other family, without its tables."""
        return permute_channels(weights, channel_order(model_width(weights)).argsort())

    def max_positions(self, config: PosEncConfig) -> int:
        """Rows of the other family's tables."""
        return config.max_position_embeddings

    def validate(self, origin: PreTrainedModel) -> None:
        """Raise a ValueError for a saved table that is not the sinusoids."""
        for name, table in origin.state_dict().items():
            if not name.startswith(POSITION_TABLES):
                continue
            rows, width = table.shape
            formula = sinusoids(torch.arange(rows), width, torch.float64)
            max_error = float((table.detach().cpu().double()[:, channel_order(width)] - formula).abs().max())
            require(
                max_error < 0.01,  # half precision rounds by less
                f"Positions of a {type(origin).__name__} must be sinusoids, but the {name.split('.')[1]}'s table of "
                f"positions differs by {max_error:.2g}; fill it with its create_weight(), or do not convert the model.",
            )


class FairseqSinusoids(SinusoidalPositions):
    """Positions counted from behind the padding token, with D/2 - 1 steps from the shortest wavelength to the longest.

    For an odd D fairseq has a channel of zeros, which this family lacks.
    """

    def parameters(self, config: PreTrainedConfig) -> dict[str, object]:
        """The encoding's fields of PosEncConfig; a ValueError for an odd width, and for a start or an end token that is
        the padding token."""
        self.require_counted(self.uncounted_tokens(config), config)
        require(
            config.d_model == self.nearest_width(config),
            f"Sinusoids of M2M-100 must have an even d_model of 4 or more, but d_model={config.d_model}; do not "
            "convert the model.",
        )
        num_wavelengths = config.d_model // 2
        base = 10000.0 ** (num_wavelengths / (num_wavelengths - 1))
        return {"sinusoidal_offset": (config.pad_token_id or 0) + 1, "sinusoidal_base": base}

    def fixed_fields(self, config: PosEncConfig) -> dict[str, object]:
        """The encoding's fields, or the nearest even width, or another start or end token."""
        if uncounted := self.uncounted_tokens(config):
            return dict.fromkeys(uncounted, (config.pad_token_id or 0) + 1)
        nearest = self.nearest_width(config)
        return {"d_model": nearest} if config.d_model != nearest else self.parameters(config)

    @staticmethod
    def uncounted_tokens(config: PreTrainedConfig) -> list[str]:
        """The config's tokens of every source or target that are the padding token, which has no position."""
        uncounted = []
        for name in ("decoder_start_token_id", "eos_token_id"):
            token = getattr(config, name)
            if config.pad_token_id in (token if isinstance(token, list) else [token]):
                uncounted.append(name)
        return uncounted

    def validate(self, origin: PreTrainedModel) -> None:
        """Raise a ValueError also for a generation config whose start token is the padding token."""
        super().validate(origin)
        if origin.generation_config.decoder_start_token_id == origin.config.pad_token_id:
            self.require_counted(["decoder_start_token_id"], origin.config)

    @staticmethod
    def require_counted(uncounted: list[str], config: PreTrainedConfig) -> None:
        """Raise a ValueError for the first of these tokens, which have no position."""
        require(
            not uncounted,
            f"M2M-100 counts no padding tokens, so its {'/'.join(uncounted)} must not be its pad_token_id, but both "
            f"are {config.pad_token_id}, and its positions would differ with and without a cache; train the model "
            "with another one, or do not convert it.",
        )

    @staticmethod
    def nearest_width(config: PreTrainedConfig) -> int:
        """The smallest even width of 4 or more that is not below the config's."""
        return max(4, config.d_model + config.d_model % 2)


class LearnedPositions:
    """Trained tables of positions, with rows before position 0."""

    encoding: ClassVar = "learned"

    def parameters(self, config: PreTrainedConfig) -> dict[str, object]:
        """The encoding's fields of PosEncConfig for a config of theirs."""
        return {"learned_max_positions": config.max_position_embeddings}

    def fixed_fields(self, config: PosEncConfig) -> dict[str, object]:
        """None: tables of any length are representable."""
        return {}

    def to_ours(self, weights: Weights) -> Weights:
        """Weights of this family; the rows before position 0 are left out."""
        renamed = dict(weights)
        for theirs, ours in LEARNED_TABLES.items():
            renamed[ours] = renamed.pop(theirs)[LEARNED_OFFSET:]
        return renamed

    def to_theirs(self, weights: Weights) -> Weights:
        """Weights of the other family; the rows before position 0 are zeros."""
        renamed = dict(weights)
        for theirs, ours in LEARNED_TABLES.items():
            table = renamed.pop(ours)
            renamed[theirs] = torch.cat((table.new_zeros(LEARNED_OFFSET, table.shape[1]), table))
        return renamed

    def max_positions(self, config: PosEncConfig) -> int:
        """Rows of the other family's tables from position 0 on."""
        return config.learned_max_positions

    def validate(self, origin: PreTrainedModel) -> None:
        """Every table is valid."""


def channel_order(width: int) -> Tensor:
    """The index of each of our channels among theirs (D)."""
    num_sines = (width + 1) // 2
    return torch.arange(2 * num_sines).view(2, num_sines).T.flatten()[:width]


def model_width(weights: Weights) -> int:
    """The number of channels between the layers, D."""
    return weights["model.encoder.embed_tokens.weight"].shape[1]


def permute_channels(weights: Weights, order: Tensor) -> Weights:
    """All weights with their channels permuted by `order` (D)."""
    permuted = dict(weights)
    for name, weight in weights.items():
        if name.endswith(INPUT_WEIGHTS):
            permuted[name] = weight[:, order]
        elif name.endswith(OUTPUT_WEIGHTS):
            permuted[name] = weight[order]
    return permuted


@dataclass(frozen=True)
class Family:
    """One family of transformers' encoder-decoders."""

    name: str
    model_type: str
    positions: SinusoidalPositions | LearnedPositions
    norm_first: bool
    normalize_embedding: bool
    has_output_bias: bool = True

    @property
    def config_class(self) -> type[PreTrainedConfig]:
        """The class of its configs."""
        return CONFIG_MAPPING[self.model_type]

    @property
    def model_class(self) -> type[PreTrainedModel]:
        """The class of its translation models."""
        return MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING[self.config_class]

    @property
    def fixed_fields(self) -> dict[str, object]:
        """Fields of PosEncConfig with one value in the whole family."""
        both = dict.fromkeys(("position_encoding_type", "decoder_position_encoding_type"), self.positions.encoding)
        norms = {"norm_first": self.norm_first, "normalize_embedding": self.normalize_embedding}
        return both | norms | {"layer_norm_eps": 1e-5}

    @property
    def required_fields(self) -> dict[str, object]:
        """Fields that old config files have and transformers no longer reads, with the values of its models."""
        return {
            "normalize_before": self.norm_first,
            "normalize_embedding": self.normalize_embedding,
            "add_final_layer_norm": self.norm_first,
            "static_position_embeddings": isinstance(self.positions, SinusoidalPositions),
        }

    @property
    def config_fields(self) -> set[str]:
        """The names of its config's fields."""
        return {field.name for field in fields(self.config_class)}

    @property
    def has_target_vocabulary(self) -> bool:
        """Whether the target may have a vocabulary of its own."""
        return "decoder_vocab_size" in self.config_fields


# By `model_type`; NLLB-200 is an `m2m_100`, mBART-50 an `mbart`.
FAMILIES = {
    "bart": Family("BART", "bart", LearnedPositions(), norm_first=False, normalize_embedding=True),
    "m2m_100": Family(
        "M2M-100", "m2m_100", FairseqSinusoids(), norm_first=True, normalize_embedding=False, has_output_bias=False
    ),
    "marian": Family("Marian", "marian", SinusoidalPositions(), norm_first=False, normalize_embedding=False),
    "mbart": Family("mBART", "mbart", LearnedPositions(), norm_first=True, normalize_embedding=True),
    "pegasus": Family("Pegasus", "pegasus", SinusoidalPositions(), norm_first=True, normalize_embedding=False),
}


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
    require(
        isinstance(origin, PreTrainedModel) or find_adapter_config_file(origin) is None,
        f"A checkpoint must have no adapter to be converted, but {origin} has an adapter_config.json; merge the "
        "adapter with PEFT's merge_and_unload, and convert what that returns.",
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
    return load_config(
        origin,
        FAMILIES,
        f"from_transformers needs a checkpoint of {', '.join(FAMILIES)}",
        "a model on the Hub such as Helsinki-NLP/opus-mt-de-en",
        "load one of these with AutoModelForSeq2SeqLM.from_pretrained",
    )


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
    require(
        getattr(theirs, "quantization_config", None) is None,
        "Only weights in floating point are converted, but the config has a quantization_config; convert the model "
        "that was quantized.",
    )
    load = f"load it with {family.model_class.__name__}.from_pretrained(..., {{}}) and convert that"
    require(
        theirs.decoder_start_token_id is not None,
        f"decoder_start_token_id must be a token id, but this {family.name} model has none; "
        f"{load.format('decoder_start_token_id=ID')}. ID is the end token of an mBART-50 model, and the target's "
        "language tag of an older mBART.",
    )
    for name, required in family.required_fields.items():
        value = getattr(theirs, name, required)
        require(
            value == required,
            f"A {family.name} model must have {name}={required} to be converted, but has {name}={value}; if that has "
            f"no effect, {load.format(f'{name}={required}')}.",
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
    require_choice("model_type", model_type, FAMILIES, "leave it out to take the one that can represent the model")
    return FAMILIES[model_type]


def differing(config: PosEncConfig, required: Mapping[str, object]) -> dict[str, object]:
    """Those of the required fields that the config has otherwise."""
    return {name: value for name, value in required.items() if getattr(config, name) != value}


def differing_fields(config: PosEncConfig, family: Family) -> dict[str, object]:
    """The fields that differ from those of every model of a family, with the family's values."""
    no_positions = dict.fromkeys(("cross_position_encoding_type", "alignment_type"), "none")
    # The encoding's own fields mean nothing where the encoding differs.
    return differing(config, family.fixed_fields | no_positions) or differing(
        config, family.positions.fixed_fields(config)
    )


def validate_representable(config: PosEncConfig, family: Family) -> None:
    """Raise a ValueError for a config that a family of transformers cannot represent."""
    remedy = "save it with its own save_pretrained, which includes its code"
    require(
        config.tie_word_embeddings or not config.share_encoder_decoder_embeddings,
        f"{family.name} shares embeddings only along with the output projection, but this model has "
        f"share_encoder_decoder_embeddings=True and tie_word_embeddings=False; {remedy}.",
    )
    required = differing_fields(config, family)
    if not family.has_target_vocabulary:
        sharing = config.tie_word_embeddings
        one_vocabulary = {"decoder_vocab_size": config.vocab_size, "share_encoder_decoder_embeddings": sharing}
        required |= differing(config, one_vocabulary)
    if not family.has_output_bias:
        required |= differing(config, {"output_bias": False})
    for name, value in required.items():
        raise ValueError(
            f"{family.name} has {name}={value!r}, but this model has {name}={getattr(config, name)!r}; {remedy}."
        )


__all__ = ["from_transformers", "to_transformers"]
