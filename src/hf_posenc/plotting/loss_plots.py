"""The loss while training, and BLEU of the validation set, by step and by minute."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from ..results.records import TrainingCurves
from .style import FONT_SIZE, LENGTH_AWARE_SUFFIX, WIDTH_INCHES, add_legend, height_with_legend, line_styles, style_axes


def loss_figure(losses: Mapping[str, TrainingCurves], row_by_run: Mapping[str, str]) -> Figure:
    """Loss by step and by wall-clock minute, a line for each training, a colour for each row; below it BLEU of the
    validation set, if all trainings have that.

    The loss of evaluation is shown if all trainings have it. Seconds of trainings that shared a machine compare no
    better than it let them. Rows whose losses are of a model that was given each target's length have a label that
    says so.
    """
    styles = line_styles(dict.fromkeys(row_by_run.values()))
    if all(curves.eval_loss for curves in losses.values()):
        kind, shown = "validation", {name: curves.eval_loss for name, curves in losses.items()}
    else:
        kind, shown = "training", {name: curves.loss for name, curves in losses.items()}
    rows_of_panels = {f"{kind} loss in nats per token": shown}
    bleu = {name: curves.eval_bleu for name, curves in losses.items() if curves.eval_bleu}
    if len(bleu) == len(losses):
        rows_of_panels["validation BLEU"] = bleu
    labels = {
        row_by_run[name]: row_by_run[name] + (LENGTH_AWARE_SUFFIX if curves.lengths_known else "")
        for name, curves in losses.items()
    }
    size = (WIDTH_INCHES, height_with_legend(0.4 + 2.8 * len(rows_of_panels), labels.values()))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(rows_of_panels), 2, sharex="col", sharey="row", squeeze=False)
    for (y_label, curve_by_name), row in zip(rows_of_panels.items(), panels, strict=True):
        for name, curve in curve_by_name.items():
            colour, _, line_style = styles[row_by_run[name]]
            values = [point.value for point in curve]
            steps, minutes = [point.step for point in curve], [point.seconds / 60 for point in curve]
            for axes, xs in ((row[0], steps), (row[1], minutes)):
                axes.plot(xs, values, color=colour, linestyle=line_style, linewidth=1.2, label=labels[row_by_run[name]])
        row[0].set_ylabel(y_label, fontsize=FONT_SIZE + 1)
        for axes in row:
            style_axes(axes)
    # The first losses are those of guessing and would squeeze what differs into a corner.
    if later := [point.value for curve in shown.values() for point in curve[1:]]:
        panels[0, 0].set_ylim(min(later) - 0.1, max(later) + 0.1)
    for axes, unit_of_time in zip(panels[-1], ("step", "minutes of training"), strict=True):
        axes.set_xlabel(unit_of_time, fontsize=FONT_SIZE + 1)
    add_legend(figure, panels[0, 0].get_lines())
    return figure
