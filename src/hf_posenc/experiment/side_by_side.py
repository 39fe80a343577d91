"""Systems of an experiment as processes of their own, some at a time, each with its share of the cores."""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

from ..config.settings import Experiment
from .system import unfinished_systems


def run_side_by_side(experiment: Experiment, command: list[str]) -> None:
    """Run the unfinished systems as processes of their own, `experiment.jobs` at a time, sharing the cores.

    `command` runs this config; the name of a system and the line of its progress bar are appended to it. If a system
    fails, the others still finish. SIGTERM is passed on to those that run, and no other is begun.
    """
    turns = list(waves(experiment, unfinished_systems(experiment)))
    widest = max(map(len, turns), default=1)
    threads = max(1, (os.cpu_count() or 1) // min(experiment.jobs, widest))
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    lines: SimpleQueue[int] = SimpleQueue()
    for line in range(experiment.jobs):
        lines.put(line)
    running: list[subprocess.Popen] = []
    failed: list[str] = []
    told = threading.Event()

    def run(name: str) -> int:
        line = lines.get()
        try:
            if told.is_set():
                return 1
            process = subprocess.Popen([*command, "--system", name, "--bar", str(line)], env=environment)
            running.append(process)
            return process.wait()
        finally:
            lines.put(line)

    def pass_on(number: int, frame: Any) -> None:
        told.set()
        for process in running:
            process.send_signal(number)

    before = signal.signal(signal.SIGTERM, pass_on)
    try:
        with ThreadPoolExecutor(experiment.jobs) as pool:
            for turn in turns:
                failed += [name for name, code in zip(turn, pool.map(run, turn), strict=True) if code != 0]
    finally:
        signal.signal(signal.SIGTERM, before)
    if failed:
        reason = "SIGTERM" if told.is_set() else "An error, printed above,"
        raise SystemExit(f"{reason} stopped {', '.join(failed)}; the same command goes on from there.")


def waves(experiment: Experiment, names: list[str]) -> Iterator[list[str]]:
    """The systems, those that need another one's model behind it."""
    rest = names
    while rest:
        origins = {name: experiment.origin(experiment.systems[name]) for name in rest}
        wave = [name for name, origin in origins.items() if origin is None or origin.name not in rest]
        yield wave
        rest = [name for name in rest if name not in wave]
