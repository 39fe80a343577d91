"""Figures as PNG for the screen, where speed counts more than size, and where a page finds them.

About a third of the time that matplotlib draws, it looks for the layout: where the axes must stand so that no text is
cut. A reader who moves a slider asks for nearly the same figure again and again, so a layout that was found is used for
every figure with the same size, panels, axis labels and legend, and with numbers of the same lengths at its axes.

A page gets a picture's address, not its bytes: gradio 6 becomes slower with every large text that it is given.
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

from ..pictures.style import as_written

DPI = 110
FOLDER = "pictures"
MOST_LAYOUTS = 200
# Space left, in inches, for a number that is longer in the next figure.
SLACK = 0.08
# matplotlib does not promise that two threads can draw.
DRAWING = Lock()
Layout = tuple[list[Bbox], list[tuple[float, float]]]
# The pictures last drawn, for all readers together.
MOST_PICTURES = 500
PICTURES: OrderedDict[str, bytes] = OrderedDict()
LAYOUTS: OrderedDict[Hashable, Layout] = OrderedDict()


def png(figure: Figure) -> bytes:
    with DRAWING:
        as_written(figure)
        figure.set_dpi(DPI)
        canvas = FigureCanvasAgg(figure)
        if (layout := LAYOUTS.get(like := likeness(figure))) is None:
            if isinstance(engine := figure.get_layout_engine(), ConstrainedLayoutEngine):
                engine.set(w_pad=SLACK, h_pad=SLACK)
            canvas.draw()
            boxes = [axes.get_position(original=True) for axes in figure.axes]
            LAYOUTS[like] = boxes, [text.get_position() for text in figure.texts]
            if len(LAYOUTS) > MOST_LAYOUTS:
                LAYOUTS.popitem(last=False)
        else:
            figure.set_layout_engine("none")
            for axes, box in zip(figure.axes, layout[0], strict=True):
                axes.set_position(box)
            for text, place in zip(figure.texts, layout[1], strict=True):
                text.set_position(place)
            canvas.draw()
        pixels = np.ascontiguousarray(np.asarray(canvas.buffer_rgba())[..., :3])
    packed = io.BytesIO()
    Image.fromarray(pixels).save(packed, "png", compress_level=1)
    return packed.getvalue()


def address(picture: bytes) -> str:
    """Where a page, which lies beside it, finds a picture as long as it is one of the last."""
    key = hashlib.sha256(picture).hexdigest()
    with DRAWING:
        PICTURES[key] = picture
        PICTURES.move_to_end(key)
        if len(PICTURES) > MOST_PICTURES:
            PICTURES.popitem(last=False)
    return f"{FOLDER}/{key}.png"


def likeness(figure: Figure) -> Hashable:
    """What figures have in common that have the same layout."""
    texts = tuple(text.get_text() for legend in figure.legends for text in legend.get_texts())
    lines = [text.get_text().count("\n") for text in figure.texts]
    return (*figure.get_size_inches(), *lines, texts, *map(panel, figure.axes))


def panel(axes: Axes) -> Hashable:
    """Its texts, and how long the numbers at its axes are."""
    return axes.get_xlabel(), axes.get_ylabel(), bool(axes.get_title()), longest(axes.xaxis), longest(axes.yaxis)


def longest(axis: Axis) -> tuple[int, ...]:
    """How many letters its longest number has, and each of its ends."""
    low, high = sorted(axis.get_view_interval())
    seen = [place for place in axis.get_majorticklocs() if low <= place <= high]
    numbers = axis.get_major_formatter().format_ticks(seen)
    return max(map(len, numbers), default=0), len(f"{low:.1g}"), len(f"{high:.1g}")
