"""What transformers' Auto classes know of the family."""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

from .baselines.rnn_nmt.configuration_rnn_nmt import RnnNmtConfig
from .baselines.rnn_nmt.modeling_rnn_nmt import RnnNmtForConditionalGeneration, RnnNmtModel
from .hub.checkpoint_code import write_checkpoint_code
from .tokenizer.tokenization_posenc import PosEncTokenizer
from .transformer.configuration_base import BaseConfig
from .transformer.configuration_posenc import PosEncConfig
from .transformer.configuration_posenc_causal import PosEncCausalConfig
from .transformer.modeling_posenc import PosEncForConditionalGeneration, PosEncModel
from .transformer.modeling_posenc_causal import PosEncCausalModel, PosEncForCausalLM

FAMILIES = (
    (PosEncConfig, PosEncModel, PosEncForConditionalGeneration, AutoModelForSeq2SeqLM),
    (RnnNmtConfig, RnnNmtModel, RnnNmtForConditionalGeneration, AutoModelForSeq2SeqLM),
    (PosEncCausalConfig, PosEncCausalModel, PosEncForCausalLM, AutoModelForCausalLM),
)


def register_auto_classes() -> None:
    """Register all models with AutoConfig, AutoModel, AutoModelForSeq2SeqLM or AutoModelForCausalLM, and AutoTokenizer.

    What is saved then carries its code, so that it loads where this package is not installed.
    """
    for config, base_model, model_with_head, auto_with_head in FAMILIES:
        AutoConfig.register(config.model_type, config)
        AutoModel.register(config, base_model)
        auto_with_head.register(config, model_with_head)
    # By its name alone and for no config that a model has: for those, the code in a checkpoint would be run instead of
    # this class where trust_remote_code=True, which is not so for configs and models.
    AutoTokenizer.register(BaseConfig, tokenizer_class=PosEncTokenizer)
    BaseConfig.write_code = PosEncTokenizer.write_code = staticmethod(write_checkpoint_code)
