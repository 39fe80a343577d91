"""The knobs of the model family, their defaults (the papers') and their legality."""

import difflib
from dataclasses import fields
from pathlib import Path
from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import GenerationConfig, PreTrainedConfig
from transformers.modeling_rope_utils import RopeParameters

from .carry import carry_registered_files
from .positions import POSITION_ENCODINGS, all_knobs, longest_length, parts_of

# What transformers itself passes to a config beyond its fields.
UPSTREAM_KEYWORDS = {
    "_commit_hash", "_name_or_path", "attn_implementation", "auto_map", "experts_implementation", "model_type",
    "name_or_path", "num_labels", "output_attentions", "per_layer_config", "quantization_config", "rope_scaling",
    "rope_theta", "partial_rotary_factor", "torch_dtype", "tie_last_hidden_states", "transformers_weights",
}  # fmt: skip


@strict
class PosEncConfig(PreTrainedConfig):
    """An encoder-decoder Transformer whose `position_encoding_type` says how it is told where its tokens are.

    `position_encoding_type` is a name of `hf_posenc.POSITION_ENCODINGS` or a sum such as "sinusoidal+relative";
    `decoder_position_encoding_type` is the decoder's, the same if it is None. An encoding's own knobs are fields
    prefixed by its name (`relative_clip`, `learned_max_positions`). The remaining names are BART's and Marian's.
    `max_position_embeddings` is only what `rope_parameters` scale against: it bounds no length. Raises a ValueError for
    whatever could not work.
    """

    model_type = "posenc"
    keys_to_ignore_at_inference = ["past_key_values"]
    attribute_map = {
        "hidden_size": "d_model",
        "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
    }

    vocab_size: int = 32000
    decoder_vocab_size: int | None = None
    d_model: int = 512
    encoder_layers: int = 6
    decoder_layers: int = 6
    encoder_attention_heads: int = 8
    decoder_attention_heads: int = 8
    encoder_ffn_dim: int = 2048
    decoder_ffn_dim: int = 2048
    dropout: float | int = 0.1
    attention_dropout: float | int = 0.0
    activation_dropout: float | int = 0.0
    activation_function: str = "relu"
    layer_norm_eps: float = 1e-5
    norm_first: bool = False
    scale_embedding: bool = True
    share_encoder_decoder_embeddings: bool = False
    tie_word_embeddings: bool = False
    output_bias: bool = False
    use_cache: bool = True
    is_encoder_decoder: bool = True
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    decoder_start_token_id: int | None = 1
    max_position_embeddings: int = 1024
    rope_parameters: RopeParameters | dict | None = None
    position_encoding_type: str = "relative"
    decoder_position_encoding_type: str | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        for knob in all_knobs():
            setattr(self, knob.name, kwargs.pop(knob.name, knob.default))
        self._refuse_unknown(kwargs)
        if self.decoder_vocab_size is None:
            self.decoder_vocab_size = self.vocab_size
        if self.decoder_position_encoding_type is None:
            self.decoder_position_encoding_type = self.position_encoding_type
        # Whoever saves this config also saves its code, and all three Auto classes must find their way into it.
        self.auto_map = {
            "AutoConfig": "configuration_posenc.PosEncConfig",
            "AutoModel": "modeling_posenc.PosEncModel",
            "AutoModelForSeq2SeqLM": "modeling_posenc.PosEncForConditionalGeneration",
        }
        kwargs.pop("auto_map", None)
        super().__post_init__(**kwargs)
        self._check_sides()

    def _refuse_unknown(self, kwargs: dict[str, Any]) -> None:
        known = {field.name for field in fields(self)} | {knob.name for knob in all_knobs()} | set(self.attribute_map)
        tolerated = known | UPSTREAM_KEYWORDS | set(GenerationConfig().to_dict())
        for name in kwargs:
            if name not in tolerated and not name.startswith("_"):
                nearest = difflib.get_close_matches(name, known, n=1, cutoff=0)[0]
                raise ValueError(f"{name!r} is no field of PosEncConfig; the nearest one is {nearest!r}.")

    def _check_sides(self) -> None:
        for knob in all_knobs():
            knob.check(getattr(self, knob.name))
        if self.share_encoder_decoder_embeddings and self.decoder_vocab_size != self.vocab_size:
            raise ValueError(
                f"Shared embeddings need one vocabulary, but vocab_size={self.vocab_size} and decoder_vocab_size="
                f"{self.decoder_vocab_size}; make them equal or set share_encoder_decoder_embeddings=False."
            )
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
    def longest_source(self) -> int | None:
        """How many tokens, </s> among them, the encoder can take; None if any number."""
        return longest_length(self.position_encoding_type, self)

    @property
    def longest_target(self) -> int | None:
        """How many tokens, the start token among them, the decoder can take; None if any number."""
        return longest_length(self.decoder_position_encoding_type or self.position_encoding_type, self)

    @property
    def position_encodings_in_use(self) -> list[str]:
        """The names in both sides' sums."""
        return parts_of(self.position_encoding_type) + parts_of(
            self.decoder_position_encoding_type or self.position_encoding_type
        )

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> PreTrainedConfig:
        """One side's view, as transformers' caches ask for it; the decoder's first cache layer may remember more."""
        view = super().get_text_config(decoder=decoder, encoder=encoder)
        if decoder and not encoder:
            first = "remembering_attention" if self.decoder_remembers else "full_attention"
            view.layer_types = [first] + ["full_attention"] * (view.num_hidden_layers - 1)
        return view

    def to_dict(self) -> dict[str, Any]:
        """The fields; of the encodings' knobs those in use or changed: a config asks for no more than it needs."""
        output = super().to_dict()
        used = {knob.name for name in self.position_encodings_in_use for knob in POSITION_ENCODINGS[name].knobs}
        for knob in all_knobs():
            if knob.name not in used and output.get(knob.name) == knob.default:
                output.pop(knob.name, None)
        return output

    def save_pretrained(self, save_directory: str | Path, push_to_hub: bool = False, **kwargs: Any) -> None:
        super().save_pretrained(save_directory, push_to_hub=push_to_hub, **kwargs)
        carry_registered_files(Path(save_directory), self.position_encodings_in_use)


__all__ = ["PosEncConfig"]
