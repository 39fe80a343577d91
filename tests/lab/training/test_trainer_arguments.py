"""The Trainer's arguments: those of config files, and what contradicts each other, refused before any compute."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from support.experiments import TINY
from transformers import Seq2SeqTrainingArguments, get_scheduler

from hf_posenc.lab.config.errors import parse
from hf_posenc.lab.config.file_keys import TrainKeys
from hf_posenc.lab.config.loading import load_experiment
from hf_posenc.lab.config.settings import Experiment
from hf_posenc.lab.run.prepare import prepare
from hf_posenc.lab.run.train import estimate_cost
from hf_posenc.lab.training.arguments import arguments_with_defaults, training_arguments
from hf_posenc.metrics.length_buckets.scorers import GREATER_IS_BETTER, SCORERS

# Each key of `train` with a value that is not its default, and what it needs beside it.
VALUES: dict[str, Any] = {
    "project": "lengths", "trackio_space_id": "user/lengths",
    "adam_beta1": 0.8, "adam_beta2": 0.98, "adam_epsilon": 1e-9, "bf16": True, "data_seed": 3,
    "dataloader_num_workers": 2, "early_stopping_patience": 2, "eval_steps": 7, "eval_strategy": "epoch",
    "evaluations_per_epoch": 2, "generation_num_beams": 2, "gradient_accumulation_steps": 2,
    "gradient_checkpointing": True, "greater_is_better": False, "hub_model_id": "mine/other",
    "hub_private_repo": True, "label_smoothing_factor": 0.1, "learning_rate": 1e-3,
    "load_best_model_at_end": True, "logging_steps": 5, "lora_rank": 4, "lr_scheduler_kwargs": {"num_cycles": 2},
    "lr_scheduler_type": "cosine_with_restarts", "max_grad_norm": 0.5, "max_steps": 10,
    "metric_for_best_model": "perplexity", "num_train_epochs": 1.0, "optim": "sgd", "per_device_eval_batch_size": 3,
    "per_device_train_batch_size": 3, "predict_with_generate": True, "push_to_hub": True, "save_steps": 7,
    "save_strategy": "epoch", "save_total_limit": 3, "seed": 3, "skip_memory_metrics": False, "tokens_per_batch": 90,
    "torch_compile": True, "train_sampling_strategy": "random", "use_cpu": True, "warmup_steps": 5,
    "weight_decay": 0.01,
}  # fmt: skip
BESIDE: dict[str, dict[str, Any]] = {
    "early_stopping_patience": {"eval_strategy": "epoch"},
    "eval_steps": {"eval_strategy": "steps"},
    "generation_num_beams": {"predict_with_generate": True},
    "greater_is_better": {"metric_for_best_model": "perplexity"},
    "load_best_model_at_end": {"eval_strategy": "epoch", "save_strategy": "epoch"},
    "lr_scheduler_kwargs": {"lr_scheduler_type": "cosine_with_restarts"},
}


def test_the_keys_have_the_defaults_of_the_arguments():
    defaults = arguments_with_defaults({})
    defaults["gradient_checkpointing"] = defaults["gradient_checkpointing"] or None  # False on transformers 5.17
    keys = TrainKeys.model_fields
    assert {name: field.default for name, field in keys.items()} == {name: defaults[name] for name in keys}
    assert keys.keys() - VALUES.keys() == {"fp16", "report_to"}, "tested where a GPU or a tracker is at hand"


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing")
@pytest.mark.parametrize("name", VALUES)
def test_a_key_is_passed_on_as_it_is_given(tmp_path, name):
    given = {"use_cpu": True} | BESIDE.get(name, {}) | {name: VALUES[name]}
    parse(TrainKeys, given, "train")
    assert getattr(training_arguments(given, tmp_path), name) == VALUES[name]


OTHERS = sorted({field.name for field in fields(Seq2SeqTrainingArguments)} - TrainKeys.model_fields.keys())


@pytest.mark.parametrize("name", OTHERS)
def test_every_other_argument_is_refused_by_its_name(name):
    with pytest.raises(ValueError, match=rf"^train has no key '{name}'; the nearest one is '\w+'\.$"):
        parse(TrainKeys, {name: "secret"}, "train")


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
    ({"early_stopping_patience": 2}, r"train.early_stopping_patience needs evaluations, but .* is no; set it"),
    (
        {"load_best_model_at_end": True, "save_strategy": "no"},
        r"load_best_model_at_end=true needs evaluations, but .*no;",
    ),
    ({"load_best_model_at_end": True}, r"^train.load_best_model_at_end requires the save and eval strategy to match"),
    ({"save_strategy": "best"}, r"train.save_strategy=best needs evaluations, but .* is no; set it"),
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
        {"eval_strategy": "epoch"},
        WITHOUT_VALIDATION,
        r"Evaluations need a validation set, .*data.validation.*; name",
    ),
    (
        {},
        {"gradient_checkpointing": True},
        {"model": RNN},
        r"second: train.gradient_checkpointing is .*rnn_nmt; leave it",
    ),
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
