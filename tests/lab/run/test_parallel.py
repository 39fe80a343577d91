"""Parallel systems: how many threads each uses."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.experiments import TINY

from hf_posenc.lab.config.loading import load_experiment
from hf_posenc.lab.config.settings import System
from hf_posenc.lab.run.train import run_parallel, threads_per_system


def of_systems(tmp_path: Path, num_parallel: int, systems: dict[str, Any]) -> dict[str, System]:
    path = tmp_path / "some.yaml"
    path.write_text(yaml.safe_dump(TINY | {"systems": systems, "num_parallel": num_parallel}), encoding="utf-8")
    return load_experiment(path, [f"output_dir={tmp_path / 'runs'}"]).systems


@pytest.mark.parametrize(
    ("cores", "jobs", "systems", "threads"),
    [
        (8, 2, {"a": {}, "b": {}, "c": {}}, 4),
        (8, 3, {"a": {}, "b": {}, "c": {}}, 2),
        (8, 8, {"a": {}, "b": {}}, 4),
        (8, 4, {"a": {}, "b": {"init_from": "a"}}, 8),  # never at a time
        (2, 4, {"a": {}, "b": {}, "c": {}, "d": {}}, 1),
        (None, 2, {"a": {}, "b": {}}, 1),
    ],
)
def test_systems_share_the_cores_of_the_machine(tmp_path, monkeypatch, cores, jobs, systems, threads):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert threads_per_system(of_systems(tmp_path, jobs, systems).values(), jobs) == threads


@pytest.mark.parametrize("unfinished", [["a", "b", "c"], ["a", "c"], ["b"]])
def test_a_system_has_as_many_threads_whatever_is_finished(tmp_path, monkeypatch, unfinished):
    """Sums over several threads depend on their number, and so would the parameters of a killed run."""
    write_threads = 'echo "$OMP_NUM_THREADS" > "$1/threads-$3"'  # $2 and $3 are --system and its name
    command = ["sh", "-c", write_threads, "sh", str(tmp_path)]
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    systems = of_systems(tmp_path, 3, {"a": {}, "b": {}, "c": {}})
    num_threads = threads_per_system(systems.values(), 3)
    run_parallel([systems[name] for name in unfinished], command, num_parallel=3, num_threads=num_threads)
    seen = {path.name: path.read_text() for path in tmp_path.glob("threads-*")}
    assert seen == {f"threads-{name}": "2\n" for name in unfinished}
