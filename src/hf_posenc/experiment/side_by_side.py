"""Systems of an experiment as processes of their own, some at a time, each with its share of the cores."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

from ..config.settings import Experiment
from .system import unfinished_systems

KILLED = -9  # the code of a process that SIGKILL has ended


def run_side_by_side(experiment: Experiment, command: list[str]) -> None:
    """Run the unfinished systems as processes of their own, `experiment.jobs` at a time, sharing the cores.

    `command` runs this config; the name of a system and the line of its progress bar are appended to it. If a system
    fails, the others still finish. SIGTERM and SIGINT reach those that run as SIGTERM, and no other is begun. Each has
    a pipe as its standard input, which closes when this process ends, in whatever way (`end_with_standard_input`).
    """
    environment = os.environ | {"OMP_NUM_THREADS": str(threads_each(experiment))}
    turns = waves(experiment, unfinished_systems(experiment))
    lines: SimpleQueue[int] = SimpleQueue()
    for line in range(experiment.jobs):
        lines.put(line)
    running: list[subprocess.Popen] = []
    codes: dict[str, int] = {}
    told: list[int] = []

    def run(name: str) -> int:
        line = lines.get()
        try:
            if told:
                return 1
            one = [*command, "--system", name, "--bar", str(line)]
            with subprocess.Popen(one, env=environment, stdin=subprocess.PIPE) as process:
                running.append(process)
                if told:  # while it was started
                    process.terminate()
                return process.wait()
        finally:
            lines.put(line)

    def pass_on(number: int, frame: Any) -> None:
        told.append(number)
        for process in running:
            process.terminate()

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with ThreadPoolExecutor(experiment.jobs) as pool:
            for turn in turns:
                codes |= zip(turn, pool.map(run, turn), strict=True)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    refuse_failed(codes, told)


def refuse_failed(codes: Mapping[str, int], told: Sequence[int]) -> None:
    """A SystemExit that names the systems whose processes ended with another code than 0, and why; `told` are the
    signals that were passed on."""
    failed = [name for name, code in codes.items() if code != 0]
    killed = [name for name, code in codes.items() if code == KILLED]
    if not failed:
        return
    reason = "SIGKILL" if killed == failed else "An error, printed above,"
    reason = signal.Signals(told[0]).name if told else reason
    hint = f" {', '.join(killed)}: killed, likely because memory ran out; lower `jobs`." if killed else ""
    raise SystemExit(f"{reason} stopped {', '.join(failed)}; the same command goes on from there.{hint}")


def threads_each(experiment: Experiment) -> int:
    """How many threads a system computes with. Sums over several threads depend on their number, so it follows from the
    config and the machine, never from which systems are finished: a killed system resumes to the same bits."""
    widest = max(len(wave) for wave in waves(experiment, list(experiment.systems)))
    return max(1, (os.cpu_count() or 1) // min(experiment.jobs, widest))


def waves(experiment: Experiment, names: list[str]) -> Iterator[list[str]]:
    """The systems, those that need another one's model behind it."""
    rest = names
    while rest:
        origins = {name: experiment.origin(experiment.systems[name]) for name in rest}
        wave = [name for name, origin in origins.items() if origin is None or origin.name not in rest]
        yield wave
        rest = [name for name in rest if name not in wave]
