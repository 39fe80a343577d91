"""The description of the measured text: complete, equal to what saved runs read, and other text is refused."""

import re
import runpy
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHECK = runpy.run_path(str(ROOT / "corpora" / "check.py"))
CORPORA: dict[str, Any] = CHECK["CORPORA"]


def known_hashes() -> set[str]:
    entries = [entry for corpus in CORPORA.values() for entry in corpus["files"].values()]
    return {value for entry in entries for key, value in entry.items() if key.startswith("sha256")}


def test_every_corpus_names_its_source_and_every_file_its_text() -> None:
    for name, corpus in CORPORA.items():
        assert {"source", "version", "license", "configs", "files"} <= corpus.keys(), name
        assert all(list((ROOT / "configs").glob(f"{config}*")) for config in corpus["configs"]), name
        assert all(
            entry["lines"] > 0 and re.fullmatch("[0-9a-f]{64}", entry["sha256"]) for entry in corpus["files"].values()
        )
        assert set(corpus.get("sacrebleu", {})) <= {file.rpartition(".")[0] for file in corpus["files"]}, name


@pytest.mark.full
def test_a_saved_run_read_the_described_text() -> None:
    with tarfile.open(ROOT / "docs" / "results" / "news-small" / "systems.tar.xz") as archive:
        member = archive.extractfile("news-small/aligned-50-seed1/settings.yaml")
        assert member is not None
        files = yaml.safe_load(member.read())["files"]
    assert len(files) > 20 and set(files.values()) <= known_hashes()


def test_other_text_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "Ein Öl.\nJa.\n".encode()
    sha256, lowercase = CHECK["sha256"], CHECK["lowercase"]
    entry = {"lines": 2, "sha256": sha256(text), "sha256_lowercased": sha256(lowercase(text))}
    monkeypatch.setitem(CORPORA, "small", {"source": "somebody", "files": {"small.de": entry}})
    monkeypatch.setattr("sys.argv", ["check.py", str(tmp_path), "--lowercase", str(tmp_path / "lower")])
    (tmp_path / "small.de").write_bytes(text)
    assert CHECK["main"]() == 0
    assert (tmp_path / "lower" / "small.de").read_text(encoding="utf-8") == "ein öl.\nja.\n"
    monkeypatch.setattr("sys.argv", ["check.py", str(tmp_path / "lower")])
    assert CHECK["main"]() == 0
    (tmp_path / "lower" / "small.de").write_text("ein öl.\nnein.\nja.\n", encoding="utf-8")
    capsys.readouterr()
    assert CHECK["main"]() == 1
    assert (
        "small.de must have the text of the saved tables, 2 lines of small, but it has 3 lines"
        in capsys.readouterr().out
    )
    monkeypatch.setattr("sys.argv", ["check.py", str(tmp_path / "empty"), "--fetch", "small"])
    assert CHECK["main"]() == 1
    assert "must have `urls` or `sacrebleu` to be fetched, but small has neither" in capsys.readouterr().err


def test_a_file_out_of_reach_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"{tmp_path.as_uri()}/server/{{name}}.gz"
    corpus = {"source": "somebody", "urls": url, "files": {"small.de": {"lines": 2, "sha256": "0" * 64}}}
    monkeypatch.setitem(CORPORA, "small", corpus)
    # `--fetch` offers the described corpora, and the options are read after this one is added.
    monkeypatch.setattr("sys.argv", ["check.py", str(tmp_path / "texts"), "--fetch", "small"])
    assert CHECK["main"]() == 1
    message = capsys.readouterr().err
    assert url.format(name="small.de") in message and str(tmp_path / "texts") in message
    assert not list((tmp_path / "texts").iterdir())
