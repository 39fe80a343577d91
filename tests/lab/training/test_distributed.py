"""Two processes equal one that accumulates two batches, in training, evaluation and translation; they start and stop
together."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import launch_command_parser
from support.experiments import ROOT, TINY
from support.ranks import ACCELERATE, PROCESSES, TRAIN, Ranks, free_port, same, write_config
from transformers import Seq2SeqTrainer

from hf_posenc.lab.run.prepared_run import PreparedSystem
from hf_posenc.lab.training.distributed import init_distributed

PROCESSES.set_forkserver_preload(["hf_posenc.lab.run.pipeline"])


def finished(path: Path, *command: str) -> tuple[list[dict[str, Any]], dict[str, Any], str]:
    """The log, the result and the translations of a run to its end."""
    name = next(word for word in command if word.startswith("name=")).removeprefix("name=")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    child = subprocess.run(
        [sys.executable, *command, f"output_dir={path.parent / 'runs'}"],
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
    """On a machine without a GPU, whatever the config says of `use_cpu`. The batches of an epoch are even in number, or
    two processes would cut one in two."""
    path = tmp_path / "tiny.yaml"
    settings = {
        "model": TINY["model"] | {"dropout": 0.0},
        "train": TINY["train"] | {"tokens_per_batch": 110, "max_steps": 12, "evaluations_per_epoch": 2},
        "systems": {"relative": {}},
    }
    path.write_text(yaml.safe_dump(TINY | settings), encoding="utf-8")
    torchrun = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", str(free_port())]
    on_cpu = f"train.use_cpu={str(torch.accelerator.is_available()).lower()}"
    two_log, two, two_texts = finished(path, *torchrun, TRAIN, str(path), "name=two", on_cpu)
    one_log, one, one_texts = finished(path, TRAIN, str(path), "name=one", "train.gradient_accumulation_steps=2")
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
    spent = [result["tests"][test].pop("time")["processes"] for result in (one, two) for test in one["tests"]]
    assert spent == [1, 1, 2, 2]
    assert one["tests"] == two["tests"]
    assert one_texts == two_texts
    assert len(one_texts.splitlines()) == 6


# Together or not at all


@pytest.mark.slow
def test_sigterm_to_one_process_stops_both_and_the_same_command_goes_on(tmp_path):
    path = write_config(tmp_path, max_steps=40, save_steps=1000)  # nothing but the signal saves
    straight, told = Ranks(path, "straight"), Ranks(path, "told")
    while len(told.log()) < 4:
        assert all(process.is_alive() for process in told.processes), told.texts()
        time.sleep(0.01)
    told.processes[1].terminate()
    assert told.end() == [1, 1]
    done = told.log()[-1]["step"]
    assert done < 40
    for text in told.texts():
        assert f"SIGTERM stopped relative at step {done}; the same command goes on from there." in text
    assert (told.folder / "checkpoints" / f"checkpoint-{done}" / "rng_state_1.pth").is_file()
    assert not (told.folder / "model").exists()
    again = Ranks(path, "told")
    assert again.end() == straight.end() == [0, 0]
    assert same(straight.weights(), again.weights())


def lose_two_pairs() -> None:
    whole = PreparedSystem.training_pairs.func
    PreparedSystem.training_pairs = property(lambda system: whole(system).select(range(58)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("others", "before", "message"),
    [
        (["train.seed=7"], None, r"systems.relative.train.seed was None and is 7"),
        (
            ["output_dir={folder}/elsewhere"],
            None,
            r"relative/settings.yaml was 'written at \d+' and is 'missing'; .* file system that they",
        ),
        ([], lose_two_pairs, r"training pairs was '60 \w+' and is '58 \w+'"),
    ],
    ids=["settings", "folder", "pairs"],
)
def test_processes_with_different_work_all_raise_and_end(tmp_path, others, before, message):
    own = tuple(word.format(folder=tmp_path) for word in others)
    ranks = Ranks(write_config(tmp_path), "ranks", others=own, before=(None, before))
    assert ranks.end() == [1, 1]
    for text in ranks.texts():
        assert re.search(rf"ValueError: The processes of a run .* between process 0 and process 1 .*{message}", text)


def poison() -> None:
    """The loss, not the gradient: the other process would go on."""
    step = Seq2SeqTrainer.training_step
    Seq2SeqTrainer.training_step = lambda self, *args: (
        step(self, *args) * (float("nan") if self.state.global_step == 5 else 1.0)
    )


@pytest.mark.full
def test_a_nan_loss_in_one_process_stops_both_before_they_save(tmp_path):
    ranks = Ranks(write_config(tmp_path), "ranks", before=(None, poison))
    assert ranks.end() == [1, 1]
    first, second = ranks.texts()
    assert "FloatingPointError: Training stops because the loss of another process is not to be trained on" in first
    assert re.search(r"FloatingPointError: .* at step 6 it is nan, on \d+ pairs, .* -> .*checkpoint-4\. Lower", second)
    assert sorted(path.name for path in (ranks.folder / "checkpoints").iterdir()) == ["checkpoint-2", "checkpoint-4"]


# accelerate launch


@pytest.mark.parametrize("path", sorted(ACCELERATE.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_launch_file_has_only_settings_that_accelerate_knows(path):
    """It leaves to the config how to compute, and says how it is meant."""
    settings = load_config_from_file(str(path))  # a ValueError for any other
    assert (settings.mixed_precision, settings.dynamo_config) == ("no", {})
    options = vars(launch_command_parser().parse_args([TRAIN]))
    assert settings.fsdp_config.keys() <= options.keys()
    assert f"accelerate launch --config_file configs/accelerate/{path.name}" in path.read_text(encoding="utf-8")


def launch(file: str, *options: str, **popen: Any) -> subprocess.Popen:
    port = ["--main_process_port", str(popen.pop("port", free_port()))]
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(ACCELERATE / f"{file}.yaml")]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    return subprocess.Popen(
        [*command, *port, *options],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **popen,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "processes", "expected"),
    [
        ("one_gpu", 1, {"CUDA_VISIBLE_DEVICES": "0"}),
        ("eight_gpus", 8, {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}),
        ("fsdp", 8, {"WORLD_SIZE": "8", "ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}),
    ],
)
def test_a_launch_file_starts_what_it_says(tmp_path, file, processes, expected):
    script = tmp_path / "script.py"
    script.write_text(
        "import json, os\njson.dump(dict(os.environ), open(f'rank-{os.environ.get(\"RANK\", 0)}.json', 'w'))\n",
        encoding="utf-8",
    )
    printed, _ = (child := launch(file, str(script), cwd=tmp_path)).communicate()
    assert (child.returncode, printed.strip()) == (0, "")
    found = [json.loads(path.read_text(encoding="utf-8")) for path in tmp_path.glob("rank-*.json")]
    assert len(found) == processes
    for environment in found:
        assert environment.items() >= {**expected, "ACCELERATE_MIXED_PRECISION": "no"}.items()


@pytest.mark.slow
def test_two_nodes_train_one_system(tmp_path):
    """On one machine, each node one process."""
    path, port = write_config(tmp_path), free_port()
    words = [
        "--main_process_ip",
        "127.0.0.1",
        "--num_processes",
        "2",
        TRAIN,
        str(path),
        f"output_dir={tmp_path / 'runs'}",
    ]
    nodes = [launch("two_nodes", "--machine_rank", str(node), *words, port=port) for node in range(2)]
    printed = [node.communicate()[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], printed
    assert "Each system trains in 2 processes on cpu." in printed[0]
    facts = tmp_path / "runs" / "tiny" / "relative" / "model" / "training.json"
    assert json.loads(facts.read_text(encoding="utf-8"))["processes"] == 2


def test_one_process_where_several_were_asked_for_is_refused(monkeypatch):
    """What `accelerate launch --cpu --num_processes 2` leaves in the environment of its one process."""
    left = {"ACCELERATE_USE_CPU": "True", "ACCELERATE_MIXED_PRECISION": "no", "MASTER_ADDR": "127.0.0.1"}
    for name, value in {**left, "ACCELERATE_TORCH_DEVICE": "cpu"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=r"started 1 .*--num_processes.*; .* torchrun --nproc_per_node"):
        init_distributed(use_cpu=True)


@pytest.mark.parametrize(("variable", "setting"), [("MIXED_PRECISION", "bf16"), ("DYNAMO_BACKEND", "torch_compile")])
def test_a_launcher_does_not_say_how_to_compute(monkeypatch, variable, setting):
    monkeypatch.setenv(f"ACCELERATE_{variable}", "bf16")
    with pytest.raises(ValueError, match=rf"has {variable.lower()}=bf16; give it .*=no, and train.{setting}=true"):
        init_distributed(use_cpu=True)
