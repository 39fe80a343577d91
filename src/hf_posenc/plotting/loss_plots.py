"""The loss while training, and BLEU of the validation set, by step and by minute."""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from .style import FONT_SIZE, LENGTH_AWARE_SUFFIX, WIDTH_INCHES, add_legend, height_with_legend, line_styles, style_axes


def loss_figure(losses: Mapping[str, Mapping[str, Any]], row_by_run: Mapping[str, str]) -> Figure:
    """Loss by step and by wall-clock minute, a line for each training, a colour for each row; below it BLEU of the
    validation set, if all trainings have that.

    `losses[training]` has "loss" and "eval_loss", lists of [step, seconds, nats per token], and may have "eval_bleu";
    the loss of evaluation is shown if all trainings have it. Seconds of trainings that shared a machine compare no
    better than it let them. Rows with "lengths_known", losses of a model that was told how long each target is, have a
    label that says so.
    """
    styles = line_styles(dict.fromkeys(row_by_run.values()))
    loss_key, kind = (
        ("eval_loss", "validation")
        if all(history["eval_loss"] for history in losses.values())
        else ("loss", "training")
    )
    curves = {loss_key: f"{kind} loss in nats per token"}
    if all(history.get("eval_bleu") for history in losses.values()):
        curves["eval_bleu"] = "validation BLEU"
    labels = {
        row_by_run[name]: row_by_run[name] + (LENGTH_AWARE_SUFFIX if history.get("lengths_known") else "")
        for name, history in losses.items()
    }
    size = (WIDTH_INCHES, height_with_legend(0.4 + 2.8 * len(curves), labels.values()))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(curves), 2, sharex="col", sharey="row", squeeze=False)
    for (curve, y_label), row in zip(curves.items(), panels, strict=True):
        for name, history in losses.items():
            colour, _, line_style = styles[row_by_run[name]]
            for axes, column, unit in ((row[0], 0, 1), (row[1], 1, 60)):
                xs, ys = [point[column] / unit for point in history[curve]], [point[2] for point in history[curve]]
                axes.plot(xs, ys, color=colour, linestyle=line_style, linewidth=1.2, label=labels[row_by_run[name]])
        row[0].set_ylabel(y_label, fontsize=FONT_SIZE + 1)
        for axes in row:
            style_axes(axes)
    # The first losses are those of guessing and would squeeze what differs into a corner.
    if later := [point[2] for history in losses.values() for point in history[loss_key][1:]]:
        panels[0, 0].set_ylim(min(later) - 0.1, max(later) + 0.1)
    for axes, unit_of_time in zip(panels[-1], ("step", "minutes of training"), strict=True):
        axes.set_xlabel(unit_of_time, fontsize=FONT_SIZE + 1)
    add_legend(figure, panels[0, 0].get_lines())
    return figure
