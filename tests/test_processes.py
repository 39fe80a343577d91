"""Two processes train, evaluate and translate as one does that accumulates two batches."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_experiment import ROOT, TINY


def finished(path: Path, *command: str) -> tuple[list[dict[str, Any]], dict[str, Any], str]:
    """The log, the result and the translations of a run to its end."""
    name = next(word for word in command if word.startswith("name=")).removeprefix("name=")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    child = subprocess.run(
        [sys.executable, *command, f"output={path.parent / 'runs'}"],
        env=environment,
        cwd=path.parent,
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, child.stderr[-4000:]
    folder = path.parent / "runs" / name / "relative"
    log = [json.loads(line) for line in (folder / "training.jsonl").read_text(encoding="utf-8").splitlines()]
    result = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    return log, result, (folder / "translations" / "generated.jsonl").read_text(encoding="utf-8")


@pytest.mark.slow
def test_two_processes_do_what_one_does_that_accumulates_two_batches(tmp_path):
    path, train = tmp_path / "tiny.yaml", str(ROOT / "train.py")
    settings = {
        "model": TINY["model"] | {"dropout": 0.0},
        "train": TINY["train"] | {"tokens_per_batch": 100, "max_steps": 12, "evaluations_per_epoch": 2},
        "systems": {"relative": {}},
    }
    path.write_text(yaml.safe_dump(TINY | settings), encoding="utf-8")
    launch = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "29541"]
    two_log, two, two_texts = finished(path, *launch, train, str(path), "name=two")
    one_log, one, one_texts = finished(path, train, str(path), "name=one", "train.gradient_accumulation_steps=2")
    assert (one["training"].pop("processes"), two["training"].pop("processes")) == (1, 2)
    assert [line["step"] for line in one_log] == [line["step"] for line in two_log]
    compared = 0
    for ours, theirs in zip(one_log, two_log, strict=True):
        for key in ("loss", "eval_loss", "eval_perplexity", "learning_rate", "padding"):
            assert (key in ours) == (key in theirs)
            if key in ours:
                assert ours[key] == pytest.approx(theirs[key], rel=1e-5), (ours["step"], key)
                compared += 1
    assert compared > 3 * 12
    assert one["tests"] == two["tests"]
    assert one_texts == two_texts
    assert len(one_texts.splitlines()) == 6
