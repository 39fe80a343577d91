"""Request filter of the explorer: host, origin, size and path of each request.

gradio accepts more than the page needs: uploads of any size, requests for other addresses, and every host name, by
which a foreign page could read data of this machine (DNS rebinding).
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# The largest request of the page: translations of a few sentences by every system.
MAX_BODY_BYTES = 2**20
# The parts of gradio's interface that the page and gradio's Python client use.
ALLOWED_ROUTES = re.compile(r"/gradio_api/(startup-events|info|heartbeat|queue|run|call|reset|cancel)(/|$)")
ANY_HOST = ("*",)


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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            request = Request(scope, receive)
            if (refusal := self.refusal(request)) is None and request.method == "POST":
                refusal, receive = await read_body(request, receive)
            await (refusal or self.app)(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        else:  # the page has no websockets
            await send({"type": "websocket.close"})

    def refusal(self, request: Request) -> PlainTextResponse | None:
        """The response to a rejected request, None for an accepted one."""
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
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            too_large = f"A request has at most {MAX_BODY_BYTES} bytes, but this one has more; send less at once."
            return PlainTextResponse(too_large, 413), receive
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def read() -> Message:
        return messages.pop() if messages else await receive()

    return None, read


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
