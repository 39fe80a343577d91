"""A finished run that is given again ends at once, with what it printed, until anything has changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.experiments import ONE_SYSTEM, load

from hf_posenc.lab.run import train
from hf_posenc.lab.run.finished import finished_output
from hf_posenc.lab.run.train import train_systems


def write_files(folder: Path) -> dict[str, Any]:
    """Training pairs in two aligned files, and the config of a run on them."""
    sources = [f"wort{i} haus baum" for i in range(60)]
    targets = [f"word{i} house tree" for i in range(60)]
    for name, lines in (("train.de", sources), ("train.en", targets)):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    for name, line in (("test.de", "baum haus"), ("test.en", "tree house")):
        (folder / name).write_text(f"{line}\n" * 2, encoding="utf-8")
    data = ONE_SYSTEM["data"] | {
        "train": {"files": ["train.de", "train.en"]},
        "test": {"news": {"files": ["test.de", "test.en"]}},
        "validation": None,
        "data_dir": str(folder),
        "vocab_size": 290,
    }
    return ONE_SYSTEM | {"data": data, "train": ONE_SYSTEM["train"] | {"max_steps": 2}}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(write_files(tmp_path)), encoding="utf-8")
    return path


@pytest.mark.full
def test_a_finished_run_ends_at_once_until_anything_changes(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    monkeypatch.setattr("hf_posenc.lab.reports.report.write_figures", lambda *arguments: "")  # they take long
    folder = config.parent
    overrides = [f"output_dir={folder / 'runs'}"]
    train_systems(str(config), overrides)
    printed = capsys.readouterr().out
    run = folder / "runs" / "tiny"
    system = run / "relative"

    with monkeypatch.context() as patched:
        patched.setattr(train, "run", None)
        train_systems(str(config), overrides)
    assert capsys.readouterr().out in printed

    assert finished_output(load(config)) is not None
    for override in ("score.bootstrap_samples=200", "baseline=relative", "data.allow_overlap=[news]", "diagnose=true"):
        with subtests.test(override):
            is_same = override == "baseline=relative"  # as it is by default
            assert (finished_output(load(config, override)) is not None) == is_same

    changes: dict[str, tuple[Path, Callable[[Path], object]]] = {
        "a bit of the weights": (system / "model" / "model.safetensors", flip),
        "no table": (run / "table-news.md", Path.unlink),
        "no translations": (system / "translations" / "news.jsonl", Path.unlink),
        "longer training text": (folder / "train.de", lambda path: path.write_text("eins\n", encoding="utf-8")),
        "record cut short": (run / ".finished.json", lambda path: path.write_text('{"settings"', encoding="utf-8")),
    }
    for name, (path, change) in changes.items():
        with subtests.test(name):
            content, status = path.read_bytes(), path.stat()
            change(path)
            assert finished_output(load(config)) is None
            path.write_bytes(content)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with subtests.test("nothing else has changed"):
        os.utime(folder, ns=(0, folder_time(run)))
        assert finished_output(load(config)) is not None
    with subtests.test("a file beside the training text"):
        (folder / "more.de").touch()
        assert finished_output(load(config)) is None


def flip(path: Path) -> None:
    """Change one bit: the size stays."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def folder_time(run: Path) -> int:
    """The recorded time of the folder of the training text."""
    record = yaml.safe_load((run / ".finished.json").read_text(encoding="utf-8"))
    return int(record["files"][str(run.parents[1])][1])
