"""What transformers' Auto classes know of both families."""

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer

from .modeling.configuration_posenc import PosEncConfig
from .modeling.configuration_rnn_nmt import RnnNmtConfig
from .modeling.configuration_shared import SharedConfig
from .modeling.modeling_posenc import PosEncForConditionalGeneration, PosEncModel
from .modeling.modeling_rnn_nmt import RnnNmtForConditionalGeneration, RnnNmtModel
from .modeling.tokenization_posenc import PosEncTokenizer

FAMILIES = (
    (PosEncConfig, PosEncModel, PosEncForConditionalGeneration),
    (RnnNmtConfig, RnnNmtModel, RnnNmtForConditionalGeneration),
)


def register_auto_classes() -> None:
    """Register both families with AutoConfig, AutoModel, AutoModelForSeq2SeqLM and AutoTokenizer.

    What is saved then carries its code, so that it loads where this package is not installed.
    """
    for config, base_model, model_with_head in FAMILIES:
        AutoConfig.register(config.model_type, config)
        AutoModel.register(config, base_model)
        AutoModelForSeq2SeqLM.register(config, model_with_head)
        config.register_for_auto_class()
        base_model.register_for_auto_class("AutoModel")
        model_with_head.register_for_auto_class("AutoModelForSeq2SeqLM")
    # By its name alone and for no config that a model has: for those, the code in a checkpoint would be run instead of
    # this class where trust_remote_code=True, which is not so for configs and models.
    AutoTokenizer.register(SharedConfig, tokenizer_class=PosEncTokenizer)
    PosEncTokenizer.register_for_auto_class("AutoTokenizer")
