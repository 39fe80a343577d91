"""Saved diagnoses to figures: pure functions from records of diagnoses to matplotlib figures.

`results[system]` is a system's diagnosis; all are of the same pairs.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ..results.diagnosis_records import Diagnosis, LossByPosition, LossSums, StackDistances
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
DISTANCE_TICKS = (0, 1, 3, 10, 30, 100, 300, 1000)


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
        line_options: dict[str, Any] = {"color": colour, "linestyle": line_style, "linewidth": 1.4, "marker": marker}
        line_options |= {
            "markersize": 5,
            "markerfacecolor": "white",
            "markevery": (index * mark_every // len(results), mark_every),
        }
        means = np.where(tokens < min_tokens, np.nan, nll / tokens)
        label = legend_label(system, limits) + (LENGTH_AWARE_SUFFIX if diagnosis.lengths_known else "")
        axes.plot(starts + (bin_width - 1) / 2, means, label=label, **line_options)
    left_out = f"; {num_left_out} with fewer than {min_tokens} tokens left out" if num_left_out else ""
    axes.set_xlabel(f"target position, in bins of {bin_width}{left_out}", fontsize=FONT_SIZE + 1)
    axes.set_ylabel("loss in nats per token", fontsize=FONT_SIZE + 1)
    axes.set_ylim(bottom=0)
    style_axes(axes)
    add_legend(figure, axes.get_lines())
    draw_position_limits(axes, limits)
    return figure


def attention_distance_figure(results: Diagnoses) -> Figure:
    """How far each head of each layer attends: a row per system, on the left the encoder, on the right the decoder.

    Full marks are of sentences within the training limit, open ones of longer sentences, and a line joins a head's two.
    A layer's heads stand from near to far. Horizontal lines are what attention to all keys alike, without any window,
    would have. All panels share one scale, linear up to 1 token, logarithmic above. Systems without self-attention are
    named below.
    """
    limits = {system: diagnosis.training_limit for system, diagnosis in validate_same_pairs(results).items()}
    shown = [system for system, diagnosis in results.items() if diagnosis.attention_distance.stacks]
    if not shown:
        raise ValueError(f"a figure of attention needs a system with self-attention, not {', '.join(results)}; add one")
    figure = Figure(figsize=(WIDTH_INCHES, 1.2 + 1.4 * len(shown)), layout="constrained")
    grid = figure.subplots(len(shown), 2, sharey=True, sharex="col", squeeze=False)
    styles = line_styles(results)
    for row, system in zip(grid, shown, strict=True):
        for axes, (stack, distances) in zip(row, results[system].attention_distance.by_stack.items(), strict=True):
            axes.set_title(f"{legend_label(system, limits)}: {stack}", fontsize=FONT_SIZE, loc="left")
            style_axes(axes)
            if distances:
                draw_head_distances(axes, distances, styles[system][0])
    grid[-1, 0].set_xlabel("layer", fontsize=FONT_SIZE + 1)
    grid[-1, 1].set_xlabel("layer", fontsize=FONT_SIZE + 1)
    grid[0, 0].set_ylim(0, 1.3 * max(axes.dataLim.y1 for axes in figure.axes))
    figure.supylabel("mean distance of attention in tokens", fontsize=FONT_SIZE + 1)
    legend_entries: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("inside", "a head, within the training limit", {"marker": "o", "linestyle": "none"}),
        ("beyond", "a head, longer sentences", {"marker": "o", "linestyle": "none", "markerfacecolor": "white"}),
        ("inside", "all keys alike, no window, within the limit", {"linewidth": 1}),
        ("beyond", "all keys alike, no window, longer sentences", {"linewidth": 1, "linestyle": "--"}),
    )
    stacks = [stack for diagnosis in results.values() for stack in diagnosis.attention_distance.stacks]
    regions = {region for stack in stacks for region in stack.by_region}
    handles = [
        Line2D([], [], color=LIMIT_COLOUR, markersize=4, label=label, **marker_options)
        for region, label, marker_options in legend_entries
        if region in regions
    ]
    without_attention = ", ".join(system for system in results if system not in shown)
    add_legend(figure, handles, f"no self-attention: {without_attention}" if without_attention else None)
    return figure


def draw_head_distances(axes: Axes, distances: StackDistances, colour: str) -> None:
    """One panel: the heads of each layer, full and open, and attention to all keys alike."""
    means_LH = {region: np.asarray(heads.mean) for region, heads in distances.by_region.items()}
    order_LH = np.argsort(next(iter(means_LH.values())), axis=1)
    x_LH = np.arange(1, len(order_LH) + 1)[:, None] + np.linspace(-0.35, 0.35, 2 * order_LH.shape[1] + 1)[1::2]
    means = {region: np.take_along_axis(mean_LH, order_LH, axis=1).ravel() for region, mean_LH in means_LH.items()}
    axes.vlines(x_LH.ravel(), *np.sort(list(means.values()), axis=0)[[0, -1]], color=colour, linewidth=0.8)
    for region, face_colour, style in (("inside", colour, "-"), ("beyond", "white", "--")):
        if region in means:
            axes.plot(
                x_LH.ravel(),
                means[region],
                "o",
                color=colour,
                markersize=3.5,
                markerfacecolor=face_colour,
                label=region,
            )
            uniform = distances.by_region[region].uniform
            axes.axhline(uniform, color=LIMIT_COLOUR, linewidth=1, linestyle=style, zorder=1.5)
    axes.set_xticks(range(1, len(x_LH) + 1))
    axes.set_yscale("symlog", linthresh=1, linscale=0.5)
    axes.set_yticks(DISTANCE_TICKS, map(str, DISTANCE_TICKS))


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
