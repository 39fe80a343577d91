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
from ..manifest import check_file, check_folder, readable
from ..metrics.length_buckets.checks import group_bounds, token_counts
from ..metrics.length_buckets.scorers import COUNTED, score_fields
from ..modeling.tokenization_posenc import PosEncTokenizer
from ..whole_files import differing_key
from .comparison import p_values
from .training_lengths import lengths_of_rows
from .validation import validate_results, validate_scores

PARTS = ("baseline", "runs", "comparisons", "paper")


def collect(experiment: Experiment) -> dict[str, Any]:
    """Everything that tables and figures are made of, as plain values. Systems that split have no training."""
    runs = {}
    for name, system in experiment.systems.items():
        folder = experiment.folder / name
        saved = read_json(path := folder / "scores.json")
        validate_scores(saved, path)
        runs[name] = {"row": system.row, "min_length": system.data.min_length} | saved
        if system.split:
            continue
        diagnosed = saved["tests"] if experiment.diagnose else ()
        diagnoses = {test: read_json(folder / "diagnostics" / f"{test}.json") for test in diagnosed}
        runs[name] |= {"loss": read_losses(folder / "training.jsonl"), "diagnostics": diagnoses}
    refuse_unlike_runs(runs)
    check_folder(folder := experiment.folder / "tokenizer")
    with readable(folder):
        tokenizer = PosEncTokenizer.from_pretrained(folder)
    limits = [run["max_length"] for run in runs.values()]
    limit = None if None in limits else max(limits)
    for name, run in runs.items():
        score = experiment.systems[name].score
        statistics = {test: read_statistics(experiment, name, test) for test in run["tests"]}
        run["beyond"] = {test: scores_beyond(one, limit, score.bootstrap) for test, one in statistics.items()}
        run["by_prediction"] = {}
        for test, one in statistics.items():
            rows = read_translations(experiment.folder / name / "translations" / f"{test}.jsonl", len(one["lengths"]))
            lengths = token_counts("predictions", [row["text"] for row in rows], tokenizer)
            run["by_prediction"][test] = scores_by_length(one, lengths, score.edges, score.bootstrap)
    return {
        "baseline": experiment.baseline,
        "runs": runs,
        "comparisons": dict(compare_rows(experiment, runs)),
        "paper": asdict(experiment.paper) if experiment.paper else None,
        "per_group": next(iter(experiment.systems.values())).score.per_group,
    }


def read_losses(path: Path) -> dict[str, Any]:
    """[step, seconds, nats per token] of training, as label smoothing has it, and of evaluation; [step, seconds, BLEU];
    and whether the losses are those of a model that was told how long each target is."""
    check_file(path)
    with readable(path):
        lines = json_lines(path)
        losses = {
            key: [[line["step"], line["seconds"], line[key]] for line in lines if key in line]
            for key in ("loss", "eval_loss", "eval_bleu")
        }
    return losses | {"lengths_known": any(line.get("lengths_known") for line in lines)}


def scores_beyond(statistics: Mapping[str, np.ndarray], limit: int | None, samples: int) -> dict[str, Any]:
    """Corpus scores of all pairs with a source longer than `limit`, like those of a length group."""
    is_beyond = statistics["lengths"] > (math.inf if limit is None else limit)
    return scored({"label": "beyond", "low": (limit or 0) + 1, "high": None}, statistics, is_beyond, samples)


def scores_by_length(
    statistics: Mapping[str, np.ndarray], lengths: Sequence[int], edges: Sequence[int], samples: int
) -> list[dict[str, Any]]:
    """As the metric's "groups", by lengths that may be other ones than those of the sources."""
    group_of = np.searchsorted(edges, lengths)
    return [scored(bounds, statistics, group_of == group, samples) for group, bounds in enumerate(group_bounds(edges))]


def scored(
    bounds: Mapping[str, Any], statistics: Mapping[str, np.ndarray], is_in: np.ndarray, samples: int
) -> dict[str, Any]:
    """The corpus scores of some pairs, as those of a length group."""
    rows = np.flatnonzero(is_in)
    made: dict[str, Any] = {**bounds, "n": len(rows)}
    for metric in (name for name in statistics if name != "lengths"):
        made |= score_fields(metric, COUNTED[metric](), statistics[metric][rows], samples)
    return made


def read_translations(path: Path, number: int) -> list[dict[str, Any]]:
    """The saved rows of a test set of that `number` of sources: `text`, and whether it was `truncated`."""
    check_file(path)
    with readable(path):
        rows = [{key: line[key] for key in ("text", "truncated")} for line in json_lines(path)]
        if len(rows) != number:
            raise ValueError(f"it has {len(rows)} translations of {number} sources")
    return rows


def json_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON lines file, one or more, the last of which must be whole too."""
    *lines, rest = path.read_text(encoding="utf-8").split("\n")
    if rest or not lines:
        raise ValueError("it is empty" if not lines and not rest else "its last line is cut short")
    return [json.loads(line) for line in lines]


def read_statistics(experiment: Experiment, name: str, test: str) -> dict[str, np.ndarray]:
    path = experiment.folder / name / "statistics" / f"{test}.npz"
    check_file(path)
    with readable(path), path.open("rb") as file:
        return dict(np.load(file))


def compare_rows(experiment: Experiment, runs: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """For each test set, the p-values of each row but the baseline's."""
    members: dict[str, list[str]] = {}
    for name, run in runs.items():
        members.setdefault(run["row"], []).append(name)
    score = next(iter(experiment.systems.values())).score
    others = [row for row in members if row != experiment.baseline]
    tests: Mapping[str, Any] = next(iter(runs.values()))["tests"]
    with tqdm(total=len(tests) * len(others), desc="comparing", unit="row", leave=False, disable=not others) as bar:
        for test, result in tests.items():
            statistics = {
                row: [read_statistics(experiment, name, test) for name in names] for row, names in members.items()
            }
            labels = ["all", *(group["label"] for group in result["groups"])]
            found = {}
            for row in others:
                found[row] = p_values(
                    statistics[row], statistics[experiment.baseline], score.edges, labels, score.bootstrap
                )
                bar.update()
            yield test, found


def refuse_unlike_runs(runs: Mapping[str, Any]) -> None:
    """Rows of one table have the same vocabulary and the same test sets, to the letter."""
    marks = {
        name: {"tokenizer": one["tokenizer"], **{test: r["test_set_sha256"] for test, r in one["tests"].items()}}
        for name, one in runs.items()
    }
    first, *others = marks
    for other in others:
        if difference := differing_key(marks[first], marks[other]):
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
    if missing := [part for part in PARTS if part not in results]:
        raise ValueError(
            f"{path} lacks {', '.join(missing)}; run train.py CONFIG again, which scores but does not train."
        )
    validate_results(results, path)
    return results


def compared_by(results: Mapping[str, Any], test: str) -> dict[str, Any]:
    """What tables and figures of a test set are told beside its scores."""
    lengths = lengths_of_rows(results["runs"])
    return lengths | {"baseline": results["baseline"], "p_values": results["comparisons"][test]}


def read_json(path: Path) -> dict[str, Any]:
    check_file(path)
    with readable(path):
        return dict(json.loads(path.read_text(encoding="utf-8")))
