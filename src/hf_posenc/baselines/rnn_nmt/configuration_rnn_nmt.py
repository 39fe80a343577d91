# SPDX-License-Identifier: Apache-2.0
"""Configuration of RNN-NMT, with Neishi & Yoshinaga's defaults."""

from typing import ClassVar

from huggingface_hub.dataclasses import strict

from ...transformer.configuration_base import SHARED_FIELDS, SharedConfig


@strict
class RnnNmtConfig(SharedConfig):
    """RNN-NMT, the recurrent baseline: a bidirectional LSTM encoder, an LSTM decoder with attention.

    Every field is a keyword of the constructor, and so are the fields of transformers' PreTrainedConfig. Raises a
    ValueError for an unknown keyword and for values that do not work together. There is no position encoding and no
    alignment: naming one is a ValueError.

    Sizes
        `d_model`: width of embeddings and of each direction of the LSTMs.
        `encoder_layers`, `decoder_layers`: numbers of LSTM layers.
        `dropout`: probability from 0 to below 1, in training, of embeddings and between LSTM layers.
    """

    model_type = "posenc_rnn_nmt"
    auto_classes: ClassVar = {
        "AutoConfig": "configuration_rnn_nmt.RnnNmtConfig",
        "AutoModel": "modeling_rnn_nmt.RnnNmtModel",
        "AutoModelForSeq2SeqLM": "modeling_rnn_nmt.RnnNmtForConditionalGeneration",
    }
    attribute_map = {"hidden_size": "d_model", "num_hidden_layers": "encoder_layers"}

    encoder_layers: int = 4
    decoder_layers: int = 3
    dropout: float | int = 0.2

    def __post_init__(self, **kwargs: object) -> None:
        for name in kwargs:
            if name == "alignment_type" or name.endswith("position_encoding_type"):
                raise ValueError(
                    "RNN-NMT has no position encoding and no alignment, because its LSTMs read the tokens in order, "
                    f"but {name}={kwargs[name]!r} was given; leave it out, or use PosEncConfig for a Transformer with "
                    "one."
                )
        super().__post_init__(**kwargs)

    def decoder_cache_layer_types(self, num_layers: int) -> list[str]:
        """One stateful layer, for the state of all LSTM layers."""
        return ["stateful_attention"]


RnnNmtConfig.__doc__ = f"{RnnNmtConfig.__doc__}\n{SHARED_FIELDS}    "

__all__ = ["RnnNmtConfig"]
