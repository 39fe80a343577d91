"""Saved scores and settings, checked as they are read: every name one that a run can have, every number a number.

A results.json can be carried elsewhere, and so may come from anyone: its names become those of files, and its texts
stand in tables, figures and pages. What is not of the expected form is refused with the file and the place in it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from ..utils.names import validate_folder_name, validate_test_set_names
from .diagnosis_records import Diagnosis
from .json_records import OTHERS, Anything, Name, ViolationError, parse
from .records import RunResults, SystemScores, TrainingSummary

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class SavedData:
    """What is checked of the section `data` of a settings.yaml."""

    source_language: Name
    target_language: Name
    train: Mapping[Name, Anything]
    test: Mapping[Name, Anything]
    others: Mapping[Name, Anything] = field(metadata=OTHERS)


@dataclass(frozen=True, kw_only=True)
class SavedSettings:
    """What is checked of a settings.yaml."""

    data: SavedData
    others: Mapping[Name, Anything] = field(metadata=OTHERS)


def parse_scores(scores: object, path: Path) -> SystemScores:
    """The record of a scores.json; a ValueError unless it is what a system's scoring leaves."""
    record = parse_file(SystemScores, scores, path)
    raise_violation(name_conflict(record.tests), path)
    return record


def parse_results(results: object, path: Path) -> RunResults:
    """The record of a results.json; a ValueError unless it is what `aggregate` makes: names, numbers, and the same test
    sets everywhere."""
    record = parse_file(RunResults, results, path)
    raise_violation(inconsistency(record), path)
    return record


def parse_diagnosis(diagnosis: object, path: Path) -> Diagnosis:
    """The record of a system's diagnosis on a test set; a ValueError unless it is what `diagnose` returns."""
    return parse_file(Diagnosis, diagnosis, path)


def parse_training(training: object, path: Path) -> TrainingSummary:
    """The record of a training.json, which stands beside a model's weights."""
    return parse_file(TrainingSummary, training, path)


def validate_settings(settings: object, path: Path) -> None:
    """Refuse a settings.yaml whose languages, corpora or test sets are not what a config can name."""
    parse_file(SavedSettings, settings, path)


def parse_file(cls: type[T], content: object, path: Path) -> T:
    """The record that a file holds; a ValueError that names the file and the place in it that is of another form."""
    try:
        return parse(cls, content, path.stem)
    except ViolationError as error:
        raise violation_error(str(error), path) from None


def inconsistency(results: RunResults) -> str | None:
    """What in the results names a system, a test set or a bucket that there is none of."""
    rows = set(results.row_by_system.values())
    if results.baseline not in rows:
        named = ", ".join(rows) or "but there are none"
        return f"baseline must be a row of its runs, {named}; it is {results.baseline!r}"
    tests = results.test_sets
    for name, system in results.systems.items():
        by_test_set: dict[str, Mapping[str, object] | None] = {"tests": system.tests, "beyond": system.beyond}
        by_test_set["by_prediction"] = system.by_prediction
        for key, mapping in by_test_set.items():
            if mapping is not None and mapping.keys() != set(tests):
                return f"{name}.{key} must have the test sets {', '.join(tests)}, but it has {', '.join(mapping)}"
    if missing := set(tests) - results.comparisons.keys():
        return f"comparisons must have all test sets, but {', '.join(sorted(missing))} is not in it"
    paper = results.paper
    if paper and (paper.test not in tests or not paper.rows or not paper.rows.keys() <= rows):
        return f"paper must be of a test set and rows of its own, but it is of {paper.test} and {list(paper.rows)}"
    return name_conflict(tests, results.systems)


def name_conflict(tests: Iterable[str], systems: Iterable[str] = ()) -> str | None:
    """Which of these names is that of another file."""
    try:
        validate_test_set_names(tests, "tests")
        for system in systems:
            validate_folder_name(system, "A system's name")
    except ValueError as error:
        return str(error).rstrip(".")
    return None


def raise_violation(violation: str | None, path: Path) -> None:
    if violation:
        raise violation_error(violation, path)


def violation_error(violation: str, path: Path) -> ValueError:
    return ValueError(
        f"Saved files must be as train.py writes them, but in {path} {violation}. Restore the file, or delete it and "
        "run train.py CONFIG again."
    )
