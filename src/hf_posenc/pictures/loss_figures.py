"""The loss while training, and BLEU of the validation set, by step and by minute."""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from .style import FONT_SIZE, TOLD, WIDTH_INCHES, legend, looks_of, plain, with_legend


def loss_curves(losses: Mapping[str, Mapping[str, Any]], row_of: Mapping[str, str]) -> Figure:
    """Loss by step and by wall-clock minute, a line for each training, a colour for each row; below it BLEU of the
    validation set, if all trainings have that.

    `losses[training]` has "loss" and "eval_loss", lists of [step, seconds, nats per token], and may have "eval_bleu";
    the loss of evaluation is shown if all trainings have it. Seconds of trainings that shared a machine compare no
    better than it let them. Rows with "lengths_known", losses of a model that was told how long each target is, have a
    label that says so.
    """
    looks = looks_of(dict.fromkeys(row_of.values()))
    shown, kind = (
        ("eval_loss", "validation") if all(one["eval_loss"] for one in losses.values()) else ("loss", "training")
    )
    curves = {shown: f"{kind} loss in nats per token"}
    if all(one.get("eval_bleu") for one in losses.values()):
        curves["eval_bleu"] = "validation BLEU"
    label_of = {row_of[name]: row_of[name] + (TOLD if one.get("lengths_known") else "") for name, one in losses.items()}
    size = (WIDTH_INCHES, with_legend(0.4 + 2.8 * len(curves), label_of.values()))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(curves), 2, sharex="col", sharey="row", squeeze=False)
    for (curve, what), row in zip(curves.items(), panels, strict=True):
        for name, one in losses.items():
            colour, _, line_style = looks[row_of[name]]
            for axes, column, unit in ((row[0], 0, 1), (row[1], 1, 60)):
                xs, ys = [point[column] / unit for point in one[curve]], [point[2] for point in one[curve]]
                axes.plot(xs, ys, color=colour, linestyle=line_style, linewidth=1.2, label=label_of[row_of[name]])
        row[0].set_ylabel(what, fontsize=FONT_SIZE + 1)
        for axes in row:
            plain(axes)
    # The first losses are those of guessing and would squeeze what differs into a corner.
    if later := [point[2] for one in losses.values() for point in one[shown][1:]]:
        panels[0, 0].set_ylim(min(later) - 0.1, max(later) + 0.1)
    for axes, unit_of_time in zip(panels[-1], ("step", "minutes of training"), strict=True):
        axes.set_xlabel(unit_of_time, fontsize=FONT_SIZE + 1)
    legend(figure, panels[0, 0].get_lines())
    return figure
