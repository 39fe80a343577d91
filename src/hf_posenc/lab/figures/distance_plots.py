"""Figures of an encoding's effect by distance: pure functions from arrays of probing.py to matplotlib figures.

Distances S are key minus query, in tokens: negative ones lie before the query. L layers, N queries, H heads, K width
of a head.
"""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from ...encodings.base import MASK_VALUE
from .style import (
    AMOUNT_COLORMAP,
    COLOURS,
    FONT_SIZE,
    LIMIT_COLOUR,
    LINE_STYLES,
    WIDTH_INCHES,
    add_colorbar,
    add_legend,
    colour_limit,
    heatmap,
    label_axes,
    style_axes,
    with_title,
)

DISTANCE_LABEL = "key minus query"
# Random queries drawn as lines; the band is of all.
NUM_SINGLE_QUERIES = 3
MIN_RELATIVE_INFLUENCE = 1e-4


def score_bias_figure(scores_LNHS: np.ndarray, distances: np.ndarray, *, title: str) -> Figure:
    """The score bias at each distance: a panel for each layer, or one panel if all layers have the same."""
    layers = scores_LNHS[:1] if all_equal(scores_LNHS) else scores_LNHS
    columns = min(3, len(layers))
    rows = -(-len(layers) // columns)
    figure = Figure(figsize=(WIDTH_INCHES, 1.2 + 1.9 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for number, (axes, scores_NHS) in enumerate(zip(grid.flat, layers, strict=False), 1):
        draw_scores(axes, scores_NHS, distances)
        if len(layers) > 1:
            axes.set_title(f"layer {number}", fontsize=FONT_SIZE + 1)
    for axes in grid.flat[len(layers) :]:
        axes.set_axis_off()
    for axes in grid[-1]:
        axes.set_xlabel(DISTANCE_LABEL, fontsize=FONT_SIZE + 1)
    for axes in grid[:, 0]:
        axes.set_ylabel("score added", fontsize=FONT_SIZE + 1)
    add_legend(figure, [*grid[0, 0].lines, *grid[0, 0].collections])
    return with_title(figure, title)


def draw_scores(axes: Axes, scores_NHS: np.ndarray, distances: np.ndarray) -> None:
    """One panel of score biases.

    A bias that does not depend on the query: a line for each head. One that all heads share: the mean over queries,
    its standard deviation, and a few queries. Else a line for each head, of the first query. Hidden distances are
    shaded, because their bias of -10,000 would leave no room for the others.
    """
    same_queries, same_heads = all_equal(scores_NHS), all_equal(scores_NHS.swapaxes(0, 1))
    hidden_NHS = scores_NHS < MASK_VALUE / 2
    if hidden_NHS.any():
        scores_NHS = np.where(hidden_NHS, np.nan, scores_NHS)
        shade_hidden(axes, distances, np.all(hidden_NHS, (0, 1)), zorder=1)
    if same_heads and not same_queries:
        mean_S, spread_S = scores_NHS[:, 0].mean(0), scores_NHS[:, 0].std(0)
        band_label = f"mean and deviation of {len(scores_NHS)}"
        axes.fill_between(
            distances, mean_S - spread_S, mean_S + spread_S, color="#bbbbbb", alpha=0.6, linewidth=0, label=band_label
        )
        lines = {f"random query {n + 1}": scores_NHS[n, 0] for n in range(min(NUM_SINGLE_QUERIES, len(scores_NHS)))}
    elif same_heads:
        lines = {"every head": scores_NHS[0, 0]}
    else:
        lines = {f"head {head + 1}": scores_S for head, scores_S in enumerate(scores_NHS[0])}
    for index, (name, scores_S) in enumerate(lines.items()):
        style = LINE_STYLES[index % len(LINE_STYLES)]
        axes.plot(distances, scores_S, color=COLOURS[index % len(COLOURS)], linestyle=style, linewidth=1.2, label=name)
    axes.axvline(0, color=LIMIT_COLOUR, linewidth=0.6, zorder=0.5)
    style_axes(axes)


def shade_hidden(axes: Axes, distances: np.ndarray, hidden_S: np.ndarray, zorder: float) -> None:
    """Shade the distances at which keys are hidden."""
    if hidden_S.any():
        edges = (distances[:, None] + [-0.5, 0.5]).ravel()
        axes.fill_between(
            edges, 0, 1, where=hidden_S.repeat(2), transform=axes.get_xaxis_transform(), label="not seen",
            color="#e4e4e4", linewidth=0, zorder=zorder,
        )  # fmt: skip


def rotation_figure(
    even_HS: np.ndarray,
    random_NHS: np.ndarray,
    channels_CS: np.ndarray,
    distances: np.ndarray,
    *,
    head_dim: int,
    title: str,
) -> Figure:
    """q . k of a query of norm 1 and an equal key, by the distance between them, after both are rotated.

    Left: queries with equal channels (`even_HS`) and random queries. Right: each channel by itself, or C channels of a
    head that has more, each for its neighbours.
    """
    figure = Figure(figsize=(WIDTH_INCHES, 3.4), layout="constrained")
    curve_axes, image_axes = figure.subplots(1, 2)
    draw_scores(curve_axes, random_NHS, distances)
    for head, even_S in enumerate(even_HS[:1] if all_equal(even_HS) else even_HS):
        curve_label = "all channels alike" if all_equal(even_HS) else f"all channels alike, head {head + 1}"
        curve_axes.plot(distances, even_S, color="black", linewidth=1.8, label=curve_label)
    curve_axes.axhline(0, color=LIMIT_COLOUR, linewidth=0.6, zorder=0.5)
    label_axes(curve_axes, DISTANCE_LABEL, "q . k, 1 before the rotation")
    extent = (distances[0] - 0.5, distances[-1] + 0.5, head_dim - 0.5, -0.5)
    image = heatmap(image_axes, channels_CS, limit=colour_limit(channels_CS), extent=extent)
    label_axes(image_axes, DISTANCE_LABEL, "channel of a head, by itself")
    add_colorbar(figure, image, image_axes, "q . k")
    add_legend(figure, [*curve_axes.lines, *curve_axes.collections])
    return with_title(figure, title)


def vectors_by_distance_figure(
    tables_LHSK: dict[str, np.ndarray], distances: np.ndarray, hidden_S: np.ndarray, *, title: str
) -> Figure:
    """The vectors of each distance, a row for each layer: a heat map for each table, and the vectors' norms.

    `tables_LHSK["keys"]` are the vectors that act like additions to keys, `["values"]` those added to values. The heat
    map is of the first head. The norms are of every head, one line if they are equal. Hidden distances are shaded.
    """
    layers = max(map(len, tables_LHSK.values()))
    figure = Figure(figsize=(WIDTH_INCHES, 1.3 + 1.35 * layers), layout="constrained")
    grid = figure.subplots(layers, len(tables_LHSK) + 1, sharex=True, squeeze=False)
    limit = max(map(colour_limit, tables_LHSK.values()))
    for column, (name, table_LHSK) in enumerate(tables_LHSK.items()):
        heads = "" if all_equal(table_LHSK.swapaxes(0, 1)) else ", head 1"
        grid[0, column].set_title(f"added to {name}{heads}", fontsize=FONT_SIZE + 1)
        for layer, vectors_HSK in enumerate(table_LHSK):
            extent = (distances[0] - 0.5, distances[-1] + 0.5, vectors_HSK.shape[2] - 0.5, -0.5)
            image = heatmap(grid[layer, column], vectors_HSK[0].T, limit=limit, extent=extent)
            label_axes(grid[layer, column], "", "" if column else f"layer {layer + 1}\nchannel")
            draw_norms(grid[layer, -1], vectors_HSK, distances, name, COLOURS[column], LINE_STYLES[column])
    grid[0, -1].set_title("their lengths", fontsize=FONT_SIZE + 1)
    for axes in grid[:, -1]:
        axes.set_ylim(0, 1.1 * max(one.dataLim.y1 for one in grid[:, -1]))
    for axes in grid[-1]:
        axes.set_xlabel(DISTANCE_LABEL, fontsize=FONT_SIZE + 1)
    for axes in grid.flat:
        shade_hidden(axes, distances, hidden_S, zorder=3)
    add_colorbar(figure, image, list(grid[:, :-1].flat), "")
    add_legend(figure, [*grid[0, -1].lines, *grid[0, -1].collections])
    return with_title(figure, title)


def draw_norms(axes: Axes, vectors_HSK: np.ndarray, distances: np.ndarray, name: str, colour: str, style: str) -> None:
    lengths_HS = np.linalg.norm(vectors_HSK, axis=2)
    for lengths_S in lengths_HS[:1] if all_equal(lengths_HS) else lengths_HS:
        axes.plot(distances, lengths_S, color=colour, linestyle=style, linewidth=1.2, label=name)
    style_axes(axes)


def influence_figure(influence_TT: np.ndarray, *, title: str) -> Figure:
    """The influence of input token j on output token i: for each pair, and by distance j - i as a mean over the pairs.

    Both scales are logarithmic. Values below 1/10,000 of the largest are white, and left out of the curve.
    """
    threshold = MIN_RELATIVE_INFLUENCE * influence_TT.max()
    figure = Figure(figsize=(WIDTH_INCHES, 3.0), layout="constrained")
    pairs, curve = figure.subplots(1, 2)
    shown = np.ma.masked_less(influence_TT, threshold)
    image = heatmap(pairs, shown, limit=None)
    image.set(cmap=AMOUNT_COLORMAP, norm=LogNorm(threshold, influence_TT.max()))
    pairs.set_aspect("equal")
    label_axes(pairs, "input token j", "output token i")
    add_colorbar(figure, image, pairs, "influence")
    tokens = len(influence_TT)
    distances = np.arange(1 - tokens, tokens)
    means = np.array([influence_TT.diagonal(distance).mean() for distance in distances])
    is_shown = means >= threshold
    curve.plot(distances[is_shown], means[is_shown], color=COLOURS[0], linewidth=1.2, marker="o", markersize=3)
    curve.axvline(0, color=LIMIT_COLOUR, linewidth=0.6, zorder=0.5)
    curve.set_yscale("log")
    label_axes(curve, "distance j - i", "mean influence")
    style_axes(curve)
    return with_title(figure, title)


def all_equal(values: np.ndarray) -> bool:
    """Whether all entries of the first axis are equal."""
    return bool(np.allclose(values, values[:1], rtol=1e-8, atol=1e-8))
