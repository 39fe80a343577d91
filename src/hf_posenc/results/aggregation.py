"""What the trainings of an experiment have left -> results.json: scores, losses, diagnoses, and which rows differ."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from ..config.settings import Experiment
from ..metrics.length_buckets.scorers import PRECOMPUTED_SCORERS, score_fields
from ..metrics.length_buckets.validation import bucket_bounds, token_counts
from ..modeling.tokenization_posenc import PosEncTokenizer
from ..utils.atomic_io import first_difference
from ..utils.manifest import explain_read_errors, verify_file, verify_folder
from .length_limits import training_lengths_by_row
from .significance import p_values
from .validation import validate_results, validate_scores

REQUIRED_KEYS = ("baseline", "runs", "comparisons", "paper")


def aggregate(experiment: Experiment) -> dict[str, Any]:
    """Everything that tables and figures are made of, as plain values. Systems that split have no training."""
    runs = {}
    for name, system in experiment.systems.items():
        folder = experiment.folder / name
        saved = read_json(path := folder / "scores.json")
        validate_scores(saved, path)
        runs[name] = {"row": system.base_name, "min_length": system.data.min_length} | saved
        if system.split:
            continue
        diagnosed_tests = saved["tests"] if experiment.diagnose else ()
        diagnoses = {test: read_json(folder / "diagnostics" / f"{test}.json") for test in diagnosed_tests}
        runs[name] |= {"loss": read_losses(folder / "training.jsonl"), "diagnostics": diagnoses}
    validate_comparable_runs(runs)
    verify_folder(folder := experiment.folder / "tokenizer")
    with explain_read_errors(folder):
        tokenizer = PosEncTokenizer.from_pretrained(folder)
    max_lengths = [run["max_length"] for run in runs.values()]
    max_length = None if None in max_lengths else max(max_lengths)
    for name, run in runs.items():
        score = experiment.systems[name].score
        statistics = {test: read_statistics(experiment, name, test) for test in run["tests"]}
        run["beyond"] = {
            test: scores_beyond_limit(test_statistics, max_length, score.bootstrap)
            for test, test_statistics in statistics.items()
        }
        run["by_prediction"] = {}
        for test, test_statistics in statistics.items():
            rows = read_translations(
                experiment.folder / name / "translations" / f"{test}.jsonl", len(test_statistics["lengths"])
            )
            lengths = token_counts("predictions", [row["text"] for row in rows], tokenizer)
            run["by_prediction"][test] = scores_by_length(test_statistics, lengths, score.edges, score.bootstrap)
    return {
        "baseline": experiment.baseline,
        "runs": runs,
        "comparisons": dict(compare_with_baseline(experiment, runs)),
        "paper": asdict(experiment.paper) if experiment.paper else None,
        "per_group": next(iter(experiment.systems.values())).score.per_group,
    }


def read_losses(path: Path) -> dict[str, Any]:
    """[step, seconds, nats per token] of training, as label smoothing has it, and of evaluation; [step, seconds, BLEU];
    and whether the losses are those of a model that was told how long each target is."""
    verify_file(path)
    with explain_read_errors(path):
        lines = read_json_lines(path)
        losses = {
            key: [[line["step"], line["seconds"], line[key]] for line in lines if key in line]
            for key in ("loss", "eval_loss", "eval_bleu")
        }
    return losses | {"lengths_known": any(line.get("lengths_known") for line in lines)}


def scores_beyond_limit(statistics: Mapping[str, np.ndarray], max_length: int | None, samples: int) -> dict[str, Any]:
    """Corpus scores of all pairs with a source longer than `max_length`, like those of a length group."""
    is_beyond = statistics["lengths"] > (math.inf if max_length is None else max_length)
    return bucket_scores(
        {"label": "beyond", "low": (max_length or 0) + 1, "high": None}, statistics, is_beyond, samples
    )


def scores_by_length(
    statistics: Mapping[str, np.ndarray], lengths: Sequence[int], edges: Sequence[int], samples: int
) -> list[dict[str, Any]]:
    """As the metric's "groups", by lengths that may be other ones than those of the sources."""
    bucket_ids = np.searchsorted(edges, lengths)
    return [
        bucket_scores(bounds, statistics, bucket_ids == bucket, samples)
        for bucket, bounds in enumerate(bucket_bounds(edges))
    ]


def bucket_scores(
    bounds: Mapping[str, Any], statistics: Mapping[str, np.ndarray], in_bucket: np.ndarray, samples: int
) -> dict[str, Any]:
    """The corpus scores of some pairs, as those of a length group."""
    rows = np.flatnonzero(in_bucket)
    scores: dict[str, Any] = {**bounds, "n": len(rows)}
    for metric in (name for name in statistics if name != "lengths"):
        scores |= score_fields(metric, PRECOMPUTED_SCORERS[metric](), statistics[metric][rows], samples)
    return scores


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
    path = experiment.folder / name / "statistics" / f"{test}.npz"
    verify_file(path)
    with explain_read_errors(path), path.open("rb") as file:
        return dict(np.load(file))


def compare_with_baseline(experiment: Experiment, runs: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """For each test set, the p-values of each row but the baseline's."""
    members: dict[str, list[str]] = {}
    for name, run in runs.items():
        members.setdefault(run["row"], []).append(name)
    score = next(iter(experiment.systems.values())).score
    compared_rows = [row for row in members if row != experiment.baseline]
    tests: Mapping[str, Any] = next(iter(runs.values()))["tests"]
    with tqdm(
        total=len(tests) * len(compared_rows), desc="comparing", unit="row", leave=False, disable=not compared_rows
    ) as progress:
        for test, result in tests.items():
            statistics = {
                row: [read_statistics(experiment, name, test) for name in names] for row, names in members.items()
            }
            labels = ["all", *(group["label"] for group in result["groups"])]
            p_values_by_row = {}
            for row in compared_rows:
                p_values_by_row[row] = p_values(
                    statistics[row], statistics[experiment.baseline], score.edges, labels, score.bootstrap
                )
                progress.update()
            yield test, p_values_by_row


def validate_comparable_runs(runs: Mapping[str, Any]) -> None:
    """Rows of one table have the same vocabulary and the same test sets, to the letter."""
    hashes = {
        name: {"tokenizer": run["tokenizer"], **{test: r["test_set_sha256"] for test, r in run["tests"].items()}}
        for name, run in runs.items()
    }
    first, *others = hashes
    for other in others:
        if difference := first_difference(hashes[first], hashes[other]):
            raise ValueError(
                f"Systems in one table share tokenizer and test sets, but between {first} and {other} {difference}; "
                "delete the scores.json and translations of the older one and run again."
            )


def read_results(folder: Path) -> dict[str, Any]:
    """The results.json of a folder; a ValueError if it is cut short, from another version, or not of such a form."""
    path = folder / "results.json"
    if not path.exists():
        raise ValueError(f"A report is made of results.json, but there is none in {folder}; run train.py first.")
    results = read_json(path)
    if missing := [part for part in REQUIRED_KEYS if part not in results]:
        raise ValueError(
            f"{path} lacks {', '.join(missing)}; run train.py CONFIG again, which scores but does not train."
        )
    validate_results(results, path)
    return results


def table_context(results: Mapping[str, Any], test: str) -> dict[str, Any]:
    """What tables and figures of a test set are told beside its scores."""
    lengths = training_lengths_by_row(results["runs"])
    return lengths | {"baseline": results["baseline"], "p_values": results["comparisons"][test]}


def read_json(path: Path) -> dict[str, Any]:
    verify_file(path)
    with explain_read_errors(path):
        return dict(json.loads(path.read_text(encoding="utf-8")))
