"""A stand-in for the Hub on this machine: what huggingface_hub asks of it to push and to load, and nothing more.

A repository is a list of commits, each of them all files at that time; branches and tags are names of commits. Files
are always sent and answered whole (`uploadMode: "regular"`, no Xet), as a test's are small.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import huggingface_hub
import pytest
import transformers
from huggingface_hub import constants
from huggingface_hub.utils import close_session

USER, TOKEN = "someone", "hf_of_someone"


@dataclass
class Repository:
    """`commits`: the files of each, by its id, in order; `revisions`: which commit a branch or a tag is."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    revisions: dict[str, str] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    def commit(self, revision: str, files: dict[str, bytes], message: str) -> str:
        number = hashlib.sha1(f"{len(self.commits)} {message}".encode()).hexdigest()
        self.commits[number] = files
        self.revisions[revision] = number
        self.messages.append(message)
        return number

    def files(self, revision: str = "main") -> dict[str, bytes]:
        return self.commits[self.revisions.get(revision, revision)]


class Hub(ThreadingHTTPServer):
    """The server. `asked` has the body of each request by its path; with a `refusal`, no card's metadata are valid."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.endpoint = f"http://127.0.0.1:{self.server_port}"
        self.repositories: dict[str, Repository] = {}
        self.asked: dict[str, Any] = {}
        self.refusal: str | None = None

    def environment(self, home: Path) -> dict[str, str]:
        """That of a process for which this is the Hub."""
        return {
            "HF_ENDPOINT": self.endpoint, "HF_TOKEN": TOKEN, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0",
            "NO_PROXY": "127.0.0.1", "HF_HUB_DISABLE_TELEMETRY": "1",
        }  # fmt: skip


class Answer(BaseHTTPRequestHandler):
    """One connection's requests."""

    protocol_version = "HTTP/1.1"
    server: Hub

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if found := re.fullmatch(r"/(?!api/)([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self.file(*found.groups())
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?", path):
            name, kind, revision = found.groups()
            commit = self.commit(name, revision or "main")
            if commit is None:
                return
            files = self.server.repositories[name].files(commit)
            entries = [{"type": "file", "path": k, "size": len(v), "oid": git_hash(v)} for k, v in files.items()]
            siblings = [{"rfilename": path} for path in files]
            self.answer(entries if kind == "tree" else {"id": name, "sha": commit, "siblings": siblings})
        elif path == "/api/whoami-v2":
            self.answer({"type": "user", "name": USER, "orgs": []})
        else:
            self.answer({"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound"})

    do_HEAD = do_GET

    def do_POST(self) -> None:
        path = unquote(self.path)
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        lines = [json.loads(line) for line in body.splitlines()]
        self.server.asked[path] = lines
        if path == "/api/validate-yaml":
            if self.server.refusal:
                self.answer({"error": self.server.refusal, "errors": [{"message": self.server.refusal}]}, 400)
            else:
                self.answer({"errors": [], "warnings": []})
        elif self.headers["Authorization"] != f"Bearer {TOKEN}":
            self.answer({"error": "Invalid username or password."}, 401)
        elif path == "/api/repos/create":
            name = f"{lines[0].get('organization') or USER}/{lines[0]['name']}"
            known = name in self.server.repositories
            if not known:
                self.server.repositories[name] = Repository()
                self.server.repositories[name].commit("main", {".gitattributes": b""}, "initial commit")
            self.answer({"url": f"{self.server.endpoint}/{name}", "name": name, "id": name}, 409 if known else 200)
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(preupload|commit|branch|tag)/([^/]+)", path):
            self.write(*found.groups(), lines)
        else:
            self.answer({"error": "Entry not found"}, 404)

    def write(self, name: str, kind: str, revision: str, lines: list[dict[str, Any]]) -> None:
        repository = self.server.repositories[name]
        if kind == "preupload":
            whole = {"uploadMode": "regular", "shouldIgnore": False}
            self.answer({"files": [{"path": file["path"]} | whole for file in lines[0]["files"]]})
        elif kind == "commit":
            files = dict(repository.files(revision))
            for line in lines:
                if line["key"] == "file":
                    files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                elif line["key"] == "deletedFile":
                    del files[line["value"]["path"]]
            number = repository.commit(revision, files, lines[0]["value"]["summary"])
            url = f"{self.server.endpoint}/{name}/commit/{number}"
            self.answer({"success": True, "commitOid": number, "commitUrl": url, "hookOutput": ""})
        elif (new := lines[0].get("tag", revision)) in repository.revisions:
            self.answer({"error": "Reference already exists"}, 409)
        else:
            start = revision if kind == "tag" else lines[0].get("startingPoint", "main")
            repository.revisions[new] = repository.revisions.get(start, start)
            self.answer({})

    def commit(self, name: str, revision: str) -> str | None:
        """The id of a commit; None, and an answer is given, if there is none."""
        repository = self.server.repositories.get(name)
        commit = repository and repository.revisions.get(revision, revision)
        if repository is not None and commit in repository.commits:
            return commit
        missing = "RepoNotFound" if repository is None else "RevisionNotFound"
        self.answer({"error": missing}, 404, {"X-Error-Code": missing})
        return None

    def file(self, name: str, revision: str, path: str) -> None:
        if (commit := self.commit(name, revision)) is None:
            return
        known = {"X-Repo-Commit": commit}
        content = self.server.repositories[name].files(commit).get(path)
        if content is None:
            self.answer({"error": "Entry not found"}, 404, known | {"X-Error-Code": "EntryNotFound"})
        else:
            self.answer(content, 200, known | {"ETag": f'"{git_hash(content)}"'})

    def answer(self, content: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body))} | (headers or {})
        if isinstance(content, dict) and "error" in content:
            headers["X-Error-Message"] = content["error"]
        for header in headers.items():
            self.send_header(*header)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


def git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """A server in the Hub's place for this process, with a cache of its own and the token of `someone`."""
    with Hub() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        home = tmp_path_factory.mktemp("home")
        for name, value in server.environment(home).items():
            monkeypatch.setenv(name, value)
        # What huggingface_hub and transformers have made of the environment when they were imported.
        template = f"{server.endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
        monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", server.endpoint)
        monkeypatch.setattr(transformers.utils.hub, "_hf_api", None)
        close_session()
        yield server
        close_session()
        server.shutdown()
