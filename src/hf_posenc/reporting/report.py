"""results.json -> every table and figure of it: nothing here trains, translates or scores.

A results.json can be carried elsewhere and published again: `python -m hf_posenc report FOLDER`.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..results.aggregation import table_context, validate_comparable_runs
from ..results.degradation_table import degradation_table
from ..results.significance import mean_over_seeds
from ..results.tables import (
    Results,
    length_table,
    overview_table,
    prediction_table,
    reference_table,
    render_csv,
    render_latex,
    render_markdown,
    render_text,
)
from ..results.time_table import time_table
from ..utils.atomic_io import atomic_write
from ..utils.manifest import write_file
from ..utils.names import BY_PREDICTION

SAMPLED_NOTE = "at most {} pairs of each length group were drawn, so that all pairs together stand for no real text"


def write_report(results: Mapping[str, Any], folder: Path) -> str:
    """Write results.json, tables and, with the extra "plots", figures to `folder`; returns the tables as text, which
    ends in a line that says so where there are no figures."""
    runs, comparisons = results["runs"], results["comparisons"]
    validate_comparable_runs(runs)
    write_file(folder / "results.json", json.dumps(results))
    row_by_run = {name: run["row"] for name, run in runs.items()}
    rows = mean_over_seeds({name: run["tests"] for name, run in runs.items()}, row_by_run)
    tables = {"overview": overview_table(rows, baseline=results["baseline"], comparisons=comparisons)}
    tests = list(next(iter(rows.values())))
    for test in tests:
        tables[test] = length_table(rows, test, **table_context(results, test))
    if paper := results["paper"]:
        tables["paper"] = reference_table(rows, paper, **table_context(results, paper["test"]))
    if table := degradation_table(runs):
        tables["fall"] = table
    printed = list(tables)
    if all("by_prediction" in run for run in runs.values()):  # not in those of an older version
        tables |= {
            f"{test}{BY_PREDICTION}": prediction_table(rows_by_prediction_length(runs, row_by_run, test), test)
            for test in tests
        }
    if max_per_bucket := results.get("per_group"):
        tables = {
            name: replace(table, legend=f"{table.legend}; {SAMPLED_NOTE.format(max_per_bucket)}")
            for name, table in tables.items()
        }
    if table := time_table(runs):
        tables["time"] = table
        printed.append("time")
    for name, table in tables.items():
        atomic_write(folder / f"table-{name}.md", render_markdown(table))
        atomic_write(folder / f"table-{name}.tex", render_latex(table))
    atomic_write(folder / "scores.csv", render_csv(rows, comparisons))
    return "\n".join(
        [
            *(render_text(tables[name]) for name in printed),
            footnotes(runs) + write_figures(results, rows, row_by_run, folder),
        ]
    )


def write_figures(results: Mapping[str, Any], rows: Results, row_by_run: Mapping[str, str], folder: Path) -> str:
    """Write the figures; returns a line that says what to install, if they cannot be drawn, or nothing."""
    try:
        from ..plotting.style import save_figure
        from .report_figures import report_figures
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        return f"{error.msg}\n"
    for figure in report_figures(results, rows, row_by_run):
        save_figure(figure.draw(), folder / f"{figure.name}.png")
    return ""


def rows_by_prediction_length(runs: Mapping[str, Any], row_by_run: Mapping[str, str], test: str) -> Results:
    """The rows of one test set with groups by the length of each system's translations."""
    tests = {
        name: {test: {"all": run["tests"][test]["all"], "groups": run["by_prediction"][test]}}
        for name, run in runs.items()
    }
    return mean_over_seeds(tests, row_by_run)


def footnotes(runs: Mapping[str, Any]) -> str:
    """What is to be known below the tables: which translations were cut, and which rows were given pieces."""
    truncated = [
        f"{name} {result['truncated']} of {result['all']['n']} on {test}"
        for name, run in runs.items()
        for test, result in run["tests"].items()
        if result["truncated"]
    ]
    lines = [f"Translations cut at their length limit: {', '.join(truncated) or 'none'}."]
    for name, run in runs.items():
        if split := run.get("split"):
            lines.append(
                f"{name} is {split['system']}, given its inputs in pieces with {split['boundaries']} boundaries."
            )
    return "".join(f"{line}\n" for line in lines)
