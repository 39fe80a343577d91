"""What a run's folder records of a system: its settings, and a hash of each file that it reads.

A folder belongs to the settings that made something in it. With others, nothing there may be used or continued.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..config.settings import DataSettings, ScoreSettings, Segmentation, System
from ..config.yaml_io import read_yaml
from ..data.readers import corpus_file_hashes, file_hashes, resolve_name_or_path
from ..utils.atomic_io import first_difference, short_hash
from ..utils.manifest import explain_read_errors, verify_file
from ..utils.renamed_keys import downgrade_settings, upgrade_settings


def settings_difference(path: Path, system: System) -> str | None:
    """The first setting or file in which a system differs from what `path` records, None if there is none."""
    verify_file(path)
    with explain_read_errors(path):
        saved = upgrade_settings(read_yaml(path, "The settings of a run"))
        data, score = DataSettings(**saved["data"]), ScoreSettings(**saved["score"])
        # What is newer than the run is at its default.
        segment = Segmentation(**saved["segment"]) if "segment" in saved else None
        model_and_training = (saved["model"], saved["train"], saved.get("init_from"), segment)
    saved_system = System(system.name, system.base_name, data, score, *model_and_training)
    current = run_fingerprint(system)
    # Files of which no hash is saved, or that are read no more, make no difference.
    saved_hashes = {name: digest for name, digest in saved.get("files", {}).items() if name in current["files"]}
    return first_difference(saved_system.settings() | {"files": current["files"] | saved_hashes}, current)


def run_fingerprint(system: System) -> dict[str, Any]:
    """What the folder of a system records."""
    return system.settings() | {"files": system_file_hashes(system)}


def system_file_hashes(system: System) -> dict[str, str]:
    """A hash of each local file that the system reads."""
    hashes: dict[str, str] = {}
    for corpus_spec in (system.data.train, system.data.validation or {}, *system.data.test.values()):
        hashes |= corpus_file_hashes(corpus_spec, system.data.data_dir)
    return hashes | init_file_hashes(system)


def init_file_hashes(system: System) -> dict[str, str]:
    """A hash of each local file of weights that it starts from, or of what makes that system of the same run."""
    if system.init_from is None:
        return {}
    if (origin := system.dependency) is not None:
        fingerprint = json.dumps(weights_fingerprint(origin), sort_keys=True)
        return {f"settings of {origin.name}": short_hash(fingerprint)}
    checkpoint = Path(resolve_name_or_path(system.init_from, system.data.data_dir))
    weights = sorted(str(path) for kind in ("*.safetensors", "*.bin") for path in checkpoint.glob(kind))
    return file_hashes(weights, system.data.data_dir)


def weights_fingerprint(system: System) -> dict[str, Any]:
    """What its weights are made by, under the key names of 0.2.0, so that its hash stays what it was.

    A setting at its default is left out: one that is newer than a run changes no hash.
    """
    settings, data = system.settings(), system.data
    for name, default in asdict(DataSettings("", "", {}, {})).items():
        if settings["data"].get(name) == default or name in ("test", "license"):
            settings["data"].pop(name, None)
    del settings["score"]
    files = [corpus_file_hashes(corpus_spec, data.data_dir) for corpus_spec in (data.train, data.validation or {})]
    return downgrade_settings(settings) | {"files": files, "start": init_file_hashes(system)}
