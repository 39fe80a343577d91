"""Reports: results.json to all tables and figures. Nothing is trained, translated or scored.

A results.json can be copied and reported again: `hf-posenc report FOLDER`.
"""

import shlex
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path

from ...transformer.configuration_posenc_causal import PosEncCausalConfig
from ...transformer.loading import read_saved_config
from ...utils.atomic_io import atomic_write
from ...utils.run_folder import BY_PREDICTION, ReportPaths, SystemPaths
from ..results.aggregation import validate_comparable
from ..results.records import LengthScores, RunResults, ScoresByRow, SystemResult
from ..results.rendering import render_csv, render_latex, render_markdown, render_notes, render_text
from ..results.saved_files import write_results
from ..results.significance import mean_over_seeds
from ..results.tables import (
    Table,
    TableRows,
    degradation_table,
    is_perplexity,
    length_table,
    overview_table,
    prediction_table,
    reference_table,
    time_table,
)

SAMPLED_NOTE = "at most {} pairs of each length group were drawn, so that all pairs together stand for no real text"


def write_report(results: RunResults, folder: Path) -> str:
    """Write results.json, tables and, with the extra "plots", figures to `folder`.

    Returns the tables as text with one legend below all of them, and a line if no figures can be drawn.
    """
    validate_comparable(results.systems)
    paths = ReportPaths(folder)
    write_results(folder, results)
    rows = TableRows.of(results)
    tables = report_tables(results, rows)
    for name, table in tables.items():
        atomic_write(paths.table(name, "md"), render_markdown(table))
        atomic_write(paths.table(name, "tex"), render_latex(table))
    atomic_write(paths.scores, render_csv(rows))
    notes = footnotes(results.systems) + write_figures(results, rows, folder)
    hidden = {f"{test}{BY_PREDICTION}" for test in results.test_sets}
    if len(results.test_sets) == 1:
        hidden.add("overview")  # it repeats a column of the one test set
    shown = [table for name, table in tables.items() if name not in hidden]
    return "\n".join([*map(render_text, shown), f"{render_notes(shown)}{notes}"])


def next_steps(results: RunResults, run_folder: Path, tables_folder: Path) -> str:
    """The next commands for a finished run. The model is that of the highest BLEU on the first test set."""
    first_test, *_ = results.test_sets
    report = {"read the report": f"{tables_folder} has figures and table-*.md"}
    if is_text_results(results.systems):
        return render_commands(report)
    trained = [name for name, system in results.systems.items() if not system.segment]
    best = max(trained, key=lambda name: results.systems[name].tests[first_test].overall.score("bleu") or 0.0)
    model, folder = shlex.quote(str(SystemPaths(run_folder / best).model)), shlex.quote(str(run_folder))
    commands = {f"translate with {best}": f"hf-posenc translate {model} < FILE"}
    configs = [read_saved_config(SystemPaths(run_folder / name).model, {}) for name in trained]
    if any(config.get("model_type") != PosEncCausalConfig.model_type for config in configs):
        commands["explore in the browser"] = f"hf-posenc explorer {folder}"
    return render_commands(commands | report)


def render_commands(commands: Mapping[str, str]) -> str:
    """The commands by their purposes, a line each."""
    width = max(map(len, commands))
    return "\n".join(["Next:", *(f"  {purpose.ljust(width)}  {command}" for purpose, command in commands.items())])


def is_text_results(systems: Mapping[str, SystemResult]) -> bool:
    """Whether the systems are language models, scored on plain text."""
    results = chain.from_iterable(system.tests.values() for system in systems.values())
    return any(is_perplexity(result.all_buckets) for result in results)


def report_tables(results: RunResults, rows: TableRows) -> dict[str, Table]:
    """All tables of a run, by the names of their files."""
    tables = {"overview": overview_table(rows)}
    for test in results.test_sets:
        tables[test] = length_table(rows, test)
    if published := results.reference_table:
        tables["paper"] = reference_table(rows, published)
    if table := degradation_table(results.systems):
        tables["fall"] = table
    for test in results.test_sets:
        if all(system.tests[test].by_prediction is not None for system in results.systems.values()):
            tables[f"{test}{BY_PREDICTION}"] = prediction_table(rows_by_prediction_length(results, test), test)
    if results.max_per_bucket:
        note = SAMPLED_NOTE.format(results.max_per_bucket)
        tables = {name: replace(table, notes=(*table.notes, note)) for name, table in tables.items()}
    if table := time_table(results.systems):
        tables["time"] = table
    return tables


def write_figures(results: RunResults, rows: TableRows, folder: Path) -> str:
    """Write the figures. Returns a line on what to install if they cannot be drawn, else nothing."""
    try:
        from ..figures.style import save_figure
        from .report_figures import report_figures
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        return f"{error.msg}\n"
    for figure in report_figures(results, rows):
        save_figure(figure.draw(), ReportPaths(folder).figure(figure.name))
    return ""


def rows_by_prediction_length(results: RunResults, test: str) -> ScoresByRow:
    """The rows of one test set with buckets by the length of each system's translations."""
    scores = {}
    for name, system in results.systems.items():
        scored = system.tests[test]
        scores[name] = {test: LengthScores(overall=scored.overall, buckets=scored.by_prediction or ())}
    return mean_over_seeds(scores, results.row_by_system)


def footnotes(systems: Mapping[str, SystemResult]) -> str:
    """Notes below the tables: truncated translations, and segmented systems. Language models have none."""
    if is_text_results(systems):
        return ""
    truncated, segmented = [], ""
    for name, system in systems.items():
        for test, result in system.tests.items():
            if result.truncated:
                truncated.append(f"{name} {result.truncated} of {result.overall.n} on {test}")
        if segment := system.segment:
            inputs = f"given its inputs in segments by {segment.segmentation} segmentation"
            segmented += f"{name} is {segment.system}, {inputs}.\n"
    return f"Translations truncated at their maximum length: {', '.join(truncated) or 'none'}.\n{segmented}"
