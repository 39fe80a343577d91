"""The README's figure: BLEU of documents by their length, from the saved scores of each seed.

    python docs/documents_figure.py        writes docs/results/news-small/documents.png

Points are means over the seeds; whiskers are the lowest and the highest seed. A label ends in the score within the
training length: BLEU of news sentences of at most 25 subwords.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from saved_results import ArchivedScores, archived_scores

from hf_posenc.lab.figures.style import (
    FONT_SIZE,
    LIMIT_COLOUR,
    WIDTH_INCHES,
    label_axes,
    line_styles,
    save_figure,
    style_axes,
    with_title,
)

FOLDER = Path(__file__).parent / "results" / "news-small"
WORDS = (50, 100, 200, 400)  # of the shortest document of each test set
TITLE = "The aligned model keeps its BLEU on long documents; the other two lose theirs"


@dataclass(frozen=True)
class Line:
    """One line: a system, the label next to its last point, and the label's height above that point in points."""

    system: str
    label: str
    label_height: float


LINES = (
    Line("aligned-100", "aligned, whole document", 14),
    Line("relative-100", "relative (Shaw et al.)", 2),
    Line("sinusoidal-100", "sinusoidal", 5),
)
SEGMENTED = Line(
    "aligned-100-split", "the same model, sentence by sentence", -10
)  # black and dotted, over its own line


def read_scores() -> dict[str, dict[str, ArchivedScores]]:
    """The saved scores of each seed of each system in the figure."""
    records: dict[str, dict[str, ArchivedScores]] = {line.system: {} for line in (*LINES, SEGMENTED)}
    for name, scores in archived_scores(FOLDER / "systems.tar.xz"):
        system, _, seed = name.rpartition("-seed")
        if system in records:
            records[system][seed] = scores
    return records


def bleu_by_length(seeds: Mapping[str, Any]) -> list[list[float]]:
    """BLEU of each seed in their order, for each length in WORDS."""
    ordered = [seeds[seed] for seed in sorted(seeds)]
    scores = [[tests[f"parliament-{words}"]["all"]["bleu"] for tests in ordered] for words in WORDS]
    return [[score for score in by_seed if score is not None] for by_seed in scores]


def bleu_within(seeds: Mapping[str, ArchivedScores]) -> float:
    """Mean BLEU over the seeds of the shortest news sentences, which are within the training length."""
    scores = [tests["newstest_all"]["[0,25]"]["bleu"] or 0.0 for tests in seeds.values()]
    return sum(scores) / len(scores)


def draw_line(axes: Axes, line: Line, by_length: list[list[float]], colour: str, style: str) -> None:
    """Means over the seeds, whiskers to the lowest and the highest seed, and the label."""
    means = [sum(seeds) / len(seeds) for seeds in by_length]
    below = [mean - min(seeds) for mean, seeds in zip(means, by_length, strict=True)]
    above = [max(seeds) - mean for mean, seeds in zip(means, by_length, strict=True)]
    axes.errorbar(
        range(len(means)), means, (below, above),
        color=colour, linestyle=style, linewidth=1.8, capsize=3, elinewidth=1, clip_on=False,
    )  # fmt: skip
    axes.annotate(
        line.label, (len(means) - 1, means[-1]),
        xytext=(9, line.label_height), textcoords="offset points", color=colour, fontsize=FONT_SIZE, va="center",
    )  # fmt: skip


def mark_training_length(axes: Axes, documents: Mapping[str, Mapping[str, float | None]]) -> None:
    """A line through the shortest documents, some of which are within the training length of 100 subwords."""
    within, total = documents["[76,100]"]["n"], documents["all"]["n"]
    axes.axvline(0, color=LIMIT_COLOUR, linestyle="--", linewidth=0.8, zorder=0)
    axes.annotate(
        f"training length: 100 subwords\n({within:g} of these {total:g} documents are within)", (0, 0.5),
        xytext=(5, 0), textcoords="offset points", color=LIMIT_COLOUR, fontsize=FONT_SIZE - 1,
    )  # fmt: skip


def documents_figure() -> Figure:
    records = read_scores()
    tests = next(iter(records[LINES[0].system].values()))
    numbers = [tests[f"parliament-{words}"]["all"]["n"] for words in WORDS]
    figure = Figure(figsize=(WIDTH_INCHES, 3.4), layout="constrained")
    axes = figure.subplots()
    styles = line_styles([line.system for line in LINES])
    for line in LINES:
        label = f"{line.label}\nshort sentences: {bleu_within(records[line.system]):.1f}"
        draw_line(axes, replace(line, label=label), bleu_by_length(records[line.system]), styles[line.system][0], "-")
    draw_line(axes, SEGMENTED, bleu_by_length(records[SEGMENTED.system]), "black", ":")
    axes.set_xticks(range(len(WORDS)), [f"{words} words\nn={n:g}" for words, n in zip(WORDS, numbers, strict=True)])
    axes.set_xlim(-0.2, len(WORDS) - 1)
    axes.set_ylim(0, 20)
    axes.set_yticks(range(0, 21, 5))
    label_axes(axes, "length of the documents, at least", "BLEU")
    style_axes(axes)
    mark_training_length(axes, tests["parliament-50"])
    return with_title(figure, TITLE)


if __name__ == "__main__":
    save_figure(documents_figure(), FOLDER / "documents.png")
