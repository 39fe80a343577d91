"""The explorer's page: figures of encodings, single values, translations, streams, comparisons.

    hf-posenc explorer [RUN] [--port N] [--allow-host NAME]

A session's choices are stored in its browser; readers do not affect each other. The page requests nothing from other
servers. Needs the extra "explorer".

Each request is filtered by host, origin, size and path, by its time and by the number of others, because gradio accepts
more than the page needs: uploads of any size, requests for other addresses, and every host name, by which a foreign
page could read data of this machine (DNS rebinding). And it waits for ever for the rest of a request.
"""

import asyncio
import gc
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, TypedDict, Unpack
from urllib.parse import urlsplit

# Set before gradio is imported, because gradio sends usage data.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"

import gradio as gr
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .html import CSS, NARROW_PIXELS, PNG_CACHE, PNG_ROUTE
from .runs import ExplorerRun
from .tabs import compare_tab, see_tab, step_tab, stream_tab, translate_tab

# The largest request of the page: translations of a few sentences by every system.
MAX_BODY_BYTES = 2**20
REQUEST_SECONDS = 15.0  # in which the head of a request must arrive, and then its body
MAX_OPEN_REQUESTS = 100  # that are not answered yet; each page that is open in a browser has one or two
# The parts of gradio's interface that the page and gradio's Python client use.
ALLOWED_ROUTES = re.compile(r"/gradio_api/(startup-events|info|heartbeat|queue|run|call|reset|cancel)(/|$)")
ANY_HOST = ("*",)
CLOSE = {"connection": "close"}
TOO_SLOW = f"A request must arrive within {REQUEST_SECONDS:.0f} seconds, but {{}} was all that came; send it again."


def hosts_from_environment(share: bool | None) -> tuple[str, ...]:
    """Host names of a public page: any in a Space, which is behind the Hub's proxy, and gradio's with sharing."""
    if "SPACE_ID" in os.environ:
        return ANY_HOST
    shared = os.environ.get("GRADIO_SHARE", "").lower() == "true" if share is None else share
    return ("*.gradio.live",) if shared else ()


@dataclass
class Guard:
    """Middleware that rejects requests which the page does not make.

    `hosts` are accepted host names, `*.name` for all subdomains of one and `*` for any. `localhost` and IP addresses
    are always accepted: no foreign page can have these.
    """

    app: ASGIApp
    hosts: Sequence[str] = ()
    num_open: int = field(default=0, init=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self.num_open += 1
            try:
                request = Request(scope, receive)
                if (refusal := self.refusal(request)) is None and request.method == "POST":
                    refusal, receive = await read_body(request, receive)
                await (refusal or self.app)(scope, receive, send)
            finally:
                self.num_open -= 1
        elif scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        else:  # the page has no websockets
            await send({"type": "websocket.close"})

    def refusal(self, request: Request) -> PlainTextResponse | None:
        """The response to a rejected request, None for an accepted one."""
        if self.num_open > MAX_OPEN_REQUESTS:
            return PlainTextResponse(
                f"The page answers up to {MAX_OPEN_REQUESTS} requests at once, but there are more; ask again later.",
                503,
                CLOSE,
            )
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if not (is_local(hostname_of(f"//{host}")) or self.is_allowed(hostname_of(f"//{host}"))):
            return PlainTextResponse(
                f"A page is asked for by a name of its own, but this one was asked for as {host[:100]!r}. Start it "
                "with --allow-host and that name, if it is yours.",
                400,
            )
        if origin is not None and origin.partition("://")[2] != host and not self.is_allowed(hostname_of(origin)):
            return PlainTextResponse(
                f"Only the page itself may ask for this, but {origin[:100]!r} did. Open the page, or start it with "
                "--allow-host and the name of what stands before it.",
                403,
            )
        path = request.scope["path"]
        if path.startswith("/gradio_api") and not ALLOWED_ROUTES.match(path):
            return PlainTextResponse("The page takes no files and fetches none; use its controls.", 404)
        return None

    def is_allowed(self, name: str) -> bool:
        return any(
            host in ("*", name) or (host.startswith("*.") and name.endswith(host[1:]))
            for host in map(str.lower, self.hosts)
        )


async def read_body(request: Request, receive: Receive) -> tuple[PlainTextResponse | None, Receive]:
    """The response to a body that is too large, or the function by which the app reads it.

    The body may arrive in chunks without a declared length.
    """
    body = b""
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    too_large = (
                        f"A request has at most {MAX_BODY_BYTES} bytes, but this one has more; send less at once."
                    )
                    return PlainTextResponse(too_large, 413), receive
    except (TimeoutError, ClientDisconnect):
        return PlainTextResponse(TOO_SLOW.format(f"{len(body)} bytes"), 408, CLOSE), receive
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def read() -> Message:
        return messages.pop() if messages else await receive()

    return None, read


def limit_waiting(server: Any) -> None:
    """Let a running server of uvicorn close a connection on which no whole head of a request arrives in time.

    uvicorn waits for ever, and calls no app before the head is whole. Its protocol class is in its config (0.54).
    """
    base: Any = server.config.http_protocol_class

    class TimedProtocol(base):
        """A connection. `waiting` is the timer of a head, `has_data` whether a part of it has arrived."""

        waiting: asyncio.TimerHandle | None = None
        has_data = False

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self.waiting = self.loop.call_later(REQUEST_SECONDS, self.close_waiting)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            is_answering = self.cycle is not None and not self.cycle.response_complete
            if is_answering and self.waiting is not None:
                self.waiting.cancel()
                self.waiting = None
            elif not is_answering and self.waiting is None:
                self.waiting = self.loop.call_later(REQUEST_SECONDS, self.close_waiting)
            self.has_data = not is_answering

        def connection_lost(self, exc: Exception | None) -> None:
            if self.waiting is not None:
                self.waiting.cancel()
            super().connection_lost(exc)

        def close_waiting(self) -> None:
            text = TOO_SLOW.format("a part of its head")
            if self.has_data and not self.transport.is_closing():
                head = f"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: {len(text)}\r\n\r\n"
                self.transport.write((head + text).encode())
            self.transport.close()

    server.config.http_protocol_class = TimedProtocol


def hostname_of(address: str) -> str:
    """The host in an address, in lower case and without port; empty without one."""
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""


def is_local(name: str) -> bool:
    """Whether it is `localhost` or an IP address, which no DNS entry can redirect."""
    try:
        ip_address(name)
    except ValueError:
        return name == "localhost"
    return True


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
    `share=True`. `Guard` has the other rules.
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
        gr.Markdown("# hf_posenc explorer\nWhat a position encoding adds, does, and changes in a translation.")
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
