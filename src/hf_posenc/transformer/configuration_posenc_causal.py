# SPDX-License-Identifier: Apache-2.0
"""Configuration of the decoder-only Transformer: fields by the names of decoder-only models, validation."""

from collections.abc import Iterable, Mapping
from copy import copy
from typing import ClassVar

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from ..encodings.base import StackSpec
from ..encodings.registry import default_encoding
from .configuration_encodings import EncodingsConfig, describe_parameters

# Keywords of an encoder-decoder's config that a decoder-only model has no use for.
SEQ2SEQ_PREFIXES = ("alignment_", "cross_", "decoder_", "encoder_", "share_encoder_decoder_")

# In tokens, of `rope_parameters` that do not say from which length they extend.
DEFAULT_ORIGINAL_LENGTH = 1024


@strict
class PosEncCausalConfig(EncodingsConfig):
    """A decoder-only Transformer whose `position_encoding_type` chooses the position encoding.

    Names are those of Llama and GPT-NeoX where these have the field. PosEncConfig's names of the same fields, such as
    `d_model`, are accepted too. Every field is a keyword of the constructor, and so are the fields of transformers'
    PreTrainedConfig. Raises a ValueError for an unknown keyword, with the nearest field, for a field of an
    encoder-decoder alone, such as `alignment_type`, and for values that do not work together, with what to change.

    Position encodings
        `position_encoding_type`: a name of `hf_posenc.POSITION_ENCODINGS`, or several with "+" between them.
        `rope_parameters`: base and scaling of `rotary` and `xpos`, a dictionary as in transformers; None for defaults.
        `max_position_embeddings`: the longest input in tokens, for readers such as evaluation harnesses. An encoding
            with a table of positions sets it to the table's length. Otherwise it bounds no length here; its default is
            then None, or the length to which `rope_parameters` extend an original one.

    Sizes
        `vocab_size`: subwords.
        `hidden_size`: width of embeddings and of all layers, a multiple of the number of heads.
        `num_hidden_layers`: number of layers.
        `num_attention_heads`: attention heads of a layer.
        `intermediate_size`: hidden units of a layer's feed-forward network.

    Layers
        `hidden_act`: of the feed-forward networks, a name of transformers' ACT2FN.
        `norm_first`: layer normalization before attention and feed-forward network, not after.
        `normalize_embedding`: layer normalization of the embedded tokens with their positions, before the first layer.
        `layer_norm_eps`: added to the variance in layer normalization.
        `dropout`: probability from 0 to below 1, in training, of embeddings and each block's output.
        `attention_dropout`, `activation_dropout`: the same of attention weights and of hidden units.

    Embeddings, initialization, generation
        `scale_embedding`: multiply embeddings by sqrt(hidden_size).
        `tie_word_embeddings`: the output projection is the embedding table.
        `initializer`: "xavier" (Xavier-uniform matrices, zero biases, embeddings of deviation hidden_size^-1/2) or
            "torch" (defaults of torch.nn, embeddings of deviation 1, for which `scale_embedding` should be False).
        `use_cache`: whether generating caches keys, values and states.
        `pad_token_id`, `bos_token_id`, `eos_token_id`: ids of special tokens.
        `hf_posenc_version`: the version that wrote a saved config; None in a new one.
    """

    model_type = "posenc_causal"
    auto_classes: ClassVar = {
        "AutoConfig": "configuration_posenc_causal.PosEncCausalConfig",
        "AutoModel": "modeling_posenc_causal.PosEncCausalModel",
        "AutoModelForCausalLM": "modeling_posenc_causal.PosEncForCausalLM",
    }
    encoding_type_fields: ClassVar = {"decoder": "position_encoding_type"}
    heads_fields: ClassVar = {"decoder": "num_attention_heads"}
    width_field: ClassVar = "hidden_size"
    # The names by which layers and encodings, which both architectures share, read these fields.
    attribute_map = {"d_model": "hidden_size", "activation_function": "hidden_act"}

    hidden_size: int = 512
    num_hidden_layers: int = 6
    num_attention_heads: int = 8
    intermediate_size: int = 2048
    hidden_act: str = "relu"
    norm_first: bool = True
    max_position_embeddings: int | None = None  # type: ignore[assignment]  # of the base class, where it is assigned
    position_encoding_type: str = default_encoding("rotary")

    def __post_init__(self, **kwargs: object) -> None:
        if has_default := self.max_position_embeddings is None:
            self.max_position_embeddings = DEFAULT_ORIGINAL_LENGTH
        super().__post_init__(**kwargs)
        if has_default and self.max_sequence_length is None:
            self.max_position_embeddings = self.extended_length()
        if self.is_encoder_decoder:
            raise ValueError(
                f"{type(self).__name__} describes a decoder-only model, but is_encoder_decoder=True is given; leave it "
                "out, or use PosEncConfig."
            )

    def check_keywords(self, kwargs: Iterable[str]) -> None:
        for name in kwargs:
            if name.startswith(SEQ2SEQ_PREFIXES):
                raise ValueError(
                    f"{type(self).__name__} describes a decoder-only model, which has neither encoder nor "
                    f"cross-attention nor alignment, but {name} is given; leave it out, or use PosEncConfig."
                )
        super().check_keywords(kwargs)

    def extended_length(self) -> int | None:
        """The length in tokens to which `rope_parameters` extend an original one; None if they have none."""
        rope: Mapping[str, object] = self.rope_parameters or {}
        original, factor = rope.get("original_max_position_embeddings"), rope.get("factor")
        if original is None:
            return None
        if not (isinstance(original, int) and isinstance(factor, int | float)):
            return DEFAULT_ORIGINAL_LENGTH  # transformers refuses the parameters afterwards
        return int(factor * original)

    def side(self, name: str = "decoder") -> StackSpec:
        """Sizes and encodings of the model's only stack, whose name is "decoder", because its attention is causal."""
        sizes = self.num_hidden_layers, self.num_attention_heads, self.intermediate_size, self.vocab_size
        return self.stack_spec("decoder", self.position_encoding_type, *sizes)

    @property
    def max_sequence_length(self) -> int | None:
        """The maximum number of tokens, special ones included; None without a maximum."""
        return self.max_length_of(self.side())

    @property
    def max_source_length(self) -> int | None:
        """The maximum number of tokens of a prompt, after which one more token fits; None without a maximum."""
        return None if self.max_sequence_length is None else self.max_sequence_length - 1

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> PreTrainedConfig:
        """This config; with `decoder=True` a copy with the types of cache layers, for transformers' caches."""
        if bool(decoder) == bool(encoder) or encoder:
            return self
        view = copy(self)
        view.layer_types = self.decoder_cache_layer_types(self.num_hidden_layers)
        return view


PosEncCausalConfig.__doc__ = (
    f"{PosEncCausalConfig.__doc__}\n{describe_parameters(PosEncCausalConfig.parameter_fields())}"
)

__all__ = ["PosEncCausalConfig"]
