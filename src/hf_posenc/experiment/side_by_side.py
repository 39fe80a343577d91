"""Systems of an experiment as processes of their own, some at a time, each with its share of the cores."""

import os
import signal
import subprocess
import threading
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
    turns = unfinished_turns(experiment)
    threads = max(1, (os.cpu_count() or 1) // max(1, min(experiment.jobs, max(map(len, turns)))))
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    lines: SimpleQueue[int] = SimpleQueue()
    for line in range(experiment.jobs):
        lines.put(line)
    running: list[subprocess.Popen] = []
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
            failed = [name for turn in turns for name, code in zip(turn, pool.map(run, turn), strict=True) if code]
    finally:
        signal.signal(signal.SIGTERM, before)
    if failed:
        reason = "SIGTERM" if told.is_set() else "An error, printed above,"
        raise SystemExit(f"{reason} stopped {', '.join(failed)}; the same command goes on from there.")


def unfinished_turns(experiment: Experiment) -> tuple[list[str], list[str]]:
    """The unfinished systems that are trained, and those that split, which use their models."""
    waiting = unfinished_systems(experiment)
    split = [name for name in waiting if experiment.systems[name].split]
    return [name for name in waiting if name not in split], split
