"""Scores to figures: by source length, ranked, and the perplexity of language models by position and context.

Pure functions from records of saved results to matplotlib figures.
"""

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, cycle
from typing import Any, Protocol

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter
from numpy.typing import ArrayLike

from ..results.records import SCALES, BucketScore, ScoresByRow
from ..results.tables import TrainingLengths, common_buckets, length_unit, min_lengths_above_one
from .style import (
    AMOUNT_COLORMAP,
    FONT_SIZE,
    LIMIT_COLOUR,
    MARKERS,
    WIDTH_INCHES,
    add_legend,
    base_name,
    height_with_legend,
    label_axes,
    label_lines,
    legend_label,
    line_styles,
    or_nan,
    single_panel,
    style_axes,
)

Lengths = Mapping[str, int | None]
DASH = 4.0  # length of a dash, in units of the line's width


def annotate_training_lengths(
    panels: list[Axes],
    groups: Sequence[BucketScore],
    max_lengths: Lengths,
    min_lengths: Lengths,
    colours: Mapping[str, str],
) -> None:
    """Draw a line at each maximum training length, and one below each minimum training length."""
    draw_length_lines(panels, max_lengths, "limit", lambda length: x_of_length(length, groups), colours)
    draw_length_lines(panels, min_lengths, "from", lambda length: x_of_length(length - 1, groups), colours)


def draw_length_lines(
    panels: list[Axes],
    lengths: Lengths,
    word: str,
    x_of: Callable[[int], float | None],
    colours: Mapping[str, str],
    label_distance: float = 0.6,
) -> None:
    """A line per length, labelled in the first panel: neutral if all share it, else in the system's colour.

    Systems with the same length alternate in the dashes of one line. Lines within `label_distance` share one label.
    """
    is_shared = len(set(lengths.values())) == 1
    labels: list[list[tuple[float, int]]] = []
    for length in sorted({length for length in lengths.values() if length is not None}):
        x = x_of(length)
        if x is None:
            continue
        line_colours = [colours[name] for name in lengths if lengths[name] == length]
        if is_shared:
            line_colours = [LIMIT_COLOUR]
        gap = DASH * max(1, len(line_colours) - 1)
        for index, colour in enumerate(line_colours):
            for axes in panels:
                axes.axvline(x, color=colour, linewidth=1.2, linestyle=(-index * DASH, (DASH, gap)), zorder=1.5)
        if labels and x - labels[-1][-1][0] < label_distance:
            labels[-1].append((x, length))
        else:
            labels.append([(x, length)])
    for close_lines in labels:
        plural = "s" if word == "limit" and len(close_lines) > 1 else ""
        numbers = ", ".join(str(length) for _, length in close_lines)
        middle = float(np.mean([x for x, _ in close_lines]))
        panels[0].annotate(
            f"training\n{word}{plural} {numbers}", (middle, 1.0), (0, 3), xycoords=("data", "axes fraction"),
            textcoords="offset points", ha="center", va="bottom", fontsize=FONT_SIZE,
        )  # fmt: skip


def x_of_length(length: int, groups: Sequence[BucketScore]) -> float | None:
    """The x coordinate of a length on an axis of length buckets; None beyond the last bucket.

    Inside a bucket it is linear. At a bucket's upper bound, and between two buckets, it is their border. In a last
    bucket without an upper bound it approaches the right border as the length grows.
    """
    for index, group in enumerate(groups):
        before = max(int(group.low) - 1, 0)
        if length <= before:
            return index - 0.5
        if group.high is None:
            return index - 0.5 + (1 - before / length)
        if length <= (end := int(group.high)):
            return index - 0.5 + (length - before) / (end - before)
    return None


class Bucket(Protocol):
    """A length bucket of scores or of other measures."""

    @property
    def label(self) -> str: ...

    @property
    def n(self) -> float: ...


MIN_PAIRS = 20  # pairs; a score of fewer is mostly noise
MAX_LINES = 5  # the maximum number of lines with labels at their ends in one panel
MAX_END_LABELS = 12  # names at the ends of lines of perplexity, which are far apart
BucketsByRow = Mapping[str, Sequence[BucketScore]]


def bleu_by_length_figure(
    results: ScoresByRow,
    test_set: str,
    *,
    max_training_lengths: TrainingLengths,
    min_training_lengths: TrainingLengths | None = None,
) -> Figure:
    """BLEU of every source-length bucket. Up to five systems are lines of one panel, labelled at their ends, with the
    length ratio below; more are small multiples, a panel for each encoding, in which the others are grey.

    Buckets are categories: bucket i is centred on x = i and reaches from i - 0.5 to i + 0.5. Bars are 95 % intervals. A
    vertical line marks the maximum training length, and another one the minimum of systems in `min_training_lengths`.
    Buckets of fewer than `MIN_PAIRS` pairs have hollow marks without a line. Buckets without pairs are left out.
    """
    shown = shown_buckets(common_buckets(results, test_set)[1:])
    max_lengths = {system: max_training_lengths[system] for system in results}
    min_lengths = min_lengths_above_one(results, min_training_lengths)
    labels = {system: legend_label(system, max_lengths, min_lengths) for system in results}
    buckets = {system: [tests[test_set].buckets[index] for index in shown] for system, tests in results.items()}
    draw = overlaid_lines if len(results) <= MAX_LINES else small_multiples
    figure = draw(buckets, labels, max_lengths, min_lengths)
    notes = [] if len(results) <= MAX_LINES else [bucket_note(next(iter(buckets.values())))]
    figure.supxlabel("\n".join([*notes, textwrap.fill(mark_note(buckets), 100)]), fontsize=FONT_SIZE)
    return figure


def shown_buckets(buckets: Sequence[Bucket]) -> list[int]:
    """The indices of the buckets with pairs; of all buckets if none has any."""
    return [index for index, bucket in enumerate(buckets) if bucket.n] or list(range(len(buckets)))


def bucket_note(buckets: Sequence[BucketScore]) -> str:
    """The label of the axis: the unit of length, and the number of pairs of each bucket."""
    sizes = [f"{bucket.n:g}" for bucket in buckets]
    pairs = f"{sizes[0]} pairs in each bucket" if len(set(sizes)) == 1 else f"pairs by bucket: {', '.join(sizes)}"
    return f"source length in subwords; {pairs}"


def mark_note(buckets: BucketsByRow) -> str:
    """What bars and hollow marks are."""
    return "; ".join(filter(None, [interval_note(buckets), small_note(*buckets.values())]))


def small_note(*rows: Sequence[Bucket]) -> str:
    """What hollow marks are, if any bucket has one."""
    has_hollow = any(map(is_small, chain.from_iterable(rows)))
    return f"hollow: fewer than {MIN_PAIRS} pairs" if has_hollow else ""


def is_small(bucket: Bucket) -> bool:
    return bucket.n < MIN_PAIRS


def interval_note(buckets: BucketsByRow) -> str:
    """The kind of the intervals, and the number of seeds behind a point."""
    scored = [bucket for bucket in chain.from_iterable(buckets.values()) if bucket.n and bucket.has_intervals]
    if not scored:
        return ""
    seeds = [bucket.seeds for bucket in scored]
    kinds = []
    if max(seeds) > 1:
        kinds.append(f"Student's over the seeds ({max(seeds)} seeds)")
    if min(seeds) == 1:
        kinds.append("bootstrapped over sentences (1 seed)")
    if any(bucket.scored(metric).seed_range(metric) for bucket in scored for metric in ("bleu", "perplexity")):
        kinds.append("lowest and highest seed where that leaves the scale")
    return f"bars: 95 % interval, {', or '.join(kinds)}"


def overlaid_lines(
    buckets: BucketsByRow, labels: Mapping[str, str], max_lengths: Lengths, min_lengths: Lengths
) -> Figure:
    """BLEU of all systems in one panel, and their length ratios below."""
    figure = Figure(figsize=(WIDTH_INCHES, 4.6), layout="constrained")
    bleu, ratio = figure.subplots(2, 1, sharex=True, height_ratios=(5, 2))
    styles, first = line_styles(buckets), next(iter(buckets.values()))
    for (system, row), offset in zip(buckets.items(), series_offsets(len(buckets)), strict=True):
        for axes, field in ((bleu, "bleu"), (ratio, "length_ratio")):
            draw_by_bucket(axes, row, field, offset, styles[system], labels[system])
    annotate_training_lengths(
        [bleu, ratio], first, max_lengths, min_lengths, {system: styles[system][0] for system in buckets}
    )
    ratio.axhline(1.0, color=LIMIT_COLOUR, linewidth=0.7, zorder=1)
    scale_panels(bleu, ratio, first)
    ends = {}
    for system, row in buckets.items():
        if scored := [bucket for bucket in row if bucket.n]:
            ends[textwrap.fill(labels[system], 24)] = or_nan(scored[-1].score("bleu")), styles[system][0]
    label_lines(bleu, ends)
    return figure


def small_multiples(
    buckets: BucketsByRow, labels: Mapping[str, str], max_lengths: Lengths, min_lengths: Lengths
) -> Figure:
    """BLEU in a panel for each encoding, with its variants in colour and all others in grey."""
    styles, first = line_styles(buckets), next(iter(buckets.values()))
    bases = list(dict.fromkeys(map(base_name, buckets)))
    columns = min(3 if len(bases) < 10 else 4, len(bases))
    num_rows = math.ceil(len(bases) / columns)
    figure = Figure(figsize=(WIDTH_INCHES, 0.8 + 1.75 * num_rows), layout="constrained")
    grid = figure.subplots(num_rows, columns, sharex=True, sharey=True, squeeze=False)
    for axes, base in zip(grid.flat, bases, strict=False):
        members = [system for system in buckets if base_name(system) == base]
        for system, row in buckets.items():
            scores = [math.nan if is_small(bucket) else or_nan(bucket.score("bleu")) for bucket in row]
            if system not in members:
                axes.plot(range(len(row)), scores, color="#cccccc", linewidth=0.7, zorder=1)
        for system in members:
            draw_by_bucket(axes, buckets[system], "bleu", 0.0, styles[system], labels[system])
        limits = [max_lengths[system] for system in members]
        limits += [shortest - 1 for system in members if (shortest := min_lengths.get(system)) is not None]
        for length in dict.fromkeys(limits):
            if length and (x := x_of_length(length, first)) is not None:
                axes.axvline(x, color=LIMIT_COLOUR, linewidth=1, linestyle="--", zorder=1.5)
        style_axes(axes)
        axes.set_title(textwrap.fill(", ".join(labels[name] for name in members), 100 // columns), fontsize=FONT_SIZE)
        axes.title.set_color(styles[members[0]][0])
    for axes in grid.flat[len(bases) :]:
        axes.set_axis_off()
    for axes in grid.flat:
        axes.set_ylim(bottom=0)
        axes.set_xticks(range(len(first)), [bucket.label for bucket in first], rotation=45, ha="right")
        axes.tick_params(labelbottom=True)
    figure.supylabel("BLEU", fontsize=FONT_SIZE + 1)
    return figure


def draw_by_bucket(
    axes: Axes, groups: Sequence[BucketScore], field: str, offset: float, style: tuple[str, str, str], label: str
) -> None:
    """Draw one field of a system's buckets as a line, with its intervals if it has any."""
    ys = [or_nan(group.score(field)) for group in groups]
    if any(group.scored(field).half_width for group in groups):
        xs, bars = np.arange(len(groups)) + offset, interval_bars(groups, field)
        axes.errorbar(xs, ys, bars, fmt="none", ecolor=style[0], elinewidth=1, capsize=2)
    draw_marks(axes, groups, ys, offset, style, label)


def draw_marks(
    axes: Axes, groups: Sequence[Bucket], ys: ArrayLike, offset: float, style: tuple[str, str, str], label: str
) -> None:
    """Draw a line with a mark for each bucket. A bucket of fewer than `MIN_PAIRS` pairs has a hollow mark, and no line
    leads to it."""
    colour, marker, line_style = style
    xs, is_hollow = np.arange(len(groups)) + offset, np.array([is_small(group) for group in groups], dtype=bool)
    marks: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 5, "clip_on": False}
    axes.plot(xs, np.where(is_hollow, np.nan, ys), linestyle=line_style, linewidth=1.4, label=label, **marks)
    if is_hollow.any():
        axes.plot(xs[is_hollow], np.asarray(ys)[is_hollow], linestyle="none", markerfacecolor="white", **marks)


def interval_bars(buckets: Sequence[BucketScore], metric: str) -> np.ndarray:
    """The length of each 95 % interval below and above the score (2, buckets), clipped to the metric's scale. The
    lowest and the highest seed replace an interval over seeds that leaves the scale.

    A bootstrap interval is around the mean of its samples. In a small bucket that mean differs from the score, and the
    score may be outside the interval.
    """
    bars, (lowest, highest) = [], SCALES.get(metric, (0.0, 100.0))
    for bucket in buckets:
        scored = bucket.scored(metric)
        score = scored.value or 0.0
        if seed_range := scored.seed_range(metric):
            bars.append((score - seed_range[0], seed_range[1] - score))
            continue
        half_width = scored.half_width or 0.0
        shift = 0.0 if scored.middle is None else scored.middle - score
        below = max(0.0, min(half_width - shift, score - lowest))
        above = max(0.0, min(half_width + shift, highest - score))
        bars.append((below, above))
    return np.array(bars).T


def ranking_figure(results: ScoresByRow, beyond: Mapping[str, BucketScore], *, test_set: str) -> Figure:
    """BLEU of each source-length bucket with its 95 % interval, one row per system, for many systems.

    `beyond[system]`, the scores on all pairs beyond the training length, orders the rows, best first. Buckets of fewer
    than `MIN_PAIRS` pairs have hollow marks.
    """
    groups = common_buckets(results, test_set)[1:]
    marks = {}
    for index in shown_buckets(groups):
        name = f"{groups[index].label} n={groups[index].n}"
        marks[name] = {system: tests[test_set].buckets[index] for system, tests in results.items()}
    order = sorted(results, key=lambda system: or_nan(beyond[system].score("bleu")))
    return draw_ranking(marks, order, f"BLEU on {test_set}, by source length in subwords")


def ranking_by_test_set_figure(results: ScoresByRow) -> Figure:
    """As `ranking_figure`, of all pairs of each test set, ordered by the mean over the test sets."""
    tests = next(iter(results.values()))
    marks, totals = {}, dict.fromkeys(results, 0.0)
    for test, first in tests.items():
        marks[f"{test} n={first.overall.n}"] = {system: by_test[test].overall for system, by_test in results.items()}
        for system, by_test in results.items():
            totals[system] += or_nan(by_test[test].overall.score("bleu"))
    order = sorted(totals, key=totals.__getitem__)
    return draw_ranking(marks, order, "BLEU of all pairs")


def draw_ranking(marks: Mapping[str, Mapping[str, BucketScore]], order: Sequence[str], x_label: str) -> Figure:
    """Draw the systems from bottom to top, and in each row its marks; later marks are darker."""
    figure, axes = single_panel(1.3 + 0.2 * len(order))
    shades = colormaps[AMOUNT_COLORMAP](np.linspace(0.6, 1, len(marks)))
    for (name, by_system), colour, marker in zip(marks.items(), shades, cycle(MARKERS), strict=False):
        groups = [by_system[system] for system in order]
        scores = [or_nan(group.score("bleu")) for group in groups]
        face_colour = "white" if any(map(is_small, groups)) else colour
        axes.errorbar(
            scores, range(len(order)), xerr=interval_bars(groups, "bleu"), fmt=marker, color=colour, markersize=5,
            markerfacecolor=face_colour, elinewidth=0.8, label=name,
        )  # fmt: skip
    axes.set_yticks(range(len(order)), order)
    axes.set_ylim(-0.6, len(order) - 0.4)
    columns = {name: list(by_system.values()) for name, by_system in marks.items()}
    notes = [x_label, interval_note(columns), small_note(*columns.values())]
    label_axes(axes, "\n".join(textwrap.fill(note, 70) for note in filter(None, notes)), "")
    style_axes(axes)
    add_legend(figure, axes.containers)
    return figure


def series_offsets(number: int) -> list[float]:
    """The offsets of that many systems in a bucket, whose centre is 0."""
    spacing = min(0.1, 0.5 / max(1, number - 1))
    return [spacing * (index - (number - 1) / 2) for index in range(number)]


def bucket_axis(axes: Axes, groups: Sequence[Bucket]) -> None:
    """Label the axis with the length buckets and their sizes."""
    axes.set_xlabel("source length in subwords", fontsize=FONT_SIZE + 1)
    axes.set_xticks(range(len(groups)), [f"{group.label}\nn={group.n}" for group in groups])
    axes.set_xlim(-0.5, len(groups) - 0.5)


def scale_panels(bleu: Axes, ratio: Axes, groups: Sequence[BucketScore]) -> None:
    """Set scales, labels and grid of both panels."""
    bleu.set_ylabel("BLEU", fontsize=FONT_SIZE + 1)
    ratio.set_ylabel("length ratio", fontsize=FONT_SIZE + 1)
    bucket_axis(ratio, groups)
    for axes in (bleu, ratio):
        style_axes(axes)
    bleu.tick_params(axis="x", length=0)
    # The axis starts at zero if scores degrade strongly, else closer to them, but never so close that noise looks like
    # a degradation. An interval over seeds may end above 100, where no score is.
    low, high = bleu.get_ylim()
    middle, top = (low + high) / 2, min(high, 105.0)
    bleu.set_ylim(0 if low < high / 2 else min(low, middle - 2.5), max(top, middle + 2.5))
    low, high = ratio.get_ylim()
    ratio.set_ylim(min(low, 0.9), max(high, 1.1))


MAX_LINEAR_RATIO = 3.0  # between the largest and the smallest perplexity; beyond it the axis is logarithmic


def perplexity_figure(results: ScoresByRow, test_set: str, *, max_training_lengths: TrainingLengths) -> Figure:
    """The perplexity of every bucket of positions or context lengths, a line for each system.

    Buckets are categories, as in `bleu_by_length_figure`. Up to MAX_END_LABELS systems are labelled
    at the ends of their lines. A vertical line marks the training length. Buckets of fewer than MIN_PAIRS windows have
    hollow marks.
    """
    columns = common_buckets(results, test_set)[1:]
    shown = shown_buckets(columns)
    max_lengths = {system: max_training_lengths[system] for system in results}
    labels = {system: legend_label(system, max_lengths) for system in results}
    buckets = {system: [tests[test_set].buckets[index] for index in shown] for system, tests in results.items()}
    has_legend = len(buckets) > MAX_END_LABELS
    height = height_with_legend(4.0, labels.values()) if has_legend else 3.6
    figure, axes = single_panel(height)
    styles, first = line_styles(buckets), next(iter(buckets.values()))
    for (system, row), offset in zip(buckets.items(), series_offsets(len(buckets)), strict=True):
        draw_by_bucket(axes, row, "perplexity", offset, styles[system], labels[system])
    colours = {system: styles[system][0] for system in buckets}
    annotate_training_lengths([axes], first, max_lengths, dict.fromkeys(buckets), colours)
    axes.set_xticks(range(len(first)), [f"{bucket.label}\nn={bucket.n:g}" for bucket in first])
    axes.set_xlim(-0.5, len(first) - 0.5)
    note = textwrap.fill(mark_note(buckets).replace("sentences", "windows").replace("pairs", "windows"), 100)
    label_axes(axes, "\n".join(filter(None, [length_unit(first), note])), "perplexity")
    style_axes(axes)
    scores = [bucket.score("perplexity") for bucket in chain.from_iterable(buckets.values())]
    known = [score for score in scores if score is not None]
    if known and max(known) > MAX_LINEAR_RATIO * min(known):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(ScalarFormatter())
        axes.yaxis.set_minor_formatter(NullFormatter())
    if has_legend:
        add_legend(figure, axes.get_lines())
    else:
        ends = {}
        for system, row in buckets.items():
            if (last := row[-1].score("perplexity")) is not None:
                ends[labels[system]] = last, colours[system]
        label_lines(axes, ends)
    return figure
