"""Saved diagnoses to figures: pure functions from records of diagnoses to matplotlib figures.

`results[system]` is a system's diagnosis; all are of the same pairs.
"""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..results.diagnosis_records import Diagnosis, LossByPosition, LossSums
from ..results.length_limits import TrainingLengths, validate_max_lengths
from .style import (
    FONT_SIZE,
    LENGTH_AWARE_SUFFIX,
    LIMIT_COLOUR,
    WIDTH_INCHES,
    add_legend,
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
    """Mean loss by target position, a line per system, of all pairs or of the source-length group with that label.

    A point stands in the middle of `bin_width` positions and is the mean over all their tokens; one of fewer than
    `min_tokens` is left out, a gap. A vertical line is where the positions seen in training end, if that is in sight. A
    system that was told how long each target is has a label that says so.
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
    """A line behind the last position of each limit: neutral with its number if all share it, else in their colours."""
    shared, right = len(set(limits.values())) == 1, axes.get_xlim()[1]
    styles = line_styles(limits)
    visible_limits = sorted({limit for limit in limits.values() if limit is not None and limit + 0.5 < right})
    for limit in visible_limits:
        limit_colours = (
            [LIMIT_COLOUR] if shared else [styles[system][0] for system in limits if limits[system] == limit]
        )
        for index, colour in enumerate(limit_colours):  # systems with one limit take turns in the dashes of one line
            dashes = (-4.0 * index, (4.0, 4.0 * max(1, len(limit_colours) - 1)))
            axes.axvline(limit + 0.5, color=colour, linewidth=1.2, linestyle=dashes, zorder=1.5)
    for limit in visible_limits[:1]:
        text, transform = f"training\nlimit {limit}" if shared else "training\nlimits", axes.get_xaxis_transform()
        axes.text(limit + 0.5, 1.01, text, transform=transform, ha="center", va="bottom", fontsize=FONT_SIZE)


def validate_same_pairs(results: Diagnoses) -> Diagnoses:
    """The results, refused unless there are some and all of them are of the same pairs in the same groups."""
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
    """The sums of all pairs, or of the group with that label."""
    groups = {bucket.label: bucket.by_position for bucket in loss.buckets if bucket.n}
    if label is not None and label not in groups:
        raise ValueError(f"group must be one that has pairs; it is {label!r}; choose from {', '.join(groups)}")
    return loss if label is None else groups[label]
