"""Files that train.py leaves: one reader and one writer each, checked as they are read.

A results.json can be carried elsewhere, and so may come from anyone: its names become those of files, and its texts
stand in tables, figures and pages. So every name must be one that a run can have, and every number a number. What is
not of the expected form is refused with the file and the place in it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..utils.manifest import explain_read_errors, save_file, verify_file, write_file
from ..utils.names import validate_folder_name, validate_test_set_names
from ..utils.run_folder import ReportPaths, translation_time
from ..utils.text_io import json_line
from .diagnosis_records import Diagnosis
from .json_records import OTHERS, Anything, Name, ViolationError, parse, to_json
from .records import (
    Curve,
    CurvePoint,
    RunResults,
    SystemScores,
    TestSetTranslations,
    TrainingCurves,
    TrainingSummary,
    TranslationTime,
)

T = TypeVar("T")

REQUIRED_KEYS = ("baseline", "runs", "comparisons", "paper")  # of a results.json


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


def read_scores(path: Path) -> SystemScores:
    """The scores.json of a system."""
    return parse_scores(read_json(path), path)


def write_scores(path: Path, scores: SystemScores) -> None:
    write_file(path, json.dumps(to_json(scores), indent=1))


def read_diagnosis(path: Path) -> Diagnosis:
    """The diagnosis of a system on a test set."""
    return parse_diagnosis(read_json(path), path)


def write_diagnosis(path: Path, diagnosis: Diagnosis) -> None:
    write_file(path, json.dumps(to_json(diagnosis)))


def read_training(path: Path) -> TrainingSummary:
    """The training.json of a model."""
    return parse_training(read_json(path), path)


def write_training(path: Path, summary: TrainingSummary) -> None:
    """Write a training.json into a folder that is not in its place yet, so into no manifest."""
    path.write_text(json.dumps(to_json(summary), indent=1), encoding="utf-8")


def read_results(folder: Path) -> RunResults:
    """The results.json of a folder; a ValueError if it is cut short, from another version, or not of such a form."""
    path = ReportPaths(folder).results
    if not path.exists():
        raise ValueError(f"A report is made of results.json, but there is none in {folder}; run train.py first.")
    results = read_json(path)
    if missing := [key for key in REQUIRED_KEYS if key not in results]:
        raise ValueError(
            f"{path} lacks {', '.join(missing)}; run train.py CONFIG again, which scores but does not train."
        )
    return parse_results(results, path)


def write_results(folder: Path, results: RunResults) -> None:
    write_file(ReportPaths(folder).results, json.dumps(to_json(results)))


def read_losses(path: Path) -> TrainingCurves:
    """A training's losses, as label smoothing has it, and of evaluation, and BLEU of evaluation; and whether the losses
    are of a model that is given each target's length."""
    verify_file(path)
    with explain_read_errors(path):
        lines = read_json_lines(path)
        curves = {key: curve(lines, key) for key in ("loss", "eval_loss", "eval_bleu")}
    return TrainingCurves(**curves, lengths_known=any(line.get("lengths_known") for line in lines))


def curve(lines: Sequence[Mapping[str, Any]], key: str) -> Curve:
    """The lines of a log that have this key."""
    return tuple(CurvePoint(line["step"], line["seconds"], line[key]) for line in lines if key in line)


def read_translations(path: Path, num_sources: int) -> TestSetTranslations:
    """The saved translations of a test set with so many sources, without their time."""
    verify_file(path)
    with explain_read_errors(path):
        lines = read_json_lines(path)
        if len(lines) != num_sources:
            raise ValueError(f"it has {len(lines)} translations of {num_sources} sources")
        return TestSetTranslations(
            texts=tuple(line["text"] for line in lines), truncated=tuple(line["truncated"] for line in lines)
        )


def read_translation_time(path: Path) -> TranslationTime | None:
    """The time that the translations in `path` took; None if an earlier version has translated."""
    time_path = translation_time(path)
    return parse_file(TranslationTime, read_json(time_path), time_path) if time_path.exists() else None


def write_translations(path: Path, translations: TestSetTranslations) -> None:
    """Write the time before the translations, which are then never without it."""
    if translations.time is not None:
        write_file(translation_time(path), json.dumps(to_json(translations.time)))
    rows = zip(translations.texts, translations.truncated, strict=True)
    write_file(path, "".join(json_line({"text": text, "truncated": truncated}) for text, truncated in rows))


def read_statistics(path: Path) -> dict[str, np.ndarray]:
    """The sentence statistics of a test set: for each metric (pairs, counts), and the pairs' `lengths`."""
    verify_file(path)
    with explain_read_errors(path), path.open("rb") as file:
        return dict(np.load(file))


def write_statistics(path: Path, statistics: Mapping[str, np.ndarray]) -> None:
    def save(temp_path: Path) -> None:
        with temp_path.open("wb") as file:  # to a name, numpy would add its own ending
            np.savez_compressed(file, allow_pickle=False, **statistics)

    save_file(path, save)


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON lines file, one or more, the last of which must be whole too."""
    *lines, unterminated = path.read_text(encoding="utf-8").split("\n")
    if unterminated or not lines:
        raise ValueError("it is empty" if not lines and not unterminated else "its last line is cut short")
    return [json.loads(line) for line in lines]


def read_json(path: Path) -> dict[str, Any]:
    verify_file(path)
    with explain_read_errors(path):
        return dict(json.loads(path.read_text(encoding="utf-8")))


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
