"""Readers and writers of the files that train.py saves. Each file is validated as it is read.

A results.json may come from anyone. Its names become file names, and its texts are shown in tables, figures and pages.
Therefore names must be valid and numbers must be numbers. An error names the file and the location in it.
"""

import json
import lzma
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import to_jsonable_python

from ...utils.manifest import is_in_manifest, save_file, verified, write_file
from ...utils.run_folder import ReportPaths, translation_time
from ...utils.text_io import JsonObject, json_line
from ..config.errors import find_violation, validator
from .records import (
    RECORD,
    Curve,
    Name,
    RunResults,
    TestSetTranslations,
    TrainingCurves,
    TranslationTime,
)

T = TypeVar("T")
REQUIRED_KEYS = ("baseline", "systems", "comparisons")  # of a results.json


def read_record(cls: type[T], path: Path) -> T:
    """Read and verify a saved JSON file. A ValueError names the file if its content has another form."""
    return parse_file(cls, read_json(path), path)


def write_record(path: Path, record: object, *, indent: int | None = None) -> None:
    """Write a record as JSON, with an entry in its folder's manifest."""
    write_file(path, json.dumps(to_json(record), indent=indent))


def to_json(record: object) -> Any:
    """The record as plain values for `json.dumps`, without those that are None."""
    return to_jsonable_python(record, exclude_none=True)


def read_json(path: Path) -> JsonObject:
    """The object in a saved JSON file, which is verified before. It may be compressed, with the suffix .xz."""
    with verified(path):
        content = path.read_bytes()
        return dict(json.loads(lzma.decompress(content) if path.suffix == ".xz" else content))


def parse_file(cls: type[T], content: object, path: Path) -> T:
    """Parse the content of a file. A ValueError names the file and the location of the invalid value."""
    try:
        return validated(cls, content)
    except ValidationError as error:
        violation = find_violation(error, cls, content, path.stem)
        raise ValueError(
            f"Saved files must be as train.py writes them, but in {path} {violation.problem}. Restore the file, or "
            "delete it and run train.py CONFIG again."
        ) from None


def validated(cls: type[T], content: object) -> T:
    """The content as an instance of `cls`. A pydantic.ValidationError if it has another form."""
    hashable: Any = cls
    record: T = validator(hashable).validate_python(content)
    return record


@dataclass(frozen=True, config=RECORD)
class SavedData:
    """The validated part of the section `data` of a settings.yaml."""

    source_language: Name
    target_language: Name
    train: Mapping[Name, Any]
    test: Mapping[Name, Any]


@dataclass(frozen=True, config=RECORD)
class SavedSettings:
    """The validated part of a settings.yaml: languages, corpora and test sets have valid names."""

    data: SavedData


def read_results(folder: Path) -> RunResults:
    """The results.json of a folder, or the results.json.xz of one that is kept.

    A ValueError if it is truncated, of another version, or of another form.
    """
    path = ReportPaths(folder).results
    if not path.exists():
        path = path.with_name(f"{path.name}.xz")
    if not path.exists():
        raise ValueError(f"A report is made of results.json, but there is none in {folder}; run train.py first.")
    results = read_json(path)
    if missing := [key for key in REQUIRED_KEYS if key not in results]:
        raise ValueError(
            f"{path} lacks {', '.join(missing)}; run train.py CONFIG again, which scores but does not train."
        )
    return parse_file(RunResults, results, path)


def write_results(folder: Path, results: RunResults) -> None:
    write_record(ReportPaths(folder).results, results)


def read_losses(path: Path) -> TrainingCurves:
    """The curves of a training's log: label-smoothed loss, loss and BLEU of evaluations."""
    with verified(path):
        lines = read_json_lines(path)
        curves = {key: curve(lines, key) for key in ("loss", "eval_loss", "eval_bleu")}
    return TrainingCurves(**curves, lengths_known=any(line.get("lengths_known") for line in lines))


def curve(lines: Sequence[JsonObject], key: str) -> Curve:
    """The points of a log for one key."""
    return validated(Curve, [[line["step"], line["seconds"], line[key]] for line in lines if key in line])


def has_translations(path: Path) -> bool:
    """Whether the translations in `path` are complete: their time too, if it was measured."""
    time_path = translation_time(path)
    return path.exists() and (time_path.exists() or not is_in_manifest(time_path))


def read_translations(path: Path, num_sources: int) -> TestSetTranslations:
    """The saved translations of a test set with `num_sources` sources, and their time if it was measured."""
    time_path = translation_time(path)
    time = read_record(TranslationTime, time_path) if time_path.exists() else None
    with verified(path):
        lines = read_json_lines(path)
        if len(lines) != num_sources:
            raise ValueError(f"it has {len(lines)} translations of {num_sources} sources")
        texts, truncated = [line["text"] for line in lines], [line["truncated"] for line in lines]
        return TestSetTranslations(texts=tuple(texts), truncated=tuple(truncated), time=time)


def write_translations(path: Path, translations: TestSetTranslations) -> None:
    """Write the time first, so that translations are never saved without it."""
    if translations.time is not None:
        write_record(translation_time(path), translations.time)
    rows = zip(translations.texts, translations.truncated, strict=True)
    write_file(path, "".join(json_line({"text": text, "truncated": truncated}) for text, truncated in rows))


def read_statistics(path: Path) -> dict[str, np.ndarray]:
    """The sentence statistics of a test set: for each metric (pairs, counts), and the pairs' `lengths`."""
    with verified(path), path.open("rb") as file:
        return dict(np.load(file))


def write_statistics(path: Path, statistics: Mapping[str, np.ndarray]) -> None:
    def save(temp_path: Path) -> None:
        with temp_path.open("wb") as file:  # numpy would add its suffix to a file name
            np.savez_compressed(file, allow_pickle=False, **statistics)

    save_file(path, save)


def read_json_lines(path: Path) -> list[JsonObject]:
    """The objects of a JSON lines file. It must have one or more lines, and the last one must be complete."""
    *lines, unterminated = path.read_text(encoding="utf-8").split("\n")
    if unterminated or not lines:
        raise ValueError("its last line is cut short" if lines or unterminated else "it is empty")
    return [json.loads(line) for line in lines]
