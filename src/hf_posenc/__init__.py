"""Transformers whose config field `position_encoding_type` chooses the position encoding.

PosEncForConditionalGeneration is an encoder-decoder, PosEncForCausalLM a decoder-only model, and RNN-NMT a recurrent
baseline. Importing this package registers them with AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoModelForCausalLM
and AutoTokenizer.

Importing, loading and generating need torch, transformers and tokenizers alone. Other packages are imported where they
are used: training and scoring need all of the project's dependencies, figures and exports their extras.
"""

import sys

if sys.argv[:1] == ["-m"]:  # `python -m hf_posenc`, which runs __main__ after these imports
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # until then, Ctrl-C ends them without a traceback
    del signal
del sys

from . import auto_classes
from .alignments.base import Alignment
from .alignments.registry import ALIGNMENTS, register_alignment
from .baselines.rnn_nmt.configuration_rnn_nmt import RnnNmtConfig
from .baselines.rnn_nmt.modeling_rnn_nmt import RnnNmtForConditionalGeneration, RnnNmtModel
from .convert.checkpoints import from_marian, from_transformers, to_marian, to_transformers
from .convert.encodings import convert_encodings
from .encodings.base import EncodingConfig, EncodingParameter, PositionEncoding, Reference, StackSpec
from .encodings.positions import AttentionContext, distance
from .encodings.registry import POSITION_ENCODINGS, PositionEncodingEntry, register_position_encoding
from .encodings.sinusoidal import sinusoids
from .hub.version import __version__
from .inference.ctranslate2_engine import CTranslate2Translator, to_ctranslate2
from .inference.onnx_engine import PosEncOnnxModel, to_onnx
from .inference.streaming import StreamingTranslator
from .metrics.loading import load_length_buckets, load_translation_audit
from .tokenizer.tokenization_posenc import PosEncTokenizer
from .transformer.configuration_posenc import PosEncConfig
from .transformer.configuration_posenc_causal import PosEncCausalConfig
from .transformer.modeling_posenc import PosEncForConditionalGeneration, PosEncModel
from .transformer.modeling_posenc_causal import PosEncCausalModel, PosEncForCausalLM
from .transformer.pretrained import PosEncPreTrainedModel

auto_classes.register_auto_classes()
del auto_classes  # dir() shows __all__ and packages

__all__ = [
    "ALIGNMENTS",
    "POSITION_ENCODINGS",
    "Alignment",
    "AttentionContext",
    "CTranslate2Translator",
    "EncodingConfig",
    "EncodingParameter",
    "PosEncCausalConfig",
    "PosEncCausalModel",
    "PosEncConfig",
    "PosEncForCausalLM",
    "PosEncForConditionalGeneration",
    "PosEncModel",
    "PosEncOnnxModel",
    "PosEncPreTrainedModel",
    "PosEncTokenizer",
    "PositionEncoding",
    "PositionEncodingEntry",
    "Reference",
    "RnnNmtConfig",
    "RnnNmtForConditionalGeneration",
    "RnnNmtModel",
    "StackSpec",
    "StreamingTranslator",
    "__version__",
    "convert_encodings",
    "distance",
    "from_marian",
    "from_transformers",
    "load_length_buckets",
    "load_translation_audit",
    "register_alignment",
    "register_position_encoding",
    "sinusoids",
    "to_ctranslate2",
    "to_marian",
    "to_onnx",
    "to_transformers",
]
