"""Saved diagnoses to figures: pure functions from what `diagnostics.diagnose` returned to matplotlib figures.

`results[system]` is a system's diagnosis, read back from JSON; all are of the same pairs.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ..results.training_lengths import TrainingLimits, checked_limits
from .style import FONT_SIZE, LIMIT_COLOUR, TOLD, WIDTH_INCHES, legend, legend_label, looks_of, plain

Diagnoses = Mapping[str, Mapping[str, Any]]
TICKS = (0, 1, 3, 10, 30, 100, 300, 1000)


def loss_by_position(
    results: Diagnoses, *, training_limits: TrainingLimits, group: str | None = None, width: int = 5, least: int = 100
) -> Figure:
    """Mean loss by target position, a line per system, of all pairs or of the source-length group with that label.

    A point stands in the middle of `width` positions and is the mean over all their tokens; one of fewer than `least`
    is left out, a gap. A vertical line is where the positions seen in training end, if that is in sight. A system that
    was told how long each target is has a label that says so.
    """
    limits = checked_limits(checked_alike(results), training_limits)
    figure = Figure(figsize=(WIDTH_INCHES, 3.4 + 0.06 * len(results)), layout="constrained")
    axes, few = figure.subplots(), 0
    looks = looks_of(results)
    for turn, (system, one) in enumerate(results.items()):
        colour, marker, line_style = looks[system]
        sums = sums_by_position(one["loss_by_position"], group)
        starts = np.arange(0, len(sums["tokens"]), width)
        nats, tokens = (np.add.reduceat(sums[name], starts) for name in ("nats", "tokens"))
        few = max(few, int((tokens < least).sum()))
        every = max(1, len(starts) // 12)  # a mark on every point would hide the lines
        look: dict[str, Any] = {"color": colour, "linestyle": line_style, "linewidth": 1.4, "marker": marker}
        look |= {"markersize": 5, "markerfacecolor": "white", "markevery": (turn * every // len(results), every)}
        means = np.where(tokens < least, np.nan, nats / tokens)
        label = legend_label(system, limits) + (TOLD if one.get("lengths_known") else "")
        axes.plot(starts + (width - 1) / 2, means, label=label, **look)
    left_out = f"; {few} with fewer than {least} tokens left out" if few else ""
    axes.set_xlabel(f"target position, in bins of {width}{left_out}", fontsize=FONT_SIZE + 1)
    axes.set_ylabel("loss in nats per token", fontsize=FONT_SIZE + 1)
    axes.set_ylim(bottom=0)
    plain(axes)
    legend(figure, axes.get_lines())
    draw_position_limits(axes, limits)
    return figure


def attention_distance_figure(results: Diagnoses) -> Figure:
    """How far each head of each layer attends: a row per system, on the left the encoder, on the right the decoder.

    Full marks are of sentences within the training limit, open ones of longer sentences, and a line joins a head's two.
    A layer's heads stand from near to far. Horizontal lines are what attention to all keys alike, without any window,
    would have. All panels share one scale, linear up to 1 token, logarithmic above. Systems without self-attention are
    named below.
    """
    limits = {system: one["training_limit"] for system, one in checked_alike(results).items()}
    shown = [system for system, one in results.items() if any(one["attention_distance"].values())]
    if not shown:
        raise ValueError(f"a figure of attention needs a system with self-attention, not {', '.join(results)}; add one")
    figure = Figure(figsize=(WIDTH_INCHES, 1.2 + 1.4 * len(shown)), layout="constrained")
    grid = figure.subplots(len(shown), 2, sharey=True, sharex="col", squeeze=False)
    looks_by_system = looks_of(results)
    for row, system in zip(grid, shown, strict=True):
        for axes, (stack, sides) in zip(row, results[system]["attention_distance"].items(), strict=True):
            axes.set_title(f"{legend_label(system, limits)}: {stack}", fontsize=FONT_SIZE, loc="left")
            plain(axes)
            if sides:
                draw_distances(axes, sides, looks_by_system[system][0])
    grid[-1, 0].set_xlabel("layer", fontsize=FONT_SIZE + 1)
    grid[-1, 1].set_xlabel("layer", fontsize=FONT_SIZE + 1)
    grid[0, 0].set_ylim(0, 1.3 * max(axes.dataLim.y1 for axes in figure.axes))
    figure.supylabel("mean distance of attention in tokens", fontsize=FONT_SIZE + 1)
    looks: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("inside", "a head, within the training limit", {"marker": "o", "linestyle": "none"}),
        ("beyond", "a head, longer sentences", {"marker": "o", "linestyle": "none", "markerfacecolor": "white"}),
        ("inside", "all keys alike, no window, within the limit", {"linewidth": 1}),
        ("beyond", "all keys alike, no window, longer sentences", {"linewidth": 1, "linestyle": "--"}),
    )
    stacks = [sides for one in results.values() for sides in one["attention_distance"].values() if sides]
    drawn = {where for sides in stacks for where, side in sides.items() if side}
    handles = [
        Line2D([], [], color=LIMIT_COLOUR, markersize=4, label=label, **look)
        for where, label, look in looks
        if where in drawn
    ]
    without = ", ".join(system for system in results if system not in shown)
    legend(figure, handles, f"no self-attention: {without}" if without else None)
    return figure


def draw_distances(axes: Axes, sides: Mapping[str, Any], colour: str) -> None:
    """One panel: the heads of each layer, full and open, and attention to all keys alike."""
    given = {where: np.asarray(side["mean"]) for where, side in sides.items() if side}
    order_LH = np.argsort(next(iter(given.values())), axis=1)
    x_LH = np.arange(1, len(order_LH) + 1)[:, None] + np.linspace(-0.35, 0.35, 2 * order_LH.shape[1] + 1)[1::2]
    means = {where: np.take_along_axis(mean_LH, order_LH, axis=1).ravel() for where, mean_LH in given.items()}
    axes.vlines(x_LH.ravel(), *np.sort(list(means.values()), axis=0)[[0, -1]], color=colour, linewidth=0.8)
    for where, face, style in (("inside", colour, "-"), ("beyond", "white", "--")):
        if where in means:
            axes.plot(x_LH.ravel(), means[where], "o", color=colour, markersize=3.5, markerfacecolor=face, label=where)
            axes.axhline(sides[where]["uniform"], color=LIMIT_COLOUR, linewidth=1, linestyle=style, zorder=1.5)
    axes.set_xticks(range(1, len(x_LH) + 1))
    axes.set_yscale("symlog", linthresh=1, linscale=0.5)
    axes.set_yticks(TICKS, map(str, TICKS))


def draw_position_limits(axes: Axes, limits: Mapping[str, int | None]) -> None:
    """A line behind the last position of each limit: neutral with its number if all share it, else in their colours."""
    shared, right = len(set(limits.values())) == 1, axes.get_xlim()[1]
    looks = looks_of(limits)
    in_sight = sorted({limit for limit in limits.values() if limit is not None and limit + 0.5 < right})
    for limit in in_sight:
        of_limit = [LIMIT_COLOUR] if shared else [looks[system][0] for system in limits if limits[system] == limit]
        for turn, colour in enumerate(of_limit):  # systems with one limit take turns in the dashes of one line
            dashes = (-4.0 * turn, (4.0, 4.0 * max(1, len(of_limit) - 1)))
            axes.axvline(limit + 0.5, color=colour, linewidth=1.2, linestyle=dashes, zorder=1.5)
    for limit in in_sight[:1]:
        text, where = f"training\nlimit {limit}" if shared else "training\nlimits", axes.get_xaxis_transform()
        axes.text(limit + 0.5, 1.01, text, transform=where, ha="center", va="bottom", fontsize=FONT_SIZE)


def checked_alike(results: Diagnoses) -> Diagnoses:
    """The results, refused unless there are some and all of them are of the same pairs in the same groups."""
    pairs = {
        system: [one["test_set_sha256"][:8], *((g["label"], g["n"]) for g in one["loss_by_position"]["groups"])]
        for system, one in results.items()
    }
    if len({str(of_system) for of_system in pairs.values()}) != 1:
        raise ValueError(
            f"a figure shows at least one system, and all of them on the same pairs, but these are {pairs}; diagnose "
            "them again on one test set, with one pairs_per_group, or show them apart"
        )
    return results


def sums_by_position(loss: Mapping[str, Any], label: str | None) -> Mapping[str, Any]:
    """The sums of all pairs, or of the group with that label."""
    groups = {group["label"]: group["by_position"] for group in loss["groups"] if group["n"]}
    if label is not None and label not in groups:
        raise ValueError(f"group must be one that has pairs; it is {label!r}; choose from {', '.join(groups)}")
    return loss if label is None else groups[label]
