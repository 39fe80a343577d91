"""The command `train`: the systems of a config file are trained, scored by source length and compared.

A dry run prints the cost of each system: parameters, steps, tokens and disk. It reads no data and writes nothing.
Systems can run in parallel, each in its own process with an equal number of CPU cores.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from graphlib import TopologicalSorter
from math import ceil, prod
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import cast

import datasets
import torch
import transformers
from accelerate import PartialState

from ...encodings.base import StackSpec
from ...hub.version import untested_transformers_warning
from ...utils.atomic_io import explain_full_disk
from ...utils.run_folder import RunPaths
from ...utils.worker_processes import sigint_blocked, watched_command
from ..config.loading import load_experiment
from ..config.settings import Experiment, Segmentation, System
from ..reports.report import is_text_results, next_steps, write_report
from ..results.aggregation import aggregate
from ..results.rendering import render_text
from ..results.tables import Table
from ..training.arguments import arguments_with_defaults
from ..training.distributed import code_versions, init_distributed, validate_same_on_all_ranks
from .finished import finished_output, save_finished
from .pipeline import run_system, unfinished_systems
from .prepare import prepare, validated_arguments
from .prepared_run import PreparedRun, build_meta_model
from .progress import RunProgress
from .samples import write_samples


def train_systems(
    config: str,
    overrides: Sequence[str],
    *,
    dry_run: bool = False,
    system: str | None = None,
) -> None:
    """Run a config file with `overrides` (dotted.key=value), and print the table and what to do next.

    `dry_run` prints what the systems would cost, and does nothing. With `system`, this one alone is run, of a run that
    has been prepared.
    """
    transformers.logging.set_verbosity_error()
    datasets.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    experiment = load_experiment(config, overrides)
    if dry_run:
        print(render_text(estimate_cost(experiment, int(os.environ.get("WORLD_SIZE", "1")))))
        return
    is_one_process = os.environ.get("WORLD_SIZE", "1") == "1"  # several ask for the state of each system's files
    if system is None and is_one_process and (output := finished_output(experiment)) is not None:
        print(output)
        return
    with explain_full_disk(experiment.folder):
        run(experiment, [config, *overrides], system)


def run(experiment: Experiment, arguments: Sequence[str], system: str | None) -> None:
    """Prepare, train, score and compare, in as many processes as were launched. `arguments`: config and overrides."""
    settings = {name: system.settings() for name, system in experiment.systems.items()}
    distributed_state = init_distributed(
        use_cpu=any(system_settings["train"].get("use_cpu") for system_settings in settings.values())
    )
    validate_same_on_all_ranks({"code": code_versions(), "systems": settings})
    num_processes, is_main_process = distributed_state.num_processes, distributed_state.is_main_process
    is_parallel, is_whole_run = experiment.num_parallel > 1 and num_processes == 1, system is None
    if is_whole_run and is_main_process:
        if warning := untested_transformers_warning():
            print(warning, file=sys.stderr, flush=True)
        processes = f"process{'es' if num_processes > 1 else ''} on {distributed_state.device.type}"
        print(f"Each system trains in {num_processes} {processes}.", flush=True)
        prepare(experiment)
    distributed_state.wait_for_everyone()
    prepared = PreparedRun(experiment)
    num_threads = threads_per_system(experiment.systems.values(), experiment.num_parallel)
    if is_whole_run and is_parallel:
        command = watched_command("hf_posenc", ["train", *arguments])
        unfinished = [experiment.systems[name] for name in unfinished_systems(prepared)]
        lines = min(experiment.num_parallel, len(unfinished))
        with RunProgress(experiment.paths, len(unfinished), lines) as progress:
            run_parallel(
                unfinished, command, num_parallel=experiment.num_parallel, num_threads=num_threads, progress=progress
            )
    else:
        if is_parallel:
            torch.set_num_threads(num_threads)
        run_in_turn(prepared, list(experiment.systems) if system is None else [system])
    if is_whole_run and is_main_process:
        results = aggregate(experiment)
        output = write_report(results, experiment.tables_folder)
        if not is_text_results(results.systems):
            output += f"\n{write_samples(experiment.folder, results, experiment.tables_folder)}\n"
        output += f"\n{next_steps(results, experiment.folder, experiment.tables_folder)}"
        print(f"\n{output}")
        save_finished(experiment, output)


def run_in_turn(prepared: PreparedRun, names: Sequence[str]) -> None:
    """Run systems one after another. The progress of all of them shows in the first process."""
    unfinished = [name for name in unfinished_systems(prepared) if name in names]
    total = len(unfinished) if PartialState().is_main_process else 0
    with RunProgress(prepared.experiment.paths, total, num_lines=0) as progress:
        for name in names:
            run_system(prepared, name)
            if name in unfinished:
                progress.finish(name)


EMBEDDING_PARAMETERS = ("shared.", "embed_tokens.", "lm_head.", "final_logits_bias")
ADAM_MOMENTS = 2  # values that Adam stores for each parameter


def estimate_cost(experiment: Experiment, processes: int = 1) -> Table:
    """The table of costs, with one row for each system."""
    systems = experiment.systems.values()
    arguments = validated_arguments(systems, experiment.paths)
    limits = [args.save_total_limit for args in arguments.values()]
    rows = [
        [system.name, *(untrained_costs(system.segment) if system.segment else system_costs(system, processes, limit))]
        for system, limit in zip(systems, limits, strict=True)
    ]
    headers = ["system", "encoding", "parameters", "in the body", "steps", "tokens at most", "model", "checkpoints"]
    trainings = sum(not system.segment for system in systems)
    legend = (
        f"{experiment.folder}: {trainings} trainings; the body is all but embeddings and output projection; tokens of "
        f"both sides, padding included, in {processes} process{'es' if processes > 1 else ''}; the model in float32, "
        "checkpoints with the optimiser's state; a tokenizer that is adopted is taken to have data.vocab_size subwords"
    )
    return Table(headers, rows, legend)


def system_costs(system: System, processes: int, limit: int | None) -> list[str]:
    """The cells of a system's row after its name. `limit` is the number of checkpoints to keep, None for all."""
    model = build_meta_model(system)
    unique_parameters = dict(model.named_parameters())  # tied parameters are counted once
    total = sum(prod(parameter.shape) for parameter in unique_parameters.values())
    body = sum(
        prod(parameter.shape)
        for name, parameter in unique_parameters.items()
        if not any(key in name for key in EMBEDDING_PARAMETERS)
    )
    arguments = arguments_with_defaults(system.train)
    steps = arguments["max_steps"] if arguments["max_steps"] >= 0 else None
    batch = arguments["tokens_per_batch"]
    if batch is None and system.data.max_length:
        batch = arguments["per_device_train_batch_size"] * (system.data.max_length + (not system.data.is_text))
    sides = 1 if system.data.is_text else 2
    tokens = (
        f"{sides * steps * batch * arguments['gradient_accumulation_steps'] * processes:,}"
        if steps is not None and batch
        else "unknown"
    )
    kept = max(limit, 1 + arguments["load_best_model_at_end"]) if limit and limit > 0 else "all"  # as in the Trainer
    stacks = cast(Sequence[StackSpec], model.config.sides)
    encodings = [f"cross {side.encoding}" if side.name == "cross" else side.encoding for side in stacks]
    return [
        " / ".join(dict.fromkeys(encodings)) or model.config.model_type,
        f"{total:,}",
        f"{body:,}",
        f"{steps:,}" if steps is not None else f"{arguments['num_train_epochs']:g} epochs",
        tokens,
        format_megabytes(4 * total),
        f"{kept} of {format_megabytes(4 * total * (1 + ADAM_MOMENTS))}",
    ]


def untrained_costs(segment: Segmentation) -> list[str]:
    """The cells of a system that trains no model."""
    return [f"{segment.system}'s, by {segment} segments", *["-"] * 6]


def format_megabytes(number: int) -> str:
    return f"{ceil(number / 1e6):,} MB"


SIGKILL_EXIT_CODE = -9  # exit code of a process killed by SIGKILL


def run_parallel(
    systems: Sequence[System],
    command: list[str],
    *,
    num_parallel: int,
    num_threads: int,
    progress: RunProgress | None = None,
) -> None:
    """Run each system in its own process, `num_parallel` at a time, each with `num_threads` threads.

    `command` runs this config. The system's name is appended to it. `progress` shows the processes on a terminal. If a
    system fails, the others still finish. SIGTERM and SIGINT are passed to the running processes as SIGTERM, and no
    further process is started. The standard input of each process is a pipe that closes when this process ends, which
    `watched_command` watches.
    """
    environment = os.environ | {"OMP_NUM_THREADS": str(num_threads)}
    free_lines: SimpleQueue[int] = SimpleQueue()
    for line in range(num_parallel):
        free_lines.put(line)
    shown = progress or RunProgress(RunPaths(Path()), 0, 0)
    running: list[subprocess.Popen] = []
    exit_codes: dict[str, int] = {}
    received_signals: list[int] = []

    def run(name: str) -> int:
        line = free_lines.get()
        try:
            if received_signals:
                return 1
            with sigint_blocked():  # Ctrl-C reaches all processes of a terminal, and only this one answers
                process, display = shown.start([*command, "--system", name], environment, name, line)
            with process:
                running.append(process)
                if received_signals:  # a signal came while the process was started
                    process.terminate()
                exit_code = process.wait()
            if display is not None:
                display.join()
            if exit_code == 0:
                shown.finish(name)
            return exit_code
        finally:
            free_lines.put(line)

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
