"""Figures of diagnoses: source positions while decoding, attention entropy, and BLEU with </s> forbidden.

Pure functions from records of diagnoses to matplotlib figures; `results[system]` is a system's diagnosis. A note below
a figure names the systems whose diagnosis, of an older version, lacks the values.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ..results.diagnosis_records import DecodingExample, Diagnosis, EntropyBucket
from .diagnostics_plots import Diagnoses, validate_same_pairs
from .score_plots import bucket_axis, draw_marks, series_offsets, shown_buckets, small_note
from .style import FONT_SIZE, LIMIT_COLOUR, WIDTH_INCHES, add_legend, line_styles, or_nan, style_axes

MAX_PANELS = 5  # panels in one row


def source_position_figure(results: Diagnoses) -> Figure:
    """The position in the source at each generated token: a row per system, a panel per source-length bucket.

    A panel shows the first sampled pair of its bucket, the same for all systems. The coloured line is the centroid of
    the cross-attention. Black dashes are the source position of the cross-attention's encodings, if they have one. The
    dotted diagonal connects the first tokens of source and reference with the last ones. A translation of 1.5 times the
    reference's length or more leaves the panel on the right. The label of a bucket has the share of all its steps in
    which the centroid jumps. Of more than five buckets with pairs, five at even intervals are shown.
    """
    shown, not_measured = systems_with(results, lambda diagnosis: diagnosis.has_centroid)
    first = next(iter(shown.values())).decoding
    assert first is not None
    nonempty = [index for index, bucket in enumerate(first.buckets) if bucket.n]
    chosen = [
        nonempty[i] for i in np.linspace(0, len(nonempty) - 1, min(len(nonempty), MAX_PANELS)).round().astype(int)
    ]
    figure = Figure(figsize=(WIDTH_INCHES, 1.2 + 1.45 * len(shown)), layout="constrained")
    grid = figure.subplots(len(shown), len(chosen), sharex="col", sharey="col", squeeze=False)
    styles = line_styles(results)
    for row, (system, diagnosis) in zip(grid, shown.items(), strict=True):
        for axes, index in zip(row, chosen, strict=True):
            bucket = diagnosis.decoding_buckets[index]
            jumps = bucket.movement.jumps if bucket.movement else math.nan
            if bucket.first_example:
                draw_source_positions(axes, bucket.first_example, styles[system][0])
            axes.set_title(f"{bucket.label}, {100 * jumps:.0f} %", fontsize=FONT_SIZE)
        row[0].set_ylabel(system if len(system) < 20 else f"{system[:18]}\u2026", fontsize=FONT_SIZE)
    grid[-1, len(chosen) // 2].set_xlabel("target position", fontsize=FONT_SIZE + 1)
    figure.supylabel("source position in tokens", fontsize=FONT_SIZE + 1)
    handles = [
        Line2D([], [], color=LIMIT_COLOUR, linewidth=1.2, label="centroid of the cross-attention"),
        Line2D([], [], color="black", linewidth=1, linestyle="--", label="source position by the alignment"),
        Line2D([], [], color=LIMIT_COLOUR, linewidth=1, linestyle=":", label="diagonal"),
    ]
    examples = [bucket.first_example for diagnosis in shown.values() for bucket in diagnosis.decoding_buckets]
    has_positions = any(example.source_position for example in examples if example)
    note = f"%: steps in which the centroid moves by more than {first.far} tokens"
    add_legend(figure, handles if has_positions else handles[::2], legend_title(note, not_measured))
    return figure


def draw_source_positions(axes: Axes, example: DecodingExample, colour: str) -> None:
    """One sentence: the diagonal, the centroid with a mark at its end, and the source position."""
    source, target, centroid = example.source, example.target, example.centroid or ()
    axes.plot([0, target - 1], [0, source - 1], color=LIMIT_COLOUR, linewidth=1, linestyle=":")
    last = len(centroid) - 1
    axes.plot(centroid, color=colour, linewidth=1.2, marker="o", markersize=3, markevery=[last])
    if example.source_position:
        axes.plot(example.source_position, color="black", linewidth=1, linestyle="--")
    axes.set_xlim(-0.05 * target, 1.5 * target)
    axes.set_ylim(-0.05 * source, 1.05 * source)
    style_axes(axes)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, nbins=3))


def entropy_figure(results: Diagnoses) -> Figure:
    """Entropy of attention by source length, a line per system: encoder and cross-attention.

    It is the mean over all heads of all layers, in nats and as a share of the entropy of uniform attention to all
    visible keys.
    """
    shown, not_measured = systems_with(results, lambda diagnosis: diagnosis.has_entropy)
    figure = Figure(figsize=(WIDTH_INCHES, 4.6 + 0.06 * len(shown)), layout="constrained")
    grid, styles = figure.subplots(2, 2, sharex=True, sharey="row"), line_styles(results)
    sides = {"encoder": "encoder's self-attention", "cross": "cross-attention"}
    first = next(filter(None, entropies_by_side(next(iter(shown.values()))).values()))
    for (system, diagnosis), offset in zip(shown.items(), series_offsets(len(shown)), strict=True):
        for column, side in zip(grid.T, sides, strict=True):
            if buckets := entropies_by_side(diagnosis)[side]:
                groups = [buckets[index] for index in shown_buckets(buckets)]
                entropies = [np.nan if group.mean is None else float(np.mean(group.mean)) for group in groups]
                uniform = [group.uniform or np.nan for group in groups]
                for axes, values in zip(column, (entropies, np.divide(entropies, uniform)), strict=True):
                    draw_marks(axes, groups, values, offset, styles[system], system)
    for axes, name in zip(grid[0], sides.values(), strict=True):
        axes.set_title(name, fontsize=FONT_SIZE + 1)
    for axes in grid.flat:
        style_axes(axes)
    for axes in grid[1]:
        bucket_axis(axes, [first[index] for index in shown_buckets(first)])
    grid[0, 0].set_ylabel("entropy in nats", fontsize=FONT_SIZE + 1)
    grid[1, 0].set_ylabel("fraction of ln(visible keys)", fontsize=FONT_SIZE + 1)
    grid[0, 0].set_ylim(bottom=0)
    grid[1, 0].set_ylim(0, 1.05)
    add_legend(figure, grid[0, 1].get_lines(), legend_title(small_note(first), not_measured))
    return figure


def entropies_by_side(diagnosis: Diagnosis) -> Mapping[str, tuple[EntropyBucket, ...] | None]:
    entropy = diagnosis.attention_entropy
    return entropy.by_side if entropy else {}


def end_forbidden_figure(results: Diagnoses) -> Figure:
    """BLEU of a few pairs of each source-length bucket, decoded greedily. Bars are 95 % intervals.

    Open marks: plain decodings. Full marks: </s> is forbidden before the reference's length and forced there.
    """
    shown, not_measured = systems_with(results, lambda diagnosis: diagnosis.has_decoding)
    styles = line_styles(results)
    groups = next(iter(shown.values())).decoding_buckets
    nonempty = [index for index, group in enumerate(groups) if group.n]
    figure = Figure(figsize=(WIDTH_INCHES, 3.2 + 0.06 * len(shown)), layout="constrained")
    axes = figure.subplots()
    spacing = 0.8 / len(shown)
    for index, (system, diagnosis) in enumerate(shown.items()):
        colour, marker, _ = styles[system]
        for tick, group in enumerate(diagnosis.decoding_buckets[number] for number in nonempty):
            if group.greedy and group.end_forbidden:
                xs = tick - 0.4 + spacing * (index + 0.5) + np.array([-spacing / 6, spacing / 6])
                both = [group.greedy, group.end_forbidden]
                axes.plot(xs, [or_nan(score.bleu) for score in both], color=colour, linewidth=0.8)
                for x, score, face_colour in zip(xs, both, ("white", colour), strict=True):
                    axes.errorbar(
                        x, or_nan(score.bleu), score.half_width or 0, fmt=marker, color=colour, markersize=4.5,
                        markerfacecolor=face_colour, elinewidth=0.8, capsize=1.5,
                    )  # fmt: skip
    axes.set_ylabel("BLEU", fontsize=FONT_SIZE + 1)
    axes.set_ylim(bottom=0)
    bucket_axis(axes, [groups[number] for number in nonempty])
    style_axes(axes)
    handles = [
        Line2D([], [], color=styles[system][0], marker=styles[system][1], linestyle="none", label=system)
        for system in shown
    ]
    add_legend(
        figure,
        handles,
        legend_title("open: the system decides the end; full: the end is at the reference's length", not_measured),
    )
    return figure


def systems_with(results: Diagnoses, condition: Callable[[Diagnosis], bool]) -> tuple[Diagnoses, list[str]]:
    """The systems that can be shown, and the names of the others; a ValueError if none can."""
    shown = {system: diagnosis for system, diagnosis in validate_same_pairs(results).items() if condition(diagnosis)}
    if not shown:
        raise ValueError(
            "a figure of decodings or of attention needs a diagnosis that has them, and those of "
            f"{', '.join(results)} have none, being of an older version or of a model without; diagnose them again"
        )
    return shown, [system for system in results if system not in shown]


def legend_title(note: str, not_measured: list[str]) -> str | None:
    """The text above a legend."""
    return "\n".join(filter(None, [note, f"not measured: {', '.join(not_measured)}" if not_measured else ""])) or None
