"""Lines across the length groups of a figure: where training ended, and where it began."""

from collections.abc import Callable

from matplotlib.axes import Axes

from ..results.tables import Group
from .style import FONT_SIZE, LIMIT_COLOUR


def draw_group_limits(
    panels: list[Axes],
    groups: list[Group],
    limits: dict[str, int | None],
    starts: dict[str, int | None],
    colours: dict[str, str],
) -> None:
    """A line per training limit and per shortest training length, which stands where the lengths end that were not
    trained."""
    draw_lines(panels, limits, ("limit", "limits"), lambda limit: limit_position(limit, groups), colours)
    draw_lines(panels, starts, ("from", "from"), lambda start: limit_position(start - 1, groups), colours)


def draw_lines(
    panels: list[Axes],
    limits: dict[str, int | None],
    words: tuple[str, str],
    position: Callable[[int], float],
    colours: dict[str, str],
) -> None:
    """A line per limit, labelled in the first panel: neutral if all share it, else in the system's colour.

    `words` say one limit and several. Systems with the same limit take turns in the dashes of one line; limits close
    together share one label.
    """
    shared = len(set(limits.values())) == 1
    labels: list[list[tuple[float, int]]] = []
    for limit in sorted({limit for limit in limits.values() if limit is not None}):
        x = position(limit)
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
            f"training\n{words[len(members) > 1]} {', '.join(str(limit) for _, limit in members)}",
            (sum(x for x, _ in members) / len(members), 1.0),
            (0, 3),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=FONT_SIZE,
        )


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
