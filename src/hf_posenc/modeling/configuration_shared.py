"""What the configs of both model families share: vocabularies, sizes, tied tables, special tokens, first weights."""

import difflib
from dataclasses import fields
from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers import GenerationConfig, PreTrainedConfig

# What transformers itself passes to a config beyond its fields.
UPSTREAM_KEYWORDS = {
    "_commit_hash", "_name_or_path", "attn_implementation", "auto_map", "experts_implementation", "model_type",
    "name_or_path", "num_labels", "output_attentions", "per_layer_config", "quantization_config", "rope_scaling",
    "rope_theta", "partial_rotary_factor", "torch_dtype", "tie_last_hidden_states", "transformers_weights",
}  # fmt: skip
INITIALIZERS = ("xavier", "torch")


@strict
class SharedConfig(PreTrainedConfig):
    """The fields of every encoder-decoder of the family, named as BART's and Marian's, and their checks.

    `initializer` says what a new model starts from: "xavier" (Xavier-uniform matrices, zero biases, embeddings of
    deviation d_model^-1/2, which `scale_embedding` multiplies by sqrt(d_model) on their way in) or "torch" (what
    torch.nn gives each module by default, tables of vectors of deviation 1, which want no scaling).
    """

    keys_to_ignore_at_inference = ["past_key_values"]
    # Whoever saves a config also saves its code, and all Auto classes must find their way into it.
    auto_classes: ClassVar[dict[str, str]]

    vocab_size: int = 32000
    decoder_vocab_size: int | None = None
    d_model: int = 512
    encoder_layers: int = 6
    decoder_layers: int = 6
    dropout: float | int = 0.1
    scale_embedding: bool = True
    share_encoder_decoder_embeddings: bool = False
    tie_word_embeddings: bool = False
    output_bias: bool = False
    initializer: str = "xavier"
    use_cache: bool = True
    is_encoder_decoder: bool = True
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    decoder_start_token_id: int | None = 1

    def __post_init__(self, **kwargs: Any) -> None:
        self._refuse_unknown(kwargs)
        if self.decoder_vocab_size is None:
            self.decoder_vocab_size = self.vocab_size
        self.auto_map = dict(self.auto_classes)
        kwargs.pop("auto_map", None)
        super().__post_init__(**kwargs)
        if self.initializer not in INITIALIZERS:
            raise ValueError(f"initializer must be one of {', '.join(INITIALIZERS)}, but it is {self.initializer!r}.")
        if self.share_encoder_decoder_embeddings and self.decoder_vocab_size != self.vocab_size:
            raise ValueError(
                f"Shared embeddings need one vocabulary, but vocab_size={self.vocab_size} and decoder_vocab_size="
                f"{self.decoder_vocab_size}; make them equal or set share_encoder_decoder_embeddings=False."
            )

    def known_keywords(self) -> set[str]:
        return {field.name for field in fields(self)} | set(self.attribute_map)

    def _refuse_unknown(self, kwargs: dict[str, Any]) -> None:
        known = self.known_keywords()
        tolerated = known | UPSTREAM_KEYWORDS | set(GenerationConfig().to_dict())
        for name in kwargs:
            if name not in tolerated and not name.startswith("_"):
                nearest = difflib.get_close_matches(name, known, n=1, cutoff=0)[0]
                raise ValueError(f"{name!r} is no field of {type(self).__name__}; the nearest one is {nearest!r}.")

    @property
    def longest_source(self) -> int | None:
        """How many tokens, </s> among them, the encoder can take; None if any number."""
        return None

    @property
    def longest_target(self) -> int | None:
        """How many tokens, the start token among them, the decoder can take; None if any number."""
        return None

    def decoder_cache_layers(self, num_layers: int) -> list[str]:
        """transformers' names of the cache layers that the decoder's self-attention needs."""
        raise NotImplementedError

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> PreTrainedConfig:
        """One side's view, as transformers' caches ask for it."""
        view = super().get_text_config(decoder=decoder, encoder=encoder)
        if decoder and not encoder:
            view.layer_types = self.decoder_cache_layers(view.num_hidden_layers)
        return view


__all__ = ["SharedConfig"]
