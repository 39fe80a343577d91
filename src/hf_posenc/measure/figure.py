"""The files of a report: JSON, Markdown, and a figure, which needs matplotlib, of the extra "plots"."""

import io
import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..utils.atomic_io import atomic_save, atomic_write
from .report import LengthReport, average, percent, rope_note

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Numbers = Mapping[str, Any]  # those of a report
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#444444"  # Okabe and Ito's, for colour-blind readers
SIZE_INCHES, FONT_SIZE, DPI = (12.0, 7.0), 9, 150


def save_report(report: LengthReport, folder: Path) -> None:
    """Write report.json, report.md and, with matplotlib, report.png into a folder."""
    atomic_write(folder / "report.json", json.dumps({"verdict": report.verdict, **report.numbers}, indent=1) + "\n")
    atomic_write(folder / "report.md", report.to_markdown())
    try:
        figure = draw_report(report)
    except ModuleNotFoundError:
        return
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    atomic_save(folder / "report.png", lambda temporary: temporary.write_bytes(buffer.getvalue()))


def draw_report(report: LengthReport) -> "Figure":
    """Five panels and the verdict; of an encoder-decoder two panels. Without pyplot and its global state."""
    from matplotlib.figure import Figure

    figure, numbers = Figure(figsize=SIZE_INCHES, layout="constrained"), report.numbers
    title = f"Usable length of {numbers['model']}"
    if "chrf" in numbers:
        loss, score = figure.subplots(1, 2)
        title = textwrap.fill(f"{title}: {report.verdict}", 120)
        draw_means(loss, numbers["loss"], BLUE)
        style(loss, numbers, "Loss of references", "source length (tokens)", "loss (nats)")
        draw_means(score, numbers["chrf"], ORANGE)
        style(score, numbers, "chrF of translations", "source length (tokens)", "chrF")
    else:
        position, context, accuracy, depth, attention, text = figure.subplots(2, 3).flat
        draw_means(position, numbers["loss_by_position"], BLUE)
        style(position, numbers, "Loss by position", "position (tokens)", "loss (nats)")
        draw_means(context, numbers["extra_loss"], ORANGE)
        useful = numbers["useful_length"]
        context.axvline(useful, color=ORANGE, linestyle=":")
        style(context, numbers, f"The same tokens: loss above that at {useful}", "context (tokens)", "nats")
        draw_accuracies(accuracy, numbers)
        draw_depths(depth, numbers["retrieval"])
        draw_attention(attention, numbers)
        text.axis("off")
        paragraphs = [*report.verdict.split("; "), rope_note(numbers), repetition_note(numbers)]
        wrapped = [textwrap.fill(paragraph, 46, subsequent_indent="  ") for paragraph in paragraphs]
        text.text(0, 1, "\n".join(wrapped), va="top", fontsize=FONT_SIZE + 1, linespacing=1.5)
    figure.suptitle(title, fontsize=FONT_SIZE + 3)
    return figure


def draw_means(axes: "Axes", by_length: Mapping[int, Mapping[str, Any]], colour: str) -> None:
    """A line of means, with a band of their intervals where all have one."""
    axes.plot(list(by_length), [value["mean"] for value in by_length.values()], color=colour, marker="o")
    intervals = [value["interval"] for value in by_length.values()]
    if intervals and None not in intervals:
        lows, highs = zip(*intervals, strict=True)
        axes.fill_between(list(by_length), lows, highs, color=colour, alpha=0.2, linewidth=0)


def draw_accuracies(axes: "Axes", numbers: Numbers) -> None:
    """Lines of copying and of both kinds of retrieval."""
    for name, colour, marker in zip(numbers["accuracies"], (GREEN, BLUE, ORANGE), "so^", strict=True):
        by_length = numbers["accuracies"][name]
        heights = [100 * value for value in by_length.values()]
        axes.plot(list(by_length), heights, color=colour, marker=marker, label=name, alpha=0.8)
    axes.axhline(90, color=GREY, linewidth=0.6)
    axes.set_ylim(-4, 104)
    axes.legend(fontsize=FONT_SIZE, frameon=False)
    style(axes, numbers, "Copying and retrieval (line: 90 %)", "length (tokens)", "right (%)")


def draw_depths(axes: "Axes", records: Mapping[int, Mapping[str, Any]]) -> None:
    """A map of the accuracy of retrieval, by length and depth, over both kinds."""
    axes.set_title("Retrieval by depth (%)", fontsize=FONT_SIZE + 1)
    axes.set_xlabel("length (tokens)", fontsize=FONT_SIZE)
    axes.set_ylabel("depth of the fact (0: first)", fontsize=FONT_SIZE)
    both = {length: record for length, record in records.items() if record["needle"] and record["values"]}
    if not both:
        return
    for column, record in enumerate(both.values()):
        pairs = zip(record["needle"], record["values"], strict=True)
        heights = [50 * (needle + value) for needle, value in pairs]
        extent = (column - 0.5, column + 0.5, len(heights) - 0.5, -0.5)
        image = [[height] for height in heights]
        axes.imshow(image, cmap="cividis", vmin=0, vmax=100, aspect="auto", extent=extent)
        for row, height in enumerate(heights):
            colour = "black" if height > 50 else "white"
            axes.text(column, row, f"{height:.0f}", ha="center", va="center", color=colour, fontsize=FONT_SIZE)
    depths = next(iter(both.values()))["depth"]
    axes.set_xlim(-0.5, len(both) - 0.5)
    axes.set_xticks(range(len(both)), map(str, both), fontsize=FONT_SIZE)
    axes.set_yticks(range(len(depths)), [f"{depth:g}" for depth in depths], fontsize=FONT_SIZE)


def draw_attention(axes: "Axes", numbers: Numbers) -> None:
    """Cumulative attention by distance at the shortest and the longest length, and the share of the first tokens."""
    records = numbers["attention"]
    for length, colour in zip(dict.fromkeys([*list(records)[:1], *list(records)[-1:]]), (BLUE, ORANGE), strict=False):
        total, heights, edges = 0.0, list[float](), records[length]["from_distance"]
        for mass in records[length]["mass"]:
            total += 100 * mass
            heights.append(total)
        label = f"length {length}; first 4 tokens: {percent(records[length]['first_tokens'])}"
        axes.plot([*edges[1:], 2 * edges[-1]], heights, color=colour, marker="o", markersize=3, label=label)
    axes.set_ylim(0, 104)
    if records:
        axes.legend(fontsize=FONT_SIZE, frameon=False)
    else:
        axes.text(0.5, 0.5, "no attention weights", ha="center", transform=axes.transAxes, fontsize=FONT_SIZE)
    style(axes, numbers, "Attention within a distance", "distance (tokens)", "attention (%), first 4 tokens apart")


def repetition_note(numbers: Numbers) -> str:
    """Repetition at the shortest and the longest length."""
    records = numbers["repetition"]
    shares = []
    for length in dict.fromkeys([*list(records)[:1], *list(records)[-1:]]):
        shares.append(f"{percent(average(records[length]['generated']))} at {length}")
    return f"Repeated 4-grams in greedy generation: {', '.join(shares) or 'not measured'}."


def style(axes: "Axes", numbers: Numbers, title: str, x: str, y: str) -> None:
    """Title, labels, lengths on a logarithmic axis, and a line at the claimed length if the axis reaches it."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    low, high = axes.get_xlim()
    claimed = numbers["claimed_length"]
    if claimed is not None and low < claimed < high:
        axes.axvline(claimed, color=GREY, linestyle="--", linewidth=1)
    axes.set_title(title, fontsize=FONT_SIZE + 1)
    axes.set_xlabel(x, fontsize=FONT_SIZE)
    axes.set_ylabel(y, fontsize=FONT_SIZE)
    axes.tick_params(labelsize=FONT_SIZE)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
