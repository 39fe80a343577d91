"""The Trainer's arguments: transformers' own, what they lack for training by length, and this project's defaults."""

import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from transformers import Seq2SeqTrainingArguments

# Sentences of like length share a batch; no other noise than our own bar; the final model is saved by the experiment.
DEFAULTS: dict[str, Any] = {
    "ddp_find_unused_parameters": False,  # there are none
    "dataloader_pin_memory": torch.cuda.is_available(),
    "disable_tqdm": True,
    "length_column_name": "source_length",
    "report_to": "none",
    "save_total_limit": 2,
    "train_sampling_strategy": "group_by_length",
}
NEVER = 10**9  # steps: evaluations and checkpoints come from `evaluations_per_epoch` instead


@dataclass
class TrainingArguments(Seq2SeqTrainingArguments):
    """`Seq2SeqTrainingArguments` and four more. Raises a ValueError for what does not go together."""

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

    def __post_init__(self) -> None:
        for name in ("tokens_per_batch", "evaluations_per_epoch", "early_stopping_patience", "average_checkpoints"):
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
        super().__post_init__()
        if self.dataloader_persistent_workers and not self.dataloader_num_workers:
            raise ValueError(
                "train.dataloader_persistent_workers needs workers, but train.dataloader_num_workers is 0; raise it, "
                "or leave the other one out."
            )


def arguments_with_defaults(settings: dict[str, Any]) -> dict[str, Any]:
    """Every argument by name, ours and transformers', without making them."""
    return {argument.name: argument.default for argument in fields(TrainingArguments)} | DEFAULTS | settings


def repository_name(folder: Path) -> str:
    """The Hub's repository of the system in `folder`, run and system, in letters that a repository may have."""
    return re.sub(r"[^a-zA-Z0-9_.]+", "-", f"{folder.parent.name}-{folder.name}")


def refuse_unheard(args: TrainingArguments) -> None:
    """A ValueError for a metric that no evaluation has, and for what transformers' own batches take notice of and those
    by length cannot."""
    budget, strategy = args.tokens_per_batch, args.train_sampling_strategy
    measured = ["loss", "perplexity", *(["bleu"] if args.predict_with_generate else [])]
    if (metric := args.metric_for_best_model) and metric.removeprefix("eval_") not in measured:
        raise ValueError(
            f"train.metric_for_best_model must be one of {', '.join(measured)}, but it is {metric!r}; "
            "bleu is measured with train.predict_with_generate=true."
        )
    if budget is not None and args.dataloader_drop_last:
        raise ValueError(
            f"Under train.tokens_per_batch={budget} every batch is as full as its pairs allow but the last by length, "
            "the longest pairs, which train.dataloader_drop_last would never train on; leave one of them out."
        )
    if budget is not None and args.auto_find_batch_size:
        raise ValueError(
            f"Under train.tokens_per_batch={budget} a batch has no number of pairs for train.auto_find_batch_size to "
            "halve; lower the budget by hand where memory is too little, and leave the other one out."
        )
    if budget is not None and strategy != "group_by_length":
        raise ValueError(
            f"Under train.tokens_per_batch={budget} pairs of like length share a batch, but "
            f"train.train_sampling_strategy is {str(strategy)!r}; leave one of them out."
        )
    if strategy != "group_by_length":
        return
    for name in ("split_batches", "dispatch_batches"):
        if getattr(args.accelerator_config, name):
            raise ValueError(
                f"Each process makes its own batches by length, but train.accelerator_config has {name}=True; leave it "
                "out, or say train.train_sampling_strategy=random."
            )
    if args.length_column_name not in ("source_length", "target_length"):
        raise ValueError(
            "train.length_column_name must be source_length or target_length, by which pairs share batches, but it is "
            f"{args.length_column_name!r}; leave it out for the source's."
        )


def training_arguments(settings: dict[str, Any], folder: Path) -> TrainingArguments:
    """The Trainer's arguments for a run in `folder`; a ValueError if the settings do not fit together."""
    settings = {**DEFAULTS, "hub_model_id": repository_name(folder), **settings}
    if settings.get("hub_token"):
        raise ValueError(
            "train.hub_token would be saved in settings.yaml and shown by the model card; take it out of the config, "
            "and give it as the environment variable HF_TOKEN or log in by `hf auth login`."
        )
    if settings.get("evaluations_per_epoch") is not None:
        settings |= {"eval_strategy": "steps", "save_strategy": "steps", "eval_steps": NEVER, "save_steps": NEVER}
    kept, limit = settings.get("average_checkpoints"), settings["save_total_limit"]
    if type(kept) is int and limit is not None:  # and one more, for an interruption
        settings["save_total_limit"] = max(kept + 1, limit)
    made = TrainingArguments(output_dir=str(folder / "checkpoints"), **settings)
    refuse_unheard(made)
    if made.n_gpu > 1:
        raise ValueError(
            f"A process trains on one GPU, but this one sees {made.n_gpu}; start one for each by accelerate launch "
            "--config_file configs/accelerate/eight_gpus.yaml train.py CONFIG, or show it a single one by "
            "CUDA_VISIBLE_DEVICES=0."
        )
    return made
