"""Trainer callbacks around checkpoints: stop at SIGTERM with a saved step, and write manifests."""

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from accelerate import PartialState
from transformers import TrainerCallback, TrainerControl, TrainerState

from ...utils.atomic_io import delete
from ...utils.manifest import atomic_delete, write_folder_manifest
from .arguments import TrainingArguments
from .checkpoints import INTERRUPTION_MARKER, checkpoint_folder, checkpoint_step, list_checkpoints
from .distributed import any_rank


class SigtermCallback(TrainerCallback):
    """At SIGTERM, which clusters send before they take a machine away: finish the step, save, stop.

    If one of several processes receives it, all stop. A checkpoint that is saved for the interruption alone is marked.
    The next checkpoint replaces it, and averages leave it out, so that an interruption changes no result.
    """

    def __init__(self) -> None:
        self.received = self.stopped = self.is_interruption_save = False
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
            self.is_interruption_save, control.should_save = not control.should_save, True
        if self.is_interruption_save and state.is_world_process_zero:  # before saving, which a kill may end
            checkpoint = checkpoint_folder(args.output_dir, state.global_step)
            checkpoint.mkdir(parents=True, exist_ok=True)
            (checkpoint / INTERRUPTION_MARKER).touch()

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if self.stopped and state.epoch % 1 and state.global_step < state.max_steps:  # a stop calls on_epoch_end, too
            control.should_evaluate = control.should_save = control.should_log = False
        self.is_interruption_save = self.is_interruption_save and not control.should_save

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object) -> None:
        if not state.is_world_process_zero:
            return
        best = Path(state.best_model_checkpoint or "").name
        for checkpoint in list_checkpoints(Path(args.output_dir)):
            is_new = checkpoint == checkpoint_folder(args.output_dir, state.global_step)
            if is_new and self.is_interruption_save:
                (checkpoint / INTERRUPTION_MARKER).touch()
            elif is_new:
                (checkpoint / INTERRUPTION_MARKER).unlink(missing_ok=True)
            elif (checkpoint / INTERRUPTION_MARKER).exists() and checkpoint.name != best:
                delete(checkpoint)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if self.previous_handler is not None:
            signal.signal(signal.SIGTERM, self.previous_handler)
        self.stopped = any_rank(self.received)


class CheckpointManifestCallback(TrainerCallback):
    """Writes the manifest of each checkpoint, and restores the best checkpoint of a resumed training. Checkpoints newer
    than the resumed one are damaged; they are deleted and made again."""

    def __init__(self, best: Path | None) -> None:
        self.best = best

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
            write_folder_manifest(checkpoint_folder(args.output_dir, state.global_step))
