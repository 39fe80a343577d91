"""Every argument of the Trainer: supported, set by train.py, or refused before any compute."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import yaml
from support.experiments import TINY
from transformers import Seq2SeqTrainingArguments, get_scheduler

from hf_posenc.lab.config.loading import load_experiment
from hf_posenc.lab.config.settings import Experiment
from hf_posenc.lab.run.prepare import prepare
from hf_posenc.lab.run.train import estimate_cost
from hf_posenc.lab.training.arguments import DEFAULTS, FIXED_ARGUMENTS, OPTIMIZERS, training_arguments
from hf_posenc.metrics.length_buckets.scorers import GREATER_IS_BETTER, SCORERS

RIGHT, SET, REFUSED = "right", "set by train.py", "refused"
# Each with a value that is not transformers' default: one that is accepted, or one that is refused.
ARGUMENTS: dict[str, tuple[str, Any]] = {
    "accelerator_config": (RIGHT, {"non_blocking": True}),
    "activation_checkpointing": (RIGHT, True),
    "activation_checkpointing_kwargs": (RIGHT, {"use_reentrant": False}),
    "adam_beta1": (RIGHT, 0.8),
    "adam_beta2": (RIGHT, 0.98),
    "adam_epsilon": (RIGHT, 1e-9),
    "auto_find_batch_size": (REFUSED, True),  # the batch would depend on the machine
    "average_tokens_across_devices": (REFUSED, False),  # N processes would not train as one that accumulates
    "batch_eval_metrics": (REFUSED, True),  # our metrics are of the whole set
    "bf16": (RIGHT, True),
    "bf16_full_eval": (REFUSED, True),  # of no effect while training
    "data_seed": (RIGHT, 3),
    "dataloader_drop_last": (RIGHT, True),
    "dataloader_in_order": (REFUSED, False),  # the order would depend on the speed of workers
    "dataloader_multiprocessing_context": (RIGHT, "spawn"),
    "dataloader_num_workers": (RIGHT, 2),
    "dataloader_persistent_workers": (RIGHT, True),
    "dataloader_pin_memory": (SET, False),
    "dataloader_prefetch_factor": (RIGHT, 3),
    "ddp_backend": (REFUSED, "gloo"),  # the processes have been joined before
    "ddp_broadcast_buffers": (RIGHT, True),
    "ddp_bucket_cap_mb": (RIGHT, 10),
    "ddp_find_unused_parameters": (SET, True),
    "ddp_static_graph": (RIGHT, True),
    "ddp_timeout": (REFUSED, 60),
    "debug": (REFUSED, "underflow_overflow"),  # fails on masks
    "deepspeed": (REFUSED, {}),  # untested
    "disable_tqdm": (SET, False),
    "do_eval": (REFUSED, True),  # of no effect
    "do_predict": (REFUSED, True),
    "do_train": (REFUSED, True),
    "enable_jit_checkpoint": (REFUSED, True),  # a second ear for SIGTERM
    "eval_accumulation_steps": (RIGHT, 1),
    "eval_delay": (RIGHT, 2),
    "eval_do_concat_batches": (REFUSED, False),  # our metrics are of the whole set
    "eval_on_start": (RIGHT, True),
    "eval_steps": (RIGHT, 7),
    "eval_strategy": (RIGHT, "epoch"),
    "eval_use_gather_object": (REFUSED, True),
    "fp16": (REFUSED, True),  # on a CPU
    "fp16_full_eval": (REFUSED, True),
    "fsdp": (REFUSED, True),  # by accelerate launch alone
    "fsdp_config": (REFUSED, {"fsdp_version": 1}),
    "full_determinism": (RIGHT, True),
    "generation_config": (REFUSED, "elsewhere"),  # would replace the model's own limits
    "generation_max_length": (RIGHT, 30),
    "generation_num_beams": (RIGHT, 2),
    "gradient_accumulation_steps": (RIGHT, 2),
    "gradient_checkpointing": (RIGHT, True),
    "gradient_checkpointing_kwargs": (RIGHT, {"use_reentrant": False}),
    "greater_is_better": (SET, False),
    "hub_always_push": (RIGHT, True),
    "hub_model_id": (SET, "mine/other"),
    "hub_private_repo": (RIGHT, True),
    "hub_revision": (RIGHT, "draft"),
    "hub_strategy": (RIGHT, "end"),
    "hub_token": (REFUSED, "secret"),  # would be saved
    "ignore_data_skip": (REFUSED, True),  # other pairs after a kill
    "include_for_metrics": (REFUSED, ["inputs"]),  # nothing reads them
    "include_num_input_tokens_seen": (RIGHT, "all"),
    "label_names": (REFUSED, ["labels"]),
    "label_smoothing_factor": (RIGHT, 0.1),
    "learning_rate": (RIGHT, 1e-3),
    "length_column_name": (SET, "target_length"),
    "liger_kernel_config": (REFUSED, {"rope": True}),
    "load_best_model_at_end": (RIGHT, True),
    "local_rank": (REFUSED, 0),  # the launcher's
    "log_level": (RIGHT, "error"),
    "log_level_replica": (RIGHT, "error"),
    "log_on_each_node": (RIGHT, False),
    "logging_first_step": (RIGHT, True),
    "logging_nan_inf_filter": (RIGHT, False),
    "logging_steps": (RIGHT, 5),
    "logging_strategy": (RIGHT, "epoch"),
    "lr_scheduler_kwargs": (RIGHT, {"num_cycles": 2}),
    "lr_scheduler_type": (RIGHT, "cosine_with_restarts"),
    "max_grad_norm": (RIGHT, 0.5),
    "max_steps": (RIGHT, 10),
    "metric_for_best_model": (RIGHT, "perplexity"),
    "neftune_noise_alpha": (RIGHT, 5.0),
    "num_train_epochs": (RIGHT, 1.0),
    "optim": (RIGHT, "sgd"),
    "optim_args": (RIGHT, "momentum=0.9"),
    "optim_target_modules": (REFUSED, ["q_proj"]),
    "output_dir": (SET, None),  # lab/config/loading.py refuses it
    "parallelism_config": (REFUSED, {"tp_size": 2}),
    "per_device_eval_batch_size": (RIGHT, 3),
    "per_device_train_batch_size": (RIGHT, 3),
    "predict_with_generate": (RIGHT, True),
    "prediction_loss_only": (REFUSED, True),  # of no effect
    "project": (RIGHT, "mine"),
    "push_to_hub": (RIGHT, True),
    "remove_unused_columns": (REFUSED, False),  # the model would be given lengths
    "report_to": (SET, "none"),
    "restore_callback_states_from_checkpoint": (REFUSED, True),  # train() does
    "resume_from_checkpoint": (SET, None),  # lab/config/loading.py refuses it
    "run_name": (SET, "mine"),
    "save_on_each_node": (REFUSED, True),  # two writers of a file
    "save_only_model": (REFUSED, True),  # nothing to resume from
    "save_steps": (RIGHT, 7),
    "save_strategy": (RIGHT, "epoch"),
    "save_total_limit": (SET, 3),
    "seed": (RIGHT, 3),
    "skip_memory_metrics": (RIGHT, False),
    "sortish_sampler": (REFUSED, True),  # of no effect
    "tf32": (RIGHT, False),
    "torch_compile": (RIGHT, True),
    "torch_compile_backend": (RIGHT, "aot_eager"),
    "torch_compile_mode": (RIGHT, "default"),
    "torch_empty_cache_steps": (RIGHT, 1),
    "trackio_bucket_id": (RIGHT, "mine/bucket"),
    "trackio_space_id": (RIGHT, "mine/space"),
    "trackio_static_space_id": (RIGHT, False),
    "train_sampling_strategy": (SET, "random"),
    "use_cache": (REFUSED, True),  # a training has none, and a saved model would
    "use_cpu": (RIGHT, True),
    "use_liger_kernel": (REFUSED, True),  # no kernels for these models
    "warmup_steps": (RIGHT, 5),
    "weight_decay": (RIGHT, 0.01),
}
# What some of them need beside them.
BESIDE: dict[str, dict[str, Any]] = {
    "activation_checkpointing_kwargs": {"activation_checkpointing": True},
    "dataloader_multiprocessing_context": {"dataloader_num_workers": 1},
    "dataloader_persistent_workers": {"dataloader_num_workers": 1},
    "dataloader_prefetch_factor": {"dataloader_num_workers": 1},
    "eval_delay": {"eval_strategy": "epoch"},
    "eval_steps": {"eval_strategy": "steps"},
    "generation_max_length": {"predict_with_generate": True},
    "generation_num_beams": {"predict_with_generate": True},
    "greater_is_better": {"metric_for_best_model": "perplexity"},
    "load_best_model_at_end": {"eval_strategy": "epoch", "save_strategy": "epoch"},
    "lr_scheduler_kwargs": {"lr_scheduler_type": "cosine_with_restarts"},
    "optim_args": {"optim": "sgd"},
}
KNOWN = {field.name for field in fields(Seq2SeqTrainingArguments)}
HERE = [name for name in ARGUMENTS if name in KNOWN]


def test_every_training_argument_of_this_transformers_is_classified():
    new = sorted(KNOWN - ARGUMENTS.keys())
    assert not new, (
        f"transformers {transformers.__version__} has arguments that nobody has looked at: {', '.join(new)}. Try each "
        "with resumption, the best model, early stopping, evaluations, token budgets, pushes, seeds, several systems; "
        "then add it to ARGUMENTS, and to FIXED_ARGUMENTS of arguments.py if it breaks one of them."
    )


def test_what_is_refused_and_what_is_set_are_the_ones_of_the_table():
    by = {verdict: {name for name, (one, _) in ARGUMENTS.items() if one == verdict} for verdict in (SET, REFUSED)}
    assert FIXED_ARGUMENTS.keys() | {"fp16"} == by[REFUSED]
    others = {"greater_is_better", "hub_model_id", "output_dir", "resume_from_checkpoint", "run_name"}
    assert DEFAULTS.keys() | others == by[SET]


ACCEPTED = [name for name in HERE if ARGUMENTS[name][0] != REFUSED and ARGUMENTS[name][1] is not None]


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing")
@pytest.mark.parametrize("name", ACCEPTED)
def test_an_argument_is_passed_on_as_it_is_given(tmp_path, name):
    given = ARGUMENTS[name][1]
    made = getattr(training_arguments({"use_cpu": True} | BESIDE.get(name, {}) | {name: given}, tmp_path), name)
    if name == "accelerator_config":
        assert made.non_blocking
    else:
        assert made == (given if name != "report_to" else [])


@pytest.mark.parametrize("name", [name for name in HERE if ARGUMENTS[name][0] == REFUSED])
def test_an_argument_that_breaks_a_promise_is_refused_by_its_name(tmp_path, name):
    given = {"use_cpu": True, name: ARGUMENTS[name][1]}
    with pytest.raises(ValueError, match=rf"^train\.{name} must be [^,]*,? .*; .*\.$") as refused:
        training_arguments(given, tmp_path)
    assert "secret" not in str(refused.value)


# Which way is better


def test_every_metric_says_whether_more_of_it_is_better():
    assert GREATER_IS_BETTER.keys() == SCORERS.keys()


FOLLOWING = {
    "early_stopping_patience": {"early_stopping_patience": 1, "eval_strategy": "epoch"},
    "load_best_model_at_end": {"load_best_model_at_end": True, "eval_strategy": "epoch", "save_strategy": "epoch"},
    "save_strategy": {"save_strategy": "best", "eval_strategy": "epoch"},
    "reduce_lr_on_plateau": {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "epoch"},
    "greedy": {"lr_scheduler_type": "greedy", "eval_strategy": "epoch"},
}
DIRECTIONS = {"loss": False, "perplexity": False, "bleu": True, "eval_loss": False, "eval_perplexity": False}


@pytest.mark.parametrize("following", FOLLOWING)
@pytest.mark.parametrize("metric", [None, *DIRECTIONS])
def test_whatever_follows_a_metric_knows_which_way_is_better(tmp_path, following, metric):
    settings = FOLLOWING[following] | {"predict_with_generate": True, "metric_for_best_model": metric}
    greater = DIRECTIONS.get(metric, False)
    args = training_arguments(settings, tmp_path)
    assert (args.metric_for_best_model, args.greater_is_better) == (metric or "loss", greater)
    training_arguments(settings | {"greater_is_better": greater}, tmp_path)
    with pytest.raises(
        ValueError, match=r"train.greater_is_better must be (true|false) for .*, but it is .*; leave it"
    ):
        training_arguments(settings | {"greater_is_better": not greater}, tmp_path)


@pytest.mark.parametrize("schedule", ["reduce_lr_on_plateau", "greedy"])
@pytest.mark.parametrize(("metric", "greater"), DIRECTIONS.items())
def test_a_rate_that_follows_a_metric_is_not_cut_while_that_gets_better(tmp_path, schedule, metric, greater):
    given = {"lr_scheduler_type": schedule, "metric_for_best_model": metric, "predict_with_generate": True}
    args = training_arguments(given | {"lr_scheduler_kwargs": {"patience": 0}, "eval_strategy": "epoch"}, tmp_path)
    rates = {}
    for better in (True, False):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-4)
        scheduler = get_scheduler(schedule, optimizer, scheduler_specific_kwargs=args.lr_scheduler_kwargs)
        for k in range(4):
            scheduler.step(10.0 + (k if better == greater else -k))
        rates[better] = optimizer.param_groups[0]["lr"]
    assert rates[True] >= 1e-4 > rates[False]


# What does not go together


NO_WARMUP = r"warmup_steps must be 0 for .*, but it is 4; leave"
TOGETHER = [
    ({"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "epoch", "warmup_steps": 4}, NO_WARMUP),
    ({"lr_scheduler_type": "greedy", "eval_strategy": "epoch", "warmup_steps": 4}, NO_WARMUP),
    ({"lr_scheduler_type": "constant", "warmup_steps": 4}, NO_WARMUP),
    (
        {"lr_scheduler_type": "constant", "lr_scheduler_kwargs": {"power": 2}},
        r"constant takes no .*, but they are .*; lea",
    ),
    (
        {"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {"power": 2}},
        r"must be what .*=cosine takes.*'power'.*; cor",
    ),
    ({"lr_scheduler_type": "cosine_with_min_lr"}, r"must be what .*=cosine_with_min_lr takes, but it is {}.*; correct"),
    (
        FOLLOWING["reduce_lr_on_plateau"] | {"lr_scheduler_kwargs": {"mode": "max"}},
        r"lr_scheduler_kwargs.mode must be min for .*=loss, but it is 'max'; leave it out",
    ),
    (
        {"lr_scheduler_kwargs": "schedule.json"},
        r"train.lr_scheduler_kwargs must be a mapping.*'schedule.json'; write it",
    ),
    (
        {"accelerator_config": "accelerate.json"},
        r"train.accelerator_config must be a mapping.*'accelerate.json'; write it",
    ),
    (
        {"accelerator_config": {"even_batches": False}},
        r"accelerator_config must have no other keys.*has even_batches; le",
    ),
    (
        {"accelerator_config": {"gradient_accumulation_kwargs": {"num_steps": 2}}},
        r"gradient_accumulation_kwargs must have no other keys than sync_each_batch, but it has num_steps; leave",
    ),
    ({"optim": "galore_adamw_layerwise"}, rf"train.optim must be one of {', '.join(OPTIMIZERS)}, .*'galore.*; choose"),
    (
        {"optim_args": "momentum=0.9"},
        r"train.optim_args is for .* alone, but it is 'momentum=0.9' for adamw_torch.*; set",
    ),
    (
        {"optim": "sgd", "optim_args": "momentum"},
        r"train.optim_args must be such as .*, but it is 'momentum'.*; correct",
    ),
    (
        {"train_sampling_strategy": "batch_rebalance"},
        r"train_sampling_strategy must be one of .*, but it is 'batch_reb",
    ),
    (
        {"dataloader_multiprocessing_context": "spawn"},
        r"multiprocessing_context needs workers.*num_workers is 0; raise",
    ),
    ({"dataloader_prefetch_factor": 2}, r"^train.dataloader_prefetch_factor can .* train.dataloader_num_workers > 0"),
    ({"early_stopping_patience": 2}, r"train.early_stopping_patience needs evaluations, but .* is no; set it"),
    (
        {"load_best_model_at_end": True, "save_strategy": "no"},
        r"load_best_model_at_end=true needs evaluations, but .*no;",
    ),
    ({"load_best_model_at_end": True}, r"^train.load_best_model_at_end requires the save and eval strategy to match"),
    ({"save_strategy": "best"}, r"train.save_strategy=best needs evaluations, but .* is no; set it"),
    ({"evaluations_per_epoch": 2, "eval_delay": 3}, r"train.eval_delay must be 0 with .*, but it is 3; leave one"),
]


@pytest.mark.parametrize(("settings", "message"), TOGETHER)
def test_arguments_that_do_not_go_together_are_refused(tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        training_arguments({"use_cpu": True} | settings, tmp_path)


def two_systems(tmp_path: Path, first: dict[str, Any], second: dict[str, Any], **sections: Any) -> Experiment:
    path = tmp_path / "two.yaml"
    systems = {"first": {"train": first}, "second": {"train": second}}
    path.write_text(yaml.safe_dump(TINY | sections | {"systems": systems}), encoding="utf-8")
    return load_experiment(path, [f"output_dir={tmp_path / 'runs'}"])


RNN = {"model_type": "posenc_rnn_nmt"}
WITHOUT_VALIDATION = {"data": {key: value for key, value in TINY["data"].items() if key != "validation"}}
UNFIT: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = [
    (
        {"use_cpu": True},
        {"use_cpu": False},
        {},
        r"train.use_cpu must be the same .*first has true and second has false; mo",
    ),
    (
        {},
        {"full_determinism": True},
        {},
        r"train.full_determinism must be the same .*first has null and second has true;",
    ),
    (
        {},
        {"eval_strategy": "epoch"},
        WITHOUT_VALIDATION,
        r"Evaluations need a validation set, .*data.validation.*; name",
    ),
    ({}, {"eval_on_start": True}, WITHOUT_VALIDATION, r"Evaluations need a validation set, .*data.validation.*; name"),
    (
        {},
        {"gradient_checkpointing": True},
        {"model": RNN},
        r"second: train.gradient_checkpointing is .*rnn_nmt; leave it",
    ),
    ({}, {"save_only_model": True}, {}, r"train.save_only_model must be false"),
]


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing")
@pytest.mark.parametrize("command", [prepare, estimate_cost])
@pytest.mark.parametrize(("first", "second", "sections", "message"), UNFIT)
def test_systems_that_cannot_be_trained_as_asked_are_refused_by_a_dry_run_too(
    tmp_path, command, first, second, sections, message
):
    with pytest.raises(ValueError, match=message):
        command(two_systems(tmp_path, first, second, **sections))
    assert not (tmp_path / "runs").exists()
