"""Figures of losses: teacher-forced loss by target position, and the loss during training.

Pure functions from records to matplotlib figures. `results[system]` is a system's diagnosis; all are of the same pairs.
"""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..results.diagnosis_records import Diagnosis, LossByPosition, LossSums
from ..results.length_limits import TrainingLengths, validate_max_lengths
from ..results.records import TrainingCurves
from .style import (
    FONT_SIZE,
    LENGTH_AWARE_SUFFIX,
    LIMIT_COLOUR,
    WIDTH_INCHES,
    add_legend,
    height_with_legend,
    legend_label,
    line_styles,
    style_axes,
)

Diagnoses = Mapping[str, Diagnosis]


def loss_by_position_figure(
    results: Diagnoses,
    *,
    max_training_lengths: TrainingLengths,
    group: str | None = None,
    bin_width: int = 5,
    min_tokens: int = 100,
) -> Figure:
    """Mean loss by target position, a line per system, of all pairs or of the source-length bucket with that label.

    A point is the mean over all tokens of `bin_width` positions, drawn at their middle; points of fewer than
    `min_tokens` tokens are left out. A vertical line marks the end of the positions of training, if it is inside the
    axes. The label of a system that received each target's length says so.
    """
    limits = validate_max_lengths(validate_same_pairs(results), max_training_lengths)
    figure = Figure(figsize=(WIDTH_INCHES, 3.4 + 0.06 * len(results)), layout="constrained")
    axes, num_left_out = figure.subplots(), 0
    styles = line_styles(results)
    for index, (system, diagnosis) in enumerate(results.items()):
        colour, marker, line_style = styles[system]
        sums = sums_by_position(diagnosis.loss_by_position, group)
        starts = np.arange(0, len(sums.tokens), bin_width)
        nll, tokens = (np.add.reduceat(values, starts) for values in (sums.nll, sums.tokens))
        num_left_out = max(num_left_out, int((tokens < min_tokens).sum()))
        mark_every = max(1, len(starts) // 12)  # a mark on every point would hide the lines
        means = np.where(tokens < min_tokens, np.nan, nll / tokens)
        label = legend_label(system, limits) + (LENGTH_AWARE_SUFFIX if diagnosis.lengths_known else "")
        axes.plot(
            starts + (bin_width - 1) / 2, means, label=label, color=colour, linestyle=line_style, linewidth=1.4,
            marker=marker, markersize=5, markerfacecolor="white",
            markevery=(index * mark_every // len(results), mark_every),
        )  # fmt: skip
    left_out = f"; {num_left_out} with fewer than {min_tokens} tokens left out" if num_left_out else ""
    axes.set_xlabel(f"target position, in bins of {bin_width}{left_out}", fontsize=FONT_SIZE + 1)
    axes.set_ylabel("loss in nats per token", fontsize=FONT_SIZE + 1)
    axes.set_ylim(bottom=0)
    style_axes(axes)
    add_legend(figure, axes.get_lines())
    draw_position_limits(axes, limits)
    return figure


def draw_position_limits(axes: Axes, limits: Mapping[str, int | None]) -> None:
    """Draw a line after the last position of each limit: neutral with a number if all share it, else coloured."""
    shared, right = len(set(limits.values())) == 1, axes.get_xlim()[1]
    styles = line_styles(limits)
    visible_limits = sorted({limit for limit in limits.values() if limit is not None and limit + 0.5 < right})
    for limit in visible_limits:
        limit_colours = (
            [LIMIT_COLOUR] if shared else [styles[system][0] for system in limits if limits[system] == limit]
        )
        for index, colour in enumerate(limit_colours):  # systems with one limit alternate in the dashes of one line
            dashes = (-4.0 * index, (4.0, 4.0 * max(1, len(limit_colours) - 1)))
            axes.axvline(limit + 0.5, color=colour, linewidth=1.2, linestyle=dashes, zorder=1.5)
    for limit in visible_limits[:1]:
        text, transform = f"training\nlimit {limit}" if shared else "training\nlimits", axes.get_xaxis_transform()
        axes.text(limit + 0.5, 1.01, text, transform=transform, ha="center", va="bottom", fontsize=FONT_SIZE)


def validate_same_pairs(results: Diagnoses) -> Diagnoses:
    """The results; a ValueError for none, and unless all are of the same pairs in the same buckets."""
    pairs = {
        system: [
            diagnosis.test_set_sha256[:8],
            *((bucket.label, bucket.n) for bucket in diagnosis.loss_by_position.buckets),
        ]
        for system, diagnosis in results.items()
    }
    if len({str(signature) for signature in pairs.values()}) != 1:
        raise ValueError(
            f"a figure shows at least one system, and all of them on the same pairs, but these are {pairs}; diagnose "
            "them again on one test set, with one pairs_per_group, or show them apart"
        )
    return results


def sums_by_position(loss: LossByPosition, label: str | None) -> LossSums:
    """The sums of all pairs, or of the bucket with that label."""
    groups = {bucket.label: bucket.by_position for bucket in loss.buckets if bucket.n}
    if label is not None and label not in groups:
        raise ValueError(f"group must be one that has pairs; it is {label!r}; choose from {', '.join(groups)}")
    return loss if label is None else groups[label]


def loss_figure(losses: Mapping[str, TrainingCurves], row_by_run: Mapping[str, str]) -> Figure:
    """Loss by step and by wall-clock minute: a line for each training, a colour for each row of the table.

    It is the validation loss if all trainings have one, else the training loss. BLEU of the validation set is below it,
    if all trainings have it. Minutes of trainings that shared a machine are not comparable. The label of a row whose
    model received each target's length says so.
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
    # The first losses are those of an untrained model; with them in the axes, differences would be too small to see.
    if later := [point.value for curve in shown.values() for point in curve[1:]]:
        panels[0, 0].set_ylim(min(later) - 0.1, max(later) + 0.1)
    for axes, unit_of_time in zip(panels[-1], ("step", "minutes of training"), strict=True):
        axes.set_xlabel(unit_of_time, fontsize=FONT_SIZE + 1)
    add_legend(figure, panels[0, 0].get_lines())
    return figure
