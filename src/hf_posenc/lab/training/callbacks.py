"""Trainer callbacks: progress bar, JSON log, W&B runs, evaluations within an epoch."""

import json
import logging
import math
import sys
import time
from importlib import import_module
from pathlib import Path

from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import EarlyStoppingCallback, TrainerCallback, TrainerControl, TrainerState

from ...utils.atomic_io import atomic_write
from ...utils.manifest import explain_read_errors, remove_from_manifest
from ...utils.text_io import json_line
from .arguments import TrainingArguments

LogLine = dict[str, float]  # the Trainer's log at a step, with the seconds
SECONDS_PER_LINE = 60  # in a log file
logger = logging.getLogger(__name__)


class ProgressBarCallback(TrainerCallback):
    """Progress bar of one training: steps, time left, loss. Without a terminal, prints a line every
    SECONDS_PER_LINE."""

    def __init__(self, name: str) -> None:
        self.name = name
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
    """Writes each log entry of the Trainer as a JSON line, with its step and the seconds of training. The seconds
    continue over resumptions and exclude evaluations."""

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
        **kwargs: object,
    ) -> None:
        self.start_time += (logs or {}).get("eval_runtime", 0.0)
        if not logs:
            return
        seconds = round(time.monotonic() - self.start_time, 2)
        state.log_history[-1]["seconds"] = seconds  # checkpoints save log_history, and so the whole log
        if state.is_world_process_zero:
            line = {"step": state.global_step, "seconds": seconds, **dict(sorted(logs.items()))}
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json_line(line))

    def logged_lines(self, state: TrainerState) -> list[LogLine]:
        """The lines up to a checkpoint, from its state: the file may have been damaged since."""
        return [{"step": entry["step"], "seconds": entry["seconds"], **entry} for entry in state.log_history]

    def restore(self, state: TrainerState) -> None:
        """Restore the file from the state of the last checkpoint, if its lines differ."""
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
        with explain_read_errors(self.path):
            text = self.path.read_text(encoding="utf-8").rpartition("\n")[0]
            return [json.loads(line) for line in text.splitlines()]


class WandbFinishCallback(TrainerCallback):
    """Ends the W&B run of a training, so that the next system of the same process gets a run of its own.

    The callback of transformers starts a run only if the process has none.
    """

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if state.is_world_process_zero:
            import_module("wandb").finish()


class EvaluateNTimesPerEpoch(TrainerCallback):
    """Evaluates and saves `count` times an epoch, at equal distances, and at the end of the epoch."""

    def __init__(self, count: int) -> None:
        self.count = count

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        train_dataloader: DataLoader,
        **kwargs: object,
    ) -> None:
        if (steps := steps_per_epoch(args, len(train_dataloader))) < self.count:
            raise ValueError(
                f"train.evaluations_per_epoch={self.count} needs as many steps in an epoch, but there are {steps}; "
                "lower it, or make the batches smaller."
            )

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        train_dataloader: DataLoader,
        **kwargs: object,
    ) -> None:
        steps = steps_per_epoch(args, len(train_dataloader))
        previous_step = (state.global_step - 1) % steps
        if (previous_step + 1) * self.count // steps > previous_step * self.count // steps:
            control.should_evaluate = control.should_save = True


def steps_per_epoch(args: TrainingArguments, num_batches: int) -> int:
    """The optimizer steps of an epoch. The last one may accumulate fewer batches."""
    return -(-num_batches // args.gradient_accumulation_steps)


def optional_callbacks(args: TrainingArguments) -> list[TrainerCallback]:
    """The callbacks that arguments turn on."""
    callbacks: list[TrainerCallback] = []
    if "wandb" in args.report_to:
        callbacks.append(WandbFinishCallback())
    if args.evaluations_per_epoch is not None:
        callbacks.append(EvaluateNTimesPerEpoch(args.evaluations_per_epoch))
    if args.early_stopping_patience is not None:
        callbacks.append(EarlyStoppingCallback(args.early_stopping_patience))
    return callbacks
