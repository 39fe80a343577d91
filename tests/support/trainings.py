"""Tiny trainings with checkpoints."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file

from hf_posenc.lab.config.loading import load_experiment
from hf_posenc.lab.config.settings import Experiment
from hf_posenc.lab.run.pipeline import run_system
from hf_posenc.lab.run.prepare import prepare
from hf_posenc.lab.run.prepared_run import PreparedRun
from support.experiments import ONE_SYSTEM


def tiny(tmp_path: Path, *overrides: str) -> Experiment:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(ONE_SYSTEM), encoding="utf-8")
    budget = ["train.tokens_per_batch=120", "train.max_steps=-1", "train.num_train_epochs=2"]
    return load_experiment(path, [f"output_dir={tmp_path / 'runs'}", *budget, *overrides])


def trained(experiment: Experiment) -> list[dict[str, Any]]:
    """The log of a run to its end."""
    prepare(experiment)
    run_system(PreparedRun(experiment), "relative")
    return log_of(experiment)


def log_of(experiment: Experiment) -> list[dict[str, Any]]:
    text = (experiment.folder / "relative" / "training.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def weights_of(experiment: Experiment) -> dict[str, torch.Tensor]:
    return load_file(experiment.folder / "relative" / "model" / "model.safetensors")


LATE = ["train.max_steps=6", "train.save_steps=2", "train.lr_scheduler_type=constant", "train.logging_steps=1"]


def without_its_model(experiment: Experiment, last: int) -> None:
    """What a run leaves that is killed after a checkpoint is saved, and before its model is."""
    folder = experiment.folder / "relative"
    for part in ("model", "translations", "statistics"):
        shutil.rmtree(folder / part)
    (folder / "scores.json").unlink()
    for checkpoint in folder.glob("checkpoints/checkpoint-*"):
        if int(checkpoint.name.split("-")[1]) > last:
            shutil.rmtree(checkpoint)


def facts_of(experiment: Experiment) -> dict[str, Any]:
    return json.loads((experiment.folder / "relative" / "model" / "training.json").read_text())


STEPS = ["train.eval_strategy=steps", "train.eval_steps=2"]
