"""Files and folders of a run. Each name is defined here once; `tests/utils/test_run_folder.py` checks that.

    runs/<name>/tokenizer/                  trained on the unfiltered training text, shared by all systems
    runs/<name>/data/                       encoded training and validation pairs, test sets with their source lengths
    runs/<name>/<system>/settings.yaml      everything that makes the system
                         .lock              held by the process that works here
                         checkpoints/       the Trainer's
                         training.jsonl     loss by step and by seconds
                         model/             weights, config, code and tokenizer: load it with from_pretrained
                         model/README.md    the model card
                         translations/      one file for each test set, and one with the time that it took
                         statistics/        sentence by sentence: scores and comparisons are computed from them
                         diagnostics/       loss by position, attention, source positions (analysis/diagnosis.py)
                         scores.json        the scores; computed again where one of the files above is missing
                         pushed.json        with train.push_to_hub: the repository, and the commit that has the card
    runs/<name>/<segmented system>/         settings, translations, statistics and scores; the model is another system's
    runs/<name>/results.json, tables, figures: lab/results/saved_files.py and lab/reports/report.py
    runs/<name>/.finished.json              what was printed at the end, and the files' times (lab/run/finished.py)

Manifests (`manifest.py`) are in these folders, and in checkpoints and models outside of runs.

Names that become files and folders, in configs and here, are validated.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from transformers.utils import CONFIG_NAME

LOCK_NAME = ".lock"


class Entry:
    """A file or a folder of that name in an object's `folder`, as an attribute of the object."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, paths: "SystemPaths | RunPaths | ReportPaths", owner: object = None) -> Path:
        return paths.folder / self.name


@dataclass(frozen=True)
class SystemPaths:
    """The files of one system in its `folder`. None of them need exist."""

    folder: Path
    settings = Entry("settings.yaml")
    lock = Entry(LOCK_NAME)
    checkpoints = Entry("checkpoints")
    training_log = Entry("training.jsonl")
    model = Entry("model")
    model_config = Entry(f"model/{CONFIG_NAME}")
    training_summary = Entry("model/training.json")  # steps, seconds, last loss, numbers of parameters and pairs
    card = Entry("model/README.md")
    translations = Entry("translations")
    statistics = Entry("statistics")
    diagnostics = Entry("diagnostics")
    scores = Entry("scores.json")
    push_record = Entry("pushed.json")  # written when there is nothing left to push

    def translation(self, test: str) -> Path:
        return self.translations / f"{test}.jsonl"

    def statistic(self, test: str) -> Path:
        return self.statistics / f"{test}.npz"

    def diagnosis(self, test: str) -> Path:
        return self.diagnostics / f"{test}.json"

    @property
    def has_outputs(self) -> bool:
        """Whether results of the saved settings exist. The settings must not change then."""
        outputs = (self.training_log, self.model, self.translations)
        return self.settings.exists() and any(path.exists() for path in outputs)


def translation_time(translation: Path) -> Path:
    """The file with the time that the translations in `translation` took."""
    return translation.with_suffix(".time.json")


@dataclass(frozen=True)
class RunPaths:
    """The files that the systems of a run share, and the folder of each system."""

    folder: Path
    lock = Entry(LOCK_NAME)  # held while shared files are written
    tokenizer = Entry("tokenizer")
    tokenizer_provenance = Entry("tokenizer/made_from.json")  # the settings and files that the tokenizer was made from
    data = Entry("data")

    def encoded_pairs(self, corpus_hash: str) -> Path:
        return self.data / f"encoded-{corpus_hash}"

    def test_set(self, test: str, corpus_hash: str) -> Path:
        return self.data / f"test-{test}-{corpus_hash}"

    def overlap(self, corpus_hash: str) -> Path:
        return self.data / f"overlap-{corpus_hash}.json"

    def segments(self, segmentation: str, test: str, corpus_hash: str) -> Path:
        return self.data / f"pieces-{segmentation}-{test}-{corpus_hash}"

    def system(self, name: str) -> SystemPaths:
        return SystemPaths(self.folder / name)

    def model_folders(self) -> dict[str, Path]:
        """The model folders of the systems that have one, by the systems' names."""
        pattern = SystemPaths(Path("*")).model_config
        configs = sorted(self.folder.glob(pattern.as_posix()))
        return {config.parents[1].name: config.parent for config in configs}

    @property
    def has_outputs(self) -> bool:
        """Whether a system of the run has outputs, also one of another config file that shares the run."""
        return any(SystemPaths(folder).has_outputs for folder in self.folder.iterdir())


@dataclass(frozen=True)
class ReportPaths:
    """The files of a report: a run's folder, or the folder in it that `table` names."""

    folder: Path
    results = Entry("results.json")
    scores = Entry("scores.csv")
    audit = Entry("audit.json")
    finished = Entry(".finished.json")

    def table(self, name: str, suffix: str) -> Path:
        return self.folder / f"table-{name}.{suffix}"

    def figure(self, name: str) -> Path:
        return self.folder / f"{name}.png"


# Entries of a run's folder that are not systems.
RESERVED_FOLDERS = (RunPaths(Path()).data.name, RunPaths(Path()).tokenizer.name)
RESERVED_SUFFIXES = (".csv", ".json", ".lock", ".md", ".png", ".tex")


NAME_PATTERN = re.compile(r"[^\W_][\w.+-]*")
MAX_NAME_BYTES = 100  # names are parts of file names, which may have 255 bytes
NAME_RULE = "a letter or digit, then letters, digits, '.', '+', '-', '_', of at most 100 bytes together"
# Tables without a test set in their names, and the suffix of a test set's second table.
RESERVED_TABLES = ("fall", "overview", "paper", "time")
BY_PREDICTION = "-by-prediction"
RANKING_SUFFIX = "of-test-sets"  # of the figure `ranking-of-test-sets`


def is_valid_name(name: object) -> bool:
    """Whether it is a valid file name without a path."""
    return isinstance(name, str) and bool(NAME_PATTERN.fullmatch(name)) and len(name.encode()) <= MAX_NAME_BYTES


def validate_name(name: object, label: str) -> None:
    """Raise a ValueError for an invalid name, such as that of a language; `label` is the setting."""
    if not is_valid_name(name):
        raise ValueError(f"{label} must be {NAME_RULE}, but it is {name!r:.200}. Name it otherwise.")


def validate_folder_name(name: object, label: str) -> None:
    """Raise a ValueError for a name that is invalid or reserved as a folder of a run."""
    if (
        not is_valid_name(name)
        or str(name).lower() in RESERVED_FOLDERS
        or str(name).lower().endswith(RESERVED_SUFFIXES)
    ):
        raise ValueError(
            f"{label} is a folder's: {NAME_RULE}, and not {' or '.join(map(repr, RESERVED_FOLDERS))} or one that "
            f"ends in {', '.join(RESERVED_SUFFIXES)}, which are the run's own; it is {name!r:.200}. Name it otherwise."
        )


def validate_test_set_names(names: Iterable[object], label: str) -> None:
    """Raise a ValueError for names that tables and figures of test sets cannot have, or that collide."""
    names = list(names)
    others = {name for name in names if isinstance(name, str)}
    for name in names:
        if (
            not is_valid_name(name)
            or name in (*RESERVED_TABLES, RANKING_SUFFIX)
            or str(name).removesuffix(BY_PREDICTION) in others - {name}
        ):
            raise ValueError(
                f"{label}: a test set's name is a file's: {NAME_RULE}, and not that of another table or figure "
                f"({', '.join(RESERVED_TABLES)}, {RANKING_SUFFIX}, NAME{BY_PREDICTION}); it is {name!r:.200}. "
                "Name it otherwise."
            )


def name_conflict(tests: Iterable[str], systems: Iterable[str] = ()) -> str | None:
    """The error of a name that is invalid or collides with another file's, None without one."""
    try:
        validate_test_set_names(tests, "tests")
        for system in systems:
            validate_folder_name(system, "A system's name")
    except ValueError as error:
        return str(error).rstrip(".")
    return None
