# SPDX-License-Identifier: Apache-2.0
"""Base class of configs with position encodings: their parameters, validation, saving with a user's own encodings."""

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from textwrap import fill
from typing import Any, ClassVar, Self

from huggingface_hub.dataclasses import strict
from transformers.activations import ACT2FN
from transformers.modeling_rope_utils import RopeParameters

from ..encodings.base import EncodingParameter, StackSpec
from ..encodings.registry import POSITION_ENCODINGS, all_encoding_parameters, parse_sum, side_entries
from ..hub.errors import closest_name, validate_names
from .configuration_base import BaseConfig

# Keys of `rope_parameters` of every `rope_type`: what is rotated, and how fast.
COMMON_ROPE_KEYS = ("rope_theta", "partial_rotary_factor")


@strict
class EncodingsConfig(BaseConfig):
    """A Transformer's config: fields of every one, and the parameters of the encodings of each side.

    `encoding_type_fields`: by side, the field that names its encoding. `heads_fields`, `width_field`: the fields of a
    side's number of heads and of the model's width, for errors.
    """

    encoding_type_fields: ClassVar[dict[str, str]]
    heads_fields: ClassVar[dict[str, str]]
    width_field: ClassVar[str]

    attention_dropout: float | int = 0.0
    activation_dropout: float | int = 0.0
    layer_norm_eps: float = 1e-5
    normalize_embedding: bool = False
    rope_parameters: RopeParameters | dict | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        parameters = self.parameter_fields()
        for name, parameter in parameters.items():
            setattr(self, name, kwargs.pop(name, parameter.default if name == parameter.name else None))
        super().__post_init__(**kwargs)
        activation_field = self.attribute_map.get("activation_function", "activation_function")
        if (activation := getattr(self, activation_field)) not in ACT2FN:
            raise ValueError(
                f"{activation_field} must be a name of transformers' ACT2FN, but it is {activation!r}; the nearest one "
                f"is {closest_name(activation, ACT2FN)!r}."
            )
        for name, parameter in parameters.items():
            if (value := getattr(self, name)) is not None or name == parameter.name:
                replace(parameter, name=name).validate(value)
        for side in map(self.side, self.encoding_type_fields):
            self._validate_side(side)
        lengths = [self.max_length_of(side) for side in self.sides]
        bound: int | None = min((length for length in lengths if length is not None), default=None)
        if bound is not None:  # evaluation harnesses and pipelines read it there
            self.max_position_embeddings = bound

    @staticmethod
    def _check_received_keys(
        rope_type: str,
        received_keys: set[str],
        required_keys: set[str],
        optional_keys: set[str] | None = None,
        ignore_keys: set[str] | None = None,
    ) -> None:
        """Raise a ValueError for keys of `rope_parameters` that this type lacks or does not have.

        A private hook of transformers (5.17 to 5.24 have it), which only logs unknown keys. If it is renamed, a
        misspelt key has no effect.
        """
        owner = f"rope_parameters with rope_type={rope_type!r}"
        known = required_keys | (optional_keys or set()) | (ignore_keys or set()) | {"partial_rotary_factor", "type"}
        validate_names(sorted(received_keys), known, owner)
        if missing := sorted(required_keys - received_keys):
            raise ValueError(
                f"{owner} must have {', '.join(missing)}, but it has {sorted(received_keys)}; add the rest."
            )

    @classmethod
    def parameter_fields(cls) -> dict[str, EncodingParameter]:
        """The config fields of all registered encodings, by name."""
        return {parameter.name: parameter for parameter in all_encoding_parameters()}

    @classmethod
    def known_keywords(cls) -> set[str]:
        return super().known_keywords() | set(cls.parameter_fields())

    @classmethod
    def hint(cls, config_dict: Mapping[str, object]) -> str | None:
        hint = super().hint(config_dict)
        sums = [str(config_dict.get(field) or "none") for field in cls.encoding_type_fields.values()]
        if hint is None and not set("+".join(sums).split("+")) <= set(POSITION_ENCODINGS):
            hint = "If it is an encoding of your own, import the file that registers it first."
            if cls.write_code is None:  # this code came with a checkpoint
                hint += " The code of a checkpoint has the encodings of its own config alone; hf_posenc has all."
        return hint

    def side(self, name: str) -> StackSpec:
        """Sizes and encodings of one attention; `name` is a key of `encoding_type_fields`."""
        raise NotImplementedError

    def stack_spec(self, name: str, encoding: str, layers: int, heads: int, ffn_dim: int, vocab_size: int) -> StackSpec:
        """The sizes and encodings of one attention; a ValueError for an invalid `encoding`, a name or a sum."""
        names = parse_sum(encoding, self.encoding_type_fields[name])
        encodings = {name: POSITION_ENCODINGS[name].encoding for name in names}
        head_dim = self.d_model // heads if heads > 0 else 0
        return StackSpec(name, encoding, layers, heads, ffn_dim, vocab_size, head_dim, encodings)

    @property
    def sides(self) -> list[StackSpec]:
        """The attentions in which an encoding acts."""
        return list(map(self.side, self.encoding_type_fields))

    def _validate_side(self, side: StackSpec) -> None:
        """Raise a ValueError for heads that do not divide the width, or encodings that cannot work on that side."""
        width = getattr(self, self.width_field)
        if width % side.heads:
            raise ValueError(
                f"{self.width_field} must be a multiple of the number of heads, but {self.width_field}={width} and "
                f"{self.heads_fields[side.name]}={side.heads}; change one of them."
            )
        if side.name != "cross" and all(entry.is_modifier for entry in side_entries(side).values()):
            raise ValueError(
                f"{self.encoding_type_fields[side.name]} must have an encoding with position information, but it is "
                f"{side.encoding!r}, which only modifies another; write a sum, such as 'relative+{side.encoding}'."
            )
        for entry in side_entries(side).values():
            entry.encoding.validate(self.config_for(side), side)

    def config_for(self, side: StackSpec) -> Self:
        """This config with the encodings' parameters of that side: for "cross", `cross_*` fields replace others."""
        view = copy(self)
        for name, parameter in self.parameter_fields().items() if side.name == "cross" else ():
            if name != parameter.name and (cross_value := getattr(self, name)) is not None:
                setattr(view, parameter.name, cross_value)
        return view

    @property
    def decoder_needs_state_cache(self) -> bool:
        """Whether the decoder's caches must keep positions or states in addition to keys and values."""
        return any(entry.needs_state_cache for entry in side_entries(self.side("decoder")).values())

    @property
    def decoder_is_sequential(self) -> bool:
        """Whether the decoder has a recurrent layer, which reads over the end of a document in a row of several."""
        return any(entry.is_sequential for entry in side_entries(self.side("decoder")).values())

    def describe(self) -> str:
        """The fields that choose encodings, and their parameters, for error messages."""
        names = (*self.encoding_type_fields.values(), *self.parameter_fields_in_use)
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)

    def max_length_of(self, side: StackSpec) -> int | None:
        """A side's maximum number of tokens, None if its encodings are defined at every length."""
        view = self.config_for(side)
        return min(
            (getattr(view, entry.max_length_field) for entry in side_entries(side).values() if entry.max_length_field),
            default=None,
        )

    @property
    def parameter_fields_in_use(self) -> list[str]:
        """The fields that the sides' encodings read, in order."""
        names = []
        for side in self.sides:
            for entry in side_entries(side).values():
                for parameter in entry.config_parameters:
                    cross_name = f"cross_{parameter.name}"
                    is_cross = side.name == "cross" and getattr(self, cross_name) is not None
                    names.append(cross_name if is_cross else parameter.name)
        return list(dict.fromkeys(names))

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
        for name, parameter in self.parameter_fields().items():
            if name not in used and output.get(name) == (parameter.default if name == parameter.name else None):
                output.pop(name, None)
        return output


def describe_parameters(fields: Mapping[str, EncodingParameter]) -> str:
    """The section of a config's docstring on the parameters of encodings and alignments, from the registries."""
    own = [parameter for name, parameter in fields.items() if name == parameter.name]
    cross = [f"`{name}`" for name, parameter in fields.items() if name != parameter.name]
    lines = [
        f"`{parameter.name}` (default {parameter.default}): {parameter.meaning} It must be {parameter.constraint}."
        for parameter in own
    ]
    if cross:
        lines.append(
            f"{', '.join(cross)}: the same for the cross-attention; None for the value of the other attentions."
        )
    wrapped = [fill(line, 116, initial_indent=" " * 8, subsequent_indent=" " * 12) for line in lines]
    return "\n".join(["    Parameters of encodings and alignments", *wrapped, "    "])
