# SPDX-License-Identifier: Apache-2.0
"""Config fields of both encoder-decoders: vocabularies, sizes, tied tables, start token."""

from copy import copy
from typing import cast

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from .configuration_base import BaseConfig

# The section on these fields in the docstring of every config.
SHARED_FIELDS = """    Vocabularies, embeddings, initialization, generation
        `vocab_size`, `decoder_vocab_size`: subwords of source and target; None for one size.
        `scale_embedding`: multiply embeddings by sqrt(d_model).
        `share_encoder_decoder_embeddings`: one table for source and target, which then have one vocabulary.
        `tie_word_embeddings`: the output projection is the target's embedding table.
        `output_bias`: whether the output projection has a bias.
        `initializer`: "xavier" (Xavier-uniform matrices, zero biases, embeddings of deviation d_model^-1/2) or "torch"
            (defaults of torch.nn, embeddings of deviation 1, for which `scale_embedding` should be False).
        `use_cache`: whether generating caches keys, values and states.
        `pad_token_id`, `bos_token_id`, `eos_token_id`, `decoder_start_token_id`: ids of special tokens.
        `hf_posenc_version`: the version that wrote a saved config; None in a new one.
"""


@strict
class SharedConfig(BaseConfig):
    """Fields of every encoder-decoder of the family, named as BART's and Marian's, and their validation."""

    decoder_vocab_size: int | None = None
    d_model: int = 512
    encoder_layers: int = 6
    decoder_layers: int = 6
    share_encoder_decoder_embeddings: bool = False
    output_bias: bool = False
    is_encoder_decoder: bool = True
    decoder_start_token_id: int | None = 1

    def __post_init__(self, **kwargs: object) -> None:
        if self.decoder_vocab_size is None:
            self.decoder_vocab_size = self.vocab_size
        super().__post_init__(**kwargs)
        if self.share_encoder_decoder_embeddings and self.decoder_vocab_size != self.vocab_size:
            raise ValueError(
                f"Shared embeddings need one vocabulary, but vocab_size={self.vocab_size} and decoder_vocab_size="
                f"{self.decoder_vocab_size}; make them equal or set share_encoder_decoder_embeddings=False."
            )

    @property
    def target_vocab_size(self) -> int:
        """`decoder_vocab_size` as an integer: it is None only before `__post_init__`."""
        return cast(int, self.decoder_vocab_size)

    @property
    def max_target_length(self) -> int | None:
        """The decoder's maximum number of tokens, with the start token; None without a maximum."""
        return None

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> PreTrainedConfig:
        """This config as one stack sees it, for transformers' caches.

        Every field that starts with `decoder_` (or `encoder_`) loses that prefix in the view, new fields too:
        `decoder_start_token_id` is `start_token_id` there. Therefore only a stack's own field may have the prefix. The
        view is a shallow copy, because transformers makes three of them a sentence.
        """
        if bool(decoder) == bool(encoder):
            return self
        view, side = copy(self), "decoder_" if decoder else "encoder_"
        for name in [name for name in vars(self) if name.startswith(side)]:
            config_name = name.removeprefix(side)
            config_name = {"layers": "num_hidden_layers", "attention_heads": "num_attention_heads"}.get(
                config_name, config_name
            )
            value = getattr(view, name)
            delattr(view, name)
            setattr(view, self.attribute_map.get(config_name, config_name), value)
        if decoder:
            view.layer_types = self.decoder_cache_layer_types(view.num_hidden_layers)
        return view


__all__ = ["SharedConfig"]
