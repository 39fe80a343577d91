"""Validation of export calls, for every engine."""

from pathlib import Path

from torch import nn
from transformers import PreTrainedTokenizerBase

from ..generation.translate import validate_tokenizer
from ..transformer.modeling_posenc import PosEncForConditionalGeneration


def validate_export_call(model: object, tokenizer: PreTrainedTokenizerBase, folder: Path, engine: str) -> None:
    """Raise a ValueError unless `model` is a Transformer of the family, `folder` new, and `tokenizer` the model's."""
    if not isinstance(model, PosEncForConditionalGeneration):
        raise ValueError(
            f"{engine} needs a Transformer with encoder and decoder, a PosEncForConditionalGeneration, but got a "
            f"{type(model).__name__}; translate with `model.translate`."
        )
    if folder.exists():
        raise ValueError(f"The folder to write must be a new one, but {folder} exists; choose another or delete it.")
    validate_tokenizer(model.config, tokenizer)


def recurrent_modules(model: nn.Module) -> list[str]:
    """The names of a model's recurrent networks, which torch exports for one length only."""
    return [name for name, module in model.named_modules() if isinstance(module, nn.RNNBase)]


def remedy_without_ctranslate2(model: nn.Module) -> str:
    """The fastest other way to run a model that CTranslate2 cannot run, for error messages."""
    if recurrent_modules(model):
        return "translate with `model.translate`"
    return "export it for ONNX, by `to_onnx` or `export --engine onnx`"


def missing_extra_error(extra: str, engine: str) -> ValueError:
    """The error for an engine that is not installed, with the command that installs it."""
    return ValueError(
        f"{engine} must be installed as an extra, but is missing; run `pip install 'hf-posenc[{extra}]'`, in a clone "
        f"`pip install '.[{extra}]'`."
    )
