"""What a call of every export must be."""

from pathlib import Path

from transformers import PreTrainedTokenizerBase

from ..modeling.modeling_posenc import PosEncForConditionalGeneration
from ..modeling.translation import validate_tokenizer


def validate_export_call(model: object, tokenizer: PreTrainedTokenizerBase, folder: Path, engine: str) -> None:
    """A ValueError for what is no Transformer of the family, a folder that is there, or a strange tokenizer."""
    if not isinstance(model, PosEncForConditionalGeneration):
        raise ValueError(
            f"{engine} runs Transformers, but {type(model).__name__} is none; translate with `model.translate`."
        )
    if folder.exists():
        raise ValueError(f"The folder to write must be a new one, but {folder} exists; choose another or delete it.")
    validate_tokenizer(model.config, tokenizer)


def missing_extra_error(extra: str, engine: str) -> ValueError:
    return ValueError(
        f"{engine} is an extra, and not installed; run `pip install 'hf-posenc[{extra}]'`, in a clone "
        f"`pip install '.[{extra}]'`."
    )
