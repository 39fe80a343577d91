"""Runs systems in parallel, each in its own process with an equal number of CPU cores."""

import os
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from graphlib import TopologicalSorter
from queue import SimpleQueue
from types import FrameType

from ...utils.worker_processes import sigint_blocked
from ..config.settings import System

SIGKILL_EXIT_CODE = -9  # exit code of a process killed by SIGKILL


def run_parallel(systems: Sequence[System], command: list[str], *, num_parallel: int, num_threads: int) -> None:
    """Run each system in its own process, `num_parallel` at a time, each with `num_threads` threads.

    `command` runs this config. The system's name and the line of its progress bar are appended to it. If a system
    fails, the others still finish. SIGTERM and SIGINT are passed to the running processes as SIGTERM, and no further
    process is started. The standard input of each process is a pipe that closes when this process ends, which
    `watched_command` watches.
    """
    environment = os.environ | {"OMP_NUM_THREADS": str(num_threads)}
    free_positions: SimpleQueue[int] = SimpleQueue()
    for position in range(num_parallel):
        free_positions.put(position)
    running: list[subprocess.Popen] = []
    exit_codes: dict[str, int] = {}
    received_signals: list[int] = []

    def run(name: str) -> int:
        position = free_positions.get()
        try:
            if received_signals:
                return 1
            system_command = [*command, "--system", name, "--progress-position", str(position)]
            with sigint_blocked():  # Ctrl-C reaches all processes of a terminal, and only this one answers
                process = subprocess.Popen(system_command, env=environment, stdin=subprocess.PIPE)
            with process:
                running.append(process)
                if received_signals:  # a signal came while the process was started
                    process.terminate()
                return process.wait()
        finally:
            free_positions.put(position)

    def forward_signal(number: int, frame: FrameType | None) -> None:
        received_signals.append(number)
        for process in running:
            process.terminate()

    previous_handlers = {number: signal.signal(number, forward_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with ThreadPoolExecutor(num_parallel) as pool:
            for batch in topological_batches(systems):
                exit_codes |= zip(batch, pool.map(run, batch), strict=True)
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
    raise_on_failure(exit_codes, received_signals)


def raise_on_failure(exit_codes: Mapping[str, int], received_signals: Sequence[int]) -> None:
    """Raise a SystemExit with the names of the failed systems and the reason. `received_signals` are the signals that
    were passed on."""
    failed = [name for name, code in exit_codes.items() if code != 0]
    killed = [name for name, code in exit_codes.items() if code == SIGKILL_EXIT_CODE]
    if not failed:
        return
    reason = "SIGKILL" if killed == failed else "An error, printed above,"
    reason = signal.Signals(received_signals[0]).name if received_signals else reason
    hint = f" {', '.join(killed)}: killed, likely because memory ran out; lower `num_parallel`." if killed else ""
    raise SystemExit(f"{reason} stopped {', '.join(failed)}; the same command goes on from there.{hint}")


def threads_per_system(systems: Iterable[System], num_parallel: int) -> int:
    """The number of threads of each system of a config.

    Floating-point sums depend on the number of threads. Therefore it depends only on the config and the machine, and a
    resumed system computes the same bits.
    """
    widest = max(len(batch) for batch in topological_batches(systems))
    return max(1, (os.cpu_count() or 1) // min(num_parallel, widest))


def topological_batches(systems: Iterable[System]) -> Iterator[tuple[str, ...]]:
    """The names of the systems in batches. A system comes after the system whose model it needs, if that is in
    `systems`."""
    by_name = {system.name: system for system in systems}
    graph = TopologicalSorter[str]()
    for name, system in by_name.items():
        graph.add(name)
        if system.dependency is not None and system.dependency.name in by_name:
            graph.add(name, system.dependency.name)
    graph.prepare()
    while graph.is_active():
        batch = graph.get_ready()
        yield batch
        graph.done(*batch)
