"""Rules for what a training follows: its metric and whether more of it is better, its schedule, its optimizer."""

from typing import Any

import torch
from transformers import SchedulerType, Seq2SeqTrainer, get_scheduler

from ..metrics.length_buckets.scorers import GREATER_IS_BETTER as SCORES
from .validation import shown

GREATER_IS_BETTER = {"loss": False, "perplexity": False, **SCORES}
BY_METRIC = (SchedulerType.REDUCE_ON_PLATEAU, SchedulerType.GREEDY)  # schedules that follow an evaluation
# Their state is saved whole. Others need packages, or keep state that no checkpoint has.
OPTIMIZERS = ("adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "adagrad", "rmsprop")
WITH_ARGUMENTS = ("sgd", "adagrad", "rmsprop")


def validate_metric(args: Any) -> None:
    """Fill in, before transformers does, which metric is followed and whether more of it is better."""
    follows = (
        args.load_best_model_at_end
        or args.early_stopping_patience is not None
        or args.save_strategy == "best"
        or args.lr_scheduler_type in BY_METRIC
    )
    if args.metric_for_best_model is None and follows:
        args.metric_for_best_model = "loss"
    greater = GREATER_IS_BETTER.get((args.metric_for_best_model or "").removeprefix("eval_"))
    if greater is None:
        return
    if args.greater_is_better not in (greater, None):
        raise ValueError(
            f"train.greater_is_better must be {shown(greater)} for train.metric_for_best_model="
            f"{args.metric_for_best_model}, but it is {shown(args.greater_is_better)}; leave it out."
        )
    args.greater_is_better = greater


def validate_schedule(args: Any) -> None:
    """Give a schedule that follows a metric the metric's direction, and refuse arguments that no schedule takes."""
    given = dict(args.lr_scheduler_kwargs or {})
    name = args.lr_scheduler_type.value
    if args.lr_scheduler_type in BY_METRIC:
        mode = "max" if args.greater_is_better else "min"
        if given.setdefault("mode", mode) != mode:
            raise ValueError(
                f"train.lr_scheduler_kwargs.mode must be {mode} for train.metric_for_best_model="
                f"{args.metric_for_best_model}, but it is {given['mode']!r}; leave it out."
            )
        if args.lr_scheduler_type == SchedulerType.GREEDY:
            given.setdefault("min_lr", 0.0)  # its own is 1e-3, below which it would never go
        args.lr_scheduler_kwargs = given
    if args.warmup_steps and (args.lr_scheduler_type in BY_METRIC or name == "constant"):
        raise ValueError(
            f"train.warmup_steps must be 0 for train.lr_scheduler_type={name}, which has no warmup, but it is "
            f"{args.warmup_steps}; leave it out, or choose another schedule, such as constant_with_warmup."
        )
    if given and name.startswith("constant"):
        raise ValueError(
            f"train.lr_scheduler_type={name} takes no train.lr_scheduler_kwargs, but they are {given}; leave them out."
        )
    steps = args.max_steps if args.max_steps > 0 else 1000
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=args.learning_rate)
    try:
        get_scheduler(name, optimizer, args.get_warmup_steps(steps), steps, given)
    except (TypeError, ValueError, KeyError) as error:
        raise ValueError(
            f"train.lr_scheduler_kwargs must be what train.lr_scheduler_type={name} takes, but it is {given} "
            f"({error}); correct it, or leave it out."
        ) from None


def validate_optimizer(args: Any) -> None:
    """Refuse optimizers whose state no checkpoint has, and arguments that an optimizer does not take."""
    if (name := args.optim.value) not in OPTIMIZERS:
        raise ValueError(
            f"train.optim must be one of {', '.join(OPTIMIZERS)}, with which a killed run resumes to the same "
            f"parameters, but it is {name!r}; choose one of them."
        )
    if args.optim_args and name not in WITH_ARGUMENTS:
        raise ValueError(
            f"train.optim_args is for train.optim={', '.join(WITH_ARGUMENTS)} alone, but it is {args.optim_args!r} for "
            f"{name}; set train.adam_beta1, adam_beta2, adam_epsilon or weight_decay, or leave it out."
        )
    try:
        Seq2SeqTrainer.get_optimizer_cls_and_kwargs(args)
    except ValueError as error:
        raise ValueError(
            f'train.optim_args must be such as "momentum=0.9,nesterov=true", but it is {args.optim_args!r} ({error}); '
            "correct it."
        ) from None
