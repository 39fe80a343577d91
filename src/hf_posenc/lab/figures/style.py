"""The style of all figures: colours, fonts, axes, legends and scales; lazy figures, and saving.

Nothing here uses pyplot or its global state. The first colours are Okabe and Ito's, for colour-blind readers
(https://jfly.uni-koeln.de/color/); every colour has a contrast of 3:1 or more on white. Markers and line styles differ
too, so a figure reads in black and white. Values are drawn in cividis and amounts in blues, whose lightness only grows.
"""

import io
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, cycle
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.container import Container
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator
from PIL import Image

from ...utils.atomic_io import atomic_save

WIDTH_INCHES = 6.5
FONT_SIZE = 8.5
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#B85C93", "#A67C00", "#3D85C6",
    "#000000", "#7B52AB", "#8B4513", "#117A8B", "#6B8E23", "#B22222",
)  # fmt: skip
# Systems of these names have the colour of their line in every figure.
SYSTEM_NAMES = (
    ("aligned",),
    ("relative", "rel-transformer"),
    ("sinusoidal", "absolute", "transformer"),
    ("rotary",),
    ("learned", "converted"),
    ("lstm",),
    ("none", "rnn-nmt"),
    ("kerple", "gru", "rnn-transformer"),
    ("gru+relative", "rr-transformer"),
    ("t5", "recurrent"),
    ("t5-near", "relative-sinusoidal"),
    ("relative-key", "relative-absolute"),
)
SYSTEM_COLOURS = {name: place for place, names in enumerate(SYSTEM_NAMES) for name in names}
VARIANT = re.compile(
    r"(-(\d+|split|segmented|seed\d+))+$"
)  # suffixes of a name for the same system in another training
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
LINE_STYLES = ("-", "--", "-.", ":")
LIMIT_COLOUR = "#444444"
# Follows the name of a system whose loss is not comparable with that of others.
LENGTH_AWARE_SUFFIX = " (given the target's length)"
VALUE_COLORMAP, AMOUNT_COLORMAP = "cividis", "Blues"


@dataclass(frozen=True)
class LazyFigure:
    """A figure that is drawn on request: its label, a hint on what to look for, and its test set, if it has one.

    Figures take much memory; therefore they are drawn one by one.
    """

    label: str
    look_for: str
    draw: Callable[[], Figure]
    test_set: str | None = None

    @property
    def name(self) -> str:
        """The file name, from the label."""
        return self.label if self.test_set is None else f"{self.label}-{self.test_set}"


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a PNG or an SVG atomically; the same figure always gives the same bytes."""
    path = Path(path)
    if path.suffix not in (".png", ".svg"):
        raise ValueError(
            f"figures are saved as PNG or SVG; path={str(path)!r} ends in neither .png nor .svg; rename it"
        )
    buffer = io.BytesIO()
    disable_mathtext(figure)
    if path.suffix == ".svg":
        with rc_context({"svg.hashsalt": path.stem}):
            figure.savefig(buffer, format="svg", metadata={"Date": None})
    else:
        figure.savefig(buffer, format="png", dpi=200)
        buffer = quantized_png(buffer)
    atomic_save(path, lambda temporary: temporary.write_bytes(buffer.getvalue()))


def disable_mathtext(figure: Figure) -> None:
    """Disable formulas, which matplotlib finds between two `$`, in all texts except its own numbers at an axis."""
    for text in figure.findobj(Text):
        if "$" in text.get_text() and not text.get_text().startswith(r"$\mathdefault"):
            text.set_parse_math(False)


def quantized_png(png: io.BytesIO) -> io.BytesIO:
    """A PNG of at most 256 colours, which takes a third of the bytes and looks the same."""
    quantized = io.BytesIO()
    image = Image.open(png).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    image.save(quantized, format="png", optimize=True)
    return quantized


def legend_label(
    system: str, max_lengths: Mapping[str, int | None], min_lengths: Mapping[str, int | None] | None = None
) -> str:
    """The system's name; with its maximum and minimum training length where these differ between systems."""
    notes = []
    if len(set(max_lengths.values())) > 1:
        notes.append("no limit" if max_lengths[system] is None else f"limit {max_lengths[system]}")
    if min_lengths and min_lengths[system] is not None and len(set(min_lengths.values())) > 1:
        notes.append(f"from {min_lengths[system]}")
    return textwrap.fill(f"{system} ({', '.join(notes)})" if notes else system, 80)


def base_name(system: str) -> str:
    """The name without training limit, seed and segmentation: `relative` of `relative-50-split`."""
    return VARIANT.sub("", system)


def line_styles(systems: Iterable[str]) -> dict[str, tuple[str, str, str]]:
    """Colour, marker and line style of each system.

    A known system and its variants have one colour in all figures, and different line styles. A segmented system is
    dotted. Other systems take the remaining colours.
    """
    systems = list(systems)
    bases = list(dict.fromkeys(base_name(system) for system in systems))
    places = {base: SYSTEM_COLOURS[base] for base in bases if base in SYSTEM_COLOURS}
    free = cycle(sorted(set(range(len(COLOURS))) - set(places.values())) or range(len(COLOURS)))
    for base in bases:
        if base not in places:
            places[base] = next(free)
    styles, variants = {}, dict.fromkeys(bases, 0)
    for index, system in enumerate(systems):
        base = base_name(system)
        shift = index // len(MARKERS) + variants[base]
        line_style = ":" if "split" in system or "segmented" in system else LINE_STYLES[shift % len(LINE_STYLES)]
        styles[system] = (COLOURS[places[base]], MARKERS[index % len(MARKERS)], line_style)
        variants[base] += 1
    return styles


def label_lines(axes: Axes, labels: Mapping[str, tuple[float, str]]) -> None:
    """Write names at the right of the axes, each in its colour next to the last point of its line, without overlap.

    `labels[name]` is the height of that point and the colour. Limits of the axes must be final.
    """
    scale = math.log if axes.get_yscale() == "log" else float
    low, high = map(scale, axes.get_ylim())
    height_in_points = axes.figure.bbox.height / axes.figure.dpi * 72 * 0.55  # of the axes, once the layout is made
    gap = 1.25 * FONT_SIZE / height_in_points
    heights: list[float] = []
    ordered = sorted(labels.items(), key=lambda item: item[1][0])
    for _, (y, _) in ordered:
        wanted = (scale(y) - low) / (high - low)
        heights.append(max(wanted, heights[-1] + gap) if heights else wanted)
    excess = max(0.0, heights[-1] - 1.0) if heights else 0.0
    for (name, (_, colour)), height in zip(ordered, heights, strict=True):
        axes.annotate(
            name, (1.01, height - excess), xycoords="axes fraction", color=colour, fontsize=FONT_SIZE, va="center",
            annotation_clip=False,
        )  # fmt: skip


def add_legend(figure: Figure, handles: Iterable[Artist | Container], title: str | None = None) -> None:
    """Add a legend below the axes, with each label once; its title is above the labels."""
    by_label = {}
    for handle in handles:
        if not str(handle.get_label()).startswith("_"):
            by_label[str(handle.get_label())] = handle
    figure.legend(
        handles=list(by_label.values()),
        loc="outside lower center",
        ncols=legend_columns(by_label),
        fontsize=FONT_SIZE,
        title=title,
        title_fontsize=FONT_SIZE,
        frameon=False,
        handlelength=3.5,
    )


def legend_columns(labels: Iterable[str]) -> int:
    """The number of columns of a legend with these labels."""
    return max(1, min(3, 90 // (max(map(len, labels), default=0) + 8)))


def height_with_legend(height: float, labels: Iterable[str]) -> float:
    """The height in inches of a figure with room for these labels; `height` has room for a legend of two lines."""
    labels = list(labels)
    return height + 0.17 * max(0, math.ceil(len(labels) / legend_columns(labels)) - 2)


def single_panel(height: float) -> tuple[Figure, Axes]:
    """A figure of the usual width and this height in inches, and its axes."""
    figure = Figure(figsize=(WIDTH_INCHES, height), layout="constrained")
    return figure, figure.subplots()


def style_axes(axes: Axes) -> None:
    """The style of all axes: small font, light horizontal grid, no box."""
    axes.tick_params(labelsize=FONT_SIZE)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def or_nan(value: float | None) -> float:
    """The value, or NaN for None, which matplotlib leaves out of a line."""
    return math.nan if value is None else value


def label_axes(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x, fontsize=FONT_SIZE + 1)
    axes.set_ylabel(y, fontsize=FONT_SIZE + 1)
    axes.tick_params(labelsize=FONT_SIZE)


def with_title(figure: Figure, title: str) -> Figure:
    figure.suptitle(textwrap.fill(title, 84), fontsize=FONT_SIZE + 1)
    return figure


def heatmap(
    axes: Axes,
    values: np.ndarray,
    *,
    limit: float | None,
    extent: tuple[float, float, float, float] | None = None,
) -> AxesImage:
    """An image of signed values, on a scale from -limit to limit or, without a limit, over the range of the values.

    `extent` is the left, right, bottom and top edge of the image in data coordinates.
    """
    vmin, vmax = (None, None) if limit is None else (-limit, limit)
    image = axes.imshow(
        values, cmap=VALUE_COLORMAP, aspect="auto", interpolation="nearest", vmin=vmin, vmax=vmax, extent=extent
    )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, nbins=6, steps=[1, 2, 5, 10]))
    return image


def colour_limit(values: np.ndarray) -> float:
    """The end of a colour scale: the largest value, or three standard deviations if that is less."""
    return min(float(np.abs(values).max()), 3 * float(np.sqrt((values**2).mean()))) or 1.0


def add_colorbar(figure: Figure, image: AxesImage, panels: Axes | Iterable[Axes], name: str) -> None:
    """Add the colour scale that the panels' images share; an arrow marks an end where values are clipped."""
    low, high = image.get_clim()
    panels = [panels] if isinstance(panels, Axes) else list(panels)
    images = chain.from_iterable(axes.images for axes in panels)
    shown = np.ma.concatenate([np.ma.asarray(other.get_array()).ravel() for other in images])
    clipped = {(True, True): "both", (True, False): "min", (False, True): "max"}
    extend = clipped.get((bool((shown < low).any()), bool((shown > high).any())), "neither")
    colorbar = figure.colorbar(image, ax=panels, pad=0.02, aspect=30, extend=extend)
    colorbar.set_label(name, fontsize=FONT_SIZE + 1)
    colorbar.ax.tick_params(labelsize=FONT_SIZE)
    colorbar.outline.set_visible(False)
