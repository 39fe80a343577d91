"""Saved results to figures that compare: gain over the baseline, loss by step and time, parameters against score."""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from ..results.tables import SIGNIFICANT, PValues, Results, TrainingLimits, checked_limits, p_of, shared_columns
from .style import (
    FONT_SIZE,
    LIMIT_COLOUR,
    WIDTH_INCHES,
    draw_limits,
    group_axis,
    legend,
    looks_of,
    places,
    plain,
)


def gain_by_length(
    results: Results, test_set: str, *, baseline: str, training_limits: TrainingLimits, p_values: PValues
) -> Figure:
    """BLEU over the baseline's in every source-length group; a filled marker where the difference is significant."""
    groups = shared_columns(results, test_set)[1:]
    looks = looks_of(results)
    limits = checked_limits(results, training_limits)
    figure = Figure(figsize=(WIDTH_INCHES, 3.2), layout="constrained")
    axes = figure.subplots()
    theirs = [group["bleu"] for group in results[baseline][test_set]["groups"]]
    others = [system for system in results if system != baseline]
    for system, offset in zip(others, places(len(others)), strict=True):
        colour, marker, line_style = looks[system]
        ours = results[system][test_set]["groups"]
        points = [
            (at + offset, group["bleu"] - bleu, p_of(p_values, system, group))
            for at, (group, bleu) in enumerate(zip(ours, theirs, strict=True))
            if group["n"]
        ]
        axes.plot(
            [x for x, _, _ in points], [y for _, y, _ in points], color=colour, linestyle=line_style, linewidth=1.4
        )
        for x, y, p in points:
            sure = "bleu" in p and p["bleu"]["randomisation"] < SIGNIFICANT
            axes.plot(
                x, y, marker, color=colour, markersize=5, markerfacecolor=colour if sure else "white", label=system
            )
    axes.axhline(0, color=LIMIT_COLOUR, linewidth=0.7, zorder=1)
    axes.set_ylabel(f"BLEU over {baseline}", fontsize=FONT_SIZE + 1)
    draw_limits([axes], groups, limits, {system: looks[system][0] for system in results})
    group_axis(axes, groups)
    plain(axes)
    legend(figure, axes.get_lines(), f"filled: p < {SIGNIFICANT}")
    return figure


def loss_curves(losses: Mapping[str, Mapping[str, Any]], row_of: Mapping[str, str]) -> Figure:
    """Loss by step and by wall-clock minute, a line for each training, a colour for each row.

    `losses[training]` has "loss" and "eval_loss", lists of [step, seconds, nats per token]; that of evaluation is
    shown if all trainings have it. Seconds of trainings that shared a machine compare no better than it let them.
    """
    looks = looks_of(dict.fromkeys(row_of.values()))
    evaluated = all(one["eval_loss"] for one in losses.values())
    figure = Figure(figsize=(WIDTH_INCHES, 3.2), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for name, one in losses.items():
        colour, _, line_style = looks[row_of[name]]
        points = one["eval_loss" if evaluated else "loss"]
        for axes, column, unit in ((panels[0], 0, 1), (panels[1], 1, 60)):
            xs, ys = [point[column] / unit for point in points], [point[2] for point in points]
            axes.plot(xs, ys, color=colour, linestyle=line_style, linewidth=1.2, label=row_of[name])
    # The first losses are those of guessing and would squeeze what differs into a corner.
    later = [point[2] for one in losses.values() for point in one["eval_loss" if evaluated else "loss"][1:]]
    if later:
        panels[0].set_ylim(min(later) - 0.1, max(later) + 0.1)
    panels[0].set_ylabel(f"{'validation' if evaluated else 'training'} loss in nats per token", fontsize=FONT_SIZE + 1)
    for axes, label in zip(panels, ("step", "minutes of training"), strict=True):
        axes.set_xlabel(label, fontsize=FONT_SIZE + 1)
        plain(axes)
    legend(figure, panels[0].get_lines())
    return figure


def parameters_and_score(
    beyond: Mapping[str, Mapping[str, Any]], *, parameters: Mapping[str, int], test_set: str
) -> Figure:
    """BLEU on all pairs with a source longer than any trained on, `beyond[system]`, against the parameters."""
    looks = looks_of(beyond)
    figure = Figure(figsize=(WIDTH_INCHES, 3.2), layout="constrained")
    axes = figure.subplots()
    for system, group in beyond.items():
        colour, marker, _ = looks[system]
        at = parameters[system] / 1e6
        axes.errorbar(at, group["bleu"], group.get("bleu_ci"), color=colour, marker=marker, markersize=6,
                      markerfacecolor="white", capsize=3, linestyle="none", label=system)  # fmt: skip
    first = next(iter(beyond.values()))
    axes.set_xlabel("millions of parameters", fontsize=FONT_SIZE + 1)
    axes.set_ylabel(f"BLEU from {first['low']} subwords on\n({test_set}, n={first['n']})", fontsize=FONT_SIZE + 1)
    axes.margins(x=0.15)
    plain(axes)
    legend(figure, axes.containers)
    return figure
