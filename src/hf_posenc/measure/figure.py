"""The files of a report: JSON, Markdown, and a figure, which needs matplotlib, of the extra "plots"."""

import io
import json
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..utils.atomic_io import atomic_save, atomic_write
from .report import LengthReport
from .seq2seq import SourceReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ReportT = TypeVar("ReportT", LengthReport, SourceReport)
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#444444"  # Okabe and Ito's, for colour-blind readers
SIZE_INCHES, FONT_SIZE, DPI = (12.0, 7.0), 9, 150


def save_report(report: ReportT, folder: Path, draw: Callable[[ReportT], "Figure"]) -> None:
    """Write report.json, report.md and, with matplotlib, report.png into a folder."""
    atomic_write(folder / "report.json", json.dumps(report.to_dict(), indent=1) + "\n")
    atomic_write(folder / "report.md", report.to_markdown())
    try:
        figure = draw(report)
    except ModuleNotFoundError:
        return
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    atomic_save(folder / "report.png", lambda temporary: temporary.write_bytes(buffer.getvalue()))


def new_figure(rows: int, columns: int) -> tuple["Figure", list["Axes"]]:
    """A figure with axes in rows and columns, without pyplot and its global state."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    return figure, list(figure.subplots(rows, columns).flat)


def draw_report(report: LengthReport) -> "Figure":
    """Loss by position and by context, copying and retrieval, retrieval by depth, attention; and the verdict."""
    figure, (position, context, accuracy, depth, attention, text) = new_figure(2, 3)
    draw_loss(position, report.loss_by_bucket, BLUE)
    style(position, "Loss by position", "position (tokens)", "loss (nats)", report.claimed)
    useful = report.useful_length
    draw_loss(context, report.to_dict()["extra_loss"], ORANGE)
    context.axvline(useful, color=ORANGE, linestyle=":")
    style(context, f"The same tokens, other context than {useful}", "context (tokens)", "extra loss", report.claimed)
    lines = {"copying": report.copying, "needle": report.answers("needle"), "key-value": report.answers("key_value")}
    for (label, values), colour, marker in zip(lines.items(), (GREEN, BLUE, ORANGE), "so^", strict=True):
        lengths = sorted(values)
        heights = [100 * values[length] for length in lengths]
        accuracy.plot(lengths, heights, color=colour, marker=marker, label=label, alpha=0.8)
    accuracy.axhline(90, color=GREY, linewidth=0.6)
    accuracy.set_ylim(-4, 104)
    accuracy.legend(fontsize=FONT_SIZE, frameon=False)
    style(accuracy, "Copying and retrieval (line: 90 %)", "length (tokens)", "right (%)", report.claimed)
    draw_depths(depth, report)
    draw_attention(attention, report)
    text.axis("off")
    paragraphs = [*report.verdict.split("; "), report.rope_line, repetition_line(report)]
    wrapped = [textwrap.fill(paragraph, 46, subsequent_indent="  ") for paragraph in paragraphs if paragraph]
    text.text(0, 1, "\n".join(wrapped), va="top", fontsize=FONT_SIZE + 1, linespacing=1.5)
    figure.suptitle(f"Usable length of {report.model}", fontsize=FONT_SIZE + 3)
    return figure


def draw_loss(axes: "Axes", by_length: Mapping[int, Mapping[str, Any]], colour: str) -> None:
    """A line of mean losses, with a band of their intervals."""
    lengths = sorted(by_length)
    axes.plot(lengths, [by_length[length]["mean"] for length in lengths], color=colour, marker="o")
    intervals = [by_length[length]["interval"] for length in lengths]
    if lengths and None not in intervals:
        lows, highs = zip(*intervals, strict=True)
        axes.fill_between(lengths, lows, highs, color=colour, alpha=0.2, linewidth=0)


def draw_depths(axes: "Axes", report: LengthReport) -> None:
    """A map of the accuracy of retrieval, by length and depth, over both kinds."""
    records = report.records("retrieval")
    lengths = [length for length in records if records[length]["needle"] and records[length]["key_value"]]
    axes.set_title("Retrieval by depth (%)", fontsize=FONT_SIZE + 1)
    axes.set_xlabel("length (tokens)", fontsize=FONT_SIZE)
    axes.set_ylabel("depth of the fact (0: first)", fontsize=FONT_SIZE)
    if not lengths:
        return
    depths = records[lengths[0]]["depth"]
    table = []
    for index in range(len(depths)):
        cells = [records[length] for length in lengths]
        table.append([50 * (cell["needle"][index] + cell["key_value"][index]) for cell in cells])
    axes.imshow(table, cmap="cividis", vmin=0, vmax=100, aspect="auto")
    for row, values in enumerate(table):
        for column, value in enumerate(values):
            colour = "black" if value > 50 else "white"
            axes.text(column, row, f"{value:.0f}", ha="center", va="center", color=colour, fontsize=FONT_SIZE)
    axes.set_xticks(range(len(lengths)), map(str, lengths), fontsize=FONT_SIZE)
    axes.set_yticks(range(len(depths)), [f"{depth:g}" for depth in depths], fontsize=FONT_SIZE)


def draw_attention(axes: "Axes", report: LengthReport) -> None:
    """Cumulative attention by distance at the shortest and the longest length, and the share of the first tokens."""
    records = report.records("attention")
    for length, colour in zip(sorted({*list(records)[:1], *list(records)[-1:]}), (BLUE, ORANGE), strict=False):
        total, heights = 0.0, list[float]()
        for mass in records[length]["mass"]:
            total += 100 * mass
            heights.append(total)
        ends = [*records[length]["from_distance"][1:], 2 * records[length]["from_distance"][-1]]
        label = f"length {length}; first 4 tokens: {100 * records[length]['first_tokens']:.0f} %"
        axes.plot(ends, heights, color=colour, marker="o", markersize=3, label=label)
    axes.set_ylim(0, 104)
    if records:
        axes.legend(fontsize=FONT_SIZE, frameon=False)
    else:
        axes.text(0.5, 0.5, "no attention weights", ha="center", transform=axes.transAxes, fontsize=FONT_SIZE)
    style(
        axes, "Attention within a distance", "distance (tokens)", "attention (%), first 4 tokens apart", report.claimed
    )


def repetition_line(report: LengthReport) -> str:
    """One sentence on repetition at the shortest and the longest length."""
    records = report.records("repetition")
    if not records:
        return ""
    shares = []
    for length in sorted({min(records), max(records)}):
        generated = records[length]["generated"]
        shares.append(f"{100 * sum(generated) / len(generated):.0f} % at {length}")
    return f"Repeated 4-grams in greedy generation: {', '.join(shares)}."


def style(axes: "Axes", title: str, x: str, y: str, claimed: int | None) -> None:
    """Title, labels, lengths on a logarithmic axis, and a line at the claimed length if the axis reaches it."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    low, high = axes.get_xlim()
    if claimed is not None and low < claimed < high:
        axes.axvline(claimed, color=GREY, linestyle="--", linewidth=1)
    axes.set_title(title, fontsize=FONT_SIZE + 1)
    axes.set_xlabel(x, fontsize=FONT_SIZE)
    axes.set_ylabel(y, fontsize=FONT_SIZE)
    axes.tick_params(labelsize=FONT_SIZE)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def draw_sources(report: SourceReport) -> "Figure":
    """Loss and chrF by source length."""
    figure, panels = new_figure(1, 2)
    names = {"loss": "Loss of references (nats)", "chrf": "chrF of translations"}
    for axes, (name, label), colour in zip(panels, names.items(), (BLUE, ORANGE), strict=True):
        draw_loss(axes, report.means(name), colour)
        style(axes, label, "source length (tokens)", label, report.claimed)
    figure.suptitle(f"{report.model}: {report.verdict}", fontsize=FONT_SIZE + 1, wrap=True)
    return figure
