"""The files of a scored system, as its model card reads them: each intact, and all of one training."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ...transformer.configuration_posenc_causal import PosEncCausalConfig
from ...utils.manifest import verify_file
from ...utils.run_folder import RunPaths, SystemPaths
from ...utils.text_io import JsonObject
from ..config.section_settings import DataSettings, ScoreSettings
from ..config.settings import System
from ..config.yaml_io import read_yaml
from ..data.readers import CorpusSpec
from ..results.json_records import parse_file
from ..results.records import SystemScores, TrainingSummary
from ..results.saved_files import validate_settings

REQUIRED_CONFIG_FIELDS = ("d_model", "vocab_size", "decoder_vocab_size", "encoder_layers", "decoder_layers")
REQUIRED_CAUSAL_FIELDS = ("hidden_size", "vocab_size", "num_hidden_layers")


@dataclass(frozen=True)
class ScoredSystem:
    """The contents of a scored system's files. `test_specs`: each test set's corpus, and how many pairs are
    concatenated."""

    settings: JsonObject
    scores: SystemScores
    config: JsonObject
    facts: TrainingSummary
    data: DataSettings
    score: ScoreSettings
    test_specs: dict[str, tuple[CorpusSpec, int]]


def read_scored_system(folder: Path) -> ScoredSystem:
    """Read the files of a scored system, each intact and all of one training."""
    paths = SystemPaths(folder)
    if not folder.is_dir() and (systems := RunPaths(folder.parent).model_folders()):
        raise ValueError(f"{folder.parent} has no system {folder.name!r}; name one of {', '.join(systems)}.")
    settings = read_complete(path := paths.settings, "data", "model", "train", "score")
    validate_settings(settings, path)
    with explain_malformed_files(folder, TypeError):
        system = System.from_saved(folder.name, folder.name, settings)
    if system.segment:
        raise ValueError(
            f"A card is of a trained model, but {folder.name} translates with that of {system.model_system_name}; ask "
            f"for the card of {system.model_system_name}."
        )
    scores = parse_file(SystemScores, read_complete(path := paths.scores, "training", "tests"), path)
    config = read_complete(paths.model_config, "model_type")
    read_complete(paths.model_config, *(REQUIRED_CAUSAL_FIELDS if is_causal(config) else REQUIRED_CONFIG_FIELDS))
    path = paths.training_summary
    training = parse_file(TrainingSummary, read_complete(path, "steps", "seconds", "parameters", "pairs"), path)
    if scores.training != training or not scores.tests.keys() <= system.test_sets.keys():
        raise ValueError(
            f"A card is of one run, but in {folder} scores.json tells of {', '.join(scores.tests)} and the training "
            f"{scores.training}, settings.yaml of {', '.join(system.test_sets)} and model/training.json of {training}; "
            "delete scores.json and run train.py again."
        )
    return ScoredSystem(settings, scores, config, training, system.data, system.score, system.test_sets)


def is_causal(config: JsonObject) -> bool:
    """Whether a saved config is a decoder-only model's."""
    return bool(config["model_type"] == PosEncCausalConfig.model_type)


def read_complete(path: Path, *keys: str) -> JsonObject:
    """The content of an intact JSON or YAML file that has these keys."""
    if not path.is_file():
        raise FileNotFoundError(f"A card is made from a scored system, but {path} is missing; run train.py first.")
    verify_file(path)
    try:
        is_yaml = path.suffix == ".yaml"
        content = read_yaml(path, "It") if is_yaml else json.loads(path.read_text(encoding="utf-8"))
        reason = "".join(f" no {key!r}" for key in keys if content.get(key) is None)
    except (ValueError, AttributeError, RecursionError) as error:
        reason = f" {type(error).__name__}: {' '.join(str(error).split())}"
    if reason:
        raise ValueError(
            f"A card is made from whole files, but {path} is cut short or another:{reason}; restore "
            "it, or delete the system's folder and run train.py again."
        )
    return content


@contextmanager
def explain_malformed_files(folder: Path, *errors: type[Exception]) -> Iterator[None]:
    """Context manager: errors that values of an unexpected type cause become a ValueError that names the folder."""
    try:
        yield
    except errors as error:
        raise ValueError(
            f"A card is made from files as train.py writes them, but one of those in {folder} is not "
            f"({type(error).__name__}: {error}); restore it, or delete the folder and run train.py again."
        ) from error
