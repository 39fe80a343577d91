"""Figures of diagnoses, of losses and of audits.

Diagnoses are teacher-forced loss by target position, source positions while decoding, attention entropy, and BLEU with
</s> forbidden. All are pure functions from records to matplotlib figures. `results[system]` is a system's diagnosis;
all are of the same pairs. A note below a figure names the systems whose diagnosis, of an older version, lacks the
values.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ..results.records import DecodingExample, Diagnosis, EntropyBucket, TrainingCurves
from ..results.tables import TrainingLengths
from .score_plots import bucket_axis, draw_length_lines, draw_marks, series_offsets, shown_buckets, small_note
from .style import (
    FONT_SIZE,
    LENGTH_AWARE_SUFFIX,
    LIMIT_COLOUR,
    WIDTH_INCHES,
    add_legend,
    height_with_legend,
    label_axes,
    label_lines,
    legend_label,
    line_styles,
    or_nan,
    single_panel,
    style_axes,
)

Diagnoses = Mapping[str, Diagnosis]


def loss_by_position_figure(
    results: Diagnoses,
    *,
    max_training_lengths: TrainingLengths,
    bin_width: int = 5,
    min_tokens: int = 100,
) -> Figure:
    """Mean loss by target position, a line per system.

    A point is the mean over all tokens of `bin_width` positions, drawn at their middle; points of fewer than
    `min_tokens` tokens are left out. A vertical line marks the end of the positions of training, if it is inside the
    axes. The label of a system that received each target's length says so.
    """
    limits = {system: max_training_lengths[system] for system in validate_same_pairs(results)}
    figure = Figure(figsize=(WIDTH_INCHES, 3.4 + 0.06 * len(results)), layout="constrained")
    axes, num_left_out = figure.subplots(), 0
    styles = line_styles(results)
    for index, (system, diagnosis) in enumerate(results.items()):
        colour, marker, line_style = styles[system]
        sums = diagnosis.loss_by_position
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
    label_axes(axes, f"target position, in bins of {bin_width}{left_out}", "loss in nats per token")
    axes.set_ylim(bottom=0)
    style_axes(axes)
    add_legend(figure, axes.get_lines())
    colours, right = {system: style[0] for system, style in styles.items()}, axes.get_xlim()[1]

    def x_of_limit(limit: int) -> float | None:
        return limit + 0.5 if limit + 0.5 < right else None

    draw_length_lines([axes], limits, "limit", x_of_limit, colours, label_distance=right / 8)
    return figure


def validate_same_pairs(results: Diagnoses) -> Diagnoses:
    """The results; a ValueError for none, and unless all are of the same pairs in the same buckets."""
    pairs = {name: (found.test_set_sha256[:8], found.n, found.pairs_per_group) for name, found in results.items()}
    # A diagnosis without decodings has no buckets.
    bounds = {tuple(bucket.label for bucket in found.decoding_buckets) for found in results.values()} - {()}
    if len(set(pairs.values())) != 1 or len(bounds) > 1:
        raise ValueError(
            f"a figure shows at least one system, and all of them on the same pairs, but these are {pairs}; diagnose "
            "them again on one test set, with one pairs_per_group and with the same buckets, or show them apart"
        )
    return results


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
    labels = {}
    for name, curves in losses.items():
        labels[row_by_run[name]] = row_by_run[name] + (LENGTH_AWARE_SUFFIX if curves.lengths_known else "")
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
    nonempty = np.flatnonzero([bucket.n for bucket in first.buckets])
    steps = np.linspace(0, len(nonempty) - 1, min(len(nonempty), MAX_PANELS))
    chosen = nonempty[steps.round().astype(int)]
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
    figure, axes = single_panel(3.2 + 0.06 * len(shown))
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
    note = "open: the system decides the end; full: the end is at the reference's length"
    add_legend(figure, handles, legend_title(note, not_measured))
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


def coverage_figure(profiles: Mapping[str, Sequence[float | None]], num_documents: int) -> Figure:
    """Coverage in percent over the relative position in the document; `profiles` are those of translation_audit."""
    figure, axes = single_panel(3.2)
    styles = line_styles(profiles)
    ends = {}
    for name, shares in profiles.items():
        colour, _, line_style = styles[name]
        percent = 100 * np.array([or_nan(share) for share in shares])
        axes.stairs(percent, np.linspace(0, 100, len(percent) + 1), color=colour, linestyle=line_style, baseline=None)
        known = percent[~np.isnan(percent)]
        if len(known):
            ends[name] = (float(known[-1]), colour)
    axes.set_xlim(0, 100)
    axes.set_ylim(-2, 112)  # with room for labels
    style_axes(axes)
    plural = "s" if num_documents > 1 else ""
    x_label = f"position in the source, % of {num_documents} document{plural}"
    label_axes(axes, x_label, "% of the source words\nwith a counterpart")
    if len(profiles) > 1:
        label_lines(axes, ends)
    return figure
