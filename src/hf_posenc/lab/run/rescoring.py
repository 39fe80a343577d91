"""Scoring of a saved run by other metrics or length buckets. Nothing is trained or translated.

Metrics are computed from the saved translations, and buckets from the sentence statistics. A kill leaves a run that the
same command completes: the settings of a system are written after its scores.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...utils.atomic_io import exclusive_lock
from ...utils.manifest import verified, write_file
from ...utils.run_folder import RunPaths, SystemPaths
from ..config.errors import parse
from ..config.loading import bertscore_error
from ..config.settings import Experiment, ScoreSettings, System
from ..config.yaml_io import dump_yaml, read_yaml
from ..data.tokenization import ExperimentTokenizer
from ..reports.card import write_card
from ..results.records import RunResults, ScoredTestSet, SystemScores
from ..results.saved_files import (
    read_record,
    read_results,
    read_statistics,
    read_translations,
    write_record,
    write_statistics,
)
from .evaluation import compute_statistics, scores_by_source_and_prediction
from .saved_test_sets import SavedTestSet, read_test_set
from .shared_tokenizer import load_shared_tokenizer


def score_run(folder: Path, changes: Mapping[str, Any], metrics: Sequence[str] = ()) -> Experiment:
    """Score the systems of a run again, and return them as an experiment, whose results can be aggregated.

    `changes`: other values of the section `score`, such as `bucket_edges`.
    `metrics`: are added to those that the run is scored by.

    A ValueError, before anything is written, for a setting that the translations depend on.
    """
    results = read_results(folder)
    experiment = saved_experiment(folder, results)
    validate_published_buckets(results, changes)
    scored = {name: changed_system(system, changes, metrics) for name, system in experiment.systems.items()}
    tests = {
        name: [read_test_set(experiment.paths, results, name, test) for test in result.tests]
        for name, result in results.systems.items()
    }
    for name, system in scored.items():
        paths = experiment.paths.system(name)
        with exclusive_lock(paths.lock):
            score_again(paths, system, tests[name])
            save_score_settings(paths, system.score)
            if system.segment is None:
                write_card(folder, name)
    return replace(experiment, systems=scored)


def saved_experiment(folder: Path, results: RunResults) -> Experiment:
    """A finished run as an experiment: the systems of its results.json with their saved settings."""
    folder = folder.resolve()
    systems = {}
    for name, result in results.systems.items():
        systems[name], _ = System.read_saved(RunPaths(folder).system(name).settings, name, result.row)
    return Experiment(
        name=folder.name,
        output_dir=folder.parent,
        num_parallel=1,
        systems=systems,
        baseline=results.baseline,
        reference_table=results.reference_table,
        diagnose=any(result.diagnostics for result in results.systems.values()),
    )


def validate_published_buckets(results: RunResults, changes: Mapping[str, Any]) -> None:
    """Refuse other buckets if a published table has a number for each of the saved ones."""
    published = results.reference_table
    if published is None or "bucket_edges" not in changes:
        return
    first_row = next(iter(published.rows.values()))
    if any(isinstance(score, list) for score in first_row.values()):
        raise ValueError(
            f"Other buckets must match reference_table, but {published.source} has numbers for the saved buckets of "
            f"{published.test}; leave --buckets out, or score by train.py without reference_table."
        )


def changed_system(system: System, changes: Mapping[str, Any], metrics: Sequence[str]) -> System:
    """The system with other scoring settings, which are validated as those of a config file."""
    if system.data.is_text:
        raise ValueError(
            f"Other scores come from saved translations, but {system.name} is scored on plain text by its model; score "
            "it by train.py, in a run of another name."
        )
    added = [metric for metric in dict.fromkeys(metrics) if metric not in system.score.metrics]
    section = system.score.model_dump() | dict(changes) | {"metrics": [*system.score.metrics, *added]}
    score = parse(ScoreSettings, section, "score")
    if error := bertscore_error(score):
        raise ValueError(f"systems.{system.name}: {error}")
    if score.translation_settings != system.score.translation_settings:
        raise ValueError(
            f"Other buckets need all pairs of a test set, but {system.name} has translated at most "
            f"{system.score.max_per_bucket} pairs of each saved bucket (score.max_per_bucket); score it by train.py, "
            "in a run of another name."
        )
    return replace(system, score=score)


def score_again(paths: SystemPaths, system: System, test_sets: Sequence[SavedTestSet]) -> None:
    """Write the statistics and scores of a system."""
    saved, tests = read_record(SystemScores, paths.scores), {}
    tokenizer = load_shared_tokenizer(RunPaths(paths.folder.parent))
    for test_set in test_sets:
        tests[test_set.name] = scored_again(paths, system, test_set, saved.tests[test_set.name], tokenizer)
    write_record(paths.scores, replace(saved, tests=tests), indent=1)


def scored_again(
    paths: SystemPaths, system: System, test_set: SavedTestSet, saved: ScoredTestSet, tokenizer: ExperimentTokenizer
) -> ScoredTestSet:
    """The scores of one test set. Metrics without saved statistics are computed from the translations."""
    score, path = system.score, paths.statistic(test_set.name)
    translations = read_translations(paths.translation(test_set.name), len(test_set.pairs))
    statistics = read_statistics(path)
    signatures = dict(saved.signatures or {})
    if missing := [metric for metric in score.metrics if metric not in statistics]:
        language, num_proc = system.data.target_language, os.cpu_count() or 1
        added, added_signatures = compute_statistics(
            translations, test_set.pairs, language, score, missing, num_proc=num_proc
        )
        statistics |= added
        signatures |= added_signatures
        write_statistics(path, statistics)
    shown = {name: statistics[name] for name in ("lengths", *score.metrics)}
    scores = scores_by_source_and_prediction(shown, translations, tokenizer, score)
    return replace(saved, **scores, signatures=signatures)


def save_score_settings(paths: SystemPaths, score: ScoreSettings) -> None:
    """Write the section `score` into a system's settings."""
    with verified(paths.settings):
        saved = read_yaml(paths.settings, "The settings of a run")
    write_file(paths.settings, dump_yaml(saved | {"score": score.model_dump()}))
