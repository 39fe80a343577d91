"""Loading by transformers' Auto classes, without code from checkpoints."""

from os import PathLike
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedConfig

from ..hub.errors import CONFIG_FILES, MODEL_FILES, TOKENIZER_FILES, explain_unreadable

FILES_READ = {AutoConfig: CONFIG_FILES, AutoTokenizer: (*TOKENIZER_FILES, *CONFIG_FILES)}  # by others: MODEL_FILES


def auto_from_pretrained(auto: Any, name: str | PathLike[str] | None, **options: object) -> Any:
    """The object that `auto`, an Auto class, loads from a checkpoint: a folder or a name on the Hub.

    Raises a ValueError for files that cannot be read, and for a checkpoint that needs its own code: a model or a
    tokenizer of another family.
    """
    with explain_unreadable(name, FILES_READ.get(auto, MODEL_FILES), options):
        try:
            return auto.from_pretrained(name, trust_remote_code=False, **options)
        except ValueError as error:
            if "trust_remote_code" not in str(error):
                raise
            raise ValueError(
                f"Code of a checkpoint must not run, but {name} needs code of its own ({auto.__name__}). Name a model "
                "of this family, whose tokenizer is PosEncTokenizer or one of transformers; or load it in a script of "
                "yours."
            ) from None


def auto_model_class(config: PreTrainedConfig) -> Any:
    """The Auto class of a model with an output projection: AutoModelForSeq2SeqLM, or AutoModelForCausalLM."""
    return AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM


def load_model_with_head(name: str | PathLike[str]) -> Any:
    """The model of a checkpoint with its output projection, by the class that its config belongs to."""
    return auto_from_pretrained(auto_model_class(auto_from_pretrained(AutoConfig, name)), name)
