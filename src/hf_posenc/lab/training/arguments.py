"""The Trainer's arguments: transformers' own, five more, and this project's defaults."""

import re
from dataclasses import dataclass, field, fields
from pathlib import Path

import torch
from transformers import Seq2SeqTrainingArguments

from ...utils.run_folder import SystemPaths
from ...utils.text_io import JsonObject
from .argument_validation import validate_batches, validate_device, validate_evaluations, validate_settings
from .lora import validate_lora_installed
from .optimization import validate_metric, validate_optimizer, validate_schedule

# Batches by length, and no output except our progress bar. The experiment saves the final model.
DEFAULTS: JsonObject = {
    "ddp_find_unused_parameters": False,  # every parameter is used
    "dataloader_pin_memory": torch.cuda.is_available(),
    "disable_tqdm": True,
    "length_column_name": "source_length",
    "report_to": "none",
    "save_total_limit": 2,
    "train_sampling_strategy": "group_by_length",
}
OWN_ARGUMENTS = (
    "tokens_per_batch", "evaluations_per_epoch", "early_stopping_patience", "average_checkpoints", "lora_rank",
)  # fmt: skip
NEVER = 10**9  # steps: evaluations and checkpoints come from `evaluations_per_epoch` instead


@dataclass
class TrainingArguments(Seq2SeqTrainingArguments):
    """`Seq2SeqTrainingArguments` with five more. Raises a ValueError for arguments that contradict each other."""

    tokens_per_batch: int | None = field(
        default=None,
        metadata={"help": "Pairs of like length share a batch, at most so many tokens a side, padding included."},
    )
    evaluations_per_epoch: int | None = field(
        default=None, metadata={"help": "Evaluate and save so often an epoch, whatever the strategies say."}
    )
    early_stopping_patience: int | None = field(
        default=None, metadata={"help": "Stop after so many evaluations without a better metric_for_best_model."}
    )
    average_checkpoints: int | None = field(
        default=None, metadata={"help": "The trained model is the mean of the last so many checkpoints."}
    )
    lora_rank: int | None = field(
        default=None,
        metadata={"help": "Train adapters of this rank in place of linear layers, and merge them; needs init_from."},
    )

    def __post_init__(self) -> None:
        for name in OWN_ARGUMENTS:
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(
                    f"train.{name} must be a whole number, 1 or more, but it is {value!r}; or leave it out."
                )
        if self.average_checkpoints is not None and self.load_best_model_at_end:
            raise ValueError(
                "train.average_checkpoints takes the last checkpoints and train.load_best_model_at_end the best one; "
                "leave one of them out."
            )
        if self.lora_rank is not None:
            validate_lora_installed()
            if self.average_checkpoints is not None:
                raise ValueError(
                    "train.average_checkpoints averages weights and train.lora_rank trains factors of them, whose mean "
                    "is another model; leave one of them out."
                )
        validate_metric(self)
        try:
            super().__post_init__()
        except ValueError as error:  # transformers names arguments as on a command line: --eval_steps
            raise ValueError(" ".join(re.sub(r"--(?=[a-z])", "train.", str(error)).split())) from None
        validate_schedule(self)


def arguments_with_defaults(settings: JsonObject) -> JsonObject:
    """All arguments by name, with defaults for those that `settings` leaves out."""
    return {argument.name: argument.default for argument in fields(TrainingArguments)} | DEFAULTS | settings


def repository_name(folder: Path) -> str:
    """The default name of the system's repository on the Hub: run and system, with invalid characters replaced."""
    return re.sub(r"[^a-zA-Z0-9_.]+", "-", f"{folder.parent.name}-{folder.name}")


def training_arguments(settings: JsonObject, folder: Path, *, has_validation: bool | None = None) -> TrainingArguments:
    """The Trainer's arguments for a training in `folder`. A ValueError for settings that contradict each other, or that
    need evaluations if `has_validation` is False."""
    name = repository_name(folder)
    settings = {**DEFAULTS, "hub_model_id": name, "run_name": name, **settings}
    validate_settings(settings)
    if settings.get("evaluations_per_epoch") is not None:
        settings |= {"eval_strategy": "steps", "save_strategy": "steps", "eval_steps": NEVER, "save_steps": NEVER}
    num_averaged, save_limit = settings.get("average_checkpoints"), settings["save_total_limit"]
    if type(num_averaged) is int and save_limit is not None:  # one more for a checkpoint of an interruption
        settings["save_total_limit"] = max(num_averaged + 1, save_limit)
    args = TrainingArguments(output_dir=str(SystemPaths(folder).checkpoints), **settings)
    validate_optimizer(args)
    validate_evaluations(args, has_validation)
    validate_batches(args)
    validate_device(args)
    return args
