"""Systems of an experiment as processes of their own, some at a time, each with its share of the cores."""

import os
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from graphlib import TopologicalSorter
from queue import SimpleQueue
from types import FrameType

from ..config.settings import System

SIGKILL_EXIT_CODE = -9  # the code of a process that SIGKILL has ended


def run_parallel(systems: Sequence[System], command: list[str], *, num_parallel: int, num_threads: int) -> None:
    """Run the systems as processes of their own, `num_parallel` at a time, each with `num_threads`.

    `command` runs this config; the name of a system and the line of its progress bar are appended to it. If a system
    fails, the others still finish. SIGTERM and SIGINT reach those that run as SIGTERM, and no other is begun. Each has
    a pipe as its standard input, which closes when this process ends, in whatever way (`terminate_when_stdin_closes`).
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
            with subprocess.Popen(system_command, env=environment, stdin=subprocess.PIPE) as process:
                running.append(process)
                if received_signals:  # while it was started
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
    """A SystemExit that names the systems whose processes ended with another code than 0, and why; `received_signals`
    are the signals that were passed on."""
    failed = [name for name, code in exit_codes.items() if code != 0]
    killed = [name for name, code in exit_codes.items() if code == SIGKILL_EXIT_CODE]
    if not failed:
        return
    reason = "SIGKILL" if killed == failed else "An error, printed above,"
    reason = signal.Signals(received_signals[0]).name if received_signals else reason
    hint = f" {', '.join(killed)}: killed, likely because memory ran out; lower `num_parallel`." if killed else ""
    raise SystemExit(f"{reason} stopped {', '.join(failed)}; the same command goes on from there.{hint}")


def threads_per_system(systems: Iterable[System], num_parallel: int) -> int:
    """How many threads a system computes with, of all `systems` of a config.

    Sums over several threads depend on their number. So it follows from the config and the machine, never from which
    systems are finished: a killed system resumes to the same bits.
    """
    widest = max(len(batch) for batch in topological_batches(systems))
    return max(1, (os.cpu_count() or 1) // min(num_parallel, widest))


def topological_batches(systems: Iterable[System]) -> Iterator[tuple[str, ...]]:
    """The names of the systems in batches; a system comes after the one whose model it needs, if that is among them."""
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
