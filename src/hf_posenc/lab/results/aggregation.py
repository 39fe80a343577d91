"""Aggregation of a run's files into results.json: scores, losses, diagnoses, and comparisons with the baseline."""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from tqdm.auto import tqdm

from ...metrics.length_buckets.scorers import PRECOMPUTED_SCORERS, BucketBounds, bucket_bounds, score_fields
from ...utils.atomic_io import first_difference
from ..config.settings import Experiment
from .records import (
    WITHOUT_INTERVAL,
    BucketScore,
    Comparison,
    Diagnosis,
    LengthScores,
    RunResults,
    Score,
    SystemRecord,
    SystemResult,
    SystemScores,
)
from .saved_files import read_losses, read_record, read_statistics
from .significance import Statistics, p_values

ALL: BucketBounds = {"label": "all", "low": 0, "high": None}


def aggregate(experiment: Experiment) -> RunResults:
    """The results of a run, from which tables and figures are made.

    The sentence statistics are read once, test set by test set.
    """
    paths = experiment.paths
    scores = {name: read_record(SystemScores, paths.system(name).scores) for name in experiment.systems}
    validate_comparable(scores)
    beyond: dict[str, dict[str, BucketScore]] = {name: {} for name in scores}
    comparisons = {}
    max_length, settings = longest_training_length(scores), next(iter(experiment.systems.values())).score
    tests = next(iter(scores.values())).tests
    with comparison_progress(experiment, len(tests)) as progress:
        for test, result in tests.items():
            statistics = {name: read_statistics(paths.system(name).statistic(test)) for name in scores}
            for name, of_system in statistics.items():
                beyond[name][test] = scores_beyond_limit(of_system, max_length, settings.bootstrap_samples)
            labels = [bucket.label for bucket in result.all_buckets]
            comparisons[test] = compare_with_baseline(experiment, statistics, labels, progress)
    return RunResults(
        baseline=experiment.baseline,
        systems={name: system_result(experiment, name, scores[name], beyond[name]) for name in scores},
        comparisons=comparisons,
        reference_table=experiment.reference_table,
        max_per_bucket=settings.max_per_bucket,
    )


def longest_training_length(scores: Mapping[str, SystemScores]) -> int | None:
    """The longest of all systems' maximum training lengths, None if one has no limit."""
    longest = 0
    for system in scores.values():
        if system.max_length is None:
            return None
        longest = max(longest, system.max_length)
    return longest


def system_result(
    experiment: Experiment, name: str, scores: SystemScores, beyond: Mapping[str, BucketScore]
) -> SystemResult:
    """The results of one system: its scores with those `beyond` the training lengths. Segmented systems have no
    training."""
    system, paths = experiment.systems[name], experiment.paths.system(name)
    loss, diagnostics = None, None
    if not system.segment:
        loss, diagnostics = read_losses(paths.training_log), {}
        if experiment.diagnose and system.is_encoder_decoder:
            diagnostics = {test: read_record(Diagnosis, paths.diagnosis(test)) for test in scores.tests}
    return SystemResult(
        row=system.base_name,
        min_length=system.data.min_length,
        tokenizer=scores.tokenizer,
        max_length=scores.max_length,
        tests={test: replace(result, beyond=beyond[test]) for test, result in scores.tests.items()},
        training=scores.training,
        segment=scores.segment,
        loss=loss,
        diagnostics=diagnostics,
    )


def scores_beyond_limit(statistics: Statistics, max_length: int | None, samples: int) -> BucketScore:
    """Corpus scores of all pairs with a source longer than `max_length`."""
    is_beyond = statistics["lengths"] > (math.inf if max_length is None else max_length)
    bounds: BucketBounds = {"label": "beyond", "low": (max_length or 0) + 1, "high": None}
    return bucket_scores(bounds, statistics, is_beyond, samples)


def scores_by_length(
    statistics: Statistics, lengths: Sequence[int], edges: Sequence[int], samples: int
) -> LengthScores:
    """The corpus scores by any lengths of the pairs, such as those of translations."""
    bucket_ids = np.searchsorted(edges, lengths)
    buckets = []
    for bucket, bounds in enumerate(bucket_bounds(edges)):
        buckets.append(bucket_scores(bounds, statistics, bucket_ids == bucket, samples))
    overall = bucket_scores(ALL, statistics, np.ones(len(lengths), dtype=bool), samples)
    return LengthScores(overall=overall, buckets=tuple(buckets))


def bucket_scores(bounds: BucketBounds, statistics: Statistics, in_bucket: np.ndarray, samples: int) -> BucketScore:
    """The corpus scores of some pairs, with the bootstrap's intervals of that many samples."""
    rows = np.flatnonzero(in_bucket)
    scores = {}
    for metric in statistics:
        if metric != "lengths":
            fields = score_fields(metric, PRECOMPUTED_SCORERS[metric](), statistics[metric][rows], samples)
            half_width, middle = fields.get(f"{metric}_ci"), fields.get(f"{metric}_mean")
            scores[metric] = Score(value=fields[metric], half_width=half_width, middle=middle)
            for name in WITHOUT_INTERVAL:
                if name in fields:
                    scores[name] = Score(value=fields[name])
    return BucketScore(**bounds, n=len(rows), scores=scores)


def comparison_progress(experiment: Experiment, num_tests: int) -> tqdm:
    """A progress bar of the comparisons of each row on each test set."""
    rows = {system.base_name for system in experiment.systems.values()} - {experiment.baseline}
    is_hidden = not rows or not sys.stderr.isatty()
    return tqdm(total=num_tests * len(rows), desc="comparing", unit="row", leave=False, disable=is_hidden)


def compare_with_baseline(
    experiment: Experiment, statistics: Mapping[str, Statistics], labels: Sequence[str], progress: tqdm
) -> Comparison:
    """The p-values of each row but the baseline's, from the statistics of each system on one test set."""
    members: dict[str, list[Statistics]] = {}
    for name, of_system in statistics.items():
        members.setdefault(experiment.systems[name].base_name, []).append(of_system)
    baseline, settings = members.pop(experiment.baseline), next(iter(experiment.systems.values())).score
    compared = {}
    for row, seeds in members.items():
        compared[row] = p_values(seeds, baseline, settings.bucket_edges, labels, settings.bootstrap_samples)
        progress.update()
    return compared


def validate_comparable(systems: Mapping[str, SystemRecord]) -> None:
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
