"""Figures of encodings: the vectors that `embed` adds, and effects by distance. Pure functions from arrays to figures.

P positions, D channels, L layers, N queries, H heads, K width of a head. Distances S are key minus query, in tokens:
negative ones lie before the query.
"""

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ...encodings.base import MASK_VALUE
from .style import (
    AMOUNT_COLORMAP,
    COLOURS,
    FONT_SIZE,
    LIMIT_COLOUR,
    LINE_STYLES,
    MARKERS,
    WIDTH_INCHES,
    add_colorbar,
    add_legend,
    colour_limit,
    heatmap,
    label_axes,
    single_panel,
    style_axes,
    with_title,
)

# Rows of the heat map of many positions: three pixels each in print, so that none is lost when a page shrinks it.
MAX_ROWS = 180


def positions_figure(values_PD: np.ndarray, *, title: str) -> Figure:
    """A heat map of the vectors, a row for each position."""
    figure, axes = single_panel(1.3 + min(3.2, 0.13 * len(values_PD)))
    image = heatmap(axes, values_PD, limit=colour_limit(values_PD))
    label_axes(axes, "channel", "position")
    add_colorbar(figure, image, axes, "value added")
    return with_title(figure, title)


def widths_figure(by_width: dict[int, np.ndarray], *, title: str) -> Figure:
    """The same positions at several widths D, channel for channel on one scale."""
    widest = max(by_width)
    figure = Figure(figsize=(WIDTH_INCHES, 3.6), layout="constrained")
    panels = figure.subplots(1, len(by_width), sharey=True, width_ratios=[width / widest + 0.1 for width in by_width])
    limit = max(map(colour_limit, by_width.values()))
    for axes, (width, values_PD) in zip(panels, by_width.items(), strict=True):
        image = heatmap(axes, values_PD, limit=limit)
        axes.set_title(f"D = {width}", fontsize=FONT_SIZE + 1)
        label_axes(axes, "channel", "position" if axes is panels[0] else "")
    add_colorbar(figure, image, panels, "value added")
    return with_title(figure, title)


def channels_figure(values_PD: np.ndarray, *, title: str) -> Figure:
    """Low and high channels over the positions, on one scale. Points are the values; lines only guide the eye."""
    width = values_PD.shape[1]
    low = [channel for channel in (0, 1, 6, 7) if channel < width]
    high = [channel for channel in (width - 8, width - 7, width - 2, width - 1) if channel > max(low)]
    figure = Figure(figsize=(WIDTH_INCHES, 2.9), layout="constrained")
    panels = figure.subplots(1, 2 if high else 1, sharey=True, squeeze=False)[0]
    for axes, channels, title_of_panel in zip(panels, (low, high), ("low channels", "high channels"), strict=False):
        for index, channel in enumerate(channels):
            axes.plot(
                values_PD[:, channel],
                color=COLOURS[index],
                linestyle=LINE_STYLES[index],
                linewidth=1.2,
                marker=MARKERS[index],
                markersize=4,
                markerfacecolor="white",
                label=f"{channel}",
            )
        axes.set_title(title_of_panel, fontsize=FONT_SIZE + 1)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("position", fontsize=FONT_SIZE + 1)
        axes.legend(fontsize=FONT_SIZE, frameon=False, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.22),
                    columnspacing=1, title="channel", title_fontsize=FONT_SIZE)  # fmt: skip
        style_axes(axes)
    panels[0].set_ylabel("value added", fontsize=FONT_SIZE + 1)
    return with_title(figure, title)


def wavelength_figure(wavelengths_D: np.ndarray, marks: dict[str, float], *, title: str) -> Figure:
    """The wavelength of each channel that is a sinusoid, with named horizontal lines at `marks`, in positions."""
    figure, axes = single_panel(3.2)
    is_wave = np.isfinite(wavelengths_D)
    axes.plot(np.flatnonzero(is_wave), wavelengths_D[is_wave], "o", color=COLOURS[0], markersize=3.5)
    axes.set_yscale("log")
    axes.set_xlim(-1, len(wavelengths_D))
    for name, wavelength in marks.items():
        axes.axhline(wavelength, color=LIMIT_COLOUR, linewidth=0.8, linestyle="--", zorder=1.5)
        is_right = log_distance(wavelengths_D[::-1], wavelength) > log_distance(wavelengths_D, wavelength)
        axes.annotate(name, (is_right, wavelength), (-2 if is_right else 2, 2), xycoords=("axes fraction", "data"),
                      textcoords="offset points", ha="right" if is_right else "left", fontsize=FONT_SIZE,
                      color=LIMIT_COLOUR)  # fmt: skip
    label_axes(axes, "channel", "wavelength in positions")
    style_axes(axes)
    left_out = len(wavelengths_D) - int(is_wave.sum())
    return with_title(figure, f"{title}\n{left_out} channels without a wavelength left out" if left_out else title)


def log_distance(wavelengths_D: np.ndarray, mark: float) -> float:
    """The distance, on a logarithmic scale, between a mark and the wavelengths of the first half of the channels."""
    waves = wavelengths_D[: len(wavelengths_D) // 2 + 1]
    waves = waves[np.isfinite(waves)]
    return float(np.abs(np.log(waves / mark)).min()) if len(waves) else np.inf


def many_positions_figure(values_PD: np.ndarray, wavelengths_D: np.ndarray, *, title: str) -> Figure:
    """Thousands of positions in a few hundred rows: on the left one position a row, on the right the mean of a row.

    A heat map of every n-th position shows an alias of each sinusoid with a wavelength below 2 n positions. The mean is
    weighted by a Hann window of 4 rows. The window keeps long wavelengths, and less than 3 % of those below two rows. A
    vertical line separates the channels with wavelengths below two rows, if there are any.
    """
    step = positions_per_row(len(values_PD))
    rows = len(values_PD) // step
    values_by_title = {"every position": values_PD}
    if step > 1:
        values_by_title = {
            f"one position in {step}": values_PD[: rows * step : step],
            "means (Hann window of 4 rows)": row_means(values_PD, step),
        }
    figure = Figure(figsize=(WIDTH_INCHES, 3.8), layout="constrained")
    panels = figure.subplots(1, len(values_by_title), sharey=True, squeeze=False)[0]
    unresolved = np.flatnonzero(wavelengths_D < 2 * step)
    are_first = step > 1 and len(unresolved) > 0 and unresolved[-1] + 1 == len(unresolved)
    for axes, (name, rows_RD) in zip(panels, values_by_title.items(), strict=True):
        extent = (-0.5, values_PD.shape[1] - 0.5, rows * step - 0.5, -0.5)
        image = heatmap(axes, rows_RD, limit=colour_limit(values_PD), extent=extent)
        axes.set_title(name, fontsize=FONT_SIZE + 1)
        label_axes(axes, "channel", "position" if axes is panels[0] else "")
        if are_first:
            axes.axvline(unresolved[-1] + 0.5, color="white", linewidth=2.4)
            axes.axvline(unresolved[-1] + 0.5, color="black", linewidth=1.2, linestyle="--")
    add_colorbar(figure, image, panels, "value added")
    if are_first:
        title += (
            f"\nleft of the line: waves of less than two rows ({2 * step} positions), for which {rows} rows are too few"
        )
    return with_title(figure, title)


def positions_per_row(number: int) -> int:
    """The number of positions that a row stands for."""
    return -(-number // MAX_ROWS)


def row_means(values_PD: np.ndarray, step: int) -> np.ndarray:
    """The mean of the positions around each row of `step` positions, by a Hann window four rows wide (R, D).

    Its frequency response is zero from half a cycle a row onwards, except for side lobes of less than 3 %.
    """
    means_RD = np.empty((len(values_PD) // step, values_PD.shape[1]))
    for row in range(len(means_RD)):
        centre = row * step + (step - 1) / 2
        positions = np.arange(max(0, math.ceil(centre - 2 * step)), min(len(values_PD), math.ceil(centre + 2 * step)))
        weights = np.cos(np.pi * (positions - centre) / (4 * step)) ** 2
        means_RD[row] = weights @ values_PD[positions] / weights.sum()
    return means_RD


def products_figure(values_PD: np.ndarray, *, title: str) -> Figure:
    """v(p) . v(p + d) of the vectors: for each pair of positions, and by distance as mean and range over p.

    A product that depends only on the relative distance has no range, and the legend says so.
    """
    products_PP = values_PD @ values_PD.T
    max_distance = len(values_PD) // 2
    by_distance = [np.diagonal(products_PP, distance) for distance in range(max_distance + 1)]
    figure = Figure(figsize=(WIDTH_INCHES, 3.0), layout="constrained")
    pairs, curve = figure.subplots(1, 2)
    image = heatmap(pairs, products_PP, limit=None)
    pairs.set_aspect("equal")
    label_axes(pairs, "position", "position")
    add_colorbar(figure, image, pairs, "product")
    low, mean, high = (
        [float(statistic(diagonal)) for diagonal in by_distance] for statistic in (np.min, np.mean, np.max)
    )
    distances = np.arange(max_distance + 1)
    name = "the same for any p" if np.allclose(low, high) else "mean over p"
    curve.fill_between(distances, low, high, color=COLOURS[0], alpha=0.25, linewidth=0, label="range over p")
    curve.plot(distances, mean, color=COLOURS[0], linewidth=1.4, label=name)
    curve.set_ylim(min(0.0, *low) * 1.05, max(high) * 1.05)
    label_axes(curve, "distance d", "v(p) . v(p + d)")
    style_axes(curve)
    add_legend(figure, [curve.lines[0], *(curve.collections if name != "the same for any p" else [])])
    return with_title(figure, title)


def norms_figure(values_PD: np.ndarray, *, title: str) -> Figure:
    """The norm of each position's vector."""
    figure, axes = single_panel(2.6)
    axes.plot(np.linalg.norm(values_PD, axis=1), color=COLOURS[0], linewidth=1.2)
    axes.set_ylim(bottom=0)
    label_axes(axes, "position", "length of the vector added")
    style_axes(axes)
    return with_title(figure, title)


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
    """The vectors of each distance, channel by channel: a row of heat maps for each layer, of the first head.

    `tables_LHSK["keys"]` are the vectors that act like additions to keys, `["values"]` those added to values. Hidden
    distances are shaded.
    """
    layers = max(map(len, tables_LHSK.values()))
    figure = Figure(figsize=(WIDTH_INCHES, 1.3 + 1.35 * layers), layout="constrained")
    grid = figure.subplots(layers, len(tables_LHSK), sharex=True, squeeze=False)
    limit = max(map(colour_limit, tables_LHSK.values()))
    for column, (name, table_LHSK) in enumerate(tables_LHSK.items()):
        heads = "" if all_equal(table_LHSK.swapaxes(0, 1)) else ", head 1"
        grid[0, column].set_title(f"added to {name}{heads}", fontsize=FONT_SIZE + 1)
        for layer, vectors_HSK in enumerate(table_LHSK):
            extent = (distances[0] - 0.5, distances[-1] + 0.5, vectors_HSK.shape[2] - 0.5, -0.5)
            image = heatmap(grid[layer, column], vectors_HSK[0].T, limit=limit, extent=extent)
            label_axes(grid[layer, column], "", "" if column else f"layer {layer + 1}\nchannel")
            shade_hidden(grid[layer, column], distances, hidden_S, zorder=3)
        grid[-1, column].set_xlabel(DISTANCE_LABEL, fontsize=FONT_SIZE + 1)
    add_colorbar(figure, image, list(grid.flat), "")
    return with_title(figure, title)


def norms_by_distance_figure(
    tables_LHSK: dict[str, np.ndarray], distances: np.ndarray, hidden_S: np.ndarray, *, title: str
) -> Figure:
    """The norms of the vectors of each distance, a panel for each layer: of every head, one line if they are equal.

    `tables_LHSK` and shading are as in `vectors_by_distance_figure`.
    """
    layers = max(map(len, tables_LHSK.values()))
    figure = Figure(figsize=(WIDTH_INCHES, 1.1 + 1.15 * layers), layout="constrained")
    panels = figure.subplots(layers, 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for (name, table_LHSK), colour, style in zip(tables_LHSK.items(), COLOURS, LINE_STYLES, strict=False):
        for layer, norms_HS in enumerate(np.linalg.norm(table_LHSK, axis=3)):
            for norms_S in norms_HS[:1] if all_equal(norms_HS) else norms_HS:
                panels[layer].plot(distances, norms_S, color=colour, linestyle=style, linewidth=1.2, label=name)
    for number, axes in enumerate(panels, 1):
        label_axes(axes, "", f"layer {number}\nnorm")
        axes.set_ylim(bottom=0)
        shade_hidden(axes, distances, hidden_S, zorder=3)
        style_axes(axes)
    panels[-1].set_xlabel(DISTANCE_LABEL, fontsize=FONT_SIZE + 1)
    add_legend(figure, [*panels[0].lines, *panels[0].collections])
    return with_title(figure, title)


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
