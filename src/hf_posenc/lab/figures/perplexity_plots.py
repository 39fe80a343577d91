"""Perplexity of language models by position and by context length, as figures."""

import math
import textwrap

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter

from ..results.length_limits import TrainingLengths, validate_max_lengths
from ..results.records import ScoresByRow
from ..results.tables import common_buckets, length_unit
from .annotations import annotate_training_lengths
from .score_plots import MAX_LINES, draw_by_bucket, mark_note, series_offsets, shown_buckets
from .style import (
    WIDTH_INCHES,
    add_legend,
    height_with_legend,
    label_axes,
    label_lines,
    legend_label,
    line_styles,
    or_nan,
    style_axes,
)

MAX_LINEAR_RATIO = 3.0  # between the largest and the smallest perplexity; beyond it the axis is logarithmic


def perplexity_figure(results: ScoresByRow, test_set: str, *, max_training_lengths: TrainingLengths) -> Figure:
    """The perplexity of every bucket of positions or context lengths, a line for each system.

    Buckets are categories, as in `bleu_by_length_figure`. Up to five systems are labelled at the ends of their lines. A
    vertical line marks the training length. Buckets of fewer than MIN_PAIRS windows have hollow marks.
    """
    columns = common_buckets(results, test_set)[1:]
    shown = shown_buckets(columns)
    max_lengths = validate_max_lengths(results, max_training_lengths)
    labels = {system: legend_label(system, max_lengths) for system in results}
    buckets = {system: [tests[test_set].buckets[index] for index in shown] for system, tests in results.items()}
    has_legend = len(buckets) > MAX_LINES
    height = height_with_legend(4.0, labels.values()) if has_legend else 3.6
    figure = Figure(figsize=(WIDTH_INCHES, height), layout="constrained")
    axes = figure.subplots()
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
    known = [score for row in buckets.values() for bucket in row if (score := bucket.score("perplexity")) is not None]
    if known and max(known) > MAX_LINEAR_RATIO * min(known):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(ScalarFormatter())
        axes.yaxis.set_minor_formatter(NullFormatter())
    if has_legend:
        add_legend(figure, axes.get_lines())
    else:
        ends = {
            labels[system]: (or_nan(row[-1].score("perplexity")), colours[system]) for system, row in buckets.items()
        }
        label_lines(axes, {name: end for name, end in ends.items() if not math.isnan(end[0])})
    return figure
