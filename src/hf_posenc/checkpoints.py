"""Checkpoints on disk: the newest whole one, whether weights are whole, and the mean of several."""

from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor
from transformers.trainer_utils import get_last_checkpoint


def last_whole_checkpoint(folder: Path) -> str | None:
    """The newest checkpoint, None before the first; a ValueError if it was cut short while it was written."""
    if not folder.is_dir() or (last := get_last_checkpoint(str(folder))) is None:
        return None
    for name in ("trainer_state.json", "optimizer.pt", "scheduler.pt"):
        if not (Path(last) / name).is_file():
            raise ValueError(
                f"Training resumes from a whole checkpoint, but {last} has no {name}: it was cut short. Delete that "
                "folder; training then resumes from the checkpoint before it."
            )
    check_weights(Path(last))
    return last


def check_weights(folder: Path) -> None:
    """A ValueError if the weights in `folder` are missing or cut short."""
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise ValueError(f"A model's folder holds model.safetensors, but {folder} has none; name a folder that does.")
    for file in files:
        try:
            with safe_open(str(file), framework="pt"):
                pass
        except SafetensorError as error:
            raise ValueError(
                f"Weights must be whole, but {file} is cut short ({error}); delete {folder} and train, copy or "
                "download it again."
            ) from None


def mean_weights(folder: Path, number: int) -> dict[str, Tensor]:
    """The mean of the weights of the last `number` checkpoints in `folder`, in the precision they are saved in."""
    checkpoints = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))[-number:]
    if len(checkpoints) < number:
        raise ValueError(
            f"train.average_checkpoints={number} needs as many checkpoints, but {folder} has {len(checkpoints)}; lower "
            "it, or save more often."
        )
    sums: dict[str, Tensor] = {}
    for checkpoint in checkpoints:
        for name, weight in load_file(checkpoint / "model.safetensors").items():
            sums[name] = sums.get(name, 0) + weight.double()
    saved = load_file(checkpoints[-1] / "model.safetensors")
    return {name: (total / number).to(saved[name].dtype) for name, total in sums.items()}
