"""What Seq2SeqTrainer lacks for this project: a quiet progress bar, a log by step and time, whole checkpoints only."""

import json
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from safetensors import SafetensorError, safe_open
from tqdm.auto import tqdm
from transformers import (
    DataCollatorForSeq2Seq,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
)
from transformers.trainer_utils import get_last_checkpoint

from .config import write_whole

# Sentences of like length share a batch; no other noise than our own bar; the final model is saved by the experiment.
DEFAULTS = {
    "dataloader_pin_memory": torch.cuda.is_available(),
    "disable_tqdm": True,
    "length_column_name": "source_length",
    "report_to": "none",
    "save_total_limit": 2,
    "train_sampling_strategy": "group_by_length",
}


def arguments(settings: dict[str, Any], folder: Path) -> Seq2SeqTrainingArguments:
    """The Trainer's arguments for a run in `folder`; a ValueError of theirs if they do not fit together."""
    return Seq2SeqTrainingArguments(output_dir=str(folder / "checkpoints"), **(DEFAULTS | settings))


def train(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Dataset,
    validation: Dataset | None,
    settings: dict[str, Any],
    folder: Path,
    *,
    name: str,
    bar: int = 0,
) -> dict[str, Any]:
    """Train `model` in place, from the last checkpoint if `folder` has one; returns steps, seconds and the last loss.

    `bar` is the line of the progress bar, for systems that train side by side.
    """
    trainer = Seq2SeqTrainer(
        model=model,
        args=arguments(settings, folder),
        train_dataset=pairs,
        eval_dataset=validation,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
        callbacks=[ProgressBar(name, bar), LossLog(folder / "training.jsonl")],
    )
    trainer.remove_callback(PrinterCallback)
    result = trainer.train(resume_from_checkpoint=last_whole_checkpoint(folder / "checkpoints"))
    seconds = json.loads((folder / "training.jsonl").read_text(encoding="utf-8").splitlines()[-1])["seconds"]
    return {"steps": result.global_step, "seconds": seconds, "loss": result.training_loss}


class ProgressBar(TrainerCallback):
    """One line for one run: steps, time left, loss."""

    def __init__(self, name: str, position: int) -> None:
        self.name, self.position = name, position
        self.tqdm: tqdm | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self.tqdm = tqdm(
                total=state.max_steps,
                initial=state.global_step,
                desc=self.name,
                unit="step",
                position=self.position,
                leave=False,
                mininterval=1.0,
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.tqdm is not None:
            self.tqdm.update(state.global_step - self.tqdm.n)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        if self.tqdm is not None and logs:
            shown = {key: f"{float(logs[key]):.3f}" for key in ("loss", "eval_loss") if key in logs}
            self.tqdm.set_postfix(shown, refresh=False)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.tqdm is not None:
            self.tqdm.close()


class LossLog(TrainerCallback):
    """Every log entry of the Trainer as a JSON line with its step and the seconds trained so far, over resumptions."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.start = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        kept = [line for line in self.lines() if line["step"] <= state.global_step]
        self.start = time.monotonic() - (kept[-1]["seconds"] if kept else 0.0)
        if state.is_world_process_zero:
            write_whole(self.path, "".join(json.dumps(line) + "\n" for line in kept))

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        if state.is_world_process_zero and logs:
            line = {"step": state.global_step, "seconds": round(time.monotonic() - self.start, 2), **logs}
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    def lines(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        whole = self.path.read_text(encoding="utf-8").rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]


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
