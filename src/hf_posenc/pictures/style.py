"""Saved scores to figures: pure functions from the results of the length_buckets metric to matplotlib figures.

Nothing here touches pyplot or its global state. Colours are Okabe and Ito's (https://jfly.uni-koeln.de/color/), safe
for colour-blind readers; markers and line styles differ too, so a figure reads in black and white.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable
from itertools import cycle
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ..results.tables import Group, Results, TrainingLimits, checked_limits, shared_columns
from ..whole_files import save_whole

WIDTH_INCHES = 6.5
FONT_SIZE = 8.5
# Okabe and Ito's yellow is left out: it cannot be seen on white paper. The three cycles have no common period, so
# the look repeats after 7 x 9 x 4 systems only.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
LINE_STYLES = ("-", "--", "-.", ":")
LIMIT_COLOUR = "#444444"


def bleu_by_length(
    results: Results, test_set: str, *, training_limits: TrainingLimits, title: str | None = None
) -> Figure:
    """BLEU of every source-length group, one line per system; below, the length ratio of the same groups.

    Groups are categories: group i is centred on x = i and reaches from i - 0.5 to i + 0.5, and the systems stand side
    by side in it. Bars are 95 % intervals. A vertical line marks where training ended; an empty group is a gap.
    """
    groups = shared_columns(results, test_set)[1:]
    limits = checked_limits(results, training_limits)
    labels = {system: legend_label(system, limits) for system in results}
    lines_of_legend = sum(label.count("\n") + 1 for label in labels.values()) / columns_for(labels.values())
    title = textwrap.fill(title, 75) if title else ""
    height = 4.3 + 0.17 * (math.ceil(lines_of_legend) + title.count("\n"))
    figure = Figure(figsize=(WIDTH_INCHES, height), layout="constrained")
    bleu, ratio = figure.subplots(2, 1, sharex=True, height_ratios=(5, 2))
    handles: dict[str, Line2D] = {}
    looks = looks_of(results)
    for (system, tests), offset in zip(results.items(), places(len(results)), strict=True):
        colour, marker, line_style = looks[system]
        xs = [group + offset for group in range(len(groups))]
        for axes, field in ((bleu, "bleu"), (ratio, "length_ratio")):
            ys = [math.nan if group[field] is None else group[field] for group in tests[test_set]["groups"]]
            intervals = [group.get(f"{field}_ci") or 0.0 for group in tests[test_set]["groups"]]
            if any(intervals):
                axes.errorbar(xs, ys, intervals, fmt="none", ecolor=colour, elinewidth=1, capsize=2)
            (handles[system],) = axes.plot(
                xs,
                ys,
                color=colour,
                linestyle=line_style,
                linewidth=1.4,
                marker=marker,
                markersize=5,
                markerfacecolor="white",
                clip_on=False,
                label=labels[system],
            )
    draw_limits([bleu, ratio], groups, limits, {system: str(line.get_color()) for system, line in handles.items()})
    ratio.axhline(1.0, color=LIMIT_COLOUR, linewidth=0.7, zorder=1)
    dress(bleu, ratio, groups)
    legend(figure, handles.values())
    if title:
        figure.suptitle(title, fontsize=FONT_SIZE + 2)
    return figure


def save_figure(figure: Figure, path: str | Path) -> None:
    """Writes a PNG or an SVG that is whole or not there at all: readers never see half a file.

    The same figure is the same bytes at every time.
    """
    path = Path(path)
    if path.suffix not in (".png", ".svg"):
        raise ValueError(
            f"figures are saved as PNG or SVG; path={str(path)!r} ends in neither .png nor .svg; rename it"
        )
    how: dict[str, Any] = {"metadata": {"Date": None}} if path.suffix == ".svg" else {"pil_kwargs": {"optimize": True}}
    with rc_context({"svg.hashsalt": path.stem}):
        save_whole(path, lambda unfinished: figure.savefig(unfinished, format=path.suffix[1:], dpi=200, **how))


def limit_position(limit: int, groups: list[Group]) -> float:
    """Where between the categories a length lies: in proportion inside its group, on the border at a group's end.

    The last group has no end; there the position approaches its right border as the limit grows.
    """
    for index, group in enumerate(groups):
        before = max(int(group["low"]) - 1, 0)
        if group["high"] is None:
            return index - 0.5 + (1 - before / limit)
        if limit <= (end := int(group["high"])):
            return index - 0.5 + (limit - before) / (end - before)
    raise AssertionError("the last group has no upper edge")


def legend_label(system: str, limits: dict[str, int | None]) -> str:
    """The system's name, with its training limit where the systems' limits differ."""
    if len(set(limits.values())) > 1:
        limit = limits[system]
        system = f"{system} (no limit)" if limit is None else f"{system} (limit {limit})"
    return textwrap.fill(system, 80)


def looks_of(systems: Iterable[str]) -> dict[str, tuple[str, str, str]]:
    """Colour, marker and line style of each system, the same in every figure of them."""
    return dict(zip(systems, zip(cycle(COLOURS), cycle(MARKERS), cycle(LINE_STYLES), strict=False), strict=False))


def legend(figure: Figure, handles: Iterable[Any], title: str | None = None) -> None:
    """Each label once, below the axes; the title stands above them."""
    once = {handle.get_label(): handle for handle in handles if not handle.get_label().startswith("_")}
    figure.legend(
        handles=list(once.values()),
        loc="outside lower center",
        ncols=columns_for(once),
        fontsize=FONT_SIZE,
        title=title,
        title_fontsize=FONT_SIZE,
        frameon=False,
        handlelength=3.5,
    )


def columns_for(labels: Iterable[str]) -> int:
    """How many labels stand side by side in a legend."""
    return max(1, min(3, 90 // (max(map(len, labels)) + 8)))


def places(number: int) -> list[float]:
    """Where in a group, whose centre is 0, so many systems stand."""
    apart = min(0.1, 0.5 / max(1, number - 1))
    return [apart * (place - (number - 1) / 2) for place in range(number)]


def draw_limits(
    panels: list[Axes], groups: list[Group], limits: dict[str, int | None], colours: dict[str, str]
) -> None:
    """A line per training limit, labelled in the first panel: neutral if all share it, else in the system's colour.

    Systems with the same limit take turns in the dashes of one line; limits close together share one label.
    """
    shared = len(set(limits.values())) == 1
    labels: list[list[tuple[float, int]]] = []
    for limit in sorted({limit for limit in limits.values() if limit is not None}):
        x = limit_position(limit, groups)
        of_limit = [LIMIT_COLOUR] if shared else [colours[name] for name in limits if limits[name] == limit]
        dash = 4.0
        for turn, colour in enumerate(of_limit):
            gap = dash * max(1, len(of_limit) - 1)
            for axes in panels:
                axes.axvline(x, color=colour, linewidth=1.2, linestyle=(-turn * dash, (dash, gap)), zorder=1.5)
        if labels and x - labels[-1][-1][0] < 0.6:
            labels[-1].append((x, limit))
        else:
            labels.append([(x, limit)])
    for members in labels:
        panels[0].annotate(
            f"training\nlimit{'s' if members[1:] else ''} {', '.join(str(limit) for _, limit in members)}",
            (sum(x for x, _ in members) / len(members), 1.0),
            (0, 3),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=FONT_SIZE,
        )


def dress(bleu: Axes, ratio: Axes, groups: list[Group]) -> None:
    """Scales, labels and grid of both panels."""
    bleu.set_ylabel("BLEU", fontsize=FONT_SIZE + 1)
    ratio.set_ylabel("length ratio", fontsize=FONT_SIZE + 1)
    group_axis(ratio, groups)
    for axes in (bleu, ratio):
        plain(axes)
    bleu.tick_params(axis="x", length=0)
    # From zero where scores fall far, a closer look where they do not; never so close that noise looks like a fall.
    low, high = bleu.get_ylim()
    middle = (low + high) / 2
    bleu.set_ylim(0 if low < high / 2 else min(low, middle - 2.5), max(high, middle + 2.5))
    low, high = ratio.get_ylim()
    ratio.set_ylim(min(low, 0.9), max(high, 1.1))


def group_axis(axes: Axes, groups: list[Group]) -> None:
    """The length groups and their sizes below the axes."""
    axes.set_xlabel("source length in subwords", fontsize=FONT_SIZE + 1)
    axes.set_xticks(range(len(groups)), [f"{group['label']}\nn={group['n']}" for group in groups])
    axes.set_xlim(-0.5, len(groups) - 0.5)


def plain(axes: Axes) -> None:
    """The house's look: small type, a light grid behind, no box."""
    axes.tick_params(labelsize=FONT_SIZE)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
