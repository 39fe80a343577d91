"""The Trainer's arguments: transformers' own, four more, this project's defaults, and what contradicts each other.

A config file takes those that `TrainKeys` (config/file_keys.py) lists, in its ranges. The guarantees of train.py are
the reason why others are refused:

- A killed run resumes to the same parameters, and seeds and settings determine a run.
- The best checkpoint is the best one, and training stops early when it should.
- Evaluations cover all pairs and compute this project's metrics.
- Batches keep their token budget, pushes work, and systems do not change each other.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from transformers import SchedulerType, Seq2SeqTrainingArguments, get_scheduler

from ...metrics.length_buckets.scorers import GREATER_IS_BETTER as SCORES
from ...utils.run_folder import SystemPaths
from ...utils.text_io import JsonObject
from .lora import validate_lora_installed

# Batches by length, and no output except our progress bar. The experiment saves the final model.
DEFAULTS: JsonObject = {
    "ddp_find_unused_parameters": False,  # every parameter is used
    "dataloader_pin_memory": torch.cuda.is_available(),
    "disable_tqdm": True,
    "hub_strategy": "end",  # never a checkpoint, which holds paths of this machine; push_system pushes the model
    "report_to": "none",
    "save_total_limit": 2,
    "train_sampling_strategy": "group_by_length",
}
NEVER = 10**9  # steps: evaluations and checkpoints come from `evaluations_per_epoch` instead
SAMPLING_STRATEGIES = ("group_by_length", "random", "sequential")
# Checkpoints save their whole state. Others need packages, or have state that checkpoints lack.
OPTIMIZERS = ("adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "adagrad", "rmsprop")
GREATER_IS_BETTER = {"loss": False, "perplexity": False, **SCORES}
METRIC_SCHEDULES = (SchedulerType.REDUCE_ON_PLATEAU, SchedulerType.GREEDY)  # schedules that follow a metric


@dataclass
class TrainingArguments(Seq2SeqTrainingArguments):
    """`Seq2SeqTrainingArguments` with four more, which `TrainKeys` describes. Raises a ValueError for arguments that
    contradict each other."""

    tokens_per_batch: int | None = None
    evaluations_per_epoch: int | None = None
    early_stopping_patience: int | None = None
    lora_rank: int | None = None

    def __post_init__(self) -> None:
        if self.lora_rank is not None:
            validate_lora_installed()
        set_metric(self)
        try:
            super().__post_init__()
        except ValueError as error:  # transformers names arguments as on a command line: --eval_steps
            raise ValueError(" ".join(re.sub(r"--(?=[a-z])", "train.", str(error)).split())) from None
        set_schedule(self)
        for message in contradictions(self):
            raise ValueError(message)


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
    if settings.get("evaluations_per_epoch") is not None:
        settings |= {"eval_strategy": "steps", "save_strategy": "steps", "eval_steps": NEVER, "save_steps": NEVER}
    args = TrainingArguments(output_dir=str(SystemPaths(folder).checkpoints), **settings)
    if has_validation is False and args.eval_strategy != "no":
        raise ValueError(
            "Evaluations need a validation set, but data.validation is left out; name one, or leave out "
            "train.eval_strategy and train.evaluations_per_epoch."
        )
    return args


def set_metric(args: TrainingArguments) -> None:
    """Set the default metric and its direction before transformers does."""
    follows_metric = (
        args.load_best_model_at_end
        or args.early_stopping_patience is not None
        or args.save_strategy == "best"
        or args.lr_scheduler_type in METRIC_SCHEDULES
    )
    if args.metric_for_best_model is None and follows_metric:
        args.metric_for_best_model = "loss"
    greater = best_is_greatest(args)
    if args.greater_is_better is None and greater is not None:
        args.greater_is_better = greater


def best_is_greatest(args: TrainingArguments) -> bool | None:
    """The direction of the metric that training follows, None for an unknown one."""
    return GREATER_IS_BETTER.get((args.metric_for_best_model or "").removeprefix("eval_"))


def set_schedule(args: TrainingArguments) -> None:
    """Set the direction of a schedule that follows a metric."""
    if args.lr_scheduler_type not in METRIC_SCHEDULES:
        return
    kwargs = dict(args.lr_scheduler_kwargs or {})
    kwargs.setdefault("mode", metric_mode(args))
    if args.lr_scheduler_type == SchedulerType.GREEDY:
        kwargs.setdefault("min_lr", 0.0)  # its own default, 1e-3, is above common learning rates
    args.lr_scheduler_kwargs = kwargs


def metric_mode(args: TrainingArguments) -> str:
    return "max" if args.greater_is_better else "min"


def contradictions(args: TrainingArguments) -> Iterator[str]:
    """What contradicts each other, as messages with rule, value and remedy."""
    if args.tokens_per_batch is not None and args.train_sampling_strategy != "group_by_length":
        yield (
            f"Under train.tokens_per_batch={args.tokens_per_batch} pairs of like length share a batch, but "
            f"train.train_sampling_strategy is {str(args.train_sampling_strategy)!r}; leave one of them out."
        )
    yield from schedule_contradictions(args)
    yield from evaluation_contradictions(args)
    if args.fp16 and args.device.type == "cpu":
        yield (
            "train.fp16 must be false on a CPU, which trains in float32 or bfloat16 alone, but it is true; set "
            "train.bf16=true instead."
        )
    if args.n_gpu > 1:
        yield (
            f"A process trains on one GPU, but this one sees {args.n_gpu}; start one for each by accelerate launch "
            "--config_file configs/accelerate/eight_gpus.yaml train.py CONFIG, or show it a single one by "
            "CUDA_VISIBLE_DEVICES=0."
        )


def schedule_contradictions(args: TrainingArguments) -> Iterator[str]:
    """Arguments that the schedule of the learning rate does not take."""
    kwargs = dict(args.lr_scheduler_kwargs or {})
    name, follows_metric = args.lr_scheduler_type.value, args.lr_scheduler_type in METRIC_SCHEDULES
    if follows_metric and kwargs["mode"] != metric_mode(args):
        yield (
            f"train.lr_scheduler_kwargs.mode must be {metric_mode(args)} for train.metric_for_best_model="
            f"{args.metric_for_best_model}, but it is {kwargs['mode']!r}; leave it out."
        )
    if args.warmup_steps and (follows_metric or name == "constant"):
        yield (
            f"train.warmup_steps must be 0 for train.lr_scheduler_type={name}, which has no warmup, but it is "
            f"{args.warmup_steps}; leave it out, or choose another schedule, such as constant_with_warmup."
        )
    if kwargs and name.startswith("constant"):
        yield (
            f"train.lr_scheduler_type={name} takes no train.lr_scheduler_kwargs, but they are {kwargs}; leave them out."
        )
    steps = args.max_steps if args.max_steps > 0 else 1000
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=args.learning_rate)
    try:
        get_scheduler(name, optimizer, args.get_warmup_steps(steps), steps, kwargs)
    except (TypeError, ValueError, KeyError) as error:
        yield (
            f"train.lr_scheduler_kwargs must be what train.lr_scheduler_type={name} takes, but it is {kwargs} "
            f"({error}); correct it, or leave it out."
        )


def evaluation_contradictions(args: TrainingArguments) -> Iterator[str]:
    """Arguments that need evaluations when there are none, or a metric that evaluations lack."""
    metrics = ["loss", "perplexity", *(["bleu"] if args.predict_with_generate else [])]
    metric, greater = args.metric_for_best_model, best_is_greatest(args)
    if greater is not None and args.greater_is_better != greater:
        yield (
            f"train.greater_is_better must be {yaml_value(greater)} for train.metric_for_best_model={metric}, but it "
            f"is {yaml_value(args.greater_is_better)}; leave it out."
        )
    if metric and metric.removeprefix("eval_") not in metrics:
        yield (
            f"train.metric_for_best_model must be one of {', '.join(metrics)}, but it is {metric!r}; bleu is measured "
            "with train.predict_with_generate=true."
        )
    needing = {
        "load_best_model_at_end=true": args.load_best_model_at_end,
        "save_strategy=best": args.save_strategy == "best",
        "early_stopping_patience": args.early_stopping_patience is not None,
    }
    for name, is_set in needing.items():
        if is_set and args.eval_strategy == "no":
            yield (
                f"train.{name} needs evaluations, but train.eval_strategy is no; set it to steps or epoch, or set "
                "train.evaluations_per_epoch."
            )


def yaml_value(value: object) -> str:
    """A value in YAML's notation."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)


def validate_process_wide(settings: Mapping[str, Mapping[str, object]]) -> None:
    """Raise a ValueError if systems differ in the device, which the Trainer sets for the whole process."""
    (first, first_settings), *others = settings.items()
    for name, other_settings in others:
        if first_settings.get("use_cpu") != other_settings.get("use_cpu"):
            raise ValueError(
                f"train.use_cpu must be the same in all systems, which one process may train in turn, but {first} has "
                f"{yaml_value(first_settings.get('use_cpu'))} and {name} has "
                f"{yaml_value(other_settings.get('use_cpu'))}; move it out of `systems:`."
            )
