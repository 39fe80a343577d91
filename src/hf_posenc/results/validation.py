"""Saved scores and settings, checked as they are read: every name one that a run can have, every number a number.

A results.json can be carried elsewhere, and so may come from anyone: its names become those of files, and its texts
stand in tables, figures and pages. What is not of the expected form is refused with the file and the place in it.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..utils.names import NAME_RULE, is_valid_name, validate_folder_name, validate_test_set_names

LABEL = re.compile(r"all|beyond|\[\d+,\d+\]|>\d+")


@dataclass(frozen=True)
class Scalar:
    """A value without parts: what it must be, and whether it is."""

    description: str
    is_valid: Callable[[Any], bool]


def is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 2**63


def is_line(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= 1000 and value.isprintable()


def is_label(value: Any) -> bool:
    return isinstance(value, str) and bool(LABEL.fullmatch(value))


def is_plain(value: Any) -> bool:
    """Whether it is nothing but numbers, lines and labels, in whatever lists and mappings."""
    if isinstance(value, Mapping):
        keys = all(is_valid_name(key) or is_label(key) for key in value)
        return keys and is_label(value.get("label", "all")) and all(map(is_plain, value.values()))
    if isinstance(value, list):
        return all(map(is_plain, value))
    return value is None or type(value) in (bool, float) or is_number(value) or is_line(value)


PLAIN = Scalar("numbers and lines of text", is_plain)


@dataclass(frozen=True)
class MappingOf:
    """A mapping whose keys are of one kind, and its values of one shape."""

    key: Scalar
    value: Any


@dataclass(frozen=True)
class Record:
    """A mapping with these keys, perhaps those, and whatever others are plain, or of one shape."""

    required: Mapping[str, Any]
    optional: Mapping[str, Any] = field(default_factory=dict)
    others: Any = PLAIN


NUMBER = Scalar("a number", is_number)
NUMBER_OR_NULL = Scalar("a number or null", lambda value: value is None or is_number(value))
NAME = Scalar(NAME_RULE, is_valid_name)
LINE = Scalar("a line of text", is_line)
TEXT = Scalar("text", lambda value: isinstance(value, str))
GROUP_LABEL = Scalar("the label of a length group, such as [0,25] or >100", is_label)
GROUP = Record({"label": GROUP_LABEL, "low": NUMBER, "high": NUMBER_OR_NULL, "n": NUMBER}, others=NUMBER_OR_NULL)
SCORED = Record({"all": GROUP, "groups": [GROUP], "test_set_sha256": LINE, "truncated": NUMBER})
TRAINING = Record({"parameters": NUMBER}, dict.fromkeys(("steps", "seconds", "pairs", "processes"), NUMBER))
SCORES = Record(
    {"tokenizer": LINE, "max_length": NUMBER_OR_NULL, "tests": MappingOf(NAME, SCORED)},
    {"min_length": NUMBER_OR_NULL, "training": TRAINING, "split": Record({"system": NAME})},
)
RUN = Record(
    {**SCORES.required, "row": NAME, "beyond": MappingOf(NAME, GROUP)},
    {
        **SCORES.optional,
        "by_prediction": MappingOf(NAME, [GROUP]),
        "loss": Record({"loss": [[NUMBER]], "eval_loss": [[NUMBER]]}, {"eval_bleu": [[NUMBER]]}),
        "diagnostics": MappingOf(NAME, PLAIN),
    },
)
RESULTS = Record(
    {
        "baseline": NAME,
        "runs": MappingOf(NAME, RUN),
        "comparisons": MappingOf(
            NAME, MappingOf(NAME, MappingOf(GROUP_LABEL, MappingOf(NAME, MappingOf(NAME, NUMBER))))
        ),
    },
)
PAPER = Record({"source": TEXT, "test": NAME, "rows": MappingOf(NAME, MappingOf(NAME, PLAIN))}, {"n": PLAIN})

ANY = Scalar("anything", lambda value: True)
DATA = {"source_language": NAME, "target_language": NAME, "train": MappingOf(NAME, ANY), "test": MappingOf(NAME, ANY)}
SETTINGS = Record({"data": Record(DATA, others=ANY)}, others=ANY)


def schema_violation(value: Any, shape: Any, location: str) -> str | None:
    """The first place where a value is not of its shape, and what it must be there."""
    if isinstance(shape, Scalar):
        return None if shape.is_valid(value) else f"{location} must be {shape.description}, but it is {value!r:.100}"
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{location} must be a list, but it is {value!r:.100}"
        return next(
            filter(None, (schema_violation(item, shape[0], f"{location}[{i}]") for i, item in enumerate(value))), None
        )
    if not isinstance(value, Mapping):
        return f"{location} must have keys and values, but it is {value!r:.100}"
    if isinstance(shape, MappingOf):
        keys = (schema_violation(key, shape.key, f"a key of {location}") for key in value)
        values = (schema_violation(item, shape.value, f"{location}.{key}") for key, item in value.items())
        return next(filter(None, (*keys, *values)), None)
    if missing := [key for key in shape.required if key not in value]:
        return f"{location} lacks {', '.join(missing)}"
    known = {**shape.required, **shape.optional}
    others = {key: item for key, item in value.items() if key not in known}
    own = (schema_violation(item, known[key], f"{location}.{key}") for key, item in value.items() if key in known)
    return next(filter(None, (*own, schema_violation(others, MappingOf(NAME, shape.others), location))), None)


def validate_scores(scores: Any, path: Path) -> None:
    """Refuse a scores.json that is not what a system's scoring leaves."""
    raise_violation(schema_violation(scores, SCORES, path.stem) or name_conflict(scores["tests"]), path)


def validate_settings(settings: Any, path: Path) -> None:
    """Refuse a settings.yaml whose languages, corpora or test sets are not what a config can name."""
    raise_violation(schema_violation(settings, SETTINGS, path.stem), path)


def validate_results(results: Any, path: Path) -> None:
    """Refuse a results.json that is not what `collect` makes: names, numbers, and the same test sets everywhere."""
    raise_violation(schema_violation(results, RESULTS, path.stem), path)
    paper, runs = results["paper"], results["runs"]
    raise_violation(None if paper is None else schema_violation(paper, PAPER, "paper"), path)
    raise_violation(inconsistency(results, {run["row"] for run in runs.values()}), path)


def inconsistency(results: Mapping[str, Any], rows: set[str]) -> str | None:
    """What in the results names a system, a test set or a group that there is none of."""
    runs, paper = results["runs"], results["paper"]
    if results["baseline"] not in rows:
        named = ", ".join(rows) or "but there are none"
        return f"baseline must be a row of its runs, {named}; it is {results['baseline']!r}"
    tests = next(iter(runs.values()))["tests"]
    for name, run in runs.items():
        parts = {part: run[part] for part in ("tests", "beyond", "by_prediction") if part in run}
        for part, by_test in parts.items():
            if by_test.keys() != tests.keys():
                return f"{name}.{part} must have the test sets {', '.join(tests)}, but it has {', '.join(by_test)}"
    if missing := tests.keys() - results["comparisons"].keys():
        return f"comparisons must have all test sets, but {', '.join(sorted(missing))} is not in it"
    if paper and (paper["test"] not in tests or not paper["rows"] or not paper["rows"].keys() <= rows):
        return (
            f"paper must be of a test set and rows of its own, but it is of {paper['test']} and {list(paper['rows'])}"
        )
    return name_conflict(tests, runs)


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
        raise ValueError(
            f"Saved files must be as train.py writes them, but in {path} {violation}. Restore the file, or delete it "
            "and run train.py CONFIG again."
        )
