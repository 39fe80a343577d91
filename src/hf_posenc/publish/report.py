"""results.json -> every table and figure of it: nothing here trains, translates or scores.

A results.json can be carried elsewhere and published again: `python -m hf_posenc report FOLDER`.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..manifest import write_file
from ..names import BY_PREDICTION
from ..results.collecting import compared_by, refuse_unlike_runs
from ..results.comparison import rows_of
from ..results.fall_table import fall_table
from ..results.tables import (
    Results,
    csv_text,
    latex,
    length_table,
    markdown,
    overview_table,
    paper_table,
    prediction_table,
    text,
)
from ..results.time_table import time_table
from ..whole_files import write_whole

DRAWN = "at most {} pairs of each length group were drawn, so that all pairs together stand for no real text"


def publish(results: Mapping[str, Any], folder: Path) -> str:
    """Write results.json, tables and, with the extra "plots", figures to `folder`; returns the tables as text, which
    ends in a line that says so where there are no figures."""
    runs, comparisons = results["runs"], results["comparisons"]
    refuse_unlike_runs(runs)
    write_file(folder / "results.json", json.dumps(results))
    row_of = {name: run["row"] for name, run in runs.items()}
    rows = rows_of({name: run["tests"] for name, run in runs.items()}, row_of)
    made = {"overview": overview_table(rows, baseline=results["baseline"], comparisons=comparisons)}
    tests = list(next(iter(rows.values())))
    for test in tests:
        made[test] = length_table(rows, test, **compared_by(results, test))
    if paper := results["paper"]:
        made["paper"] = paper_table(rows, paper, **compared_by(results, paper["test"]))
    if table := fall_table(runs):
        made["fall"] = table
    shown = list(made)
    if all("by_prediction" in run for run in runs.values()):  # not in those of an older version
        made |= {f"{test}{BY_PREDICTION}": prediction_table(of_predictions(runs, row_of, test), test) for test in tests}
    if number := results.get("per_group"):
        made = {name: replace(table, legend=f"{table.legend}; {DRAWN.format(number)}") for name, table in made.items()}
    if table := time_table(runs):
        made["time"] = table
        shown.append("time")
    for name, table in made.items():
        write_whole(folder / f"table-{name}.md", markdown(table))
        write_whole(folder / f"table-{name}.tex", latex(table))
    write_whole(folder / "scores.csv", csv_text(rows, comparisons))
    return "\n".join([*(text(made[name]) for name in shown), notes(runs) + draw(results, rows, row_of, folder)])


def draw(results: Mapping[str, Any], rows: Results, row_of: Mapping[str, str], folder: Path) -> str:
    """Write the figures; returns a line that says what to install, if they cannot be drawn, or nothing."""
    try:
        from ..pictures.style import save_figure
        from .report_figures import figures
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        return f"{error.msg}\n"
    for figure in figures(results, rows, row_of):
        save_figure(figure.draw(), folder / f"{figure.name}.png")
    return ""


def of_predictions(runs: Mapping[str, Any], row_of: Mapping[str, str], test: str) -> Results:
    """The rows of one test set with groups by the length of each system's translations."""
    tests = {
        name: {test: {"all": run["tests"][test]["all"], "groups": run["by_prediction"][test]}}
        for name, run in runs.items()
    }
    return rows_of(tests, row_of)


def notes(runs: Mapping[str, Any]) -> str:
    """What is to be known below the tables: which translations were cut, and which rows were given pieces."""
    cut = [
        f"{name} {result['truncated']} of {result['all']['n']} on {test}"
        for name, run in runs.items()
        for test, result in run["tests"].items()
        if result["truncated"]
    ]
    lines = [f"Translations cut at their length limit: {', '.join(cut) or 'none'}."]
    for name, run in runs.items():
        if split := run.get("split"):
            lines.append(
                f"{name} is {split['system']}, given its inputs in pieces with {split['boundaries']} boundaries."
            )
    return "".join(f"{line}\n" for line in lines)
