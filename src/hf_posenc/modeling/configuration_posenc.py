# SPDX-License-Identifier: Apache-2.0
"""The knobs of the model family, their defaults (the papers') and their legality."""

from pathlib import Path
from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers.modeling_rope_utils import RopeParameters

from .carry import carry_registered_files
from .configuration_shared import SharedConfig
from .positions import POSITION_ENCODINGS, all_knobs, longest_length, parts_of

SIDES = ("position_encoding_type", "decoder_position_encoding_type")


@strict
class PosEncConfig(SharedConfig):
    """An encoder-decoder Transformer whose `position_encoding_type` says how it is told where its tokens are.

    `position_encoding_type` is a name of `hf_posenc.POSITION_ENCODINGS` or a sum such as "sinusoidal+relative";
    `decoder_position_encoding_type` is the decoder's, the same if it is None. An encoding's own knobs are fields
    prefixed by its name (`relative_clip`, `learned_max_positions`). The remaining names are BART's and Marian's.
    `max_position_embeddings` is only what `rope_parameters` scale against: it bounds no length. Raises a ValueError for
    whatever could not work.
    """

    model_type = "posenc"
    auto_classes: ClassVar = {
        "AutoConfig": "configuration_posenc.PosEncConfig",
        "AutoModel": "modeling_posenc.PosEncModel",
        "AutoModelForSeq2SeqLM": "modeling_posenc.PosEncForConditionalGeneration",
    }
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

    def __post_init__(self, **kwargs: Any) -> None:
        for knob in all_knobs():
            setattr(self, knob.name, kwargs.pop(knob.name, knob.default))
        if self.decoder_position_encoding_type is None:
            self.decoder_position_encoding_type = self.position_encoding_type
        super().__post_init__(**kwargs)
        for knob in all_knobs():
            knob.check(getattr(self, knob.name))
        self._check_sides()

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """`position_encoding_type` by itself is for both sides, as it is where a config is made."""
        if "position_encoding_type" in kwargs:
            kwargs.setdefault("decoder_position_encoding_type", None)
        return super().from_dict(config_dict, **kwargs)

    @classmethod
    def hint(cls, config_dict: dict[str, Any]) -> str | None:
        named = "+".join(config_dict.get(side) or "none" for side in SIDES).split("+")
        if (hint := super().hint(config_dict)) is None and not set(named) <= set(POSITION_ENCODINGS):
            hint = "If it is an encoding of your own, import the file that registers it first."
        return hint

    @classmethod
    def known_keywords(cls) -> set[str]:
        return super().known_keywords() | {knob.name for knob in all_knobs()}

    def _check_sides(self) -> None:
        sides = (
            ("encoder", self.position_encoding_type, self.encoder_attention_heads),
            ("decoder", self.decoder_position_encoding_type, self.decoder_attention_heads),
        )
        for side, position_encoding_type, num_heads in sides:
            if num_heads < 1 or self.d_model % num_heads:
                raise ValueError(
                    f"d_model must be a multiple of the number of heads, but d_model={self.d_model} and "
                    f"{side}_attention_heads={num_heads}; change one of them."
                )
            for name in parts_of(position_encoding_type):
                POSITION_ENCODINGS[name].encoding.check(self, num_heads=num_heads)

    @property
    def decoder_remembers(self) -> bool:
        """Whether the decoder's cache must keep more than keys and values."""
        # A view of the decoder, as get_text_config makes it, has its encoding under the plain name alone.
        parts = parts_of(self.decoder_position_encoding_type or self.position_encoding_type)
        return any(POSITION_ENCODINGS[name].remembers for name in parts)

    @property
    def in_words(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in (*SIDES, *self.knobs_in_use))

    @property
    def longest_source(self) -> int | None:
        return longest_length(self.position_encoding_type, self)

    @property
    def longest_target(self) -> int | None:
        return longest_length(self.decoder_position_encoding_type or self.position_encoding_type, self)

    @property
    def position_encodings_in_use(self) -> list[str]:
        """The names in both sides' sums."""
        return parts_of(self.position_encoding_type) + parts_of(
            self.decoder_position_encoding_type or self.position_encoding_type
        )

    @property
    def knobs_in_use(self) -> list[str]:
        """The fields that both sides' encodings read, in order."""
        used = (POSITION_ENCODINGS[name].knobs for name in self.position_encodings_in_use)
        return list(dict.fromkeys(knob.name for knobs in used for knob in knobs))

    def decoder_cache_layers(self, num_layers: int) -> list[str]:
        first = "remembering_attention" if self.decoder_remembers else "full_attention"
        return [first] + ["full_attention"] * (num_layers - 1)

    def to_dict(self) -> dict[str, Any]:
        """The fields; of the encodings' knobs those in use or changed: a config asks for no more than it needs."""
        output, used = super().to_dict(), self.knobs_in_use
        for knob in all_knobs():
            if knob.name not in used and output.get(knob.name) == knob.default:
                output.pop(knob.name, None)
        return output

    def save_pretrained(self, save_directory: str | Path, push_to_hub: bool = False, **kwargs: Any) -> None:
        super().save_pretrained(save_directory)
        carry_registered_files(Path(save_directory), self.position_encodings_in_use)
        if push_to_hub:  # by transformers' save_pretrained it would be too early
            self.push_to_hub(kwargs.pop("repo_id", Path(save_directory).name), **kwargs)


__all__ = ["PosEncConfig"]
