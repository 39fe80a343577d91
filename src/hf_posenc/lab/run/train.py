"""The command `train`: the systems of a config file are trained, scored by source length and compared."""

import os
import sys
from collections.abc import Sequence

import datasets
import torch
import transformers

from ...hub.version import untested_transformers_warning
from ...utils.atomic_io import explain_full_disk
from ...utils.worker_processes import watched_command
from ..config.loading import load_experiment
from ..config.settings import Experiment
from ..reports.report import is_text_results, next_steps, write_report
from ..results.aggregation import aggregate
from ..results.rendering import render_text
from ..training.distributed import code_versions, init_distributed, validate_same_on_all_ranks
from .dry_run import dry_run as estimate_cost
from .parallel import run_parallel, threads_per_system
from .pipeline import run_system, unfinished_systems
from .prepare import prepare
from .prepared_run import PreparedRun
from .samples import write_samples


def train_systems(
    config: str,
    overrides: Sequence[str],
    *,
    dry_run: bool = False,
    system: str | None = None,
    progress_position: int = 0,
) -> None:
    """Run a config file with `overrides` (dotted.key=value), and print the table and what to do next.

    `dry_run` prints what the systems would cost, and does nothing. With `system`, this one alone is run, of a run that
    has been prepared; its progress bar is on line `progress_position`.
    """
    transformers.logging.set_verbosity_error()
    datasets.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    experiment = load_experiment(config, overrides)
    if dry_run:
        print(render_text(estimate_cost(experiment, int(os.environ.get("WORLD_SIZE", "1")))))
        return
    with explain_full_disk(experiment.folder):
        run(experiment, [config, *overrides], system, progress_position)


def run(experiment: Experiment, arguments: Sequence[str], system: str | None, progress_position: int) -> None:
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
        run_parallel(unfinished, command, num_parallel=experiment.num_parallel, num_threads=num_threads)
    else:
        if is_parallel:
            torch.set_num_threads(num_threads)
        for name in experiment.systems if system is None else [system]:
            run_system(prepared, name, progress_position)
    if is_whole_run and is_main_process:
        results = aggregate(experiment)
        print(f"\n{write_report(results, experiment.tables_folder)}")
        if not is_text_results(results.systems):
            print(f"{write_samples(experiment.folder, results, experiment.tables_folder)}\n")
        print(next_steps(results, experiment.folder, experiment.tables_folder))
