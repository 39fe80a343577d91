"""Figures as PNG for the screen, rendered for speed, and the cache from which the page loads them.

matplotlib takes a third of its time for the layout: positions of axes at which no text is clipped. A reader who moves a
slider requests similar figures. Therefore a layout is reused for every figure with the same size, panels, axis labels
and legend, and with numbers of the same lengths at its axes.

A page receives a figure's address, not its bytes, because gradio 6 becomes slower with every large text.
"""

import hashlib
import io
from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.transforms import Bbox
from PIL import Image

from ..figures.style import disable_mathtext

DPI = 110
PNG_ROUTE = "pictures"
MAX_LAYOUTS = 200
# Space left, in inches, for a number that is longer in the next figure.
LAYOUT_PADDING = 0.08
# matplotlib is not thread-safe.
RENDER_LOCK = Lock()
Layout = tuple[list[Bbox], list[tuple[float, float]]]
# The last rendered figures of all readers.
MAX_CACHED_BYTES = 2**25
PNG_CACHE: OrderedDict[str, bytes] = OrderedDict()
LAYOUT_CACHE: OrderedDict[Hashable, Layout] = OrderedDict()


def render_png(figure: Figure, layouts: OrderedDict[Hashable, Layout] = LAYOUT_CACHE) -> bytes:
    with RENDER_LOCK:
        disable_mathtext(figure)
        figure.set_dpi(DPI)
        canvas = FigureCanvasAgg(figure)
        if (layout := layouts.get(key := layout_key(figure))) is None:
            if isinstance(engine := figure.get_layout_engine(), ConstrainedLayoutEngine):
                engine.set(w_pad=LAYOUT_PADDING, h_pad=LAYOUT_PADDING)
            canvas.draw()
            boxes = [axes.get_position(original=True) for axes in figure.axes]
            layouts[key] = boxes, [text.get_position() for text in figure.texts]
            if len(layouts) > MAX_LAYOUTS:
                layouts.popitem(last=False)
        else:
            figure.set_layout_engine("none")
            for axes, box in zip(figure.axes, layout[0], strict=True):
                axes.set_position(box)
            for text, position in zip(figure.texts, layout[1], strict=True):
                text.set_position(position)
            canvas.draw()
        pixels = np.ascontiguousarray(np.asarray(canvas.buffer_rgba())[..., :3])
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png", compress_level=1)
    return buffer.getvalue()


def cache_png(png_bytes: bytes) -> str:
    """The relative address of a figure, valid while it is in the cache."""
    key = hashlib.sha256(png_bytes).hexdigest()
    with RENDER_LOCK:
        PNG_CACHE[key] = png_bytes
        PNG_CACHE.move_to_end(key)
        while sum(map(len, PNG_CACHE.values())) > MAX_CACHED_BYTES:
            PNG_CACHE.popitem(last=False)
    return f"{PNG_ROUTE}/{key}.png"


def layout_key(figure: Figure) -> Hashable:
    """The key of a figure's layout."""
    texts = tuple(text.get_text() for legend in figure.legends for text in legend.get_texts())
    lines = [text.get_text().count("\n") for text in figure.texts]
    return (*figure.get_size_inches(), *lines, texts, *map(axes_layout_key, figure.axes))


def axes_layout_key(axes: Axes) -> Hashable:
    """The texts of axes, and the lengths of the numbers at them."""
    return (
        axes.get_xlabel(),
        axes.get_ylabel(),
        bool(axes.get_title()),
        tick_label_lengths(axes.xaxis),
        tick_label_lengths(axes.yaxis),
    )


def tick_label_lengths(axis: Axis) -> tuple[int, ...]:
    """The lengths of an axis's longest number and of its first and last number, in characters."""
    low, high = sorted(axis.get_view_interval())
    visible = [tick for tick in axis.get_majorticklocs() if low <= tick <= high]
    numbers = axis.get_major_formatter().format_ticks(visible)
    return max(map(len, numbers), default=0), len(f"{low:.1g}"), len(f"{high:.1g}")
