"""The explorer answers requests of its own page only, within limits of size."""

import importlib
import socket
import time
from threading import Thread
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx")

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

PAGE = "http://localhost:7860"


def page_module() -> Any:
    """The module of the page. It is imported by the first test, not at collection, because gradio takes seconds."""
    return importlib.import_module("hf_posenc.lab.explorer.page")


async def answer(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"{len(await request.body())} bytes")


def client(*hosts: str) -> TestClient:
    app = Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "HEAD", "POST"])])
    return TestClient(page_module().Guard(app, hosts=hosts), base_url=PAGE)


@pytest.mark.parametrize("host", ["localhost:7860", "localhost", "127.0.0.1:7860", "[::1]:7860", "192.168.1.7:80"])
def test_it_answers_where_no_name_can_be_given_to_another_machine(host):
    assert client().get("/config", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:7860", "localhost.evil.example", "localhost.", "127.0.0.1.evil.example", "["]
)
def test_a_name_that_is_not_the_pages_is_refused(host):
    refused = client("desk").get("/config", headers={"host": host})
    assert refused.status_code == 400
    assert "--allow-host" in refused.text and host in refused.text


@pytest.mark.parametrize(
    ("hosts", "host"), [(["Desk"], "desk:7860"), (["*.gradio.live"], "a1.gradio.live"), (["*"], "x.y")]
)
def test_a_name_that_is_allowed_is_answered(hosts, host):
    assert client(*hosts).get("/config", headers={"host": host}).status_code == 200
    assert client().get("/config", headers={"host": host}).status_code == 400


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://evil.example:7860", "http://localhost:9", "http://["]
)
def test_requests_from_other_pages_are_refused(origin, method):
    refused = client().request(method, "/gradio_api/run/predict", headers={"origin": origin})
    assert refused.status_code == 403 and origin in refused.text


def test_the_page_itself_may_ask_and_what_stands_before_it_too():
    assert client().post("/gradio_api/run/predict", headers={"origin": PAGE}).status_code == 200
    assert client("desk").post("/gradio_api/run/predict", headers={"origin": "https://desk"}).status_code == 200


def test_the_page_takes_no_files_and_fetches_none():
    paths = [
        "upload", "upload/", "upload?upload_id=1", "file=/etc/passwd", "file=http://evil.example/x",
        "proxy=http://evil.example", "process_recording", "component_server", "vibe-edit", "stream/1", "queued", "runs",
    ]  # fmt: skip
    answers = {
        (method, path): client().request(method, f"/gradio_api/{path}").status_code
        for path in paths
        for method in ("GET", "POST")
    }
    assert {request: status for request, status in answers.items() if status != 404} == {}


def test_what_the_page_uses_is_answered():
    paths = ["run/predict", "queue/join", "call/see", "reset", "cancel"]
    answers = {path: client().post(f"/gradio_api/{path}", content=b"12345").text for path in paths}
    assert answers == dict.fromkeys(paths, "5 bytes")


def test_a_request_has_a_limit_whether_its_length_is_said_or_not():
    limit = page_module().MAX_BODY_BYTES
    pieces = [b"0" * 2**16] * (limit // 2**16)
    for content in (b"".join(pieces), iter(pieces)):
        assert client().post("/gradio_api/run/predict", content=content).text == f"{limit} bytes"
    for content in (b"".join(pieces) + b"1", iter([*pieces, b"1"])):
        refused = client().post("/gradio_api/run/predict", content=content)
        assert refused.status_code == 413 and "send less" in refused.text


def test_more_requests_than_the_page_answers_at_once_are_refused(monkeypatch):
    monkeypatch.setattr(page_module(), "MAX_OPEN_REQUESTS", 1)
    page = page_module().Guard(nested := Nested())
    nested.page = page
    assert TestClient(page, base_url=PAGE).get("/").text == "503"
    assert page.num_open == 0
    assert TestClient(page, base_url=PAGE).get("/").status_code == 200


class Nested:
    """An app that sends a request to its page before it answers, with that one's status."""

    page: Any

    async def __call__(self, scope, receive, send):
        messages = []

        async def collect(message):
            messages.append(message)

        await self.page(dict(scope), receive, collect)
        await PlainTextResponse(str(messages[0]["status"]))(scope, receive, send)


@pytest.fixture
def server(monkeypatch):
    """A server of the app with very little patience; it ends with the test."""
    uvicorn = pytest.importorskip("uvicorn")
    monkeypatch.setattr(page_module(), "REQUEST_SECONDS", 0.05)
    app = page_module().Guard(Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])]))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    page_module().limit_waiting(server)
    yield server
    server.should_exit = True
    thread.join()


WHOLE = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"


HALF_A_BODY = WHOLE.replace(b"GET", b"POST")[:-2] + b"content-length: 9\r\n\r\nabc"


@pytest.mark.parametrize("before", [b"", WHOLE], ids=["first", "second"])
@pytest.mark.parametrize("sent", [WHOLE[:20], WHOLE[:-2], HALF_A_BODY], ids=["line", "head", "body"])
def test_a_request_that_does_not_arrive_in_time_ends_with_the_reason(server, before, sent):
    with socket.create_connection(server.servers[0].sockets[0].getsockname()) as connection:
        connection.sendall(before)
        assert not before or b"200 OK" in connection.recv(2**16)
        connection.sendall(sent)
        answered = b"".join(iter(lambda: connection.recv(2**16), b""))
    assert b"HTTP/1.1 408 " in answered and b"must arrive within" in answered


def test_a_connection_without_a_request_is_closed_and_a_whole_one_is_answered(server):
    address = server.servers[0].sockets[0].getsockname()
    with socket.create_connection(address) as connection:
        assert connection.recv(2**16) == b""
    with socket.create_connection(address) as connection:
        connection.sendall(WHOLE)
        assert b"200 OK" in connection.recv(2**16)


def test_a_page_that_others_should_see_has_the_names_that_it_is_given_there(monkeypatch):
    hosts_from_environment = page_module().hosts_from_environment
    monkeypatch.delenv("SPACE_ID", raising=False)
    monkeypatch.delenv("GRADIO_SHARE", raising=False)
    assert hosts_from_environment(None) == hosts_from_environment(False) == ()
    assert hosts_from_environment(True) == ("*.gradio.live",)
    monkeypatch.setenv("GRADIO_SHARE", "True")
    assert hosts_from_environment(None) == ("*.gradio.live",)
    monkeypatch.setenv("SPACE_ID", "someone/seeing-position")
    assert hosts_from_environment(None) == ("*",)
