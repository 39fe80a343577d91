"""What is saved is whole or not there, whenever the power goes."""

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from safetensors import SafetensorError

from hf_posenc.whole_files import full_disk_told, save_whole, write_whole


def write_file(path: Path) -> None:
    path.write_text("new", encoding="utf-8")


def write_folder(path: Path) -> None:
    path.mkdir()
    write_file(path / "inside")


def half_way(write, path: Path) -> None:
    write(path)
    raise OSError("disk full")


@pytest.mark.parametrize("write", [write_file, write_folder])
def test_a_failure_leaves_nothing_behind_and_a_success_nothing_else(tmp_path, write):
    path = tmp_path / "new folder" / "saved"
    with pytest.raises(OSError, match="disk full"):
        save_whole(path, lambda unfinished: half_way(write, unfinished))
    assert list(path.parent.iterdir()) == []
    save_whole(path, write)
    assert list(path.parent.iterdir()) == [path]
    assert (path if path.is_file() else path / "inside").read_text(encoding="utf-8") == "new"


@pytest.mark.parametrize("write", [write_file, write_folder])
@pytest.mark.parametrize("killed", [write_file, write_folder])
def test_what_a_killed_process_left_is_in_nobodys_way(tmp_path, write, killed):
    path = tmp_path / "saved"
    names: list[Path] = []
    with pytest.raises(FileNotFoundError):  # there is nothing yet to put in place
        save_whole(path, names.append)
    killed(names[0])
    save_whole(path, write)
    assert list(tmp_path.iterdir()) == [path]


def test_an_old_file_stays_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "saved"
    write_whole(path, "old")

    def look(unfinished: Path) -> None:
        write_file(unfinished)
        assert path.read_text(encoding="utf-8") == "old"

    with pytest.raises(OSError, match="disk full"):
        save_whole(path, lambda unfinished: half_way(write_file, unfinished))
    assert path.read_text(encoding="utf-8") == "old"
    save_whole(path, look)
    assert path.read_text(encoding="utf-8") == "new"


@pytest.mark.parametrize(
    ("error", "free"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 2**40),
        (SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"), 2**40),
        (RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534"), 0),
    ],
    ids=["ours", "safetensors", "torch"],
)
def test_a_full_disk_is_told_whatever_writes_to_it(tmp_path, monkeypatch, error, free):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free if path == tmp_path else None))
    said = rf"A disk is full, likely that of {tmp_path} \(.*\); free some space and"
    with pytest.raises(OSError, match=said), full_disk_told(tmp_path / "not yet" / "there"):
        raise error


def test_other_errors_are_as_they_were(tmp_path):
    with pytest.raises(RuntimeError, match=r"^unexpected pos$"), full_disk_told(tmp_path):
        raise RuntimeError("unexpected pos")
