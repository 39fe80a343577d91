"""The figures of a report: which there are, of what, and what to look at in each. Needs the extra "plots"."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ..plotting.alignment_plots import (
    end_forbidden_figure,
    entropy_figure,
    has_centroid,
    has_decoding,
    has_entropy,
    source_position_figure,
)
from ..plotting.diagnostics_plots import attention_distance_figure, loss_by_position_figure
from ..plotting.loss_plots import loss_figure
from ..plotting.score_plots import (
    bleu_by_length_figure,
    gain_by_length_figure,
    parameters_figure,
    ranking_by_test_set_figure,
    ranking_figure,
)
from ..results.aggregation import table_context
from ..results.length_limits import TrainingLengths, training_lengths_by_row
from ..results.significance import mean_over_seeds
from ..results.tables import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# More rows than lines of a figure can be told apart where they cross.
MAX_CROSSING_ROWS = 12


@dataclass(frozen=True)
class LazyReportFigure:
    """A figure that is not drawn yet: its kind, the test set it is of (None: of none), and what to look at in it."""

    kind: str
    test_set: str | None
    look_for: str
    draw: "Callable[[], Figure]"

    @property
    def name(self) -> str:
        """What its file is called."""
        return self.kind if self.test_set is None else f"{self.kind}-{self.test_set}"


def report_figures(
    results: Mapping[str, Any], rows: Results, row_by_run: Mapping[str, str]
) -> Iterator[LazyReportFigure]:
    """Every figure that a report has."""
    losses = {name: run["loss"] for name, run in results["runs"].items() if "loss" in run}
    look_for = (
        "Look at how fast each system learns, by step and by minute; systems trained side by side share a machine."
    )
    yield LazyReportFigure("loss", None, look_for, partial(loss_figure, losses, row_by_run))
    tests = next(iter(rows.values()))
    if len(rows) > MAX_CROSSING_ROWS and len(tests) > 1 and all(result["all"]["n"] for result in tests.values()):
        look_for = "Look at how far the marks of a line lie apart, from test set to test set."
        yield LazyReportFigure("ranking-of-test-sets", None, look_for, partial(ranking_by_test_set_figure, rows))
    for test in tests:
        yield from figures_of_test_set(test, results, rows, row_by_run)


def figures_of_test_set(
    test: str, results: Mapping[str, Any], rows: Results, row_by_run: Mapping[str, str]
) -> Iterator[LazyReportFigure]:
    """Those of one test set."""
    runs, lengths = results["runs"], training_lengths_by_row(results["runs"])
    look_for = (
        "Look beyond the lines, where training ended or began: which system falls first and which falls least, whether "
        "the intervals leave that to chance, and below, which one stops too early or runs on."
    )
    yield LazyReportFigure("bleu-by-length", test, look_for, partial(bleu_by_length_figure, rows, test, **lengths))
    if len(rows) > 1:
        look_for = "Look at filled markers alone: there the difference from the baseline is hardly chance."
        yield LazyReportFigure(
            "gain-by-length", test, look_for, partial(gain_by_length_figure, rows, test, **table_context(results, test))
        )
    beyond_by_row = mean_over_seeds(
        {name: {test: {"all": run["beyond"][test], "groups": []}} for name, run in runs.items()}, row_by_run
    )
    parameters = {run["row"]: run["training"]["parameters"] for run in runs.values() if "training" in run}
    beyond_of_trained = {row: beyond_by_row[row][test]["all"] for row in parameters}
    if all(group["n"] for group in beyond_of_trained.values()):
        look_for = "Look at whether the better system on longer inputs is merely the larger one."
        draw = partial(parameters_figure, beyond_of_trained, parameters=parameters, test_set=test)
        yield LazyReportFigure("parameters", test, look_for, draw)
    beyond = {row: beyond_by_row[row][test]["all"] for row in rows}
    if len(rows) > MAX_CROSSING_ROWS and all(group["n"] for group in beyond.values()):
        look_for = "Look at how far the marks of a line lie apart: the longer the input, the darker the mark."
        yield LazyReportFigure("ranking", test, look_for, partial(ranking_figure, rows, beyond, test_set=test))
    yield from diagnostics_figures(test, runs, rows, lengths["max_training_lengths"])


def diagnostics_figures(
    test: str, runs: dict[str, Any], rows: Results, max_lengths: TrainingLengths
) -> Iterator[LazyReportFigure]:
    """What one test set has shown of losses, attention and decodings. Of several seeds the first is shown."""
    by_row = {run["row"]: run["diagnostics"][test] for run in reversed(runs.values()) if run.get("diagnostics")}
    diagnoses = {row: by_row[row] for row in rows if row in by_row}
    if not diagnoses:
        return
    look_for = "Look at where a line leaves the others: up to there the right words so far tell the next one."
    yield LazyReportFigure(
        "loss-by-position",
        test,
        look_for,
        partial(loss_by_position_figure, diagnoses, max_training_lengths=max_lengths),
    )
    if any(diagnosis["attention_distance"]["encoder"] for diagnosis in diagnoses.values()):
        look_for = "Look at open marks that leave full ones: heads that look elsewhere once inputs are longer."
        yield LazyReportFigure("attention-distance", test, look_for, partial(attention_distance_figure, diagnoses))
    if any(map(has_entropy, diagnoses.values())):
        look_for = (
            "Look at lines that rise with the length: there attention spreads over more than it has to tell apart."
        )
        yield LazyReportFigure("attention-entropy", test, look_for, partial(entropy_figure, diagnoses))
    if any(map(has_centroid, diagnoses.values())):
        look_for = (
            "Look at where the coloured line leaves the dotted one: a jump, a step back or a level is a place that is "
            "lost; a line that stops below the top is an end that came too early."
        )
        yield LazyReportFigure("place", test, look_for, partial(source_position_figure, diagnoses))
    if any(map(has_decoding, diagnoses.values())):
        look_for = (
            "Look at full marks above open ones: there the end came too early, and the place was still known. Where "
            "both are low, it is the place that is lost."
        )
        yield LazyReportFigure("end-forbidden", test, look_for, partial(end_forbidden_figure, diagnoses))
