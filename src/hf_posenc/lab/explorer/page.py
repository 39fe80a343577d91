"""The explorer's page: figures of encodings, single values, translations, streams, comparisons.

    hf-posenc explorer [RUN] [--port N] [--allow-host NAME]

A session's choices are stored in its browser; readers do not affect each other. The page requests nothing from other
servers. Needs the extra "explorer".

The page answers only to host names of its own. Without this rule, a foreign page could read it by a name that leads to
this machine (DNS rebinding).
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
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .html import CSS, NARROW_PIXELS, PNG_CACHE, PNG_ROUTE
from .runs import ExplorerRun
from .tabs import length_tab, see_tab, step_tab, stream_tab, translate_tab

HEADER = """# hf_posenc explorer
hf_posenc trains Transformers with a position encoding of your choice, and measures how far beyond their training length
they work. In its repository, `docs/howto/figures.md` describes this page, and `docs/explain/gallery.md` the figures.
"""
LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")


def allowed_hosts(hosts: Sequence[str], share: bool | None) -> list[str]:
    """Host names of the page: of this machine, those given, and gradio's with sharing.

    In a Space, which is behind the Hub's proxy, every name is allowed. `*.name` is for all subdomains of one.
    """
    if "SPACE_ID" in os.environ:
        return ["*"]
    shared = os.environ.get("GRADIO_SHARE", "").lower() == "true" if share is None else share
    # gradio asks its own page under the name of its server.
    server = os.environ.get("GRADIO_SERVER_NAME", LOCAL_HOSTS[0])
    return [*LOCAL_HOSTS, server, *hosts, *(["*.gradio.live"] if shared else [])]


# Answers that are computed at once. Each thread keeps the memory of its largest one.
MAX_THREADS = 4
MAX_QUEUE = 20  # translations that wait for others


class ServerOptions(TypedDict, total=False):
    """Options of gradio's `launch` that a caller may give."""

    prevent_thread_lock: bool
    quiet: bool
    share: bool


def launch(
    run: ExplorerRun, *, port: int | None = None, hosts: Sequence[str] = (), **options: Unpack[ServerOptions]
) -> tuple[Starlette, str, str]:
    """Serve the page until it is stopped; `options` are gradio's. `hosts` are allowed host names of this machine."""
    theme = gr.themes.Base(
        primary_hue="blue", font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "Consolas", "monospace"]
    )
    names = allowed_hosts(hosts, options.get("share"))
    routes = {
        "routes": [Route(f"/{PNG_ROUTE}/{{key}}.png", serve_png)],
        "middleware": [Middleware(TrustedHostMiddleware, allowed_hosts=names, www_redirect=False)],
    }
    blocks = build_page(run).queue(max_size=MAX_QUEUE)
    gc.freeze()  # else garbage collection of all imported objects delays some figures
    return blocks.launch(
        server_port=port, app_kwargs=routes, theme=theme, css=CSS, ssr_mode=False, footer_links=[],
        max_threads=MAX_THREADS, max_file_size=0, **options,
    )  # fmt: skip


async def serve_png(request: Request) -> Response:
    if (png := PNG_CACHE.get(request.path_params["key"])) is None:
        return Response("This picture is gone; ask for it again by touching a control.", status_code=404)
    return Response(png, media_type="image/png", headers={"Cache-Control": "private, max-age=86400, immutable"})


def build_page(run: ExplorerRun) -> gr.Blocks:
    """The page with its five tabs. It opens with the run's scores, or without any with the figures of an encoding."""
    with gr.Blocks(title="hf_posenc explorer", analytics_enabled=False) as blocks:
        gr.Markdown(HEADER)
        viewport = gr.Number(value=NARROW_PIXELS, visible=False)
        with gr.Tabs(selected="length" if run.has_results else "see"):
            with gr.Tab("Length", id="length"):
                length_first = length_tab(run, viewport)
            with gr.Tab("See", id="see"):
                see_first = see_tab(run, viewport)
            with gr.Tab("Step"):
                step_first = step_tab(run, viewport)
            with gr.Tab("Translate") as translate:
                translate_first, attention_first = translate_tab(run, viewport)
            with gr.Tab("Stream") as stream:
                stream_first = stream_tab(run)
        opened = blocks.load(None, None, viewport, js="() => window.innerWidth")
        opened.then(**length_first).then(**see_first).then(**step_first)
        translate.select(**translate_first).then(**attention_first)
        stream.select(**stream_first)
    return blocks
