"""The figures of a report: which there are, of what, and what to look at in each. Needs the extra "plots"."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ..pictures.diagnostics_figures import attention_distance_figure, loss_by_position
from ..pictures.loss_figures import loss_curves
from ..pictures.place_figures import (
    end_forbidden,
    entropy_by_length,
    has_centre,
    has_decoding,
    has_entropy,
    place_by_position,
)
from ..pictures.score_figures import (
    bleu_by_length,
    gain_by_length,
    parameters_and_score,
    ranking,
    ranking_of_test_sets,
)
from ..results.collecting import compared_by
from ..results.comparison import rows_of
from ..results.tables import Results
from ..results.training_lengths import TrainingLimits, lengths_of_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# More rows than lines of a figure can be told apart where they cross.
MANY = 12


@dataclass(frozen=True)
class ReportFigure:
    """A figure that is not drawn yet: its kind, the test set it is of (None: of none), and what to look at in it."""

    kind: str
    test_set: str | None
    look_for: str
    draw: "Callable[[], Figure]"

    @property
    def name(self) -> str:
        """What its file is called."""
        return self.kind if self.test_set is None else f"{self.kind}-{self.test_set}"


def figures(results: Mapping[str, Any], rows: Results, row_of: Mapping[str, str]) -> Iterator[ReportFigure]:
    """Every figure that a report has."""
    losses = {name: run["loss"] for name, run in results["runs"].items() if "loss" in run}
    look_for = (
        "Look at how fast each system learns, by step and by minute; systems trained side by side share a machine."
    )
    yield ReportFigure("loss", None, look_for, partial(loss_curves, losses, row_of))
    tests = next(iter(rows.values()))
    if len(rows) > MANY and len(tests) > 1 and all(result["all"]["n"] for result in tests.values()):
        look_for = "Look at how far the marks of a line lie apart, from test set to test set."
        yield ReportFigure("ranking-of-test-sets", None, look_for, partial(ranking_of_test_sets, rows))
    for test in tests:
        yield from figures_of(test, results, rows, row_of)


def figures_of(
    test: str, results: Mapping[str, Any], rows: Results, row_of: Mapping[str, str]
) -> Iterator[ReportFigure]:
    """Those of one test set."""
    runs, lengths = results["runs"], lengths_of_rows(results["runs"])
    look_for = (
        "Look beyond the lines, where training ended or began: which system falls first and which falls least, whether "
        "the intervals leave that to chance, and below, which one stops too early or runs on."
    )
    yield ReportFigure("bleu-by-length", test, look_for, partial(bleu_by_length, rows, test, **lengths))
    if len(rows) > 1:
        look_for = "Look at filled markers alone: there the difference from the baseline is hardly chance."
        yield ReportFigure(
            "gain-by-length", test, look_for, partial(gain_by_length, rows, test, **compared_by(results, test))
        )
    outside = rows_of({name: {test: {"all": run["beyond"][test], "groups": []}} for name, run in runs.items()}, row_of)
    sizes = {run["row"]: run["training"]["parameters"] for run in runs.values() if "training" in run}
    longer = {row: outside[row][test]["all"] for row in sizes}
    if all(group["n"] for group in longer.values()):
        look_for = "Look at whether the better system on longer inputs is merely the larger one."
        draw = partial(parameters_and_score, longer, parameters=sizes, test_set=test)
        yield ReportFigure("parameters", test, look_for, draw)
    beyond = {row: outside[row][test]["all"] for row in rows}
    if len(rows) > MANY and all(group["n"] for group in beyond.values()):
        look_for = "Look at how far the marks of a line lie apart: the longer the input, the darker the mark."
        yield ReportFigure("ranking", test, look_for, partial(ranking, rows, beyond, test_set=test))
    yield from figures_of_diagnoses(test, runs, rows, lengths["training_limits"])


def figures_of_diagnoses(
    test: str, runs: dict[str, Any], rows: Results, limits: TrainingLimits
) -> Iterator[ReportFigure]:
    """What one test set has shown of losses, attention and decodings. Of several seeds the first is shown."""
    first = {run["row"]: run["diagnostics"][test] for run in reversed(runs.values()) if run.get("diagnostics")}
    diagnoses = {row: first[row] for row in rows if row in first}
    if not diagnoses:
        return
    look_for = "Look at where a line leaves the others: up to there the right words so far tell the next one."
    yield ReportFigure("loss-by-position", test, look_for, partial(loss_by_position, diagnoses, training_limits=limits))
    if any(one["attention_distance"]["encoder"] for one in diagnoses.values()):
        look_for = "Look at open marks that leave full ones: heads that look elsewhere once inputs are longer."
        yield ReportFigure("attention-distance", test, look_for, partial(attention_distance_figure, diagnoses))
    if any(map(has_entropy, diagnoses.values())):
        look_for = (
            "Look at lines that rise with the length: there attention spreads over more than it has to tell apart."
        )
        yield ReportFigure("attention-entropy", test, look_for, partial(entropy_by_length, diagnoses))
    if any(map(has_centre, diagnoses.values())):
        look_for = (
            "Look at where the coloured line leaves the dotted one: a jump, a step back or a level is a place that is "
            "lost; a line that stops below the top is an end that came too early."
        )
        yield ReportFigure("place", test, look_for, partial(place_by_position, diagnoses))
    if any(map(has_decoding, diagnoses.values())):
        look_for = (
            "Look at full marks above open ones: there the end came too early, and the place was still known. Where "
            "both are low, it is the place that is lost."
        )
        yield ReportFigure("end-forbidden", test, look_for, partial(end_forbidden, diagnoses))
