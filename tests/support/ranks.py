"""Several processes of one training."""

import faulthandler
import json
import multiprocessing
import os
import runpy
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file

import hf_posenc.lab.reports.report
from support.experiments import ONE_SYSTEM, ROOT

TRAIN, ACCELERATE = str(ROOT / "train.py"), ROOT / "configs" / "accelerate"


# Ranks are forked off a process that has imported everything, so that they start at once.
PROCESSES = multiprocessing.get_context("forkserver")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def become_rank(number: int, port: int, output: Path) -> None:
    """Be one of two processes, as torchrun would start it, and print to a file."""
    places = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in (places | {"OMP_NUM_THREADS": 1}).items()})
    torch.set_num_threads(1)
    for stream in (1, 2):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    faulthandler.enable(2)


def rank(number: int, port: int, output: Path, words: list[str], before: Callable[[], Any] | None) -> None:
    """What one of two processes does: all of train.py, and something of its own before."""
    become_rank(number, port, output)
    if before is not None:
        before()
    hf_posenc.lab.reports.report.write_figures = lambda *arguments: ""  # they take longer than the training
    sys.argv = [TRAIN, *words]
    runpy.run_path(TRAIN, run_name="__main__")


class Ranks:
    """Two processes that run `train.py CONFIG overrides`; the second one has other overrides as well, and each may do
    something of its own before."""

    def __init__(
        self,
        config: Path,
        name: str,
        *overrides: str,
        others: tuple[str, ...] = (),
        before: tuple[Callable[[], Any] | None, Callable[[], Any] | None] = (None, None),
    ) -> None:
        words = [str(config), f"output_dir={config.parent / 'runs'}", f"name={name}", *overrides]
        self.folder = config.parent / "runs" / name / "relative"
        self.printed = [config.parent / f"{name}-{number}-{time.monotonic_ns()}.txt" for number in range(2)]
        port = free_port()
        self.processes = [
            PROCESSES.Process(target=rank, args=(number, port, self.printed[number], [*words, *own], before[number]))
            for number, own in enumerate(((), others))
        ]
        for process in self.processes:
            process.start()

    def end(self, seconds: float = 400.0) -> list[int | None]:
        """Their exit codes; none may hang."""
        for process in self.processes:
            process.join(seconds)
        codes = [process.exitcode for process in self.processes]
        for process in self.processes:
            process.kill()
        assert None not in codes, f"a process hangs: {[path.read_text() for path in self.printed]}"
        return codes

    def texts(self) -> list[str]:
        return [path.read_text(encoding="utf-8") for path in self.printed]

    def log(self) -> list[dict[str, Any]]:
        path = self.folder / "training.jsonl"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def weights(self) -> Mapping[str, torch.Tensor]:
        return load_file(self.folder / "model" / "model.safetensors")


def same(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def write_config(tmp_path: Path, **train: Any) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(ONE_SYSTEM | {"train": ONE_SYSTEM["train"] | train}), encoding="utf-8")
    return path
