"""Validation of metric, learning-rate schedule and optimizer."""

import torch
from transformers import SchedulerType, Seq2SeqTrainer, Seq2SeqTrainingArguments, get_scheduler

from ...metrics.length_buckets.scorers import GREATER_IS_BETTER as SCORES
from .argument_validation import yaml_value

GREATER_IS_BETTER = {"loss": False, "perplexity": False, **SCORES}
METRIC_SCHEDULES = (SchedulerType.REDUCE_ON_PLATEAU, SchedulerType.GREEDY)  # schedules that follow a metric
# Checkpoints save their whole state. Others need packages, or have state that checkpoints lack.
OPTIMIZERS = ("adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "adagrad", "rmsprop")
OPTIMIZERS_WITH_ARGUMENTS = ("sgd", "adagrad", "rmsprop")


def validate_metric(args: Seq2SeqTrainingArguments) -> None:
    """Set the default metric and its direction before transformers does."""
    follows_metric = (
        args.load_best_model_at_end
        or args.early_stopping_patience is not None
        or args.save_strategy == "best"
        or args.lr_scheduler_type in METRIC_SCHEDULES
    )
    if args.metric_for_best_model is None and follows_metric:
        args.metric_for_best_model = "loss"
    greater = GREATER_IS_BETTER.get((args.metric_for_best_model or "").removeprefix("eval_"))
    if greater is None:
        return
    if args.greater_is_better not in (greater, None):
        raise ValueError(
            f"train.greater_is_better must be {yaml_value(greater)} for train.metric_for_best_model="
            f"{args.metric_for_best_model}, but it is {yaml_value(args.greater_is_better)}; leave it out."
        )
    args.greater_is_better = greater


def validate_schedule(args: Seq2SeqTrainingArguments) -> None:
    """Set the direction of a schedule that follows a metric, and refuse arguments that a schedule does not take."""
    kwargs = dict(args.lr_scheduler_kwargs or {})
    name = args.lr_scheduler_type.value
    if args.lr_scheduler_type in METRIC_SCHEDULES:
        mode = "max" if args.greater_is_better else "min"
        if kwargs.setdefault("mode", mode) != mode:
            raise ValueError(
                f"train.lr_scheduler_kwargs.mode must be {mode} for train.metric_for_best_model="
                f"{args.metric_for_best_model}, but it is {kwargs['mode']!r}; leave it out."
            )
        if args.lr_scheduler_type == SchedulerType.GREEDY:
            kwargs.setdefault("min_lr", 0.0)  # its own default, 1e-3, is above common learning rates
        args.lr_scheduler_kwargs = kwargs
    if args.warmup_steps and (args.lr_scheduler_type in METRIC_SCHEDULES or name == "constant"):
        raise ValueError(
            f"train.warmup_steps must be 0 for train.lr_scheduler_type={name}, which has no warmup, but it is "
            f"{args.warmup_steps}; leave it out, or choose another schedule, such as constant_with_warmup."
        )
    if kwargs and name.startswith("constant"):
        raise ValueError(
            f"train.lr_scheduler_type={name} takes no train.lr_scheduler_kwargs, but they are {kwargs}; leave them out."
        )
    steps = args.max_steps if args.max_steps > 0 else 1000
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=args.learning_rate)
    try:
        get_scheduler(name, optimizer, args.get_warmup_steps(steps), steps, kwargs)
    except (TypeError, ValueError, KeyError) as error:
        raise ValueError(
            f"train.lr_scheduler_kwargs must be what train.lr_scheduler_type={name} takes, but it is {kwargs} "
            f"({error}); correct it, or leave it out."
        ) from None


def validate_optimizer(args: Seq2SeqTrainingArguments) -> None:
    """Refuse optimizers whose state checkpoints do not save, and arguments that an optimizer does not take."""
    if (name := args.optim.value) not in OPTIMIZERS:
        raise ValueError(
            f"train.optim must be one of {', '.join(OPTIMIZERS)}, with which a killed run resumes to the same "
            f"parameters, but it is {name!r}; choose one of them."
        )
    if args.optim_args and name not in OPTIMIZERS_WITH_ARGUMENTS:
        raise ValueError(
            f"train.optim_args is for train.optim={', '.join(OPTIMIZERS_WITH_ARGUMENTS)} alone, "
            f"but it is {args.optim_args!r} for {name}; "
            "set train.adam_beta1, adam_beta2, adam_epsilon or weight_decay, or leave it out."
        )
    try:
        Seq2SeqTrainer.get_optimizer_cls_and_kwargs(args)
    except ValueError as error:
        raise ValueError(
            f'train.optim_args must be such as "momentum=0.9,nesterov=true", but it is {args.optim_args!r} ({error}); '
            "correct it."
        ) from None
