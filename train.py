"""Train the systems of a config file, score them by source length and compare them.

    python train.py configs/quickstart.yaml [dotted.key=value ...] [--dry-run]
    accelerate launch --config_file configs/accelerate/eight_gpus.yaml train.py CONFIG

Finished systems are skipped and interrupted ones resumed, so the same command can be given again at any time.
"""

import argparse
import os
import sys

import datasets
import torch
import transformers

from hf_posenc.config.loading import load_experiment
from hf_posenc.config.settings import Experiment
from hf_posenc.experiment.dry_run import dry_run
from hf_posenc.experiment.preparation import prepare
from hf_posenc.experiment.side_by_side import run_side_by_side, threads_each
from hf_posenc.experiment.system import run_system
from hf_posenc.modeling.version import untested_transformers
from hf_posenc.publish.report import publish
from hf_posenc.results.collecting import collect
from hf_posenc.results.tables import text
from hf_posenc.text_io import print_utf8
from hf_posenc.training.processes import join_processes, refuse_unlike_processes, running_code
from hf_posenc.whole_files import full_disk_told
from hf_posenc.worker_processes import end_with_standard_input


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="a YAML file, such as configs/quickstart.yaml")
    parser.add_argument(
        "overrides", nargs="*", metavar="dotted.key=value", help="settings for the file's: seeds=[1,2], output=FOLDER"
    )
    parser.add_argument("--dry-run", action="store_true", help="print what the systems would cost, and do nothing")
    parser.add_argument(
        "--system", help="run this one system only, of a run that has been prepared, and print no table"
    )
    parser.add_argument("--bar", type=int, help=argparse.SUPPRESS)  # of a system side by side
    options = parser.parse_intermixed_args()
    if options.bar is not None:
        end_with_standard_input()
    print_utf8()
    transformers.logging.set_verbosity_error()
    datasets.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()

    try:
        experiment = load_experiment(options.config, options.overrides)
        if options.dry_run:
            print(text(dry_run(experiment, int(os.environ.get("WORLD_SIZE", "1")))))
            return
        with full_disk_told(experiment.folder):
            run(experiment, options)
    except (ValueError, OSError, FloatingPointError, MemoryError) as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from None


def run(experiment: Experiment, options: argparse.Namespace) -> None:
    """Prepare, train, score and compare, in as many processes as were launched."""
    settings = {name: system.settings() for name, system in experiment.systems.items()}
    processes = join_processes(use_cpu=any(one["train"].get("use_cpu") for one in settings.values()))
    refuse_unlike_processes({"code": running_code(), "systems": settings})
    if options.system:
        if experiment.jobs > 1 and processes.num_processes == 1:
            torch.set_num_threads(threads_each(experiment))
        run_system(experiment, options.system, options.bar or 0)
        return
    number = processes.num_processes
    if processes.is_main_process:
        if warning := untested_transformers():
            print(warning, file=sys.stderr, flush=True)
        kind = f"process{'es' if number > 1 else ''} on {processes.device.type}"
        print(f"Each system trains in {number} {kind}.", flush=True)
        prepare(experiment)
    processes.wait_for_everyone()
    if experiment.jobs > 1 and number == 1:
        run_side_by_side(experiment, [sys.executable, __file__, options.config, *options.overrides])
    else:
        for name in experiment.systems:
            run_system(experiment, name)
    if processes.is_main_process:
        print(publish(collect(experiment), experiment.tables_folder))
        print(f"Everything is in {experiment.folder}.")


if __name__ == "__main__":
    main()
