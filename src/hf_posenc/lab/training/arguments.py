"""The Trainer's arguments: transformers' own, five more, this project's defaults, and their validation.

Values that would break a guarantee of train.py are refused before training. The guarantees:

- A killed run resumes to the same parameters, and seeds and settings determine a run.
- The best checkpoint is the best one, and training stops early when it should.
- Evaluations cover all pairs and compute this project's metrics.
- Batches keep their token budget, pushes work, and systems do not change each other.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

import torch
from transformers import SchedulerType, Seq2SeqTrainer, Seq2SeqTrainingArguments, get_scheduler

from ...metrics.length_buckets.scorers import GREATER_IS_BETTER as SCORES
from ...utils.run_folder import SystemPaths
from ...utils.text_io import JsonObject
from .lora import validate_lora_installed

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


SAMPLING_STRATEGIES = ("group_by_length", "random", "sequential")
MAPPING_ARGUMENTS: dict[str, tuple[str, ...] | None] = {
    "accelerator_config": (
        *("split_batches", "dispatch_batches", "use_seedable_sampler", "non_blocking"),
        "gradient_accumulation_kwargs",
    ),
    "activation_checkpointing_kwargs": ("use_reentrant", "every_n_layers"),
    "gradient_checkpointing_kwargs": ("use_reentrant", "every_n_layers"),
    "lr_scheduler_kwargs": None,
}
PROCESS_WIDE_ARGUMENTS = ("use_cpu", "full_determinism", "tf32")  # the Trainer sets these for the whole process

RESUME_REASON = "a killed run would not resume to the same parameters; leave it out"
EVALUATION_REASON = (
    "evaluations measure loss, perplexity and BLEU of the whole validation set by themselves; leave it out"
)
COMMAND_REASON = "train.py trains, evaluates and scores each system, and resumes by itself; leave it out"
LAUNCHER_REASON = "processes start by accelerate launch or torchrun, as docs/howto/several_gpus.md says; leave it out"
# The only allowed value of each argument, the reason and the remedy.
FIXED_ARGUMENTS: dict[str, tuple[object, str]] = {
    "auto_find_batch_size": (
        False,
        "what is trained would depend on the machine's memory; leave it out, lower train.per_device_train_batch_size "
        "or train.tokens_per_batch, and raise train.gradient_accumulation_steps",
    ),
    "average_tokens_across_devices": (True, "N processes train as one that accumulates N batches; leave it out"),
    "batch_eval_metrics": (False, EVALUATION_REASON),
    "bf16_full_eval": (False, "an evaluation has the precision of the training around it; set train.bf16 instead"),
    "dataloader_in_order": (True, RESUME_REASON),
    "ddp_backend": (None, LAUNCHER_REASON),
    "ddp_timeout": (1800, LAUNCHER_REASON),
    "debug": (
        "",
        "these models have masks, on which it fails, and a loss that is no number stops by itself; leave it out",
    ),
    "deepspeed": (None, "models are sharded by FSDP alone; leave it out and see docs/howto/several_gpus.md"),
    "do_eval": (False, COMMAND_REASON),
    "do_predict": (False, COMMAND_REASON),
    "do_train": (False, COMMAND_REASON),
    "enable_jit_checkpoint": (False, "train.py saves a checkpoint at SIGTERM by itself; leave it out"),
    "eval_do_concat_batches": (True, EVALUATION_REASON),
    "eval_use_gather_object": (False, EVALUATION_REASON),
    "fp16_full_eval": (False, "an evaluation has the precision of the training around it; set train.fp16 instead"),
    "fsdp": (None, LAUNCHER_REASON),
    "fsdp_config": (None, LAUNCHER_REASON),
    "generation_config": (
        None,
        "a model keeps its own limits of length; set train.generation_num_beams and train.generation_max_length for "
        "evaluations, and score.num_beams for test sets",
    ),
    "hub_token": (
        None,
        "it would be saved in settings.yaml and shown by the model card; take it out of the config, and give it as the "
        "environment variable HF_TOKEN or log in by `hf auth login`",
    ),
    "ignore_data_skip": (False, RESUME_REASON),
    "include_for_metrics": ([], EVALUATION_REASON),
    "label_names": (None, "the labels of a pair are its target; leave it out"),
    "liger_kernel_config": (None, "Liger has no kernels for these models; leave it out"),
    "local_rank": (-1, LAUNCHER_REASON),
    "optim_target_modules": (None, "no optimizer that train.py has takes it; leave it out"),
    "parallelism_config": (None, "these models are not split by tensors or context; leave it out"),
    "prediction_loss_only": (False, EVALUATION_REASON),
    "remove_unused_columns": (True, "the encoded pairs have columns that no model reads; leave it out"),
    "restore_callback_states_from_checkpoint": (False, "train.py restores the patience by itself; leave it out"),
    "save_on_each_node": (False, "machines share the run's folder, and each file has one writer; leave it out"),
    "save_only_model": (False, RESUME_REASON),
    "sortish_sampler": (False, "pairs of like length share a batch by train.train_sampling_strategy; leave it out"),
    "use_cache": (False, "a training has no cache, and the model's config says whether decoding has; leave it out"),
    "use_liger_kernel": (False, "Liger has no kernels for these models; leave it out"),
}


def yaml_value(value: object) -> str:
    """A value in YAML's notation."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)


def validate_fixed(settings: Mapping[str, object]) -> None:
    """Raise a ValueError for an argument whose value would break a guarantee or have no effect."""
    for name, (required, reason) in FIXED_ARGUMENTS.items():
        if settings.get(name, required) not in ((required,) if required else (required, None)):
            value = "given" if name == "hub_token" else yaml_value(settings[name])
            raise ValueError(f"train.{name} must be {yaml_value(required)}, but it is {value}: {reason}.")


def validate_evaluations(args: Seq2SeqTrainingArguments, has_validation: bool | None) -> None:
    """Raise a ValueError for arguments that need evaluations when there are none, or a metric that evaluations lack."""
    metrics = ["loss", "perplexity", *(["bleu"] if args.predict_with_generate else [])]
    if (metric := args.metric_for_best_model) and metric.removeprefix("eval_") not in metrics:
        raise ValueError(
            f"train.metric_for_best_model must be one of {', '.join(metrics)}, but it is {metric!r}; "
            "bleu is measured with train.predict_with_generate=true."
        )
    evaluation_arguments = {
        "load_best_model_at_end=true": args.load_best_model_at_end,
        "save_strategy=best": args.save_strategy == "best",
        "early_stopping_patience": args.early_stopping_patience is not None,
    }
    for name in [name for name, is_set in evaluation_arguments.items() if is_set and args.eval_strategy == "no"]:
        raise ValueError(
            f"train.{name} needs evaluations, but train.eval_strategy is no; set it to steps or epoch, or set "
            "train.evaluations_per_epoch."
        )
    if args.evaluations_per_epoch is not None and args.eval_delay:
        raise ValueError(
            f"train.eval_delay must be 0 with train.evaluations_per_epoch, which begins in the first epoch, but it is "
            f"{args.eval_delay}; leave one of them out."
        )
    if has_validation is False and (args.eval_strategy != "no" or args.eval_on_start):
        raise ValueError(
            "Evaluations need a validation set, but data.validation is left out; name one, or leave out "
            "train.eval_strategy, train.evaluations_per_epoch and train.eval_on_start."
        )


def validate_device(args: Seq2SeqTrainingArguments) -> None:
    """Raise a ValueError for a device that a process cannot train on with these arguments."""
    if args.fp16 and args.device.type == "cpu":
        raise ValueError(
            "train.fp16 must be false on a CPU, which trains in float32 or bfloat16 alone, but it is true; set "
            "train.bf16=true instead."
        )
    if args.n_gpu > 1:
        raise ValueError(
            f"A process trains on one GPU, but this one sees {args.n_gpu}; start one for each by accelerate launch "
            "--config_file configs/accelerate/eight_gpus.yaml train.py CONFIG, or show it a single one by "
            "CUDA_VISIBLE_DEVICES=0."
        )


def validate_batches(args: Seq2SeqTrainingArguments) -> None:
    """Raise a ValueError for arguments that transformers' batches support and batches by length do not."""
    budget, strategy = args.tokens_per_batch, args.train_sampling_strategy
    if strategy not in SAMPLING_STRATEGIES:
        raise ValueError(
            f"train.train_sampling_strategy must be one of {', '.join(SAMPLING_STRATEGIES)}, "
            f"but it is {str(strategy)!r}."
        )
    if budget is not None and args.dataloader_drop_last:
        raise ValueError(
            f"Under train.tokens_per_batch={budget} every batch is as full as its pairs allow but the last by length, "
            "the longest pairs, which train.dataloader_drop_last would never train on; leave one of them out."
        )
    if budget is not None and strategy != "group_by_length":
        raise ValueError(
            f"Under train.tokens_per_batch={budget} pairs of like length share a batch, but "
            f"train.train_sampling_strategy is {str(strategy)!r}; leave one of them out."
        )
    if not args.dataloader_num_workers:
        for name in ("dataloader_persistent_workers", "dataloader_multiprocessing_context"):
            if getattr(args, name):
                raise ValueError(
                    f"train.{name} needs workers, but train.dataloader_num_workers is 0; raise it, or leave the other "
                    "one out."
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


def validate_mapping(name: str, value: object, known: tuple[str, ...] | None = None) -> None:
    """Raise a ValueError for an argument that is no mapping, or that has an unknown key."""
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(f"train.{name} must be a mapping, such as {{key: value}}, but it is {value!r}; write it so.")
    if value is None or known is None:
        return
    if unknown := [key for key in value if key not in known]:
        raise ValueError(
            f"train.{name} must have no other keys than {', '.join(known)}, but it has {', '.join(unknown)}; "
            "leave them out."
        )


def validate_settings(settings: Mapping[str, object]) -> None:
    """Raise a ValueError for settings that are invalid in every context."""
    validate_fixed(settings)
    for name, known in MAPPING_ARGUMENTS.items():
        validate_mapping(name, settings.get(name), known)
    name = "gradient_accumulation_kwargs"
    accelerator = settings.get("accelerator_config")
    accumulation = accelerator.get(name) if isinstance(accelerator, Mapping) else None
    validate_mapping(f"accelerator_config.{name}", accumulation, ("sync_each_batch",))


def validate_process_wide(settings: Mapping[str, Mapping[str, object]]) -> None:
    """Raise a ValueError if systems differ in arguments that the Trainer sets for the whole process."""
    (first, first_settings), *others = settings.items()
    for name, other_settings in others:
        for key in PROCESS_WIDE_ARGUMENTS:
            if first_settings.get(key) != other_settings.get(key):
                raise ValueError(
                    f"train.{key} must be the same in all systems, which one process may train in turn, but {first} "
                    f"has {yaml_value(first_settings.get(key))} and {name} has "
                    f"{yaml_value(other_settings.get(key))}; move it out of `systems:`."
                )
