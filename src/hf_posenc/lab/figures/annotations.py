"""Vertical lines across the length buckets of a figure: the longest and the shortest training lengths."""

from collections.abc import Callable, Mapping, Sequence

from matplotlib.axes import Axes

from ..results.records import BucketScore
from .style import FONT_SIZE, LIMIT_COLOUR


def annotate_training_lengths(
    panels: list[Axes],
    groups: Sequence[BucketScore],
    max_lengths: Mapping[str, int | None],
    min_lengths: Mapping[str, int | None],
    colours: Mapping[str, str],
) -> None:
    """Draw a line at each maximum training length, and one below each minimum training length."""
    draw_length_lines(
        panels, max_lengths, ("limit", "limits"), lambda max_length: x_of_length(max_length, groups), colours
    )
    draw_length_lines(
        panels, min_lengths, ("from", "from"), lambda min_length: x_of_length(min_length - 1, groups), colours
    )


def draw_length_lines(
    panels: list[Axes],
    lengths: Mapping[str, int | None],
    label_words: tuple[str, str],
    x_of: Callable[[int], float | None],
    colours: Mapping[str, str],
) -> None:
    """A line per limit, labelled in the first panel: neutral if all share it, else in the system's colour.

    `label_words` are the singular and the plural for the label. Systems with the same limit alternate in the dashes of
    one line. Limits close together share one label.
    """
    shared = len(set(lengths.values())) == 1
    labels: list[list[tuple[float, int]]] = []
    for length in sorted({length for length in lengths.values() if length is not None}):
        if (x := x_of(length)) is None:
            continue
        line_colours = [LIMIT_COLOUR] if shared else [colours[name] for name in lengths if lengths[name] == length]
        dash = 4.0
        for index, colour in enumerate(line_colours):
            gap = dash * max(1, len(line_colours) - 1)
            for axes in panels:
                axes.axvline(x, color=colour, linewidth=1.2, linestyle=(-index * dash, (dash, gap)), zorder=1.5)
        if labels and x - labels[-1][-1][0] < 0.6:
            labels[-1].append((x, length))
        else:
            labels.append([(x, length)])
    for close_lengths in labels:
        panels[0].annotate(
            f"training\n{label_words[len(close_lengths) > 1]} {', '.join(str(length) for _, length in close_lengths)}",
            (sum(x for x, _ in close_lengths) / len(close_lengths), 1.0),
            (0, 3),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=FONT_SIZE,
        )


def x_of_length(length: int, groups: Sequence[BucketScore]) -> float | None:
    """The x coordinate of a length on an axis of length buckets; None beyond the last bucket.

    Inside a bucket it is linear. At a bucket's upper bound, and between two buckets, it is their border. In a last
    bucket without an upper bound it approaches the right border as the length grows.
    """
    for index, group in enumerate(groups):
        before = max(int(group.low) - 1, 0)
        if length <= before:
            return index - 0.5
        if group.high is None:
            return index - 0.5 + (1 - before / length)
        if length <= (end := int(group.high)):
            return index - 0.5 + (length - before) / (end - before)
    return None
