"""Sequence-to-sequence Transformers whose config field `position_encoding_type` chooses the position encoding.

Importing this package registers the family with AutoConfig, AutoModel, AutoModelForSeq2SeqLM and AutoTokenizer.
"""

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer

from .metrics import load_length_buckets
from .modeling.configuration_posenc import PosEncConfig
from .modeling.modeling_posenc import PosEncForConditionalGeneration, PosEncModel, PosEncPreTrainedModel
from .modeling.position import PositionEncoding, distance
from .modeling.position_sinusoidal import sinusoids
from .modeling.positions import POSITION_ENCODINGS, Knob, PositionEncodingEntry, register_position_encoding
from .modeling.tokenization_posenc import PosEncTokenizer

__version__ = "0.1.0"

AutoConfig.register(PosEncConfig.model_type, PosEncConfig)
AutoModel.register(PosEncConfig, PosEncModel)
AutoModelForSeq2SeqLM.register(PosEncConfig, PosEncForConditionalGeneration)
AutoTokenizer.register(PosEncConfig, tokenizer_class=PosEncTokenizer)

# What is saved carries its code, so that it loads where this package is not installed.
PosEncConfig.register_for_auto_class()
PosEncModel.register_for_auto_class("AutoModel")
PosEncForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")
PosEncTokenizer.register_for_auto_class("AutoTokenizer")

__all__ = [
    "POSITION_ENCODINGS",
    "Knob",
    "PosEncConfig",
    "PosEncForConditionalGeneration",
    "PosEncModel",
    "PosEncPreTrainedModel",
    "PosEncTokenizer",
    "PositionEncoding",
    "PositionEncodingEntry",
    "distance",
    "load_length_buckets",
    "register_position_encoding",
    "sinusoids",
]
