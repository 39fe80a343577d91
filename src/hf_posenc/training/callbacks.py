"""What looks on while a model trains: a quiet progress bar, a log by step and time, evaluations within an epoch, and an
ear for SIGTERM."""

import json
import logging
import math
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from accelerate import PartialState
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import EarlyStoppingCallback, TrainerCallback, TrainerControl, TrainerState

from ..utils.atomic_io import atomic_write, delete
from ..utils.manifest import atomic_delete, explain_read_errors, remove_from_manifest, write_folder_manifest
from .arguments import TrainingArguments
from .checkpoints import INTERRUPTION_MARKER, checkpoint_folder, checkpoint_step, list_checkpoints
from .distributed import any_rank

LogLine = dict[str, Any]  # what the Trainer logs at a step, with the seconds
SECONDS_PER_LINE = 60  # in a log file
logger = logging.getLogger(__name__)


class ProgressBarCallback(TrainerCallback):
    """One line for one run: steps, time left, loss. Where no terminal shows it, a plain line every SECONDS_PER_LINE."""

    def __init__(self, name: str, position: int) -> None:
        self.name, self.position = name, position
        self.tqdm: tqdm | None = None
        self.start_time, self.line_time = 0.0, -math.inf
        self.start_step = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self.start_time, self.start_step = time.monotonic(), state.global_step
        if state.is_world_process_zero and sys.stderr.isatty():
            self.tqdm = tqdm(
                total=state.max_steps,
                initial=state.global_step,
                desc=self.name,
                unit="step",
                position=self.position,
                leave=False,
                mininterval=1.0,
            )

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if self.tqdm is not None:
            self.tqdm.update(state.global_step - self.tqdm.n)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: object,
    ) -> None:
        if self.tqdm is not None and logs:
            postfix = {key: f"{float(logs[key]):.3f}" for key in ("loss", "eval_loss") if key in logs}
            self.tqdm.set_postfix(postfix, refresh=False)
        elif logs and state.is_world_process_zero and time.monotonic() - self.line_time > SECONDS_PER_LINE:
            self.line_time, step = time.monotonic(), state.global_step
            seconds_per_step = (self.line_time - self.start_time) / max(1, step - self.start_step)
            left = tqdm.format_interval(seconds_per_step * (state.max_steps - step))
            losses = "".join(f", {key} {float(logs[key]):.3f}" for key in ("loss", "eval_loss") if key in logs)
            line = f"{self.name}: step {step} of {state.max_steps}{losses}, {left} left"
            print(line, file=sys.stderr, flush=True)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if self.tqdm is not None:
            self.tqdm.close()


class JsonLogger(TrainerCallback):
    """Every log entry of the Trainer as a JSON line with its step and the seconds trained so far, over resumptions and
    without evaluations."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.start_time = 0.0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        lines = self.logged_lines(state)
        self.start_time = time.monotonic() - (lines[-1]["seconds"] if lines else 0.0)
        if state.is_world_process_zero:
            remove_from_manifest(self.path)
            self.write_lines(lines)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        self.start_time += (logs or {}).get("eval_runtime", 0.0)
        if not logs:
            return
        seconds = round(time.monotonic() - self.start_time, 2)
        state.log_history[-1]["seconds"] = seconds  # so that a checkpoint has the whole log
        if state.is_world_process_zero:
            line = {"step": state.global_step, "seconds": seconds, **dict(sorted(logs.items()))}
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json_line(line))

    def logged_lines(self, state: TrainerState) -> list[LogLine]:
        """The lines up to a checkpoint, from its state, which has all of them: the file may have been damaged since."""
        if all("seconds" in entry for entry in state.log_history):
            return [{"step": entry["step"], "seconds": entry["seconds"], **entry} for entry in state.log_history]
        lines = [line for line in self.read_lines() if line["step"] <= state.global_step]  # of an older version
        if len(lines) < len(state.log_history):
            logger.warning("%s lacks lines of before step %d; its losses stay lost", self.path, state.global_step)
        return lines

    def restore(self, state: TrainerState) -> None:
        """Give the file what the state of the last checkpoint has, if it does not have that."""
        lines = self.logged_lines(state)
        logged = self.path.read_text(encoding="utf-8", errors="replace") if self.path.exists() else ""
        if not logged.startswith("".join(map(json_line, lines))):
            logger.warning("%s was not what had been logged; it is restored from the last checkpoint", self.path)
            self.write_lines(lines)

    def write_lines(self, lines: list[LogLine]) -> None:
        atomic_write(self.path, "".join(map(json_line, lines)))

    def read_lines(self) -> list[LogLine]:
        if not self.path.exists():
            return []
        text = self.path.read_text(encoding="utf-8").rpartition("\n")[0]
        with explain_read_errors(self.path):
            return [json.loads(line) for line in text.splitlines()]


def json_line(content: LogLine) -> str:
    return json.dumps(content) + "\n"


class EvaluateNTimesPerEpoch(TrainerCallback):
    """Evaluates and saves `count` times an epoch, at even distances, the last time at the epoch's end."""

    def __init__(self, count: int) -> None:
        self.count = count

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if (steps := steps_per_epoch(args, kwargs["train_dataloader"])) < self.count:
            raise ValueError(
                f"train.evaluations_per_epoch={self.count} needs as many steps in an epoch, but there are {steps}; "
                "lower it, or make the batches smaller."
            )

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        steps = steps_per_epoch(args, kwargs["train_dataloader"])
        previous_step = (state.global_step - 1) % steps
        if (previous_step + 1) * self.count // steps > previous_step * self.count // steps:
            control.should_evaluate = control.should_save = True


class CheckpointCountCallback(TrainerCallback):
    """Refuses, before the first step, a mean of more checkpoints than the training will save."""

    def __init__(self, count: int) -> None:
        self.count = count

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        epoch_steps = steps_per_epoch(args, kwargs["train_dataloader"])
        if args.evaluations_per_epoch is not None:
            num_saved = (state.max_steps - 1) * args.evaluations_per_epoch // epoch_steps + 1
        elif args.save_strategy == "best":  # nobody knows
            return
        else:
            save_interval = {"steps": state.save_steps, "epoch": epoch_steps}.get(args.save_strategy)
            num_saved = -(-state.max_steps // save_interval) if save_interval else 0
        if num_saved < self.count:
            raise ValueError(
                f"train.average_checkpoints={self.count} needs as many checkpoints, but this training saves "
                f"{num_saved}; lower it, or save more often."
            )


def steps_per_epoch(args: TrainingArguments, batches: DataLoader) -> int:
    """Those of the optimiser: the last one may accumulate fewer batches."""
    return -(-len(batches) // args.gradient_accumulation_steps)


class SigtermCallback(TrainerCallback):
    """At SIGTERM, which a cluster sends before it takes the machine away: finish the step, save, stop.

    Of several processes all stop if one is told. A checkpoint that is saved for this alone is marked: the next one
    takes its place, and no mean of checkpoints counts it, so that an interruption leaves no trace."""

    def __init__(self) -> None:
        self.received = self.stopped = self.is_interruption_save = False
        self.previous_handler: Callable[[int, FrameType | None], object] | int | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if threading.current_thread() is threading.main_thread():  # Python lets no other thread listen
            self.previous_handler = signal.signal(signal.SIGTERM, lambda signum, frame: setattr(self, "received", True))

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self.stopped = any_rank(self.received)
        if not self.stopped:
            return
        control.should_training_stop = True
        is_end = state.epoch % 1 == 0 or state.global_step >= state.max_steps
        if not (is_end and args.save_strategy == "epoch"):  # which saves in a moment, after the evaluation
            self.is_interruption_save, control.should_save = not control.should_save, True
        if self.is_interruption_save and state.is_world_process_zero:  # before it is saved, in which a kill may come
            checkpoint = checkpoint_folder(args.output_dir, state.global_step)
            checkpoint.mkdir(parents=True, exist_ok=True)
            (checkpoint / INTERRUPTION_MARKER).touch()

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if self.stopped and state.epoch % 1 and state.global_step < state.max_steps:  # the Trainer takes it for the end
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
    """Gives each checkpoint its manifest, and a training that goes on its best checkpoint. What is newer than the
    checkpoint that it goes on from is deleted: it is cut short or damaged, and made again."""

    def __init__(self, best: Path | None) -> None:
        self.best = best

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if self.best is not None and self.best.is_dir():  # the state has where it was saved, which may have moved
            state.best_model_checkpoint = str(self.best)
        if state.is_world_process_zero:
            for checkpoint in list_checkpoints(Path(args.output_dir)):
                if checkpoint_step(checkpoint) > state.global_step:
                    atomic_delete(checkpoint)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object) -> None:
        PartialState().wait_for_everyone()  # each process has written its random state
        if state.is_world_process_zero:
            write_folder_manifest(checkpoint_folder(args.output_dir, state.global_step))


def optional_callbacks(args: TrainingArguments) -> list[TrainerCallback]:
    """The callbacks for which there is an argument."""
    callbacks: list[TrainerCallback] = []
    if args.evaluations_per_epoch is not None:
        callbacks.append(EvaluateNTimesPerEpoch(args.evaluations_per_epoch))
    if args.early_stopping_patience is not None:
        callbacks.append(EarlyStoppingCallback(args.early_stopping_patience))
    if args.average_checkpoints is not None:
        callbacks.append(CheckpointCountCallback(args.average_checkpoints))
    return callbacks
