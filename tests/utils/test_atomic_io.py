"""Atomic writes: a file or folder is complete or absent after a kill."""

import errno
import multiprocessing
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from safetensors import SafetensorError

from hf_posenc.utils.atomic_io import atomic_save, atomic_write, explain_full_disk

NO_PROCESS = 2**22 + 1  # no system numbers one so high
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["hf_posenc.utils.atomic_io"])


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
        atomic_save(path, lambda unfinished: half_way(write, unfinished))
    assert list(path.parent.iterdir()) == []
    atomic_save(path, write)
    assert list(path.parent.iterdir()) == [path]
    assert (path if path.is_file() else path / "inside").read_text(encoding="utf-8") == "new"


@pytest.mark.parametrize("write", [write_file, write_folder])
@pytest.mark.parametrize("killed", [write_file, write_folder])
def test_leftovers_of_a_killed_process_do_no_harm(tmp_path, write, killed):
    path = tmp_path / "saved"
    names: list[Path] = []
    with pytest.raises(FileNotFoundError):  # there is nothing yet to put in place
        atomic_save(path, names.append)
    mine = names[0].name.split("-")
    for number in (os.getpid(), NO_PROCESS):  # also of a killed one whose number this one has
        killed(tmp_path / "-".join([mine[0], str(number), mine[2]]))
    atomic_save(path, write)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("of", ["another process", "another machine", "another name"])
def test_what_another_process_writes_is_left_to_it(tmp_path, of):
    names: list[Path] = []
    with pytest.raises(FileNotFoundError):
        atomic_save(tmp_path / "saved", names.append)
    own, _, number = names[0].name.split("-")
    name = {
        "another process": f"{own}-{os.getppid()}-{number}",
        "another machine": f".saved.abcdef-{NO_PROCESS}-{number}",
        "another name": names[0].name.replace("saved", "other"),
    }[of]
    write_file(tmp_path / name)
    atomic_save(tmp_path / "saved", write_file)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "saved"])


def test_two_writers_of_a_file_leave_it_whole(tmp_path):
    """One writes from beginning to end while the other is half way, by the same path or another spelling of it."""
    path, other = tmp_path / "saved", tmp_path / ".." / tmp_path.name / "saved"

    def write(unfinished: Path) -> None:
        write_file(unfinished)
        atomic_write(other, "other")
        assert path.read_text(encoding="utf-8") == "other"

    atomic_save(path, write)
    assert path.read_text(encoding="utf-8") == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_the_second_of_two_writers_of_a_folder_is_refused(tmp_path):
    path = tmp_path / "saved"

    def write(unfinished: Path) -> None:
        atomic_save(path, write_folder)
        unfinished.mkdir()

    with pytest.raises(FileExistsError, match=rf"but another process has written {path}"):
        atomic_save(path, write)
    assert list(tmp_path.iterdir()) == [path]
    assert (path / "inside").read_text(encoding="utf-8") == "new"


def write_again_and_again(path: Path, letter: str) -> None:
    for _ in range(100):
        atomic_write(path, letter * 100_000)


@pytest.mark.slow
def test_readers_see_whole_files_while_two_processes_write(tmp_path):
    path = tmp_path / "saved"
    atomic_write(path, "A" * 100_000)
    writers = [PROCESSES.Process(target=write_again_and_again, args=(path, letter)) for letter in "AB"]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        text = path.read_text(encoding="utf-8")
        assert len(text) == 100_000 and len(set(text)) == 1
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert list(tmp_path.iterdir()) == [path]


def test_an_old_file_stays_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "saved"
    atomic_write(path, "old")

    def look(unfinished: Path) -> None:
        write_file(unfinished)
        assert path.read_text(encoding="utf-8") == "old"

    with pytest.raises(OSError, match="disk full"):
        atomic_save(path, lambda unfinished: half_way(write_file, unfinished))
    assert path.read_text(encoding="utf-8") == "old"
    atomic_save(path, look)
    assert path.read_text(encoding="utf-8") == "new"


@pytest.mark.parametrize(
    ("error", "free"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 2**40),
        (SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"), 2**40),
        (RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534"), 2**40),
        (RuntimeError("the engine's own words"), 0),
        (SafetensorError("Error while serializing: I/O error: File too large (os error 27)"), 2**40),
        (OSError(errno.EFBIG, os.strerror(errno.EFBIG)), 2**40),
    ],
    ids=["ours", "safetensors", "torch", "an engine", "a limit", "a limit of ours"],
)
def test_a_full_disk_is_explained_whatever_writes_to_it(tmp_path, monkeypatch, error, free):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free if path == tmp_path else None))
    said = rf"A disk is full, likely that of {tmp_path} \(.*\); free some space and"
    with pytest.raises(OSError, match=said), explain_full_disk(tmp_path / "not yet" / "there"):
        raise error


@pytest.mark.parametrize(
    ("error", "free"),
    [
        (RuntimeError("unexpected pos"), 2**40),
        (ValueError("train.learning_rate was 0.001 and is 0.5"), 0),
        (FileNotFoundError(errno.ENOENT, "no such file"), 0),
    ],
    ids=["with room", "of settings", "of a file"],
)
def test_other_errors_are_as_they_were(tmp_path, monkeypatch, error, free):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    with pytest.raises(type(error)) as raised, explain_full_disk(tmp_path):
        raise error
    assert raised.value is error
