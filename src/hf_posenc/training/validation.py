"""Rules for the Trainer's arguments: values with which a training keeps what train.py promises, checked before it.

The promises: a killed run resumes to the same parameters, the best checkpoint is the best one, training stops early
when it should, evaluations are of all pairs and of our metrics, batches keep their token budget, pushes work, seeds and
settings determine a run, and several systems do not change each other.
"""

from collections.abc import Mapping
from typing import Any

from transformers.integrations import get_available_reporting_integrations

STRATEGIES = ("group_by_length", "random", "sequential")
MAPPINGS: dict[str, tuple[str, ...] | None] = {
    "accelerator_config": (
        *("split_batches", "dispatch_batches", "use_seedable_sampler", "non_blocking"),
        "gradient_accumulation_kwargs",
    ),
    "activation_checkpointing_kwargs": ("use_reentrant", "every_n_layers"),
    "gradient_checkpointing_kwargs": ("use_reentrant", "every_n_layers"),
    "lr_scheduler_kwargs": None,
}
OF_A_PROCESS = ("use_cpu", "full_determinism", "tf32")  # what Trainer sets for all that the process computes

RESUME = "a killed run would not resume to the same parameters; leave it out"
EVALUATIONS = "evaluations measure loss, perplexity and BLEU of the whole validation set by themselves; leave it out"
COMMAND = "train.py trains, evaluates and scores each system, and resumes by itself; leave it out"
LAUNCHER = "processes start by accelerate launch or torchrun, as docs/training.md says; leave it out"
# The one value that each of these may have, and why, with the remedy.
FIXED: dict[str, tuple[Any, str]] = {
    "auto_find_batch_size": (
        False,
        "what is trained would depend on the machine's memory; leave it out, lower train.per_device_train_batch_size "
        "or train.tokens_per_batch, and raise train.gradient_accumulation_steps",
    ),
    "average_tokens_across_devices": (True, "N processes train as one that accumulates N batches; leave it out"),
    "batch_eval_metrics": (False, EVALUATIONS),
    "bf16_full_eval": (False, "an evaluation has the precision of the training around it; set train.bf16 instead"),
    "dataloader_in_order": (True, RESUME),
    "ddp_backend": (None, LAUNCHER),
    "ddp_timeout": (1800, LAUNCHER),
    "debug": (
        "",
        "these models have masks, on which it fails, and a loss that is no number stops by itself; leave it out",
    ),
    "deepspeed": (None, "models are sharded by FSDP alone; leave it out and see docs/training.md"),
    "do_eval": (False, COMMAND),
    "do_predict": (False, COMMAND),
    "do_train": (False, COMMAND),
    "enable_jit_checkpoint": (False, "train.py saves a checkpoint at SIGTERM by itself; leave it out"),
    "eval_do_concat_batches": (True, EVALUATIONS),
    "eval_use_gather_object": (False, EVALUATIONS),
    "fp16_full_eval": (False, "an evaluation has the precision of the training around it; set train.fp16 instead"),
    "fsdp": (None, LAUNCHER),
    "fsdp_config": (None, LAUNCHER),
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
    "ignore_data_skip": (False, RESUME),
    "include_for_metrics": ([], EVALUATIONS),
    "label_names": (None, "the labels of a pair are its target; leave it out"),
    "liger_kernel_config": (None, "Liger has no kernels for these models; leave it out"),
    "local_rank": (-1, LAUNCHER),
    "optim_target_modules": (None, "no optimizer that train.py has takes it; leave it out"),
    "parallelism_config": (None, "these models are not split by tensors or context; leave it out"),
    "prediction_loss_only": (False, EVALUATIONS),
    "remove_unused_columns": (True, "the encoded pairs have columns that no model reads; leave it out"),
    "restore_callback_states_from_checkpoint": (False, "train.py restores the patience by itself; leave it out"),
    "save_on_each_node": (False, "machines share the run's folder, and each file has one writer; leave it out"),
    "save_only_model": (False, RESUME),
    "sortish_sampler": (False, "pairs of like length share a batch by train.train_sampling_strategy; leave it out"),
    "use_cache": (False, "a training has no cache, and the model's config says whether decoding has; leave it out"),
    "use_liger_kernel": (False, "Liger has no kernels for these models; leave it out"),
}


def shown(value: Any) -> str:
    """A value as YAML has it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)


def validate_fixed(settings: Mapping[str, Any]) -> None:
    """A ValueError for an argument whose value would break a promise, or would change nothing."""
    for name, (only, reason) in FIXED.items():
        if settings.get(name, only) not in ((only,) if only else (only, None)):
            given = "given" if name == "hub_token" else shown(settings[name])
            raise ValueError(f"train.{name} must be {shown(only)}, but it is {given}: {reason}.")


def validate_evaluations(args: Any, has_validation: bool | None) -> None:
    """A ValueError for what needs an evaluation where there is none, or a metric that no evaluation has."""
    measured = ["loss", "perplexity", *(["bleu"] if args.predict_with_generate else [])]
    if (metric := args.metric_for_best_model) and metric.removeprefix("eval_") not in measured:
        raise ValueError(
            f"train.metric_for_best_model must be one of {', '.join(measured)}, but it is {metric!r}; "
            "bleu is measured with train.predict_with_generate=true."
        )
    needs = {
        "load_best_model_at_end=true": args.load_best_model_at_end,
        "save_strategy=best": args.save_strategy == "best",
        "early_stopping_patience": args.early_stopping_patience is not None,
    }
    for name in [name for name, is_set in needs.items() if is_set and args.eval_strategy == "no"]:
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


def validate_device(args: Any) -> None:
    """A ValueError for a device that a process cannot train on as asked."""
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


def validate_batches(args: Any) -> None:
    """A ValueError for what transformers' own batches take notice of and those by length cannot."""
    budget, strategy = args.tokens_per_batch, args.train_sampling_strategy
    if strategy not in STRATEGIES:
        raise ValueError(
            f"train.train_sampling_strategy must be one of {', '.join(STRATEGIES)}, but it is {str(strategy)!r}."
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


def validate_mapping(name: str, given: Any, known: tuple[str, ...] | None = None) -> None:
    """A ValueError for an argument that is no mapping, or that has a key which is not `known`."""
    if given is not None and not isinstance(given, Mapping):
        raise ValueError(f"train.{name} must be a mapping, such as {{key: value}}, but it is {given!r}; write it so.")
    if unknown := [key for key in given or {} if known is not None and key not in known]:
        raise ValueError(
            f"train.{name} must have no other keys than {', '.join(known or ())}, but it has {', '.join(unknown)}; "
            "leave them out."
        )


def validate_settings(settings: Mapping[str, Any]) -> None:
    """A ValueError for settings that may not be, whatever else there is."""
    validate_fixed(settings)
    for name, known in MAPPINGS.items():
        validate_mapping(name, settings.get(name), known)
    name = "gradient_accumulation_kwargs"
    accumulation = (settings.get("accelerator_config") or {}).get(name)
    validate_mapping(f"accelerator_config.{name}", accumulation, ("sync_each_batch",))
    reporters, installed = settings.get("report_to") or [], get_available_reporting_integrations()
    for name in [reporters] if isinstance(reporters, str) else reporters:
        if name not in ("all", "none", *installed):
            raise ValueError(
                f"train.report_to must name reporters that are installed ({', '.join(installed) or 'none is'}), but it "
                f"names {name!r}; install its package, or leave it out."
            )


def validate_same(settings: Mapping[str, Mapping[str, Any]]) -> None:
    """A ValueError if the systems differ in what the Trainer sets for a whole process, since they share one."""
    (first, ours), *others = settings.items()
    for name, theirs in others:
        for key in OF_A_PROCESS:
            if ours.get(key) != theirs.get(key):
                raise ValueError(
                    f"train.{key} must be the same in all systems, which one process may train in turn, but {first} "
                    f"has {shown(ours.get(key))} and {name} has {shown(theirs.get(key))}; move it out of `systems:`."
                )
