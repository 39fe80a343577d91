"""Scores to figures: by source length, their gain over the baseline, ranked, and against parameters.

Pure functions from records of saved results to matplotlib figures.
"""

import math
import textwrap
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Protocol

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..results.length_limits import TrainingLengths, min_lengths_above_one, validate_max_lengths
from ..results.records import BucketScore, Comparison, ScoresByRow
from ..results.tables import SIGNIFICANCE_LEVEL, bucket_p_values, common_buckets, is_significant
from .annotations import annotate_training_lengths
from .style import (
    AMOUNT_COLORMAP,
    FONT_SIZE,
    LIMIT_COLOUR,
    MARKERS,
    WIDTH_INCHES,
    add_legend,
    height_with_legend,
    label_axes,
    legend_columns,
    legend_label,
    line_styles,
    or_nan,
    style_axes,
)


class Bucket(Protocol):
    """A length bucket of whatever was measured."""

    @property
    def label(self) -> str: ...

    @property
    def n(self) -> float: ...


MIN_PAIRS = 10  # pairs: a ranking by fewer says nothing


def bleu_by_length_figure(
    results: ScoresByRow,
    test_set: str,
    *,
    max_training_lengths: TrainingLengths,
    min_training_lengths: TrainingLengths | None = None,
    title: str | None = None,
) -> Figure:
    """BLEU of every source-length group, one line per system; below, the length ratio of the same groups.

    Groups are categories: group i is centred on x = i and reaches from i - 0.5 to i + 0.5, and the systems stand side
    by side in it. Bars are 95 % intervals. A vertical line marks where training ended, and one where it began for
    systems that `min_training_lengths` has a shortest length for; an empty group is a gap.
    """
    groups = common_buckets(results, test_set)[1:]
    max_lengths = validate_max_lengths(results, max_training_lengths)
    min_lengths = min_lengths_above_one(results, min_training_lengths)
    labels = {system: legend_label(system, max_lengths, min_lengths) for system in results}
    lines_of_legend = sum(label.count("\n") + 1 for label in labels.values()) / legend_columns(labels.values())
    title = textwrap.fill(title, 75) if title else ""
    height = 4.3 + 0.17 * (math.ceil(lines_of_legend) + title.count("\n"))
    figure = Figure(figsize=(WIDTH_INCHES, height), layout="constrained")
    bleu, ratio = figure.subplots(2, 1, sharex=True, height_ratios=(5, 2))
    styles = line_styles(results)
    for (system, tests), offset in zip(results.items(), series_offsets(len(results)), strict=True):
        for axes, field in ((bleu, "bleu"), (ratio, "length_ratio")):
            draw_by_bucket(axes, tests[test_set].buckets, field, offset, styles[system], labels[system])
    annotate_training_lengths(
        [bleu, ratio], groups, max_lengths, min_lengths, {system: styles[system][0] for system in results}
    )
    ratio.axhline(1.0, color=LIMIT_COLOUR, linewidth=0.7, zorder=1)
    scale_panels(bleu, ratio, groups)
    add_legend(figure, bleu.get_lines())
    if title:
        figure.suptitle(title, fontsize=FONT_SIZE + 2)
    return figure


def draw_by_bucket(
    axes: Axes, groups: Sequence[BucketScore], field: str, offset: float, style: tuple[str, str, str], label: str
) -> None:
    """One field of a system's groups as a line, with their intervals if they have any."""
    colour, marker, line_style = style
    xs = [group + offset for group in range(len(groups))]
    ys = [or_nan(group.score(field)) for group in groups]
    if any(group.half_width(field) for group in groups):
        bars = interval_bars(groups, field)
        axes.errorbar(xs, ys, bars, fmt="none", ecolor=colour, elinewidth=1, capsize=2)
    axes.plot(
        xs,
        ys,
        color=colour,
        linestyle=line_style,
        linewidth=1.4,
        marker=marker,
        markersize=5,
        markerfacecolor="white",
        clip_on=False,
        label=label,
    )


def interval_bars(buckets: Sequence[BucketScore], metric: str) -> np.ndarray:
    """(2, buckets): how far each 95 % interval reaches below the score and above. The bootstrap's is around the mean of
    its samples, which in a small bucket is not the score, and may leave the score out on one side."""
    bars = []
    for bucket in buckets:
        score, interval = bucket.score(metric) or 0.0, bucket.interval(metric)
        half_width = (interval and interval.half_width) or 0.0
        shift = interval.mean - score if interval and interval.mean is not None else 0.0
        bars.append((max(0.0, half_width - shift), max(0.0, half_width + shift)))
    return np.array(bars).T


def gain_by_length_figure(
    results: ScoresByRow,
    test_set: str,
    *,
    baseline: str,
    max_training_lengths: TrainingLengths,
    min_training_lengths: TrainingLengths | None = None,
    p_values: Comparison,
) -> Figure:
    """BLEU over the baseline's in every source-length group; a filled marker where the difference is significant."""
    groups = common_buckets(results, test_set)[1:]
    styles = line_styles(results)
    max_lengths = validate_max_lengths(results, max_training_lengths)
    figure = Figure(figsize=(WIDTH_INCHES, height_with_legend(3.2, results)), layout="constrained")
    axes = figure.subplots()
    baseline_groups = results[baseline][test_set].buckets
    others = [system for system in results if system != baseline]
    for system, offset in zip(others, series_offsets(len(others)), strict=True):
        colour, marker, line_style = styles[system]
        system_groups = results[system][test_set].buckets
        points = [
            (index + offset, bleu_gain(group, baseline_group), bucket_p_values(p_values, system, group))
            for index, (group, baseline_group) in enumerate(zip(system_groups, baseline_groups, strict=True))
            if group.n
        ]
        axes.plot(
            [x for x, _, _ in points], [y for _, y, _ in points], color=colour, linestyle=line_style, linewidth=1.4
        )
        for x, y, p in points:
            axes.plot(
                x,
                y,
                marker,
                color=colour,
                markersize=5,
                markerfacecolor=colour if is_significant(p, "bleu") else "white",
                label=system,
            )
    axes.axhline(0, color=LIMIT_COLOUR, linewidth=0.7, zorder=1)
    axes.set_ylabel(f"BLEU over {baseline}", fontsize=FONT_SIZE + 1)
    min_lengths = min_lengths_above_one(results, min_training_lengths)
    annotate_training_lengths(
        [axes], groups, max_lengths, min_lengths, {system: styles[system][0] for system in results}
    )
    bucket_axis(axes, groups)
    style_axes(axes)
    add_legend(figure, axes.get_lines(), f"filled: p < {SIGNIFICANCE_LEVEL}")
    return figure


def bleu_gain(bucket: BucketScore, baseline_bucket: BucketScore) -> float:
    return or_nan(bucket.score("bleu")) - or_nan(baseline_bucket.score("bleu"))


def ranking_figure(results: ScoresByRow, beyond: Mapping[str, BucketScore], *, test_set: str) -> Figure:
    """A line for each system, for more of them than lines can cross: BLEU of its source-length groups, but for those of
    fewer pairs than `MIN_PAIRS` if others have more, with their 95 % intervals, ordered by `beyond[system]`, the scores
    on all pairs longer than any trained on, the best at the top."""
    groups = common_buckets(results, test_set)[1:]
    min_pairs = min(MIN_PAIRS, max(group.n for group in groups))
    marks = {
        f"{group.label} n={group.n}": {system: results[system][test_set].buckets[index] for system in results}
        for index, group in enumerate(groups)
        if group.n >= min_pairs
    }
    order = sorted(results, key=lambda system: or_nan(beyond[system].score("bleu")))
    return draw_ranking(marks, order, f"BLEU on {test_set}, by source length in subwords")


def ranking_by_test_set_figure(results: ScoresByRow) -> Figure:
    """As `ranking_figure`, of all pairs of each test set, ordered by the mean over the test sets."""
    tests = next(iter(results.values()))
    marks = {
        f"{test} n={tests[test].overall.n}": {system: by_test[test].overall for system, by_test in results.items()}
        for test in tests
    }
    order = sorted(results, key=lambda system: sum(or_nan(mark[system].score("bleu")) for mark in marks.values()))
    return draw_ranking(marks, order, "BLEU of all pairs")


def draw_ranking(marks: Mapping[str, Mapping[str, BucketScore]], order: Sequence[str], x_label: str) -> Figure:
    """The systems in that order from below, and in each line its marks, the later the darker."""
    figure = Figure(figsize=(WIDTH_INCHES, 1.3 + 0.2 * len(order)), layout="constrained")
    axes = figure.subplots()
    shades = colormaps[AMOUNT_COLORMAP](np.linspace(0.35, 1, len(marks)))
    for (name, by_system), colour, marker in zip(marks.items(), shades, cycle(MARKERS), strict=False):
        groups = [by_system[system] for system in order]
        scores = [or_nan(group.score("bleu")) for group in groups]
        axes.errorbar(
            scores,
            range(len(order)),
            xerr=interval_bars(groups, "bleu"),
            fmt=marker,
            color=colour,
            markersize=5,
            elinewidth=0.8,
            label=name,
        )
    axes.set_yticks(range(len(order)), order)
    axes.set_ylim(-0.6, len(order) - 0.4)
    label_axes(axes, x_label, "")
    style_axes(axes)
    add_legend(figure, axes.containers)
    return figure


def parameters_figure(beyond: Mapping[str, BucketScore], *, parameters: Mapping[str, int], test_set: str) -> Figure:
    """BLEU on all pairs with a source longer than any trained on, `beyond[system]`, against the parameters."""
    styles = line_styles(beyond)
    figure = Figure(figsize=(WIDTH_INCHES, height_with_legend(3.2, beyond)), layout="constrained")
    axes = figure.subplots()
    for system, group in beyond.items():
        colour, marker, _ = styles[system]
        millions = parameters[system] / 1e6
        axes.errorbar(
            millions,
            or_nan(group.score("bleu")),
            interval_bars([group], "bleu"),
            color=colour,
            marker=marker,
            markersize=6,
            markerfacecolor="white",
            capsize=3,
            linestyle="none",
            label=system,
        )
    first = next(iter(beyond.values()))
    axes.set_xlabel("millions of parameters", fontsize=FONT_SIZE + 1)
    axes.set_ylabel(f"BLEU from {first.low} subwords on\n({test_set}, n={first.n})", fontsize=FONT_SIZE + 1)
    axes.margins(x=0.15)
    style_axes(axes)
    add_legend(figure, axes.containers)
    return figure


def series_offsets(number: int) -> list[float]:
    """Where in a group, whose centre is 0, so many systems stand."""
    spacing = min(0.1, 0.5 / max(1, number - 1))
    return [spacing * (index - (number - 1) / 2) for index in range(number)]


def bucket_axis(axes: Axes, groups: Sequence[Bucket]) -> None:
    """The length groups and their sizes below the axes."""
    axes.set_xlabel("source length in subwords", fontsize=FONT_SIZE + 1)
    axes.set_xticks(range(len(groups)), [f"{group.label}\nn={group.n}" for group in groups])
    axes.set_xlim(-0.5, len(groups) - 0.5)


def scale_panels(bleu: Axes, ratio: Axes, groups: Sequence[BucketScore]) -> None:
    """Scales, labels and grid of both panels."""
    bleu.set_ylabel("BLEU", fontsize=FONT_SIZE + 1)
    ratio.set_ylabel("length ratio", fontsize=FONT_SIZE + 1)
    bucket_axis(ratio, groups)
    for axes in (bleu, ratio):
        style_axes(axes)
    bleu.tick_params(axis="x", length=0)
    # From zero where scores fall far, a closer look where they do not; never so close that noise looks like a fall. An
    # interval of seeds may end above 100, where no score is.
    low, high = bleu.get_ylim()
    middle, top = (low + high) / 2, min(high, 105.0)
    bleu.set_ylim(0 if low < high / 2 else min(low, middle - 2.5), max(top, middle + 2.5))
    low, high = ratio.get_ylim()
    ratio.set_ylim(min(low, 0.9), max(high, 1.1))
