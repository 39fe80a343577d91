"""The explorer's page answers under its own host names, and takes no files."""

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("gradio")

import httpx
from test_explorer import served


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a page of a run without models, which allows one more name."""
    yield from served(str(tmp_path_factory.mktemp("empty")), "--allow-host", "Desk")


@pytest.mark.full
def test_a_name_that_is_not_the_pages_is_refused(server):
    refused = ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "192.168.1.7", "[")
    for host in ("localhost", "localhost:9", "127.0.0.1:9", "[::1]:9", "desk:9"):
        assert httpx.get(f"{server}config", headers={"host": host}).status_code == 200, host
    for host in refused:
        assert httpx.get(f"{server}config", headers={"host": host}).status_code == 400, host


@pytest.mark.full
def test_another_page_may_not_read_the_answers(server):
    for origin, may_read in ((server.rstrip("/"), True), ("http://evil.example", False), ("null", False)):
        answer = httpx.get(f"{server}config", headers={"origin": origin})
        assert ("access-control-allow-origin" in answer.headers) == may_read, origin


@pytest.mark.full
def test_the_page_takes_no_files(server):
    refused = httpx.post(f"{server}gradio_api/upload", files={"files": b"1"})
    assert refused.status_code == 413
    for path in ("/etc/passwd", str(Path(__file__).resolve())):
        assert httpx.get(f"{server}gradio_api/file={path}").status_code in (403, 404)


@pytest.mark.full
def test_a_page_that_others_should_see_has_the_names_that_it_is_given_there(monkeypatch):
    from hf_posenc.lab.explorer.page import LOCAL_HOSTS, allowed_hosts

    for name in ("SPACE_ID", "GRADIO_SHARE", "GRADIO_SERVER_NAME"):
        monkeypatch.delenv(name, raising=False)
    assert set(allowed_hosts([], None)) == set(allowed_hosts([], False)) == set(LOCAL_HOSTS)
    assert set(allowed_hosts(["desk"], True)) == {*LOCAL_HOSTS, "desk", "*.gradio.live"}
    monkeypatch.setenv("GRADIO_SERVER_NAME", "192.168.1.7")
    assert set(allowed_hosts([], None)) == {*LOCAL_HOSTS, "192.168.1.7"}
    monkeypatch.setenv("SPACE_ID", "someone/seeing-position")
    assert allowed_hosts([], None) == ["*"]
