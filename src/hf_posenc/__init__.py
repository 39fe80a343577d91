"""Sequence-to-sequence Transformers whose config field `position_encoding_type` chooses the position encoding.

Beside them stands RNN-NMT, a recurrent baseline. Importing this package registers both with AutoConfig, AutoModel,
AutoModelForSeq2SeqLM and AutoTokenizer.
"""

from .auto_classes import register_auto_classes
from .conversion import converted
from .export.ctranslate2 import to_ctranslate2
from .export.ctranslate2_translator import CTranslate2Translator
from .export.onnx import to_onnx
from .marian import from_marian, to_marian
from .metrics import load_length_buckets
from .modeling.alignment import Alignment
from .modeling.alignments import ALIGNMENTS, register_alignment
from .modeling.configuration_posenc import PosEncConfig
from .modeling.configuration_rnn_nmt import RnnNmtConfig
from .modeling.modeling_posenc import PosEncForConditionalGeneration, PosEncModel, PosEncPreTrainedModel
from .modeling.modeling_rnn_nmt import RnnNmtForConditionalGeneration, RnnNmtModel
from .modeling.place import Place, distance
from .modeling.position import Knob, PositionEncoding
from .modeling.position_sinusoidal import sinusoids
from .modeling.positions import POSITION_ENCODINGS, PositionEncodingEntry, register_position_encoding
from .modeling.references import Reference
from .modeling.tokenization_posenc import PosEncTokenizer
from .modeling.version import __version__

register_auto_classes()
del register_auto_classes  # what dir() shows beside modules is __all__

__all__ = [
    "ALIGNMENTS",
    "POSITION_ENCODINGS",
    "Alignment",
    "CTranslate2Translator",
    "Knob",
    "Place",
    "PosEncConfig",
    "PosEncForConditionalGeneration",
    "PosEncModel",
    "PosEncPreTrainedModel",
    "PosEncTokenizer",
    "PositionEncoding",
    "PositionEncodingEntry",
    "Reference",
    "RnnNmtConfig",
    "RnnNmtForConditionalGeneration",
    "RnnNmtModel",
    "__version__",
    "converted",
    "distance",
    "from_marian",
    "load_length_buckets",
    "register_alignment",
    "register_position_encoding",
    "sinusoids",
    "to_ctranslate2",
    "to_marian",
    "to_onnx",
]
