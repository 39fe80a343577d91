"""The record of a finished run, by which the same command ends at once.

`.finished.json`, next to results.json, has a hash of the settings and of the code, and what the command printed. It
has size and time of each file that the run has read or written. While all of them are equal, nothing is read, generated
or hashed again. A changed or missing file is found by the whole command, which makes it again or refuses it.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from ...utils.atomic_io import atomic_write, short_hash
from ...utils.run_folder import LOCK_NAME, ReportPaths
from ..config.settings import Experiment
from ..data.readers import absolute_path
from ..training.distributed import code_versions


def finished_output(experiment: Experiment) -> str | None:
    """What the command printed when it finished the run, None if anything has changed since."""
    record = ReportPaths(experiment.tables_folder).finished
    try:
        saved = json.loads(record.read_text(encoding="utf-8"))
        is_same = saved["settings"] == settings_hash(experiment) and saved["files"] == statuses(saved["files"])
        return str(saved["output"]) if is_same else None
    except (OSError, ValueError, LookupError, TypeError):  # without a record, or of another form
        return None


def save_finished(experiment: Experiment, output: str) -> None:
    """Record that the run is finished, and what the command has printed."""
    names = [str(path) for path in (*read_files(experiment), *written_files(experiment))]
    record = {"settings": settings_hash(experiment), "output": output, "files": statuses(names)}
    atomic_write(ReportPaths(experiment.tables_folder).finished, json.dumps(record))


def settings_hash(experiment: Experiment) -> str:
    """A hash of everything that the results depend on, apart from files."""
    settings = asdict(experiment) | {"code": code_versions(), "has_figures": find_spec("matplotlib") is not None}
    del settings["num_parallel"]
    return short_hash(json.dumps(settings, default=str, sort_keys=True))


def read_files(experiment: Experiment) -> Iterator[Path]:
    """The files of others that the systems were made from, and their folders, to which files may be added."""
    for system in experiment.systems.values():
        for name in system.fingerprint()["files"]:
            path = Path(absolute_path(name, system.data.data_dir))
            if path.exists():  # else it is the entry of another system's settings
                yield from (path, path.parent)


def written_files(experiment: Experiment) -> Iterator[Path]:
    """The files of the run, with those that its systems share, and its tables and figures."""
    paths = experiment.paths
    folders = [paths.tokenizer, paths.data, *(paths.system(name).folder for name in experiment.systems)]
    for candidates in (*(folder.rglob("*") for folder in folders), experiment.tables_folder.iterdir()):
        for path in candidates:
            if path.is_file() and path.name not in (LOCK_NAME, ReportPaths(Path()).finished.name):
                yield path


def statuses(names: Iterator[str] | list[str] | dict[str, list[int]]) -> dict[str, list[int]]:
    """Size in bytes and time in nanoseconds of each file. A FileNotFoundError if one is missing."""
    found = {}
    for name in names:
        status = Path(name).stat()
        found[name] = [status.st_size, status.st_mtime_ns]
    return found
