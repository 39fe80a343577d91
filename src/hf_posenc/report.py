"""Saved scores -> results.json, and from it alone every table and figure: nothing here trains, translates or scores.

`collect` reads what the trainings of an experiment have left and compares their rows; `publish` draws. A results.json
can be carried elsewhere and published again: `python -m hf_posenc report FOLDER`.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from matplotlib.figure import Figure
from tqdm.auto import tqdm

from .comparison import p_values, rows_of
from .comparison_plots import gain_by_length, loss_curves, parameters_and_score
from .config import differing_key, write_whole
from .diagnostics_plots import attention_distance_figure, loss_by_position
from .metrics.length_buckets.scorers import COUNTED, score_fields
from .plots import bleu_by_length, save_figure
from .settings import Experiment
from .tables import Results, csv_text, latex, length_table, markdown, overview_table, paper_table, text

PARTS = ("baseline", "runs", "comparisons", "paper")


@dataclass(frozen=True)
class ReportFigure:
    """A figure that is not drawn yet: its kind, the test set it is of (None: of none), and what to look at in it."""

    kind: str
    test_set: str | None
    look_for: str
    draw: Callable[[], Figure]

    @property
    def name(self) -> str:
        """What its file is called."""
        return self.kind if self.test_set is None else f"{self.kind}-{self.test_set}"


def collect(experiment: Experiment) -> dict[str, Any]:
    """Everything that tables and figures are made of, as plain values."""
    runs = {}
    for name, system in experiment.systems.items():
        folder = experiment.folder / name
        saved = read_json(folder / "scores.json")
        diagnoses = {test: read_json(folder / "diagnostics" / f"{test}.json") for test in saved["tests"]}
        runs[name] = (
            {"row": system.row} | saved | {"loss": loss_log(folder / "training.jsonl"), "diagnostics": diagnoses}
        )
    refuse_strangers(runs)
    limits = [run["max_length"] for run in runs.values()]
    limit = None if None in limits else max(limits)
    for name, run in runs.items():
        samples = experiment.systems[name].score.bootstrap
        run["beyond"] = {test: beyond(statistics_of(experiment, name, test), limit, samples) for test in run["tests"]}
    return {
        "baseline": experiment.baseline,
        "runs": runs,
        "comparisons": dict(compared(experiment, runs)),
        "paper": asdict(experiment.paper) if experiment.paper else None,
    }


def loss_log(path: Path) -> dict[str, list[list[float]]]:
    """[step, seconds, nats per token] of training, as label smoothing has it, and of evaluation."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {
        key: [[line["step"], line["seconds"], line[key]] for line in lines if key in line]
        for key in ("loss", "eval_loss")
    }


def beyond(statistics: Mapping[str, np.ndarray], limit: int | None, samples: int) -> dict[str, Any]:
    """Corpus scores of all pairs with a source longer than `limit`, like those of a length group."""
    rows = np.flatnonzero(statistics["lengths"] > (math.inf if limit is None else limit))
    made: dict[str, Any] = {"label": "beyond", "low": (limit or 0) + 1, "high": None, "n": len(rows)}
    for metric in (name for name in statistics if name != "lengths"):
        made |= score_fields(metric, COUNTED[metric](), statistics[metric][rows], samples)
    return made


def statistics_of(experiment: Experiment, name: str, test: str) -> dict[str, np.ndarray]:
    path = experiment.folder / name / "statistics" / f"{test}.npz"
    try:
        with path.open("rb") as file:
            return dict(np.load(file))
    except (ValueError, EOFError, BadZipFile) as error:
        raise not_whole(path, error) from None


def compared(experiment: Experiment, runs: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
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
                row: [statistics_of(experiment, name, test) for name in names] for row, names in members.items()
            }
            labels = ["all", *(group["label"] for group in result["groups"])]
            found = {}
            for row in others:
                found[row] = p_values(
                    statistics[row], statistics[experiment.baseline], score.edges, labels, score.bootstrap
                )
                bar.update()
            yield test, found


def refuse_strangers(runs: Mapping[str, Any]) -> None:
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


def publish(results: Mapping[str, Any], folder: Path) -> str:
    """Write results.json, tables and figures to `folder`; returns the tables as text."""
    runs, comparisons = results["runs"], results["comparisons"]
    refuse_strangers(runs)
    write_whole(folder / "results.json", json.dumps(results))
    row_of = {name: run["row"] for name, run in runs.items()}
    rows = rows_of({name: run["tests"] for name, run in runs.items()}, row_of)
    made = {"overview": overview_table(rows, baseline=results["baseline"], comparisons=comparisons)}
    for test in next(iter(rows.values())):
        made[test] = length_table(rows, test, **compared_by(results, test))
    if paper := results["paper"]:
        made["paper"] = paper_table(rows, paper, **compared_by(results, paper["test"]))
    for name, table in made.items():
        write_whole(folder / f"table-{name}.md", markdown(table))
        write_whole(folder / f"table-{name}.tex", latex(table))
    write_whole(folder / "scores.csv", csv_text(rows, comparisons))
    for figure in figures(results, rows, row_of):
        save_figure(figure.draw(), folder / f"{figure.name}.png")
    cut = [
        f"{name} {result['truncated']} of {result['all']['n']} on {test}"
        for name, run in runs.items()
        for test, result in run["tests"].items()
        if result["truncated"]
    ]
    limits_met = f"Translations cut at their length limit: {', '.join(cut) or 'none'}.\n"
    return "\n".join([*(text(table) for table in made.values()), limits_met])


def compared_by(results: Mapping[str, Any], test: str) -> dict[str, Any]:
    """What tables and figures of a test set are told beside its scores."""
    limits = {run["row"]: run["max_length"] for run in results["runs"].values()}
    return {"training_limits": limits, "baseline": results["baseline"], "p_values": results["comparisons"][test]}


def figures(results: Mapping[str, Any], rows: Results, row_of: Mapping[str, str]) -> Iterator[ReportFigure]:
    """Every figure that a report has."""
    losses = {name: run["loss"] for name, run in results["runs"].items()}
    look_for = (
        "Look at how fast each system learns, by step and by minute; systems trained side by side share a machine."
    )
    yield ReportFigure("loss", None, look_for, partial(loss_curves, losses, row_of))
    for test in next(iter(rows.values())):
        yield from figures_of(test, results, rows, row_of)


def figures_of(
    test: str, results: Mapping[str, Any], rows: Results, row_of: Mapping[str, str]
) -> Iterator[ReportFigure]:
    """Those of one test set."""
    runs, compared = results["runs"], compared_by(results, test)
    limits = {"training_limits": compared["training_limits"]}
    look_for = (
        "Look right of the line, where training ended: which system falls first and which falls least, whether the "
        "intervals leave that to chance, and below, which one stops too early or runs on."
    )
    yield ReportFigure("bleu-by-length", test, look_for, partial(bleu_by_length, rows, test, **limits))
    if len(rows) > 1:
        look_for = "Look at filled markers alone: there the difference from the baseline is hardly chance."
        yield ReportFigure("gain-by-length", test, look_for, partial(gain_by_length, rows, test, **compared))
    outside = rows_of({name: {test: {"all": run["beyond"][test], "groups": []}} for name, run in runs.items()}, row_of)
    longer = {row: tests[test]["all"] for row, tests in outside.items()}
    if all(group["n"] for group in longer.values()):
        sizes = {run["row"]: run["training"]["parameters"] for run in runs.values()}
        look_for = "Look at whether the better system on longer inputs is merely the larger one."
        draw = partial(parameters_and_score, longer, parameters=sizes, test_set=test)
        yield ReportFigure("parameters", test, look_for, draw)
    # Of several seeds the first is shown.
    first = {run["row"]: run["diagnostics"][test] for run in reversed(runs.values())}
    diagnoses = {row: first[row] for row in rows}
    look_for = "Look at where a line leaves the others: up to there the right words so far tell the next one."
    yield ReportFigure("loss-by-position", test, look_for, partial(loss_by_position, diagnoses, **limits))
    if any(one["attention_distance"]["encoder"] for one in diagnoses.values()):
        look_for = "Look at open marks that leave full ones: heads that look elsewhere once inputs are longer."
        yield ReportFigure("attention-distance", test, look_for, partial(attention_distance_figure, diagnoses))


def read_results(folder: Path) -> dict[str, Any]:
    """The results.json of a folder; a ValueError if it is cut short or from another version."""
    path = folder / "results.json"
    if not path.exists():
        raise ValueError(f"A report is made of results.json, but there is none in {folder}; run train.py first.")
    results = read_json(path)
    if missing := [part for part in PARTS if part not in results]:
        raise ValueError(
            f"{path} lacks {', '.join(missing)}; run train.py CONFIG again, which scores but does not train."
        )
    return results


def read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise not_whole(path, error) from None


def not_whole(path: Path, error: Exception) -> ValueError:
    return ValueError(
        f"Saved results must be whole, but {path} is not ({error}); delete it and run train.py CONFIG again, which "
        "does not train again."
    )
