# SPDX-License-Identifier: Apache-2.0
"""Configuration of the Transformer: fields, the papers' defaults, validation."""

from collections.abc import Mapping
from typing import ClassVar, Self

from huggingface_hub.dataclasses import strict

from ..alignments.base import Alignment
from ..alignments.registry import ALIGNMENTS, get_alignment
from ..encodings.base import EncodingParameter, StackSpec
from ..encodings.registry import POSITION_ENCODINGS, default_encoding, side_entries
from .configuration_base import SHARED_FIELDS, SharedConfig
from .configuration_encodings import EncodingsConfig, describe_parameters


@strict
class PosEncConfig(SharedConfig, EncodingsConfig):  # in this order: SharedConfig sets defaults of BaseConfig anew
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
        `max_position_embeddings`: the length in tokens that `rope_parameters` scale from. It bounds no length. An
            encoding with a table of positions sets it to the table's length.

    Sizes
        `d_model`: width of embeddings and of all layers, a multiple of the numbers of heads.
        `encoder_layers`, `decoder_layers`: numbers of layers.
        `encoder_attention_heads`, `decoder_attention_heads`: attention heads of a layer.
        `encoder_ffn_dim`, `decoder_ffn_dim`: hidden units of a layer's feed-forward network.

    Layers
        `activation_function`: of the feed-forward networks, a name of transformers' ACT2FN.
        `norm_first`: layer normalization before attention and feed-forward network, not after.
        `normalize_embedding`: layer normalization of the embedded tokens with their positions, before the first layer.
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
    encoding_type_fields: ClassVar = {
        "encoder": "position_encoding_type",
        "decoder": "decoder_position_encoding_type",
        "cross": "cross_position_encoding_type",
    }
    heads_fields: ClassVar = {
        "encoder": "encoder_attention_heads",
        "decoder": "decoder_attention_heads",
        "cross": "decoder_attention_heads",
    }
    width_field: ClassVar = "d_model"
    attribute_map = {
        "hidden_size": "d_model",
        "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
    }

    encoder_attention_heads: int = 8
    decoder_attention_heads: int = 8
    encoder_ffn_dim: int = 2048
    decoder_ffn_dim: int = 2048
    activation_function: str = "relu"
    norm_first: bool = False
    max_position_embeddings: int = 1024
    position_encoding_type: str = default_encoding("relative")
    decoder_position_encoding_type: str | None = None
    cross_position_encoding_type: str = "none"
    alignment_type: str = "none"

    def __post_init__(self, **kwargs: object) -> None:
        if self.decoder_position_encoding_type is None:
            self.decoder_position_encoding_type = self.position_encoding_type
        super().__post_init__(**kwargs)
        if self.alignment is not Alignment and not self.modifies_cross_attention:
            raise ValueError(
                "An alignment needs a position encoding in the cross-attention, which reads its source positions, but "
                f"with alignment_type={self.alignment_type!r} cross_position_encoding_type is "
                f"{self.cross_position_encoding_type!r}; choose one, such as 'rotary+window', or leave the alignment "
                "out."
            )
        self.alignment.validate(self)

    @classmethod
    def parameter_fields(cls) -> dict[str, EncodingParameter]:
        """The config fields of all registered encodings and alignments, by name."""
        fields = super().parameter_fields()
        for entry in POSITION_ENCODINGS.values():
            if entry.modifies_attention:
                fields |= {f"cross_{parameter.name}": parameter for parameter in entry.config_parameters}
        for alignment in ALIGNMENTS.values():
            fields |= {parameter.name: parameter for parameter in alignment.config_parameters}
        return fields

    @classmethod
    def from_dict(cls, config_dict: dict[str, object], **kwargs: object) -> Self:
        """transformers' `from_dict`; `position_encoding_type` alone is for both stacks, as in the constructor."""
        if "position_encoding_type" in kwargs:
            kwargs.setdefault("decoder_position_encoding_type", None)
        return super().from_dict(config_dict, **kwargs)

    @classmethod
    def hint(cls, config_dict: Mapping[str, object]) -> str | None:
        hint = super().hint(config_dict)
        if hint is None and config_dict.get("alignment_type", "none") not in ALIGNMENTS:
            return "If it is an alignment of your own, import the file that registers it first."
        return hint

    def side(self, name: str) -> StackSpec:
        """Sizes and encodings of one attention; `name` is "encoder", "decoder" or "cross"."""
        stack = "encoder" if name == "encoder" else "decoder"

        def stack_field(field: str) -> int:
            # In a view of the decoder (get_text_config) the decoder's fields have only the name without the prefix.
            value = getattr(self, f"{stack}_{field}", None)
            return getattr(self, field) if value is None else value

        encoding = getattr(self, self.encoding_type_fields[name], None)
        if encoding is None:
            encoding = self.position_encoding_type
        vocab_size = self.vocab_size if name == "encoder" else stack_field("vocab_size")
        sizes = stack_field("layers"), stack_field("attention_heads"), stack_field("ffn_dim"), vocab_size
        return self.stack_spec(name, encoding, *sizes)

    @property
    def sides(self) -> list[StackSpec]:
        """Encoder and decoder, and the cross-attention if an encoding acts there."""
        encoder, decoder, cross = map(self.side, self.encoding_type_fields)
        return [encoder, decoder, cross] if self.modifies_cross_attention else [encoder, decoder]

    def _validate_side(self, side: StackSpec) -> None:
        for name, entry in side_entries(side).items() if side.name == "cross" else ():
            if name != "none" and not entry.modifies_attention:
                supported = [name for name, other in POSITION_ENCODINGS.items() if other.modifies_attention]
                raise ValueError(
                    f"cross_position_encoding_type={side.encoding!r}: `{name}` acts on embedded tokens or on "
                    "training positions, but cross-attention has neither; choose from none, "
                    f"{', '.join(supported)}, or a sum of these."
                )
        super()._validate_side(side)

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
        return self.modifies_cross_attention or super().decoder_needs_state_cache

    def describe(self) -> str:
        return f"{super().describe()}, alignment_type={self.alignment_type!r}"

    @property
    def parameter_fields_in_use(self) -> list[str]:
        alignment_fields = [parameter.name for parameter in self.alignment.config_parameters]
        return list(dict.fromkeys([*super().parameter_fields_in_use, *alignment_fields]))

    @property
    def max_source_length(self) -> int | None:
        """The encoder's maximum number of tokens, with `</s>`; None without a maximum."""
        return self.max_length_of(self.side("encoder"))

    @property
    def max_target_length(self) -> int | None:
        """The decoder's maximum number of tokens, with the start token; None without a maximum."""
        return self.max_length_of(self.side("decoder"))


PosEncConfig.__doc__ = (
    f"{PosEncConfig.__doc__}\n{SHARED_FIELDS}\n{describe_parameters(PosEncConfig.parameter_fields())}"
)

__all__ = ["PosEncConfig"]
