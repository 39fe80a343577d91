"""HTML of the explorer, with all text escaped; figures as PNG, and the cache that has them.

A page receives a figure's address, not its bytes, because gradio 6 becomes slower with every large text.
"""

import hashlib
import io
import textwrap
from collections import OrderedDict
from html import escape
from threading import Lock

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from ..figures.style import FONT_SIZE, disable_mathtext
from ..results.tables import Table
from .runs import TranslationResult

# On a page below this width in pixels, figures have this width in inches, and titles this many characters a line.
NARROW_PIXELS, NARROW_INCHES, NARROW_TITLE_CHARS = 640, 3.9, 48
CSS = """
/* all of it, or a tab with little in it would be narrow */
.gradio-container { width: 100%; max-width: 72rem !important; margin: auto; }
.gradio-container .main { max-width: none !important; padding-left: clamp(.5rem, 2.5vw, 2rem) !important;
  padding-right: clamp(.5rem, 2.5vw, 2rem) !important; }
/* gradio paints a chosen one white while the mouse is over it */
.gradio-container input[type=radio]:checked { background-image: var(--radio-circle) !important;
  background-color: var(--checkbox-background-color-selected) !important; }
/* below each other on a narrow page */
.columns { display: flex; flex-wrap: wrap; gap: 1.5rem; }
.columns > div { flex: 1 1 18rem; min-width: 0; }
figure.picture { margin: 0; }
figure.picture img { width: 100%; max-width: 52rem; height: auto; background: white; border-radius: 6px; }
figure.picture figcaption, .note { margin-top: .5rem; max-width: 52rem; line-height: 1.45; }
.facts { font-family: ui-monospace, monospace; font-size: .85rem; margin: 0 0 .5rem 0; overflow-wrap: anywhere; }
.problem { border: 1px solid #b45309; border-left-width: 6px; border-radius: 6px; padding: .7rem .9rem;
  overflow-wrap: anywhere; }
.formula { white-space: pre-wrap; overflow-wrap: anywhere; font-family: ui-monospace, monospace; padding: .7rem .9rem;
  border-left: 4px solid var(--color-accent); background: var(--background-fill-secondary); }
.number { font-size: 2rem; font-family: ui-monospace, monospace; margin: .3rem 0; }
.scroll { overflow-x: auto; contain: inline-size; width: 100%; }
.scroll table { border-collapse: collapse; font-size: .85rem; }
.scroll table, .scroll tr { border: 0 !important; }
.scroll th, .scroll td { padding: .35rem .6rem; border: 0; border-bottom: 1px solid var(--border-color-primary);
  text-align: right; vertical-align: top; }
.scroll td span { display: block; white-space: nowrap; }
.scroll th:first-child, .scroll td:first-child { text-align: left; position: sticky; left: 0;
  background: var(--body-background-fill); }
.translation { border-left: 4px solid var(--border-color-primary); padding: .2rem .8rem; margin: .6rem 0;
  overflow-wrap: anywhere; }
.translation h4 { margin: 0; font-size: .9rem; }
.translation p { margin: .2rem 0; font-size: 1.05rem; }
.stream p { line-height: 2; margin: .2rem 0 .8rem 0; font-size: 1.05rem; overflow-wrap: anywhere; }
.stream h4 { margin: 0; font-size: .9rem; }
.stream ul { list-style: none; margin: 0; padding: 0; font-size: .9rem; line-height: 1.9; }
.stream .token { white-space: pre-wrap; padding: .15rem 0; border-bottom: 3px solid transparent; }
.stream .window { background: #1d4ed8; color: white; border-color: #1d4ed8; }
.stream .reach { border-color: #1d4ed8; }
.stream .unread { opacity: .62; border-bottom: 3px dotted; }
@media (max-width: 640px) {
  /* gradio puts its container before what stands here, so it must not be named again */
  .html-container { padding-left: .2rem !important; padding-right: .2rem !important; }
  .formula { font-size: .8rem; }
}
"""


def error_html(text: str) -> str:
    return f'<div class="problem" role="alert">{escape(text)}</div>'


def note_html(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'


def translation_html(system: str, result: TranslationResult) -> str:
    """One system's translation, or its error message."""
    if result.problem:
        return f'<div class="translation"><h4>{escape(system)}</h4>{error_html(result.problem)}</div>'
    truncated = ", cut at its length limit" if result.truncated else ""
    head = f"{escape(system)} <small>({result.source_tokens} subwords read{truncated})</small>"
    return f'<div class="translation"><h4>{head}</h4><p>{escape(result.text) or "(nothing)"}</p></div>'


def table_html(table: Table) -> str:
    """A narrow table: the scores of a cell are on separate lines."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in table.headers)
    body = "".join(f"<tr>{''.join(map(cell_html, row))}</tr>" for row in table.rows)
    rows = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    box = '<div class="scroll" tabindex="0" role="region" aria-label="scores">'
    return f"{box}<table>{rows}</table></div>{note_html(table.legend)}"


def cell_html(cell: str) -> str:
    return f"<td>{' '.join(f'<span>{escape(score)}</span>' for score in cell.split(' / '))}</td>"


def is_narrow(viewport: object) -> bool:
    """Whether the page, `viewport` pixels wide by its browser's script, is too narrow for figures at full size."""
    return isinstance(viewport, int | float) and 0 < viewport < NARROW_PIXELS


def figure_html(figure: Figure, caption: str, name: str, viewport: object) -> str:
    """A figure with its caption; on a narrow page the figure is smaller, and its text is not."""
    if is_narrow(viewport):
        figure.set_size_inches(NARROW_INCHES, max(0.8 * float(figure.get_figheight()), 3.0))
        if title := figure.get_suptitle():
            lines = (textwrap.fill(line, NARROW_TITLE_CHARS) for line in title.splitlines())
            figure.suptitle("\n".join(lines), fontsize=FONT_SIZE)
    text = f"<figcaption>{escape(caption)}</figcaption>"
    return f'<figure class="picture"><img alt="{escape(name)}" src="{cache_png(render_png(figure))}">{text}</figure>'


DPI = 110
PNG_ROUTE = "pictures"
# matplotlib is not thread-safe.
RENDER_LOCK = Lock()
# The last rendered figures of all readers.
MAX_CACHED_BYTES = 2**25
PNG_CACHE: OrderedDict[str, bytes] = OrderedDict()


def render_png(figure: Figure) -> bytes:
    with RENDER_LOCK:
        disable_mathtext(figure)
        figure.set_dpi(DPI)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        pixels = np.asarray(canvas.buffer_rgba())[..., :3].copy()
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
