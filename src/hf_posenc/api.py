"""The public API. `import hf_posenc` imports it; importing it registers the models with the Auto classes."""

from .alignments.base import Alignment
from .alignments.registry import ALIGNMENTS, register_alignment
from .auto_classes import register_auto_classes
from .baselines.rnn_nmt.configuration_rnn_nmt import RnnNmtConfig
from .baselines.rnn_nmt.modeling_rnn_nmt import RnnNmtForConditionalGeneration, RnnNmtModel
from .convert.checkpoints import from_transformers, to_transformers
from .convert.encodings import convert_encodings
from .encodings.base import EncodingConfig, EncodingParameter, PositionEncoding, Reference, StackSpec
from .encodings.positions import AttentionContext, distance
from .encodings.registry import POSITION_ENCODINGS, PositionEncodingEntry, register_position_encoding
from .encodings.sinusoidal import sinusoids
from .hosts.position_table import lengthen_table
from .hosts.replacement import replace_positions
from .hub.version import __version__
from .inference.ctranslate2_engine import CTranslate2Translator, to_ctranslate2
from .inference.onnx_engine import PosEncOnnxModel, to_onnx
from .inference.streaming import StreamingTranslator
from .measure.measure import measure_length
from .measure.report import LengthReport
from .metrics.loading import load_length_buckets, load_translation_audit
from .tokenizer.tokenization_posenc import PosEncTokenizer
from .transformer.configuration_posenc import PosEncConfig
from .transformer.configuration_posenc_causal import PosEncCausalConfig
from .transformer.modeling_posenc import PosEncForConditionalGeneration, PosEncModel
from .transformer.modeling_posenc_causal import PosEncCausalModel, PosEncForCausalLM
from .transformer.pretrained import PosEncPreTrainedModel
from .translator.causal import CausalTranslator
from .translator.translator import Translator

register_auto_classes()

__all__ = [
    "ALIGNMENTS",
    "POSITION_ENCODINGS",
    "Alignment",
    "AttentionContext",
    "CTranslate2Translator",
    "CausalTranslator",
    "EncodingConfig",
    "EncodingParameter",
    "LengthReport",
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
    "Translator",
    "__version__",
    "convert_encodings",
    "distance",
    "from_transformers",
    "lengthen_table",
    "load_length_buckets",
    "load_translation_audit",
    "measure_length",
    "register_alignment",
    "register_position_encoding",
    "replace_positions",
    "sinusoids",
    "to_ctranslate2",
    "to_onnx",
    "to_transformers",
]
