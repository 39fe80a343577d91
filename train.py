"""Train the systems of a config file, score them by source length and compare them.

    python train.py configs/quickstart.yaml [dotted.key=value ...] [--dry-run]
    accelerate launch --config_file configs/accelerate/eight_gpus.yaml train.py CONFIG

Finished systems are skipped and interrupted ones resumed, so the same command can be given again at any time.
"""

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until `main`, Ctrl-C ends the imports without a traceback

import argparse
import gc
import os
import sys

import datasets
import torch
import transformers

from hf_posenc.hub.version import untested_transformers_warning
from hf_posenc.lab.config.loading import load_experiment
from hf_posenc.lab.config.settings import Experiment
from hf_posenc.lab.reports.report import next_steps, write_report
from hf_posenc.lab.results.aggregation import aggregate
from hf_posenc.lab.results.rendering import render_text
from hf_posenc.lab.run.dry_run import dry_run
from hf_posenc.lab.run.parallel import run_parallel, threads_per_system
from hf_posenc.lab.run.pipeline import run_system, unfinished_systems
from hf_posenc.lab.run.prepare import prepare
from hf_posenc.lab.run.prepared_run import PreparedRun
from hf_posenc.lab.training.distributed import code_versions, init_distributed, validate_same_on_all_ranks
from hf_posenc.utils.atomic_io import explain_full_disk
from hf_posenc.utils.command_line import command_errors, set_stdout_utf8
from hf_posenc.utils.worker_processes import watched_command


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="a YAML file, such as configs/quickstart.yaml")
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="dotted.key=value",
        help="settings for the file's: seeds=[1,2], output_dir=FOLDER",
    )
    parser.add_argument("--dry-run", action="store_true", help="print what the systems would cost, and do nothing")
    parser.add_argument(
        "--system", help="run this one system only, of a run that has been prepared, and print no table"
    )
    parser.add_argument("--progress-position", type=int, help=argparse.SUPPRESS)  # of a parallel system
    with command_errors():
        options = parser.parse_intermixed_args()
        set_stdout_utf8()
        transformers.logging.set_verbosity_error()
        datasets.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        experiment = load_experiment(options.config, options.overrides)
        if options.dry_run:
            print(render_text(dry_run(experiment, int(os.environ.get("WORLD_SIZE", "1")))))
            return
        with explain_full_disk(experiment.folder):
            run(experiment, options)


def run(experiment: Experiment, options: argparse.Namespace) -> None:
    """Prepare, train, score and compare, in as many processes as were launched."""
    settings = {name: system.settings() for name, system in experiment.systems.items()}
    distributed_state = init_distributed(
        use_cpu=any(system_settings["train"].get("use_cpu") for system_settings in settings.values())
    )
    validate_same_on_all_ranks({"code": code_versions(), "systems": settings})
    num_processes, is_main_process = distributed_state.num_processes, distributed_state.is_main_process
    is_parallel, is_whole_run = experiment.num_parallel > 1 and num_processes == 1, options.system is None
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
        command = watched_command([sys.executable, __file__, options.config, *options.overrides])
        unfinished = [experiment.systems[name] for name in unfinished_systems(prepared)]
        run_parallel(unfinished, command, num_parallel=experiment.num_parallel, num_threads=num_threads)
    else:
        if is_parallel:
            torch.set_num_threads(num_threads)
        for name in experiment.systems if is_whole_run else [options.system]:
            run_system(prepared, name, options.progress_position or 0)
    if is_whole_run and is_main_process:
        results = aggregate(experiment)
        print(f"\n{write_report(results, experiment.tables_folder)}")
        print(next_steps(results, experiment.folder, experiment.tables_folder))


if __name__ == "__main__":
    gc.freeze()  # else Python looks through the objects of torch at its end, which takes seconds
    main()
