"""Where systems are in the source while they write, how widely they attend, and what they write if they may not end.

Pure functions from what `diagnostics.diagnose` returned, read back from JSON, to matplotlib figures; `results[system]`
is a system's diagnosis. What a diagnosis of an older version does not hold is named below the figure.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from .diagnostics_figures import Diagnoses, checked_alike
from .score_figures import group_axis, offsets
from .style import FONT_SIZE, LIMIT_COLOUR, WIDTH_INCHES, legend, looks_of, plain

MOST_GROUPS = 5  # panels that stand side by side


def has_centre(one: Mapping[str, Any]) -> bool:
    """Whether a diagnosis knows where in the source its system was."""
    return any(group.get("centre") for group in (one.get("decoding") or {"groups": []})["groups"])


def has_decoding(one: Mapping[str, Any]) -> bool:
    return bool(one.get("decoding"))


def has_entropy(one: Mapping[str, Any]) -> bool:
    return any((one.get("attention_entropy") or {}).values())


def place_by_position(results: Diagnoses) -> Figure:
    """Where in the source a system is at each token that it writes: a row per system, a panel per source-length group.

    A panel shows the first pair that was drawn of its group, the same for all systems: the centre of the
    cross-attention in colour and, where its encodings are given a place, that place in black dashes. The dotted line
    leads from the first tokens to the last ones of source and reference; who writes half as much again as the reference
    leaves the panel on the right. Behind a group's label stands the share of all its steps in which the centre jumps.
    Of more than five groups with pairs the five that divide them most
    evenly are shown.
    """
    shown, without = those_with(results, has_centre)
    first = shown[next(iter(shown))]["decoding"]
    filled = [number for number, group in enumerate(first["groups"]) if group["n"]]
    chosen = [filled[i] for i in np.linspace(0, len(filled) - 1, min(len(filled), MOST_GROUPS)).round().astype(int)]
    figure = Figure(figsize=(WIDTH_INCHES, 1.2 + 1.45 * len(shown)), layout="constrained")
    grid = figure.subplots(len(shown), len(chosen), sharex="col", sharey="col", squeeze=False)
    looks = looks_of(results)
    for row, (system, one) in zip(grid, shown.items(), strict=True):
        for axes, number in zip(row, chosen, strict=True):
            group = one["decoding"]["groups"][number]
            draw_places(axes, group["examples"][0], looks[system][0])
            axes.set_title(f"{group['label']}, {100 * group['centre']['jumps']:.0f} %", fontsize=FONT_SIZE)
        row[0].set_ylabel(system if len(system) < 20 else f"{system[:18]}\u2026", fontsize=FONT_SIZE)
    grid[-1, len(chosen) // 2].set_xlabel("token written", fontsize=FONT_SIZE + 1)
    figure.supylabel("place in the source, in tokens", fontsize=FONT_SIZE + 1)
    handles = [
        Line2D([], [], color=LIMIT_COLOUR, linewidth=1.2, label="centre of the cross-attention"),
        Line2D([], [], color="black", linewidth=1, linestyle="--", label="place by alignment"),
        Line2D([], [], color=LIMIT_COLOUR, linewidth=1, linestyle=":", label="diagonal"),
    ]
    placed = any(group["examples"][0]["place"] for one in shown.values() for group in with_pairs(one))
    jumps = f"%: steps in which the centre moves by more than {first['far']} tokens"
    legend(figure, handles if placed else handles[::2], titled_by(jumps, without))
    return figure


def draw_places(axes: Axes, example: Mapping[str, Any], colour: str) -> None:
    """One sentence: diagonal, centre with a mark where it ends, and place."""
    source, target = example["source"], example["target"]
    axes.plot([0, target - 1], [0, source - 1], color=LIMIT_COLOUR, linewidth=1, linestyle=":")
    last = len(example["centre"]) - 1
    axes.plot(example["centre"], color=colour, linewidth=1.2, marker="o", markersize=3, markevery=[last])
    if example["place"]:
        axes.plot(example["place"], color="black", linewidth=1, linestyle="--")
    axes.set_xlim(-0.05 * target, 1.5 * target)
    axes.set_ylim(-0.05 * source, 1.05 * source)
    plain(axes)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, nbins=3))


def entropy_by_length(results: Diagnoses) -> Figure:
    """Entropy of attention by source length, a line per system: of the encoder's and of cross-attention, in nats and as
    a share of what attention to all visible keys alike would have. The mean over all heads of all layers."""
    shown, without = those_with(results, has_entropy)
    figure = Figure(figsize=(WIDTH_INCHES, 4.6 + 0.06 * len(shown)), layout="constrained")
    grid, looks = figure.subplots(2, 2, sharex=True, sharey="row"), looks_of(results)
    sides = {"encoder": "encoder's self-attention", "cross": "cross-attention"}
    first = next(iter(next(filter(None, one["attention_entropy"].values())) for one in shown.values()))
    for (system, one), offset in zip(shown.items(), offsets(len(shown)), strict=True):
        for column, side in zip(grid.T, sides, strict=True):
            if groups := one["attention_entropy"][side]:
                nats = [np.nan if group["mean"] is None else np.mean(group["mean"]) for group in groups]
                uniform = [group["uniform"] or np.nan for group in groups]
                for axes, values in zip(column, (nats, np.divide(nats, uniform)), strict=True):
                    draw_line(axes, np.arange(len(groups)) + offset, values, looks[system], system)
    for axes, name in zip(grid[0], sides.values(), strict=True):
        axes.set_title(name, fontsize=FONT_SIZE + 1)
    for axes in grid.flat:
        plain(axes)
    for axes in grid[1]:
        group_axis(axes, first)
    grid[0, 0].set_ylabel("entropy in nats", fontsize=FONT_SIZE + 1)
    grid[1, 0].set_ylabel("share of ln(visible keys)", fontsize=FONT_SIZE + 1)
    grid[0, 0].set_ylim(bottom=0)
    grid[1, 0].set_ylim(0, 1.05)
    legend(figure, grid[0, 1].get_lines(), titled_by("", without))
    return figure


def draw_line(axes: Axes, xs: Any, ys: Any, look: tuple[str, str, str], label: str) -> None:
    colour, marker, line_style = look
    axes.plot(
        xs, ys, color=colour, marker=marker, linestyle=line_style, linewidth=1.4, markersize=5, markerfacecolor="white",
        label=label,
    )  # fmt: skip


def end_forbidden(results: Diagnoses) -> Figure:
    """BLEU of a few pairs of each source-length group, translated greedily (open marks) and with </s> forbidden up to
    the reference's length, where the translation stops (full marks). Bars are 95 % intervals."""
    shown, without = those_with(results, has_decoding)
    looks = looks_of(results)
    groups = next(iter(shown.values()))["decoding"]["groups"]
    figure = Figure(figsize=(WIDTH_INCHES, 3.2 + 0.06 * len(shown)), layout="constrained")
    axes = figure.subplots()
    apart = 0.8 / len(shown)
    for turn, (system, one) in enumerate(shown.items()):
        colour, marker, _ = looks[system]
        for number, group in enumerate(one["decoding"]["groups"]):
            if group["n"]:
                at = number - 0.4 + apart * (turn + 0.5) + np.array([-apart / 6, apart / 6])
                both = [group["greedy"], group["end_forbidden"]]
                axes.plot(at, [score["bleu"] for score in both], color=colour, linewidth=0.8)
                for x, score, face in zip(at, both, ("white", colour), strict=True):
                    axes.errorbar(x, score["bleu"], score["bleu_ci"] or 0, fmt=marker, color=colour, markersize=4.5,
                                  markerfacecolor=face, elinewidth=0.8, capsize=1.5)  # fmt: skip
    axes.set_ylabel("BLEU", fontsize=FONT_SIZE + 1)
    axes.set_ylim(bottom=0)
    group_axis(axes, groups)
    plain(axes)
    handles = [Line2D([], [], color=looks[one][0], marker=looks[one][1], linestyle="none", label=one) for one in shown]
    legend(
        figure,
        handles,
        titled_by("open: ended by the system; full: no end before the reference's length, and then at once", without),
    )
    return figure


def those_with(results: Diagnoses, has: Callable[[Mapping[str, Any]], bool]) -> tuple[Diagnoses, list[str]]:
    """The systems that can be shown, and the names of the others; a ValueError if none can."""
    shown = {system: one for system, one in checked_alike(results).items() if has(one)}
    if not shown:
        raise ValueError(
            "a figure of decodings or of attention needs a diagnosis that has them, and those of "
            f"{', '.join(results)} have none, being of an older version or of a model without; diagnose them again"
        )
    return shown, [system for system in results if system not in shown]


def with_pairs(one: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return [group for group in one["decoding"]["groups"] if group["n"]]


def titled_by(note: str, without: list[str]) -> str | None:
    """What stands above a legend."""
    return "\n".join(filter(None, [note, f"not measured: {', '.join(without)}" if without else ""])) or None
