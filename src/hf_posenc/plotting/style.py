"""The look of all figures: colours, type, axes, legends and scales; figures to be drawn later, and how one is saved.

Nothing here touches pyplot or its global state. The first colours are Okabe and Ito's, for colour-blind readers
(https://jfly.uni-koeln.de/color/); every colour has a contrast of 3:1 or more on white. Markers and line styles differ
too, so a figure reads in black and white. Values are drawn in cividis and amounts in blues, whose lightness only grows.
"""

import io
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator
from PIL import Image

from ..utils.atomic_io import atomic_save

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
)  # what a name adds to that of the same system in another training
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
LINE_STYLES = ("-", "--", "-.", ":")
LIMIT_COLOUR = "#444444"
LENGTH_AWARE_SUFFIX = " (given the target's length)"  # behind the name of a system whose loss compares with no other's
VALUE_COLORMAP, AMOUNT_COLORMAP = "cividis", "Blues"


@dataclass(frozen=True)
class LazyFigure:
    """A figure that is not drawn yet: what a reader calls it, what to look at in it, and the test set it is of, if any.

    Figures are large: each is drawn when its turn comes.
    """

    label: str
    look_for: str
    draw: Callable[[], Figure]
    test_set: str | None = None

    @property
    def name(self) -> str:
        """The name of its file, where its label is one."""
        return self.label if self.test_set is None else f"{self.label}-{self.test_set}"


def save_figure(figure: Figure, path: str | Path) -> None:
    """Writes a PNG or an SVG that is whole or not there at all: readers never see half a file.

    The same figure is the same bytes at every time.
    """
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
    """No text is mathematics, which matplotlib sees between two `$`, but the numbers it writes itself at an axis."""
    for text in figure.findobj(Text):
        if "$" in text.get_text() and not text.get_text().startswith(r"$\mathdefault"):
            text.set_parse_math(False)


def quantized_png(png: io.BytesIO) -> io.BytesIO:
    """A PNG of 256 colours at most, which look like all of them, in a third of the bytes."""
    quantized = io.BytesIO()
    image = Image.open(png).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    image.save(quantized, format="png", optimize=True)
    return quantized


def legend_label(
    system: str, max_lengths: Mapping[str, int | None], min_lengths: Mapping[str, int | None] | None = None
) -> str:
    """The system's name, with its training limit where the systems' limits differ, and so of where training began."""
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

    A known system has one colour in all figures, and so have its variants, whose line styles differ; a segmented one is
    dotted. Other systems take the colours that are left.
    """
    systems = list(systems)
    bases = list(dict.fromkeys(base_name(system) for system in systems))
    places = {base: SYSTEM_COLOURS[base] for base in bases if base in SYSTEM_COLOURS}
    free = [place for place in range(len(COLOURS)) if place not in places.values()] or list(range(len(COLOURS)))
    others = [base for base in bases if base not in places]
    places |= {base: free[index % len(free)] for index, base in enumerate(others)}
    styles, variants = {}, dict.fromkeys(bases, 0)
    for index, system in enumerate(systems):
        base = base_name(system)
        shift = index // len(MARKERS) + variants[base]
        line_style = ":" if "split" in system or "segmented" in system else LINE_STYLES[shift % len(LINE_STYLES)]
        styles[system] = (COLOURS[places[base]], MARKERS[index % len(MARKERS)], line_style)
        variants[base] += 1
    return styles


def label_lines(axes: Axes, labels: Mapping[str, tuple[float, str]]) -> None:
    """Names at the right of the axes, each in its colour and beside the last point of its line, without overlap.

    `labels[name]` is the height of that point and the colour. Limits of the axes must be final.
    """
    low, high = axes.get_ylim()
    height_in_points = axes.figure.bbox.height / axes.figure.dpi * 72 * 0.55  # of the axes, once the layout is made
    gap = 1.25 * FONT_SIZE / height_in_points
    heights: list[float] = []
    ordered = sorted(labels.items(), key=lambda item: item[1][0])
    for _, (y, _) in ordered:
        wanted = (y - low) / (high - low)
        heights.append(max(wanted, heights[-1] + gap) if heights else wanted)
    excess = max(0.0, heights[-1] - 1.0) if heights else 0.0
    for (name, (_, colour)), height in zip(ordered, heights, strict=True):
        axes.annotate(
            name, (1.01, height - excess), xycoords="axes fraction", color=colour, fontsize=FONT_SIZE, va="center",
            annotation_clip=False,
        )  # fmt: skip


def add_legend(figure: Figure, handles: Iterable[Any], title: str | None = None) -> None:
    """Each label once, below the axes; the title stands above them."""
    by_label = {handle.get_label(): handle for handle in handles if not handle.get_label().startswith("_")}
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
    """How many labels stand side by side in a legend."""
    return max(1, min(3, 90 // (max(map(len, labels), default=0) + 8)))


def height_with_legend(height: float, labels: Iterable[str]) -> float:
    """The inches of a figure that has room for two lines of legend, with room for as many as these labels take."""
    labels = list(labels)
    return height + 0.17 * max(0, math.ceil(len(labels) / legend_columns(labels)) - 2)


def style_axes(axes: Axes) -> None:
    """The house's look: small type, a light grid behind, no box."""
    axes.tick_params(labelsize=FONT_SIZE)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def or_nan(value: float | None) -> float:
    """A value to draw, which leaves a gap where there is none."""
    return math.nan if value is None else value


def label_axes(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x, fontsize=FONT_SIZE + 1)
    axes.set_ylabel(y, fontsize=FONT_SIZE + 1)
    axes.tick_params(labelsize=FONT_SIZE)


def with_title(figure: Figure, title: str) -> Figure:
    figure.suptitle(title, fontsize=FONT_SIZE + 1)
    return figure


def heatmap(axes: Axes, values: np.ndarray, *, limit: float | None, **options: Any) -> AxesImage:
    """An image of signed values on a scale from -limit to limit, or of whatever values there are without one."""
    scale = {} if limit is None else {"vmin": -limit, "vmax": limit}
    options = {"cmap": VALUE_COLORMAP, "aspect": "auto", "interpolation": "nearest"} | scale | options
    image = axes.imshow(values, **options)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, nbins=6, steps=[1, 2, 5, 10]))
    return image


def colour_limit(values: np.ndarray) -> float:
    """Where a scale of these values ends: at the largest, or at three deviations, lest one value pales all others."""
    return min(float(np.abs(values).max()), 3 * float(np.sqrt((values**2).mean()))) or 1.0


def add_colorbar(figure: Figure, image: AxesImage, panels: Any, name: str) -> None:
    """The scale of one image, which all images of the panels share, with an arrow where it leaves values out."""
    low, high = image.get_clim()
    shown = np.ma.concatenate(
        [image_shown.get_array().ravel() for axes in np.atleast_1d(panels) for image_shown in axes.images]
    )
    clipped = {(True, True): "both", (True, False): "min", (False, True): "max"}
    extend = clipped.get((bool((shown < low).any()), bool((shown > high).any())), "neither")
    colorbar = figure.colorbar(image, ax=panels, pad=0.02, aspect=30, extend=extend)
    colorbar.set_label(name, fontsize=FONT_SIZE + 1)
    colorbar.ax.tick_params(labelsize=FONT_SIZE)
    colorbar.outline.set_visible(False)
