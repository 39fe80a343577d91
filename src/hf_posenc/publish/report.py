"""results.json -> every table and figure of it: nothing here trains, translates or scores.

A results.json can be carried elsewhere and published again: `python -m hf_posenc report FOLDER`.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ..pictures.diagnostics_figures import attention_distance_figure, loss_by_position
from ..pictures.score_figures import bleu_by_length, gain_by_length, loss_curves, parameters_and_score
from ..pictures.style import save_figure
from ..results.collecting import compared_by, refuse_unlike_runs
from ..results.comparison import rows_of
from ..results.tables import Results, csv_text, latex, length_table, markdown, overview_table, paper_table, text
from ..whole_files import write_whole


def publish(results: Mapping[str, Any], folder: Path) -> str:
    """Write results.json, tables and figures to `folder`; returns the tables as text."""
    runs, comparisons = results["runs"], results["comparisons"]
    refuse_unlike_runs(runs)
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
    for name, figure in figures(results, rows, row_of):
        save_figure(figure, folder / f"{name}.png")
    cut = [
        f"{name} {result['truncated']} of {result['all']['n']} on {test}"
        for name, run in runs.items()
        for test, result in run["tests"].items()
        if result["truncated"]
    ]
    limits_met = f"Translations cut at their length limit: {', '.join(cut) or 'none'}.\n"
    return "\n".join([*(text(table) for table in made.values()), limits_met])


def figures(results: Mapping[str, Any], rows: Results, row_of: Mapping[str, str]) -> Iterator[tuple[str, Figure]]:
    """Every figure and its name."""
    runs = results["runs"]
    yield "loss", loss_curves({name: run["loss"] for name, run in runs.items()}, row_of)
    outside = rows_of(
        {
            name: {test: {"all": group, "groups": []} for test, group in run["beyond"].items()}
            for name, run in runs.items()
        },
        row_of,
    )
    parameters = {run["row"]: run["training"]["parameters"] for run in runs.values()}
    for test in next(iter(rows.values())):
        compared = compared_by(results, test)
        limits = compared["training_limits"]
        yield f"bleu-by-length-{test}", bleu_by_length(rows, test, training_limits=limits)
        if len(rows) > 1:
            yield f"gain-by-length-{test}", gain_by_length(rows, test, **compared)
        longer = {row: tests[test]["all"] for row, tests in outside.items()}
        if all(group["n"] for group in longer.values()):
            yield f"parameters-{test}", parameters_and_score(longer, parameters=parameters, test_set=test)
        # Of several seeds the first is shown.
        first = {run["row"]: run["diagnostics"][test] for run in reversed(runs.values())}
        diagnoses = {row: first[row] for row in rows}
        yield f"loss-by-position-{test}", loss_by_position(diagnoses, training_limits=limits)
        if any(one["attention_distance"]["encoder"] for one in diagnoses.values()):
            yield f"attention-distance-{test}", attention_distance_figure(diagnoses)
