"""Figures of the vectors that `embed` adds: pure functions from arrays to figures (P positions, D channels)."""

import math

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .style import (
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
    style_axes,
    with_title,
)

# Rows of the heat map of many positions: three pixels each in print, so that none is lost when a page shrinks it.
MAX_ROWS = 180


def positions_figure(values_PD: np.ndarray, *, title: str) -> Figure:
    """A heat map of the vectors, a row for each position."""
    figure = Figure(figsize=(WIDTH_INCHES, 1.3 + min(3.2, 0.13 * len(values_PD))), layout="constrained")
    axes = figure.subplots()
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
    figure = Figure(figsize=(WIDTH_INCHES, 3.2), layout="constrained")
    axes = figure.subplots()
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
    figure = Figure(figsize=(WIDTH_INCHES, 2.6), layout="constrained")
    axes = figure.subplots()
    axes.plot(np.linalg.norm(values_PD, axis=1), color=COLOURS[0], linewidth=1.2)
    axes.set_ylim(bottom=0)
    label_axes(axes, "position", "length of the vector added")
    style_axes(axes)
    return with_title(figure, title)
