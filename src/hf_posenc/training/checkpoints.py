"""Checkpoints on disk: the newest whole one, whether weights are whole, and the mean of several."""

import json
import logging
import re
import zipfile
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from ..whole_files import delete

logger = logging.getLogger(__name__)

NAME = re.compile(r"checkpoint-([0-9]+)")
EXTRA = "saved_to_stop"  # a file in a checkpoint that was saved for an interruption alone


def last_whole_checkpoint(folder: Path) -> str | None:
    """The newest checkpoint that is whole, None if there is none. One that was cut short while it was written, or while
    it was deleted, is passed over with a warning."""
    for checkpoint in reversed(checkpoints_in(folder)):
        if (flaw := flaw_of(checkpoint)) is None:
            return str(checkpoint)
        logger.warning("passed over %s: %s", checkpoint, flaw)
    return None


def checkpoints_in(folder: Path) -> list[Path]:
    """All checkpoints in the order of their steps. What has another name, such as checkpoint-10.bak, is none."""
    return sorted(
        (path for path in folder.glob("checkpoint-*") if NAME.fullmatch(path.name) and path.is_dir()), key=step_of
    )


def step_of(checkpoint: Path) -> int:
    """The step in a checkpoint's name."""
    return int(checkpoint.name.rpartition("-")[2])


def delete_old_checkpoints(folder: Path, limit: int | None, newest: int, best: str | None) -> None:
    """Delete all but `limit` checkpoints; None or 0 keeps all. The one of the step `newest` and the `best` one stay.

    Transformers' own rotation also counts and deletes copies of checkpoints. Steps beyond the newest belong to a
    checkpoint that was not resumed from, and go first.
    """
    if limit is None or limit < 1:
        return
    kept = {f"checkpoint-{newest}", Path(best or "").name}
    by_age = sorted(checkpoints_in(folder), key=lambda path: (step_of(path) <= newest, step_of(path)))
    excess = len(by_age) - max(limit, sum(path.name in kept for path in by_age))
    for checkpoint in [path for path in by_age if path.name not in kept][: max(excess, 0)]:
        delete(checkpoint)


def flaw_of(checkpoint: Path) -> str | None:
    """What keeps a checkpoint from being resumed from, if anything does.

    FSDP and DeepSpeed write files of their own; there only what the Trainer writes last is looked at.
    """
    sharded = any(checkpoint.glob("pytorch_model_fsdp*")) or any(checkpoint.glob("global_step*"))
    for name in ("scheduler.pt",) if sharded else ("optimizer.pt", "scheduler.pt"):
        if not zipfile.is_zipfile(checkpoint / name):
            return f"{name} is missing or cut short"
    try:
        json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
        if not sharded:
            check_weights(checkpoint)
    except (OSError, ValueError) as error:
        return str(error)
    return None


def trained_systems(run: Path) -> list[str]:
    """The systems of a run folder that have a model."""
    return sorted(path.parent.parent.name for path in run.glob("*/model/config.json"))


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
    checkpoints = [one for one in checkpoints_in(folder) if not (one / EXTRA).exists()][-number:]
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
