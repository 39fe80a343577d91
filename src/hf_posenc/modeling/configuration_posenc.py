# SPDX-License-Identifier: Apache-2.0
"""Configuration of the Transformer: fields, the papers' defaults, validation."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import ClassVar, Self

from huggingface_hub.dataclasses import strict
from transformers.modeling_rope_utils import RopeParameters

from .alignment_base import Alignment
from .alignment_registry import ALIGNMENTS, get_alignment
from .configuration_shared import SHARED_FIELDS, SharedConfig
from .custom_code import copy_custom_code
from .position_base import EncodingParameter, StackSpec
from .position_registry import POSITION_ENCODINGS, all_encoding_parameters, parse_sum, side_entries

# The field that names each side's encoding.
ENCODING_TYPE_FIELDS = {
    "encoder": "position_encoding_type",
    "decoder": "decoder_position_encoding_type",
    "cross": "cross_position_encoding_type",
}


def parameter_fields() -> dict[str, EncodingParameter]:
    """The config fields of all registered encodings and alignments, by name."""
    fields = {parameter.name: parameter for parameter in all_encoding_parameters()}
    supported = [entry for entry in POSITION_ENCODINGS.values() if entry.modifies_attention]
    fields |= {f"cross_{parameter.name}": parameter for entry in supported for parameter in entry.config_parameters}
    return fields | {
        parameter.name: parameter for alignment in ALIGNMENTS.values() for parameter in alignment.config_parameters
    }


@strict
class PosEncConfig(SharedConfig):
    """An encoder-decoder Transformer whose `position_encoding_type` chooses the position encoding.

    Names are BART's and Marian's where these have the field. Every field is a keyword of the constructor, and so are
    the fields of transformers' PreTrainedConfig. Raises a ValueError for an unknown keyword, with the nearest field,
    and for values that do not work together, with what to change.

    Position encodings
        `position_encoding_type`: a name of `hf_posenc.POSITION_ENCODINGS`, or several with "+" between them.
        `decoder_position_encoding_type`: the decoder's; None for the encoder's.
        `cross_position_encoding_type`: the cross-attention's; "none" for no positions there.
        `alignment_type`: a name of `hf_posenc.ALIGNMENTS`, which maps each target position to a source position for
            `cross_position_encoding_type`.
        `rope_parameters`: base and scaling of `rotary` and `xpos`, a dictionary as in transformers; None for defaults.
        `max_position_embeddings`: the length in tokens that `rope_parameters` scale from. It bounds no length.

    Sizes
        `d_model`: width of embeddings and of all layers, a multiple of the numbers of heads.
        `encoder_layers`, `decoder_layers`: numbers of layers.
        `encoder_attention_heads`, `decoder_attention_heads`: attention heads of a layer.
        `encoder_ffn_dim`, `decoder_ffn_dim`: hidden units of a layer's feed-forward network.

    Layers
        `activation_function`: of the feed-forward networks, a name of transformers' ACT2FN.
        `norm_first`: layer normalization before attention and feed-forward network, not after.
        `layer_norm_eps`: added to the variance in layer normalization.
        `dropout`: probability from 0 to below 1, in training, of embeddings and each block's output.
        `attention_dropout`, `activation_dropout`: the same of attention weights and of hidden units.
    """

    model_type = "posenc"
    auto_classes: ClassVar = {
        "AutoConfig": "configuration_posenc.PosEncConfig",
        "AutoModel": "modeling_posenc.PosEncModel",
        "AutoModelForSeq2SeqLM": "modeling_posenc.PosEncForConditionalGeneration",
    }
    renamed_fields: ClassVar = {"length_ratio_least": "length_ratio_min_step"}
    attribute_map = {
        "hidden_size": "d_model",
        "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
    }

    encoder_attention_heads: int = 8
    decoder_attention_heads: int = 8
    encoder_ffn_dim: int = 2048
    decoder_ffn_dim: int = 2048
    attention_dropout: float | int = 0.0
    activation_dropout: float | int = 0.0
    activation_function: str = "relu"
    layer_norm_eps: float = 1e-5
    norm_first: bool = False
    max_position_embeddings: int = 1024
    rope_parameters: RopeParameters | dict | None = None
    position_encoding_type: str = "relative"
    decoder_position_encoding_type: str | None = None
    cross_position_encoding_type: str = "none"
    alignment_type: str = "none"

    def __post_init__(self, **kwargs: object) -> None:
        for name, parameter in parameter_fields().items():
            setattr(self, name, kwargs.pop(name, parameter.default if name == parameter.name else None))
        if self.decoder_position_encoding_type is None:
            self.decoder_position_encoding_type = self.position_encoding_type
        super().__post_init__(**kwargs)
        for name, parameter in parameter_fields().items():
            if (value := getattr(self, name)) is not None or name == parameter.name:
                replace(parameter, name=name).validate(value)
        self._validate_sides()
        self._validate_alignment()

    @classmethod
    def from_dict(cls, config_dict: dict[str, object], **kwargs: object) -> Self:
        """transformers' `from_dict`; `position_encoding_type` alone is for both stacks, as in the constructor."""
        if "position_encoding_type" in kwargs:
            kwargs.setdefault("decoder_position_encoding_type", None)
        return super().from_dict(config_dict, **kwargs)

    @classmethod
    def hint(cls, config_dict: Mapping[str, object]) -> str | None:
        hint = super().hint(config_dict)
        if hint is not None:
            return hint
        sums = [str(config_dict.get(field) or "none") for field in ENCODING_TYPE_FIELDS.values()]
        if not set("+".join(sums).split("+")) <= set(POSITION_ENCODINGS):
            return "If it is an encoding of your own, import the file that registers it first."
        if config_dict.get("alignment_type", "none") not in ALIGNMENTS:
            return "If it is an alignment of your own, import the file that registers it first."
        return None

    @classmethod
    def known_keywords(cls) -> set[str]:
        return super().known_keywords() | set(parameter_fields())

    def side(self, name: str) -> StackSpec:
        """Sizes and encodings of one attention; `name` is "encoder", "decoder" or "cross"."""
        stack = "encoder" if name == "encoder" else "decoder"

        def stack_field(field: str) -> int:
            """The stack's value of a field."""
            # In a view of the decoder (get_text_config) the decoder's fields have only the name without the prefix.
            value = getattr(self, f"{stack}_{field}", None)
            return getattr(self, field) if value is None else value

        encoding: str | None = getattr(self, ENCODING_TYPE_FIELDS[name], None)
        if encoding is None:
            encoding = self.position_encoding_type
        heads = stack_field("attention_heads")
        vocab_size = self.vocab_size if name == "encoder" else stack_field("vocab_size")
        head_dim = self.d_model // heads if heads > 0 else 0
        names = parse_sum(encoding, ENCODING_TYPE_FIELDS[name])
        return StackSpec(
            name, encoding, stack_field("layers"), heads, stack_field("ffn_dim"), vocab_size, head_dim,
            {name: POSITION_ENCODINGS[name].encoding for name in names},
        )  # fmt: skip

    @property
    def sides(self) -> list[StackSpec]:
        """Encoder and decoder, and the cross-attention if an encoding acts there."""
        encoder, decoder, cross = map(self.side, ENCODING_TYPE_FIELDS)
        return [encoder, decoder, cross] if self.modifies_cross_attention else [encoder, decoder]

    def _validate_sides(self) -> None:
        for side in map(self.side, ENCODING_TYPE_FIELDS):
            if side.heads < 1 or self.d_model % side.heads:
                raise ValueError(
                    f"d_model must be a multiple of the number of heads, but d_model={self.d_model} and "
                    f"{side.name}_attention_heads={side.heads}; change one of them."
                )
            if side.name != "cross" and all(entry.is_modifier for entry in side_entries(side).values()):
                raise ValueError(
                    f"{ENCODING_TYPE_FIELDS[side.name]} must have an encoding with position information, but it is "
                    f"{side.encoding!r}, which only modifies another; write a sum, such as 'relative+{side.encoding}'."
                )
            for name, entry in side_entries(side).items():
                if side.name == "cross" and name != "none" and not entry.modifies_attention:
                    supported = [name for name, other in POSITION_ENCODINGS.items() if other.modifies_attention]
                    raise ValueError(
                        f"cross_position_encoding_type={side.encoding!r}: `{name}` acts on embedded tokens or on "
                        "training positions, but cross-attention has neither; choose from none, "
                        f"{', '.join(supported)}, or a sum of these."
                    )
                entry.encoding.validate(self.config_for(side), side)

    def _validate_alignment(self) -> None:
        if self.alignment is not Alignment and not self.modifies_cross_attention:
            raise ValueError(
                "An alignment needs a position encoding in the cross-attention, which reads its source positions, but "
                f"with alignment_type={self.alignment_type!r} cross_position_encoding_type is "
                f"{self.cross_position_encoding_type!r}; choose one, such as 'rotary+window', or leave the alignment "
                "out."
            )
        self.alignment.validate(self)

    def config_for(self, side: StackSpec) -> "PosEncConfig":
        """This config with the encodings' parameters of that side: for "cross", `cross_*` fields replace others."""
        view = copy.copy(self)
        for name, parameter in parameter_fields().items() if side.name == "cross" else ():
            if name != parameter.name and (cross_value := getattr(self, name)) is not None:
                setattr(view, parameter.name, cross_value)
        return view

    @property
    def alignment(self) -> type[Alignment]:
        """The class of the alignment; a ValueError for an unknown `alignment_type`."""
        return get_alignment(self.alignment_type)

    @property
    def modifies_cross_attention(self) -> bool:
        """Whether an encoding acts in the cross-attention."""
        return any(entry.modifies_attention for entry in side_entries(self.side("cross")).values())

    @property
    def decoder_needs_state_cache(self) -> bool:
        """Whether the decoder's caches must keep positions or states in addition to keys and values."""
        decoder_entries = side_entries(self.side("decoder")).values()
        return self.modifies_cross_attention or any(entry.needs_state_cache for entry in decoder_entries)

    def describe(self) -> str:
        """The fields that choose encodings and alignment, and their parameters, for error messages."""
        names = (*ENCODING_TYPE_FIELDS.values(), "alignment_type", *self.parameter_fields_in_use)
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)

    def max_length_of(self, side: StackSpec) -> int | None:
        """A side's maximum number of tokens, None if its encodings are defined at every length."""
        view = self.config_for(side)
        return min(
            (getattr(view, entry.max_length_field) for entry in side_entries(side).values() if entry.max_length_field),
            default=None,
        )

    @property
    def max_source_length(self) -> int | None:
        """The encoder's maximum number of tokens, with `</s>`; None without a maximum."""
        return self.max_length_of(self.side("encoder"))

    @property
    def max_target_length(self) -> int | None:
        """The decoder's maximum number of tokens, with the start token; None without a maximum."""
        return self.max_length_of(self.side("decoder"))

    @property
    def position_encodings_in_use(self) -> list[str]:
        """The names of the encodings of all sides, with repetitions."""
        return [name for side in self.sides for name in side.encodings]

    @property
    def parameter_fields_in_use(self) -> list[str]:
        """The fields that the sides' encodings and the alignment read, in order."""
        names = [
            parameter.name
            if side.name != "cross" or getattr(self, f"cross_{parameter.name}") is None
            else f"cross_{parameter.name}"
            for side in self.sides
            for entry in side_entries(side).values()
            for parameter in entry.config_parameters
        ]
        return list(dict.fromkeys(names + [parameter.name for parameter in self.alignment.config_parameters]))

    def decoder_cache_layer_types(self, num_layers: int) -> list[str]:
        """A stateful first layer if encodings need one; evicting layers under a window."""
        first = "stateful_attention" if self.decoder_needs_state_cache else "full_attention"
        is_global = all(entry.encoding.is_global for entry in side_entries(self.side("decoder")).values())
        return [first] + ["full_attention" if is_global else "evicting_attention"] * (num_layers - 1)

    def to_dict(self) -> dict[str, object]:
        """The fields to save, without parameters that are unused and at their default.

        Another version, which may lack the parameter of an unused encoding, can then read the config.
        """
        output, used = super().to_dict(), self.parameter_fields_in_use
        for name, parameter in parameter_fields().items():
            if name not in used and output.get(name) == (parameter.default if name == parameter.name else None):
                output.pop(name, None)
        return output

    def save_pretrained(self, save_directory: str | Path, push_to_hub: bool = False, **kwargs: object) -> None:
        """transformers' saving, with the files of a user's encodings and alignment."""
        super().save_pretrained(save_directory)
        encodings = {name: POSITION_ENCODINGS[name].encoding for name in self.position_encodings_in_use}
        copy_custom_code(Path(save_directory), "position_registry", encodings)
        copy_custom_code(Path(save_directory), "alignment_registry", {self.alignment_type: self.alignment})
        if push_to_hub:  # transformers' save_pretrained would push before the code is copied
            self.push_to_hub(kwargs.pop("repo_id", Path(save_directory).name), **kwargs)


def describe_parameters() -> str:
    """The section of PosEncConfig's docstring on the parameters of encodings and alignments, from the registries."""
    own = [parameter for name, parameter in parameter_fields().items() if name == parameter.name]
    cross = [f"`{name}`" for name, parameter in parameter_fields().items() if name != parameter.name]
    lines = [
        f"`{parameter.name}` (default {parameter.default}): {parameter.meaning} It must be {parameter.constraint}."
        for parameter in own
    ]
    lines.append(f"{', '.join(cross)}: the same for the cross-attention; None for the value of the other attentions.")
    wrapped = [fill(line, 116, initial_indent=" " * 8, subsequent_indent=" " * 12) for line in lines]
    return "\n".join(["    Parameters of encodings and alignments", *wrapped, "    "])


PosEncConfig.__doc__ = f"{PosEncConfig.__doc__}\n{SHARED_FIELDS}\n{describe_parameters()}"

__all__ = ["PosEncConfig"]
