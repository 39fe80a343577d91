# SPDX-License-Identifier: Apache-2.0
"""The configuration of RNN-NMT, by default Neishi & Yoshinaga's."""

from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict

from .configuration_shared import SharedConfig


@strict
class RnnNmtConfig(SharedConfig):
    """The recurrent translation model that Transformers with a recurrent position encoding are compared with.

    `encoder_layers` of a bidirectional LSTM and `decoder_layers` of an LSTM, all `d_model` wide in each direction.
    There is no position encoding: to name one is a ValueError, as is whatever else could not work.
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

    def __post_init__(self, **kwargs: Any) -> None:
        for name in kwargs:
            if name == "alignment_type" or name.endswith("position_encoding_type"):
                raise ValueError(
                    "RNN-NMT has no position encoding and no alignment, because its LSTMs read the tokens in order, "
                    f"but {name}={kwargs[name]!r} was given; leave it out, or take PosEncConfig for a Transformer that "
                    "has one."
                )
        super().__post_init__(**kwargs)

    def decoder_cache_layer_types(self, num_layers: int) -> list[str]:
        return ["stateful_attention"]  # one state for all LSTM layers


__all__ = ["RnnNmtConfig"]
