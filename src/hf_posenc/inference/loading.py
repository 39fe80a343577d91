"""Saved models and exported folders: which engine a folder is for, its model and tokenizer, devices."""

from pathlib import Path

import torch
import transformers
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import CONFIG_NAME

from ..convert.folders import auto_from_pretrained, load_model_with_head
from ..utils.manifest import validate_weights
from ..utils.run_folder import RunPaths, SystemPaths
from .ctranslate2_engine import import_ctranslate2, is_ctranslate2
from .onnx_engine import is_onnx


def silence_logging() -> None:
    """Turn off transformers' warnings and progress bars."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def engine_of(folder: Path) -> str | None:
    """The engine that a folder was exported for, None for a saved model."""
    if is_ctranslate2(folder):
        return "CTranslate2"
    return "ONNX graphs" if is_onnx(folder) else None


def is_available(device: torch.device, engine: str | None) -> bool:
    """Whether torch, or CTranslate2 for a folder of its own, finds a device."""
    if engine == "CTranslate2":
        num_gpus = import_ctranslate2().get_cuda_device_count()
        return device.type == "cpu" or (device.type == "cuda" and (device.index or 0) < num_gpus)
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, ImportError):  # by the kind of device
        return False
    return True


def load_model(name: str | Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model and the tokenizer of a folder, or of a name on the Hub."""
    checkpoint = checkpoint_name(name)
    validate_local_weights(checkpoint)
    return load_model_with_head(checkpoint), auto_from_pretrained(AutoTokenizer, checkpoint)


def validate_local_weights(checkpoint: str) -> None:
    """Raise a ValueError if the weights of a folder are missing, truncated or changed."""
    if Path(checkpoint).is_dir() and not has_old_weights(checkpoint):
        validate_weights(Path(checkpoint))


def has_old_weights(checkpoint: str) -> bool:
    """Whether a folder has weights in PyTorch's own format alone, as old checkpoints of transformers do."""
    return any(Path(checkpoint).glob("pytorch_model*.bin")) and not any(Path(checkpoint).glob("*.safetensors"))


def checkpoint_name(name: str | Path) -> str:
    """The folder with config.json of a local checkpoint, else the name on the Hub.

    A name that begins with a local folder is no name on the Hub; a ValueError if there is no checkpoint.
    """
    path = Path(name)
    is_remote = not path.is_absolute() and len(path.parts) in (1, 2) and not Path(path.parts[0]).exists()
    return path.as_posix() if is_remote else str(model_folder(path))


def model_folder(folder: Path) -> Path:
    """The folder with config.json: `folder` or its `model`."""
    for candidate in (folder, SystemPaths(folder).model):
        if (candidate / CONFIG_NAME).is_file():
            return candidate
    hint = "name a run's system or a saved model"
    for subject, run in ((f"{folder} holds", folder), (f"{folder.parent} has", folder.parent)):
        systems = RunPaths(run).model_folders()
        if systems:
            hint = f"{subject} the systems {', '.join(systems)}; name one of them"
            break
    raise ValueError(f"There must be a saved model in FOLDER, but {folder} has no config.json; {hint}.")


def weight_file_stats(name: Path) -> dict[str, list[int]]:
    """Size and modification time of each file of weights, which differ after another training; none of the Hub's."""
    folder = name if is_ctranslate2(name) else Path(checkpoint_name(name))
    files = sorted(file for kind in ("*.safetensors", "*.bin", "*.onnx*") for file in folder.glob(kind))
    return {file.name: [file.stat().st_size, file.stat().st_mtime_ns] for file in files}
