"""The explorer's page: figures of encodings, single values, translations, streams, comparisons.

    python -m hf_posenc explorer [RUN] [--port N] [--allow-host NAME]

A session's choices are stored in its browser; readers do not affect each other. The page requests nothing from other
servers. Needs the extra "explorer".
"""

import gc
import os
from collections.abc import Sequence
from typing import TypedDict, Unpack

# Set before gradio is imported, because gradio sends usage data.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"

import gradio as gr
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .guard import Guard, hosts_from_environment, limit_waiting
from .html import CSS, NARROW_PIXELS
from .render import PNG_CACHE, PNG_ROUTE
from .runs import ExplorerRun
from .tabs_encoding import see_tab, step_tab
from .tabs_run import compare_tab, translate_tab
from .tabs_stream import stream_tab

# Answers that are computed at once. Each thread keeps the memory of its largest one.
MAX_THREADS = 4


class ServerOptions(TypedDict, total=False):
    """Options of gradio's `launch` that a caller may give."""

    prevent_thread_lock: bool
    quiet: bool
    share: bool


def launch(
    run: ExplorerRun, *, port: int | None = None, hosts: Sequence[str] = (), **options: Unpack[ServerOptions]
) -> tuple[Starlette, str, str]:
    """Serve the page until it is stopped; `options` are gradio's.

    It accepts requests for `localhost`, IP addresses and `hosts`, and for the public names in a Space or with
    `share=True`. guard.py has the other rules.
    """
    theme = gr.themes.Base(
        primary_hue="blue", font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "Consolas", "monospace"]
    )
    guard = Middleware(Guard, hosts=[*hosts, *hosts_from_environment(options.get("share"))])
    routes = {"routes": [Route(f"/{PNG_ROUTE}/{{key}}.png", serve_png)], "middleware": [guard]}
    blocks = build_page(run)
    gc.freeze()  # else garbage collection of all imported objects delays some figures
    launched = blocks.launch(
        server_port=port, app_kwargs=routes, theme=theme, css=CSS, ssr_mode=False, footer_links=[],
        max_threads=MAX_THREADS, **options | {"prevent_thread_lock": True},
    )  # fmt: skip
    limit_waiting(blocks.server)
    if not options.get("prevent_thread_lock"):
        blocks.block_thread()
    return launched


async def serve_png(request: Request) -> Response:
    if (png := PNG_CACHE.get(request.path_params["key"])) is None:
        return Response("This picture is gone; ask for it again by touching a control.", status_code=404)
    return Response(png, media_type="image/png", headers={"Cache-Control": "private, max-age=86400, immutable"})


def build_page(run: ExplorerRun) -> gr.Blocks:
    """The page with its five tabs."""
    with gr.Blocks(title="hf_posenc explorer", analytics_enabled=False) as blocks:
        gr.Markdown("# Seeing position\nWhat a position encoding adds, does, and changes in a translation.")
        viewport = gr.Number(value=NARROW_PIXELS, visible=False)
        with gr.Tab("See"):
            see_first = see_tab(run, viewport)
        with gr.Tab("Step"):
            step_first = step_tab(run, viewport)
        with gr.Tab("Translate"):
            translate_tab(run, viewport)
        with gr.Tab("Stream") as stream:
            stream_first = stream_tab(run)
        with gr.Tab("Compare") as compare:
            compare_first = compare_tab(run, viewport)
        blocks.load(None, None, viewport, js="() => window.innerWidth").then(**see_first).then(**step_first)
        stream.select(**stream_first)
        compare.select(**compare_first)
    return blocks
