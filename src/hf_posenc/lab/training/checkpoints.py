"""Checkpoints: find the newest intact one, validate weights, delete old ones.

The callbacks of the Trainer stop at SIGTERM with a saved step, and write manifests.
"""

import logging
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from accelerate import PartialState
from safetensors.torch import load_file
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ...utils.atomic_io import delete
from ...utils.manifest import (
    MANIFEST,
    MODEL_WEIGHTS_GLOB,
    atomic_delete,
    first_defect,
    verify_files,
    verify_folder,
    write_folder_manifest,
)
from ...utils.run_folder import SystemPaths
from .arguments import TrainingArguments
from .distributed import any_rank

logger = logging.getLogger(__name__)

CHECKPOINT_NAME = re.compile(rf"{PREFIX_CHECKPOINT_DIR}-([0-9]+)")
WEIGHTS_GLOB = "*.safetensors"


def last_intact_checkpoint(folder: Path) -> str | None:
    """The newest intact checkpoint, None without one. Each newer one is skipped with a warning."""
    for checkpoint in reversed(list_checkpoints(folder)):
        if (defect := checkpoint_defect(checkpoint)) is None:
            return str(checkpoint)
        logger.warning("passed over %s: %s", checkpoint, defect)
    return None


def checkpoint_to_resume(folder: Path, *, with_best: bool) -> str | None:
    """The newest intact checkpoint, None if training begins.

    A ValueError if all that were saved are damaged: whether to begin again is the user's decision.
    `with_best`: the checkpoint that its state names as the best must be intact, too.
    """
    checkpoint = last_intact_checkpoint(folder)
    needed = None
    if checkpoint is None:
        needed = next((saved for saved in list_checkpoints(folder) if (saved / MANIFEST).exists()), None)
    elif with_best:
        needed = best_checkpoint(checkpoint)
    if needed is not None and (defect := checkpoint_defect(needed)):
        raise ValueError(
            f"A training goes on from whole checkpoints, but in {folder} {needed.name} is not: {defect}. Restore it, "
            f"or delete {folder} and give the same train.py command again, which trains from the start."
        )
    return checkpoint


def checkpoint_defect(checkpoint: Path) -> str | None:
    """The defect that prevents an exact resumption, None without one. A checkpoint's manifest is written last."""
    if not (checkpoint / MANIFEST).exists():
        return "it was not saved to its end, or is missing"
    try:
        changed_file = first_defect(checkpoint)
    except (OSError, ValueError) as error:
        return str(error)
    return changed_file and f"{changed_file[0].name} is not as it was saved ({changed_file[1]})"


def load_trainer_state(checkpoint: str | Path) -> TrainerState:
    return TrainerState.load_from_json(str(Path(checkpoint) / TRAINER_STATE_NAME))


def best_checkpoint(checkpoint: str | Path) -> Path | None:
    """The best checkpoint by the state of another one of the same folder, which may have moved."""
    best = load_trainer_state(checkpoint).best_model_checkpoint
    return None if best is None else Path(checkpoint).parent / Path(best).name


def list_checkpoints(folder: Path) -> list[Path]:
    """All checkpoints in the order of their steps. Other names, such as checkpoint-10.bak, are ignored."""
    return sorted(
        (
            path
            for path in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*")
            if CHECKPOINT_NAME.fullmatch(path.name) and path.is_dir()
        ),
        key=checkpoint_step,
    )


def checkpoint_step(checkpoint: Path) -> int:
    """The step in a checkpoint's name."""
    return int(checkpoint.name.rpartition("-")[2])


def delete_old_checkpoints(folder: Path, limit: int | None, best: str | None) -> None:
    """Delete all but the `limit` newest checkpoints; None or 0 keeps all. The `best` one is always kept.

    Transformers' own rotation also counts and deletes copies of checkpoints.
    """
    checkpoints = list_checkpoints(folder)
    if not limit:
        return
    protected = {checkpoints[-1].name, Path(best or "").name}
    excess = len(checkpoints) - max(limit, sum(checkpoint.name in protected for checkpoint in checkpoints))
    for checkpoint in [candidate for candidate in checkpoints if candidate.name not in protected][: max(excess, 0)]:
        delete(checkpoint)


def validate_saved_system(folder: Path) -> None:
    """Raise a ValueError if a file of a system in `folder` has changed since it was saved. Weights may be missing, as
    on a machine that scored systems were copied to."""
    paths = SystemPaths(folder)
    for subfolder in (folder, paths.translations, paths.statistics, paths.diagnostics):
        verify_files(subfolder)
    if (model := paths.model).exists():
        verify_folder(model, allow_missing=WEIGHTS_GLOB)
        if not any(model.glob(WEIGHTS_GLOB)):
            logger.warning("%s has no weights: nothing can translate with it; to train again, delete it", model)


def load_weights(checkpoint: str | Path) -> dict[str, Tensor]:
    """The weights in a checkpoint, in the precision they are saved in. Tied weights are there once."""
    weights: dict[str, Tensor] = {}
    for file in sorted(Path(checkpoint).glob(MODEL_WEIGHTS_GLOB)):
        weights |= load_file(file)
    return weights


class SigtermCallback(TrainerCallback):
    """At SIGTERM, which clusters send before they take a machine away: finish the step, save, stop.

    If one of several processes receives it, all stop.
    """

    def __init__(self) -> None:
        self.received = self.stopped = False
        self.previous_handler: Callable[[int, FrameType | None], object] | int | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if threading.current_thread() is threading.main_thread():  # Python handles signals in the main thread only
            self.previous_handler = signal.signal(signal.SIGTERM, lambda signum, frame: setattr(self, "received", True))

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self.stopped = any_rank(self.received)
        if not self.stopped:
            return
        control.should_training_stop = True
        is_end = state.epoch % 1 == 0 or state.global_step >= state.max_steps
        if not (is_end and args.save_strategy == "epoch"):  # the epoch's end evaluates and saves
            control.should_save = True

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if self.stopped and state.epoch % 1 and state.global_step < state.max_steps:  # a stop calls on_epoch_end, too
            control.should_evaluate = control.should_save = control.should_log = False

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if self.previous_handler is not None:
            signal.signal(signal.SIGTERM, self.previous_handler)
        self.stopped = any_rank(self.received)


class CheckpointManifestCallback(TrainerCallback):
    """Writes the manifest of each checkpoint, then deletes all but `limit`, and restores the best checkpoint of a
    resumed training. Checkpoints newer than the resumed one are damaged; they are deleted and made again."""

    def __init__(self, best: Path | None, limit: int | None) -> None:
        self.best, self.limit = best, limit

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if self.best is not None and self.best.is_dir():  # the state has the old path; the folder may have moved
            state.best_model_checkpoint = str(self.best)
        if state.is_world_process_zero:
            for checkpoint in list_checkpoints(Path(args.output_dir)):
                if checkpoint_step(checkpoint) > state.global_step:
                    atomic_delete(checkpoint)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object) -> None:
        PartialState().wait_for_everyone()  # until each process has written its random state
        if state.is_world_process_zero:
            folder = Path(args.output_dir)
            write_folder_manifest(folder / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")
            delete_old_checkpoints(folder, self.limit, state.best_model_checkpoint)
