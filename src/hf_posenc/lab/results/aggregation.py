"""Aggregation of a run's files into results.json: scores, losses, diagnoses, and comparisons with the baseline."""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from tqdm.auto import tqdm

from ...metrics.length_buckets.scorers import (
    PRECOMPUTED_SCORERS,
    BucketBounds,
    bucket_bounds,
    score_fields,
    token_counts,
)
from ...utils.atomic_io import first_difference
from ...utils.manifest import verified
from ...utils.run_folder import SystemPaths
from ..config.settings import Experiment, ReferenceTable, System
from ..data.tokenization import ExperimentTokenizer, load_experiment_tokenizer
from .json_records import read_record
from .records import (
    BucketScore,
    Comparison,
    Diagnosis,
    PublishedTable,
    RunResults,
    SystemResult,
    SystemScores,
)
from .saved_files import read_losses, read_statistics, read_translations
from .significance import p_values


def aggregate(experiment: Experiment) -> RunResults:
    """The results of a run, from which tables and figures are made."""
    scores = {name: read_record(SystemScores, experiment.paths.system(name).scores) for name in experiment.systems}
    with verified(experiment.paths.tokenizer):
        tokenizer = load_experiment_tokenizer(experiment.paths.tokenizer)
    validate_comparable(scores)
    max_lengths = [system_scores.max_length for system_scores in scores.values()]
    max_length = None if None in max_lengths else max(length for length in max_lengths if length is not None)
    systems = {
        name: system_result(
            system, experiment.paths.system(name), scores[name], tokenizer, max_length, diagnosed=experiment.diagnose
        )
        for name, system in experiment.systems.items()
    }
    published = published_table(experiment.reference_table) if experiment.reference_table else None
    return RunResults(
        baseline=experiment.baseline,
        systems=systems,
        comparisons=dict(compare_with_baseline(experiment, systems)),
        reference_table=published,
        max_per_bucket=next(iter(experiment.systems.values())).score.max_per_bucket,
    )


def published_table(table: ReferenceTable) -> PublishedTable:
    """A published table as a record of results.json."""
    num_pairs = None if table.num_pairs is None else tuple(table.num_pairs)
    return PublishedTable(source=table.source, test=table.test, rows=table.rows, num_pairs=num_pairs)


def system_result(
    system: System,
    paths: SystemPaths,
    scores: SystemScores,
    tokenizer: ExperimentTokenizer,
    max_length: int | None,
    *,
    diagnosed: bool,
) -> SystemResult:
    """The results of one system. Segmented systems have no training.

    `max_length` is the longest of all systems' maximum training lengths. `beyond` has the scores of all longer pairs.
    """
    score = system.score
    loss = None if system.segment else read_losses(paths.training_log)
    beyond, by_prediction = {}, {}
    for test in scores.tests:
        statistics = read_statistics(paths.statistic(test))
        beyond[test] = scores_beyond_limit(statistics, max_length, score.bootstrap_samples)
        if system.data.is_text:
            continue
        translations = read_translations(paths.translation(test), len(statistics["lengths"]))
        lengths = token_counts("predictions", list(translations.texts), tokenizer)
        by_prediction[test] = scores_by_length(statistics, lengths, score.bucket_edges, score.bootstrap_samples)
    has_diagnoses = diagnosed and system.is_encoder_decoder and not system.segment
    diagnosed_tests = scores.tests if has_diagnoses else ()
    diagnostics = {test: read_record(Diagnosis, paths.diagnosis(test)) for test in diagnosed_tests}
    return SystemResult(
        row=system.base_name,
        min_length=system.data.min_length,
        tokenizer=scores.tokenizer,
        max_length=scores.max_length,
        tests=scores.tests,
        training=scores.training,
        segment=scores.segment,
        loss=loss,
        diagnostics=None if system.segment else diagnostics,
        beyond=beyond,
        by_prediction=None if system.data.is_text else by_prediction,
    )


def scores_beyond_limit(statistics: Mapping[str, np.ndarray], max_length: int | None, samples: int) -> BucketScore:
    """Corpus scores of all pairs with a source longer than `max_length`."""
    is_beyond = statistics["lengths"] > (math.inf if max_length is None else max_length)
    bounds: BucketBounds = {"label": "beyond", "low": (max_length or 0) + 1, "high": None}
    return bucket_scores(bounds, statistics, is_beyond, samples)


def scores_by_length(
    statistics: Mapping[str, np.ndarray], lengths: Sequence[int], edges: Sequence[int], samples: int
) -> tuple[BucketScore, ...]:
    """Scores by length bucket, as the metric's "groups", for any lengths, such as those of translations."""
    bucket_ids = np.searchsorted(edges, lengths)
    return tuple(
        bucket_scores(bounds, statistics, bucket_ids == bucket, samples)
        for bucket, bounds in enumerate(bucket_bounds(edges))
    )


def bucket_scores(
    bounds: BucketBounds, statistics: Mapping[str, np.ndarray], in_bucket: np.ndarray, samples: int
) -> BucketScore:
    """The corpus scores of some pairs."""
    rows = np.flatnonzero(in_bucket)
    values: dict[str, float | None] = {}
    for metric in (name for name in statistics if name != "lengths"):
        values |= score_fields(metric, PRECOMPUTED_SCORERS[metric](), statistics[metric][rows], samples)
    return BucketScore(**bounds, n=len(rows), values=values)


def compare_with_baseline(
    experiment: Experiment, systems: Mapping[str, SystemResult]
) -> Iterator[tuple[str, Comparison]]:
    """For each test set, the p-values of each row but the baseline's."""
    members: dict[str, list[str]] = {}
    for name, system in systems.items():
        members.setdefault(system.row, []).append(name)
    score = next(iter(experiment.systems.values())).score

    def path(name: str, test: str) -> Path:
        return experiment.paths.system(name).statistic(test)

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
            statistics = {row: [read_statistics(path(name, test)) for name in names] for row, names in members.items()}
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
    """Raise a ValueError unless all rows of a table have the same tokenizer and test sets."""
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
