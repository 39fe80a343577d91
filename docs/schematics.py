"""The schematic figures of the documentation: what they show is drawn, not measured.

python docs/schematics.py        writes them to docs/figures
"""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from hf_posenc.lab.figures.style import COLOURS, FONT_SIZE, LIMIT_COLOUR, WIDTH_INCHES, save_figure

FOLDER = Path(__file__).parent / "figures"
SOURCE = ["dann", "sah", "die", "Frau", "im", "Park", "einen", "alten", "Freund", "aus", "Rom"]
TARGET = ["then", "the", "woman", "saw", "an", "old", "friend", "in", "the", "park", "."]
BLUE, RED, GREY = COLOURS[0], COLOURS[1], "#e4e4e4"


def box(
    axes: Axes, x: float, y: float, width: float, text: str, *, colour: str = "white", edge: str = LIMIT_COLOUR
) -> None:
    """A box whose centre is (x, y), with a text in it."""
    height = 0.5 + 0.26 * text.count("\n")
    shape = FancyBboxPatch(
        (x - width / 2, y - height / 2), width, height, boxstyle="round,pad=0.03", facecolor=colour, edgecolor=edge
    )
    axes.add_patch(shape)
    axes.text(x, y, text, ha="center", va="center", fontsize=FONT_SIZE)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str = LIMIT_COLOUR) -> None:
    axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=9, color=colour, shrinkA=2, shrinkB=2))


def blank(width: float, height: float, inches: float) -> tuple[Figure, Axes]:
    """A figure without axes, in units of its own."""
    figure = Figure(figsize=(WIDTH_INCHES, inches), layout="constrained")
    axes = figure.subplots()
    axes.set_xlim(0, width)
    axes.set_ylim(0, height)
    axes.set_axis_off()
    return figure, axes


def aligned_window_figure(step: int = 3, window: int = 3, self_window: int = 2) -> Figure:
    """One decoding step of the aligned model: its source position and the tokens that its windows let it attend to."""
    figure, axes = blank(len(SOURCE) + 0.3, 5.3, 3.4)
    position = step * (len(SOURCE) - 1) / (len(TARGET) - 1)
    for index, word in enumerate(SOURCE):
        inside = abs(index - position) <= window
        box(
            axes,
            index + 0.6,
            1.5,
            0.78,
            word,
            colour="white" if inside else GREY,
            edge=BLUE if inside else LIMIT_COLOUR,
        )
        if inside:
            axes.plot([step + 0.6, index + 0.6], [3.68, 1.82], color=BLUE, linewidth=1, zorder=0)
    for index, word in enumerate(TARGET[: step + 1]):
        inside = step - self_window <= index
        box(
            axes, index + 0.6, 4.0, 0.78, word, colour="white" if inside else GREY, edge=RED if inside else LIMIT_COLOUR
        )
    for index in range(step + 1, len(TARGET)):
        axes.text(index + 0.6, 4.0, "…", ha="center", va="center", color=LIMIT_COLOUR)
    arrow(axes, (position + 0.6, 0.55), (position + 0.6, 1.17))
    axes.text(position + 0.6, 0.3, "source position g(t), by the alignment", ha="center", fontsize=FONT_SIZE)
    left, right = position + 0.6 - window, position + 0.6 + window
    axes.annotate("", (left, 1.0), (right, 1.0), arrowprops={"arrowstyle": "|-|", "color": BLUE, "mutation_scale": 3})
    axes.text(right + 0.12, 0.92, "window of the cross-attention", color=BLUE, fontsize=FONT_SIZE)
    axes.annotate(
        "", (step + 0.1 - self_window, 4.5), (step + 1.1, 4.5),
        arrowprops={"arrowstyle": "|-|", "color": RED, "mutation_scale": 3},
    )  # fmt: skip
    axes.text(step + 1.25, 4.42, "window of the decoder's self-attention", color=RED, fontsize=FONT_SIZE)
    axes.text(step + 0.6, 4.85, "target position t", ha="center", fontsize=FONT_SIZE)
    axes.text(0.2, 4.85, "target", fontsize=FONT_SIZE, weight="bold")
    axes.text(0.2, 0.3, "source", fontsize=FONT_SIZE, weight="bold")
    return figure


def where_encodings_act_figure() -> Figure:
    """An attention layer, and the place in it at which each kind of position encoding acts."""
    figure, axes = blank(13, 6.4, 4.2)
    box(axes, 1.4, 3.2, 1.9, "embedding")
    for y, name in ((5.0, "queries"), (3.2, "keys"), (1.2, "values")):
        box(axes, 4.6, y, 1.5, name)
        arrow(axes, (2.4, 3.2), (3.8, y))
    box(axes, 7.4, 4.1, 1.5, "scores")
    box(axes, 9.6, 4.1, 1.5, "softmax")
    box(axes, 11.8, 2.6, 1.7, "weighted\nsum")
    for start, end in (
        ((5.4, 5.0), (6.6, 4.3)), ((5.4, 3.2), (6.6, 3.9)), ((8.2, 4.1), (8.8, 4.1)), ((10.4, 3.9), (11.1, 3.1)),
        ((5.4, 1.2), (10.9, 2.4)),
    ):  # fmt: skip
        arrow(axes, start, end)
    for x, y, text, colour, aim in (
        (1.4, 1.4, "added to the embedding:\nsinusoidal, learned,\nSHAPE, CAPE", COLOURS[2], (1.4, 2.9)),
        (1.4, 5.4, "recurrent layer over it:\nGRU, LSTM", COLOURS[3], (1.4, 3.5)),
        (4.6, 6.1, "rotates queries and keys: RoPE, xPos, PoPE", COLOURS[1], (4.6, 5.3)),
        (
            8.9,
            5.7,
            "added to the scores:\nALiBi, T5, KERPLE, FIRE, Sandwich,\nShaw et al., Transformer-XL, DeBERTa",
            BLUE,
            (7.5, 4.4),
        ),
        (8.9, 2.95, "hides keys: window", COLOURS[6], (7.5, 3.8)),
        (8.3, 0.7, "added to the values: Shaw et al.", COLOURS[4], (8.3, 1.75)),
    ):
        axes.text(x, y, text, ha="center", va="center", fontsize=FONT_SIZE, color=colour)
        below = y < aim[1]
        edge = y + (0.17 + 0.16 * text.count("\n")) * (1 if below else -1)
        arrow(axes, (x if abs(x - aim[0]) < 0.3 else x - 0.8, edge), aim, colour)
    return figure


def decision_tree_figure() -> Figure:
    """Which encoding to take, and whether to segment or stream: questions from top to bottom."""
    figure, axes = blank(13, 5.75, 3.7)
    steps = {
        "Are all inputs within\nthe training length?": (
            "relative, or rotary\nwhere speed matters",
            COLOURS[1],
        ),
        "Are sentence boundaries known,\nor marked by full stops and capitals?": (
            "segment: any encoding,\nsentence by sentence",
            LIMIT_COLOUR,
        ),
        "Is the text still being written,\nor has it no end?": (
            "stream: the aligned model,\nas the text arrives",
            BLUE,
        ),
    }
    top, height = 5.15, 1.45
    for number, (question, (answer, colour)) in enumerate(steps.items()):
        y = top - number * height
        box(axes, 3.2, y, 5.6, question)
        box(axes, 10.1, y, 5.0, answer, edge=colour)
        arrow(axes, (6.1, y), (7.5, y))
        axes.text(6.8, y + 0.14, "yes", ha="center", fontsize=FONT_SIZE)
        arrow(axes, (3.2, y - 0.42), (3.2, y - height + 0.42))
        axes.text(3.4, y - height / 2, "no", va="center", fontsize=FONT_SIZE)
    box(axes, 3.2, top - len(steps) * height, 5.6, "the aligned model,\nwhole documents", edge=BLUE)
    return figure


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    save_figure(decision_tree_figure(), FOLDER / "decision_tree.png")
    save_figure(aligned_window_figure(), FOLDER / "aligned_window.png")
    save_figure(where_encodings_act_figure(), FOLDER / "where_encodings_act.png")
