"""A run that was killed, stopped or out of disk ends with bit-equal parameters to an uninterrupted run."""

import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from support.experiments import ONE_SYSTEM, ROOT

# Children are forked off a process that has imported everything, so that they start at once.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["hf_posenc.lab.run.pipeline"])


def write_config(tmp_path: Path, steps: int, save_steps: int = 1) -> Path:
    path = tmp_path / "tiny.yaml"
    train = ONE_SYSTEM["train"] | {"max_steps": steps, "save_steps": save_steps, "logging_steps": 1}
    path.write_text(yaml.safe_dump(ONE_SYSTEM | {"train": train}), encoding="utf-8")
    return path


def run(path: Path, name: str, largest_file: int | None = None) -> None:
    """What a child does: all of train.py for one system."""
    from hf_posenc.lab.config.loading import load_experiment
    from hf_posenc.lab.run.pipeline import run_system
    from hf_posenc.lab.run.prepare import prepare
    from hf_posenc.lab.run.prepared_run import PreparedRun

    torch.set_num_threads(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    experiment = load_experiment(path, [f"output_dir={path.parent / 'runs'}", f"name={name}"])
    prepare(experiment)
    if largest_file is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, resource.RLIM_INFINITY))
    run_system(PreparedRun(experiment), "relative")


def started(path: Path, name: str, **limits: int) -> multiprocessing.Process:
    child = PROCESSES.Process(target=run, args=(path, name), kwargs=limits)
    child.start()
    return child


def log(path: Path, name: str) -> list[str]:
    file = path.parent / "runs" / name / "relative" / "training.jsonl"
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def weights(path: Path, name: str) -> dict[str, torch.Tensor]:
    return load_file(path.parent / "runs" / name / "relative" / "model" / "model.safetensors")


def assert_same_parameters(path: Path, *names: str) -> None:
    one, other = (weights(path, name) for name in names)
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


def steps_of(lines: list[str]) -> int:
    return sum('"loss"' in line for line in lines)


@pytest.mark.slow
def test_a_run_killed_at_random_moments_ends_with_the_parameters_of_one_left_alone(tmp_path):
    """It saves at every step, so that most moments are inside the writing or the deleting of a checkpoint."""
    path, moment = write_config(tmp_path, steps=40), random.Random(1)
    straight = started(path, "straight")
    straight.join()
    assert straight.exitcode == 0
    for _ in range(4):
        child, before = started(path, "killed"), len(log(path, "killed"))
        while child.is_alive() and len(log(path, "killed")) == before:
            time.sleep(0.01)
        time.sleep(moment.uniform(0.0, 0.3))
        assert child.is_alive(), "the run is long enough for all the kills"
        child.kill()
        child.join()
    last = started(path, "killed")
    last.join()
    assert last.exitcode == 0
    assert_same_parameters(path, "straight", "killed")
    assert steps_of(log(path, "killed")) == steps_of(log(path, "straight")) == 40


@pytest.mark.slow
def test_sigterm_saves_the_current_step_and_the_run_resumes_from_it(tmp_path):
    path = write_config(tmp_path, steps=60, save_steps=1000)  # nothing but the signal saves
    straight, told = started(path, "straight"), started(path, "told")
    while len(log(path, "told")) < 4:
        assert told.is_alive()
        time.sleep(0.01)
    told.terminate()
    told.join()
    assert told.exitcode == 1
    assert not (tmp_path / "runs" / "told" / "relative" / "model").exists()
    done = steps_of(log(path, "told"))
    assert (tmp_path / "runs" / "told" / "relative" / "checkpoints" / f"checkpoint-{done}").is_dir()
    again = started(path, "told")
    again.join()
    straight.join()
    assert (straight.exitcode, again.exitcode) == (0, 0)
    assert_same_parameters(path, "straight", "told")


@pytest.mark.slow
def test_a_run_out_of_disk_goes_on_once_there_is_room(tmp_path):
    """No file may grow beyond a limit between that of the weights and that of the optimiser, twice as large."""
    path = write_config(tmp_path, steps=6)
    straight = started(path, "straight")
    straight.join()
    size = (tmp_path / "runs" / "straight" / "relative" / "model" / "model.safetensors").stat().st_size
    full = started(path, "full", largest_file=int(1.5 * size))
    full.join()
    assert full.exitcode == 1
    checkpoint = tmp_path / "runs" / "full" / "relative" / "checkpoints" / "checkpoint-1"
    assert (checkpoint / "model.safetensors").is_file()
    again = started(path, "full")
    again.join()
    assert (straight.exitcode, again.exitcode) == (0, 0)
    assert_same_parameters(path, "straight", "full")


def command(path: Path, name: str) -> subprocess.Popen:
    """The command itself, in a session of its own, whose processes a terminal's Ctrl-C would all reach."""
    train = [sys.executable, str(ROOT / "train.py"), str(path), f"output_dir={path.parent / 'runs'}", f"name={name}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(
        train, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2], ids=["one process", "two systems side by side"])
def test_ctrl_c_is_one_line_and_leaves_no_process(tmp_path, number):
    """Standard output ends when none of the processes is left."""
    path = write_config(tmp_path, steps=4000, save_steps=1000)
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    names = ["relative", "other"][:number]
    path.write_text(yaml.safe_dump(config | {"systems": {name: {} for name in names}, "num_parallel": number}))
    with command(path, "run") as process:
        while not all((tmp_path / "runs" / "run" / name / "training.jsonl").exists() for name in names):
            assert process.poll() is None, process.stdout.read()
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        said = process.stdout.read()
    assert "Traceback" not in said and "KeyboardInterrupt" not in said
    assert "the same command" in said.splitlines()[-1]
    assert process.returncode == (128 + signal.SIGINT if number == 1 else 1)


@pytest.mark.slow
def test_ctrl_c_while_modules_are_imported_shows_no_traceback(tmp_path):
    with command(write_config(tmp_path, steps=1), "run") as process:
        while "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text():
            assert process.poll() is None
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        assert process.stdout.read() == ""
    assert process.returncode == -signal.SIGINT
