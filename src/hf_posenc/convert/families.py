"""Families of transformers' translation models, each as its differences from this family.

All of them name weights and config fields as BART does, and this family as well. They differ in four respects: where
layers are normalized, how positions are stored, which vocabularies there are, and whether the logits have a bias.

Sinusoids are stored with all sines before all cosines. In Vaswani et al. and here, sine and cosine of one wavelength
are neighbours:

    ours[..., i] = theirs[..., order[i]],    order = 0, h, 1, h+1, 2, h+2, ...,    h = ceil(D/2)

Only weights read and write the D channels between the layers, and LayerNorm treats all channels alike. Therefore both
models are the same function after a permutation of channels: of the columns of weights that read them (embeddings,
queries, keys, values, fc1, output projection), and of the rows of weights that write them (out_proj, fc2, LayerNorm).
Channels inside heads and feed-forward networks keep their order.

Learned tables have two rows before position 0. No input reads these rows; they are zeros in a converted model.
"""

from dataclasses import dataclass, fields
from typing import ClassVar

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from ..encodings.sinusoidal import Sinusoidal, sinusoids
from ..transformer.configuration_posenc import PosEncConfig

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

UNCOUNTED = (
    "M2M-100 counts no padding tokens, so its {name} must not be its pad_token_id, but both are {token}, and its "
    "positions would differ with and without a cache; train the model with another one, or do not convert it."
)

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
            if not max_error < 0.01:  # half precision rounds by less
                raise ValueError(
                    f"Positions of a {type(origin).__name__} must be sinusoids, but the {name.split('.')[1]}'s table "
                    f"of positions differs by {max_error:.2g}; fill it with its create_weight(), or do not convert the "
                    "model."
                )


class FairseqSinusoids(SinusoidalPositions):
    """Positions counted from behind the padding token, with D/2 - 1 steps from the shortest wavelength to the longest.

    For an odd D fairseq has a channel of zeros, which this family lacks.
    """

    def parameters(self, config: PreTrainedConfig) -> dict[str, object]:
        """The encoding's fields of PosEncConfig; a ValueError for an odd width, and for a start or an end token that is
        the padding token."""
        for name in self.uncounted_tokens(config):
            raise ValueError(UNCOUNTED.format(name=name, token=config.pad_token_id))
        if config.d_model != self.nearest_width(config):
            raise ValueError(
                f"Sinusoids of M2M-100 must have an even d_model of 4 or more, but d_model={config.d_model}; do not "
                "convert the model."
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
        tokens = {name: getattr(config, name) for name in ("decoder_start_token_id", "eos_token_id")}
        listed = {name: token if isinstance(token, list) else [token] for name, token in tokens.items()}
        return [name for name, ids in listed.items() if config.pad_token_id in ids]

    def validate(self, origin: PreTrainedModel) -> None:
        """Raise a ValueError also for a generation config whose start token is the padding token."""
        super().validate(origin)
        if origin.generation_config.decoder_start_token_id == (token := origin.config.pad_token_id):
            raise ValueError(UNCOUNTED.format(name="decoder_start_token_id", token=token))

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
        return {
            LEARNED_TABLES.get(name, name): weight[LEARNED_OFFSET:] if name in LEARNED_TABLES else weight
            for name, weight in weights.items()
        }

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
    """One family of transformers' encoder-decoders.

    `config_name`, `model_name`: transformers' classes, which are imported when they are used. `norm_first`,
    `normalize_embedding`: the fields of PosEncConfig. `positions`: how positions are stored. `has_output_bias`:
    whether there is a bias on the logits.
    """

    name: str
    config_name: str
    model_name: str
    positions: SinusoidalPositions | LearnedPositions
    norm_first: bool
    normalize_embedding: bool
    has_output_bias: bool = True

    @property
    def config_class(self) -> type[PreTrainedConfig]:
        """The class of its configs."""
        return getattr(transformers, self.config_name)

    @property
    def model_class(self) -> type[PreTrainedModel]:
        """The class of its translation models."""
        return getattr(transformers, self.model_name)

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


BART = ("BART", "BartConfig", "BartForConditionalGeneration", LearnedPositions())
M2M100 = ("M2M-100", "M2M100Config", "M2M100ForConditionalGeneration", FairseqSinusoids())
MARIAN = ("Marian", "MarianConfig", "MarianMTModel", SinusoidalPositions())
MBART = ("mBART", "MBartConfig", "MBartForConditionalGeneration", LearnedPositions())
PEGASUS = ("Pegasus", "PegasusConfig", "PegasusForConditionalGeneration", SinusoidalPositions())
# By `model_type`; NLLB-200 is an `m2m_100`, mBART-50 an `mbart`.
FAMILIES = {
    "bart": Family(*BART, norm_first=False, normalize_embedding=True),
    "m2m_100": Family(*M2M100, norm_first=True, normalize_embedding=False, has_output_bias=False),
    "marian": Family(*MARIAN, norm_first=False, normalize_embedding=False),
    "mbart": Family(*MBART, norm_first=True, normalize_embedding=True),
    "pegasus": Family(*PEGASUS, norm_first=True, normalize_embedding=False),
}
