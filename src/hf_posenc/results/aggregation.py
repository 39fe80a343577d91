"""What the trainings of an experiment have left -> results.json: scores, losses, diagnoses, and which rows differ.

`aggregate` reads the files of all systems, `read_results` a results.json.
"""

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from ..config.settings import Experiment, ReferenceTable, System
from ..metrics.length_buckets.scorers import PRECOMPUTED_SCORERS, score_fields
from ..metrics.length_buckets.validation import bucket_bounds, token_counts
from ..modeling.tokenization_posenc import PosEncTokenizer
from ..utils.atomic_io import first_difference
from ..utils.manifest import explain_read_errors, verify_file, verify_folder
from ..utils.run_folder import ReportPaths, SystemPaths
from .diagnosis_records import Diagnosis
from .records import (
    BucketScore,
    Comparison,
    Curve,
    CurvePoint,
    PublishedTable,
    RunResults,
    SystemResult,
    SystemScores,
    TrainingCurves,
)
from .significance import p_values
from .validation import parse_diagnosis, parse_results, parse_scores

REQUIRED_KEYS = ("baseline", "runs", "comparisons", "paper")


def aggregate(experiment: Experiment) -> RunResults:
    """Everything that tables and figures are made of."""
    scores = {name: read_scores(experiment.paths.system(name).scores) for name in experiment.systems}
    validate_comparable(scores)
    verify_folder(folder := experiment.paths.tokenizer)
    with explain_read_errors(folder):
        tokenizer = PosEncTokenizer.from_pretrained(folder)
    max_lengths = [system_scores.max_length for system_scores in scores.values()]
    max_length = None if None in max_lengths else max(length for length in max_lengths if length is not None)
    systems = {
        name: system_result(experiment, system, scores[name], tokenizer, max_length)
        for name, system in experiment.systems.items()
    }
    return RunResults(
        baseline=experiment.baseline,
        systems=systems,
        comparisons=dict(compare_with_baseline(experiment, systems)),
        paper=published_table(experiment.reference_table) if experiment.reference_table else None,
        max_per_bucket=next(iter(experiment.systems.values())).score.max_per_bucket,
    )


def published_table(table: ReferenceTable) -> PublishedTable:
    """A published table as results.json saves it, whose keys are those of 0.2.0."""
    num_pairs = None if table.num_pairs is None else tuple(table.num_pairs)
    return PublishedTable(source=table.source, test=table.test, rows=table.rows, n=num_pairs)


def read_scores(path: Path) -> SystemScores:
    return parse_scores(read_json(path), path)


def system_result(
    experiment: Experiment, system: System, scores: SystemScores, tokenizer: PosEncTokenizer, max_length: int | None
) -> SystemResult:
    """All that one system's files hold; systems that translate with another's model have no training.

    `max_length` is the longest of all systems' maximum training lengths, `beyond` which pairs are scored together.
    """
    paths, score = experiment.paths.system(system.name), system.score
    beyond, by_prediction = {}, {}
    for test in scores.tests:
        statistics = read_statistics(experiment, system.name, test)
        beyond[test] = scores_beyond_limit(statistics, max_length, score.bootstrap_samples)
        rows = read_translations(paths.translation(test), len(statistics["lengths"]))
        lengths = token_counts("predictions", [row["text"] for row in rows], tokenizer)
        by_prediction[test] = scores_by_length(statistics, lengths, score.bucket_edges, score.bootstrap_samples)
    diagnosed_tests = scores.tests if experiment.diagnose else ()
    diagnostics = {} if system.segment else {test: read_diagnosis(paths, test) for test in diagnosed_tests}
    return SystemResult(
        row=system.base_name,
        min_length=system.data.min_length,
        tokenizer=scores.tokenizer,
        max_length=scores.max_length,
        tests=scores.tests,
        training=scores.training,
        split=scores.split,
        loss=None if system.segment else read_losses(paths.training_log),
        diagnostics=None if system.segment else diagnostics,
        beyond=beyond,
        by_prediction=by_prediction,
    )


def read_diagnosis(paths: SystemPaths, test: str) -> Diagnosis:
    path = paths.diagnosis(test)
    return parse_diagnosis(read_json(path), path)


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


def scores_beyond_limit(statistics: Mapping[str, np.ndarray], max_length: int | None, samples: int) -> BucketScore:
    """Corpus scores of all pairs with a source longer than `max_length`."""
    is_beyond = statistics["lengths"] > (math.inf if max_length is None else max_length)
    bounds = {"label": "beyond", "low": (max_length or 0) + 1, "high": None}
    return bucket_scores(bounds, statistics, is_beyond, samples)


def scores_by_length(
    statistics: Mapping[str, np.ndarray], lengths: Sequence[int], edges: Sequence[int], samples: int
) -> tuple[BucketScore, ...]:
    """As the metric's "groups", by lengths that may be other ones than those of the sources."""
    bucket_ids = np.searchsorted(edges, lengths)
    return tuple(
        bucket_scores(bounds, statistics, bucket_ids == bucket, samples)
        for bucket, bounds in enumerate(bucket_bounds(edges))
    )


def bucket_scores(
    bounds: Mapping[str, Any], statistics: Mapping[str, np.ndarray], in_bucket: np.ndarray, samples: int
) -> BucketScore:
    """The corpus scores of some pairs."""
    rows = np.flatnonzero(in_bucket)
    values: dict[str, float | None] = {}
    for metric in (name for name in statistics if name != "lengths"):
        values |= score_fields(metric, PRECOMPUTED_SCORERS[metric](), statistics[metric][rows], samples)
    return BucketScore(**bounds, n=len(rows), values=values)


def read_translations(path: Path, num_sources: int) -> list[dict[str, Any]]:
    """The saved rows of a test set of that `num_sources` of sources: `text`, and whether it was `truncated`."""
    verify_file(path)
    with explain_read_errors(path):
        rows = [{key: line[key] for key in ("text", "truncated")} for line in read_json_lines(path)]
        if len(rows) != num_sources:
            raise ValueError(f"it has {len(rows)} translations of {num_sources} sources")
    return rows


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON lines file, one or more, the last of which must be whole too."""
    *lines, unterminated = path.read_text(encoding="utf-8").split("\n")
    if unterminated or not lines:
        raise ValueError("it is empty" if not lines and not unterminated else "its last line is cut short")
    return [json.loads(line) for line in lines]


def read_statistics(experiment: Experiment, name: str, test: str) -> dict[str, np.ndarray]:
    path = experiment.paths.system(name).statistic(test)
    verify_file(path)
    with explain_read_errors(path), path.open("rb") as file:
        return dict(np.load(file))


def compare_with_baseline(
    experiment: Experiment, systems: Mapping[str, SystemResult]
) -> Iterator[tuple[str, Comparison]]:
    """For each test set, the p-values of each row but the baseline's."""
    members: dict[str, list[str]] = {}
    for name, system in systems.items():
        members.setdefault(system.row, []).append(name)
    score = next(iter(experiment.systems.values())).score
    compared_rows = [row for row in members if row != experiment.baseline]
    tests = next(iter(systems.values())).tests
    with tqdm(
        total=len(tests) * len(compared_rows),
        desc="comparing",
        unit="row",
        leave=False,
        disable=not compared_rows or not sys.stderr.isatty(),
    ) as progress:
        for test, result in tests.items():
            statistics = {
                row: [read_statistics(experiment, name, test) for name in names] for row, names in members.items()
            }
            labels = [bucket.label for bucket in result.all_buckets]
            p_values_by_row = {}
            for row in compared_rows:
                p_values_by_row[row] = p_values(
                    statistics[row],
                    statistics[experiment.baseline],
                    score.bucket_edges,
                    labels,
                    score.bootstrap_samples,
                )
                progress.update()
            yield test, p_values_by_row


def validate_comparable(systems: Mapping[str, SystemScores | SystemResult]) -> None:
    """Rows of one table have the same vocabulary and the same test sets, to the letter."""
    hashes = {}
    for name, system in systems.items():
        test_set_hashes = {test: result.test_set_sha256 for test, result in system.tests.items()}
        hashes[name] = {"tokenizer": system.tokenizer, **test_set_hashes}
    first, *others = hashes
    for other in others:
        if difference := first_difference(hashes[first], hashes[other]):
            raise ValueError(
                f"Systems in one table share tokenizer and test sets, but between {first} and {other} {difference}; "
                "delete the scores.json and translations of the older one and run again."
            )


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


def read_json(path: Path) -> dict[str, Any]:
    verify_file(path)
    with explain_read_errors(path):
        return dict(json.loads(path.read_text(encoding="utf-8")))
