"""Saved things: there whole or not at all, however many processes write them; and told apart by a short hash or by the
first key that differs."""

import errno
import hashlib
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock, Timeout

ALMOST_NOTHING = 2**16  # bytes
WRITES = count()
IN_PROGRESS: set[str] = set()  # the temporary names that this process writes


def write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    save_whole(path, lambda unfinished: unfinished.write_text(text, encoding="utf-8", newline="\n"))


def save_whole(path: Path, save: Callable[[Path], Any]) -> None:
    """Let `save` write a file or a folder that is there either whole or not at all.

    `save` is given a temporary name beside it, which no other call has. A file takes the place of the one there was,
    and of several writers the last one's stays. A folder must be a new one: a FileExistsError if it is there by now.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    delete_stale(path)
    unfinished = path.with_name(f".{path.name}.{machine()}-{os.getpid()}-{next(WRITES)}.unfinished")
    IN_PROGRESS.add(unfinished.name)
    try:
        save(unfinished)
        if path.is_dir():
            raise FileExistsError(
                f"A folder to write must be a new one, but another process has written {path} in the meantime; delete "
                "it, or choose another."
            )
        os.replace(unfinished, path)
    finally:
        delete(unfinished)
        IN_PROGRESS.discard(unfinished.name)


def machine() -> str:
    """A short name of this machine: process numbers of another one on the same file system say nothing here."""
    return short_hash(platform.node())[:6]


def delete_stale(path: Path) -> None:
    """Delete what processes of this machine that no longer exist have left of earlier writes of `path`."""
    ours = re.compile(rf"\.{re.escape(path.name)}\.{machine()}-(\d+)-\d+\.unfinished")
    for found in path.parent.iterdir():
        if (name := ours.fullmatch(found.name)) and found.name not in IN_PROGRESS:
            writer = int(name[1])
            if writer == os.getpid() or not psutil.pid_exists(writer):
                with suppress(FileNotFoundError):  # another process deletes it too
                    delete(found)


def delete(path: Path) -> None:
    """Delete a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


LOCK = ".lock"  # of a folder


@contextmanager
def alone(lock: Path, *, patient: bool = False) -> Iterator[None]:
    """While no other process of this machine holds that file: a `patient` one waits until that is so, for any other
    it is a ValueError."""
    try:
        with FileLock(lock, timeout=-1 if patient else 0):
            yield
    except Timeout:
        raise ValueError(
            f"One process at a time writes what {lock} guards, but another one than this is at work there; wait for "
            "it, or stop it."
        ) from None


@contextmanager
def full_disk_told(folder: Path) -> Iterator[None]:
    """An OSError with the remedy for whatever fails in writing to a full disk: safetensors and torch raise errors of
    their own, and torch's does not say why."""
    try:
        yield
    except Exception as error:
        there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        if os.strerror(errno.ENOSPC) not in str(error) and shutil.disk_usage(there).free > ALMOST_NOTHING:
            raise
        raise OSError(
            f"A disk is full, likely that of {there} ({error}); free some space and give the same command again, which "
            "goes on from the last whole checkpoint."
        ) from error


def with_home(path: str | Path) -> str:
    """A path as it is typed in a config file or on a command line, with the home folder for `~`, and another user's for
    `~name`."""
    if (found := os.path.expanduser(path)).startswith("~"):
        raise ValueError(
            f"A path that begins with `~` is in a user's home, but for {found!r} there is no such user; write "
            f"./{found} for a folder of that name."
        )
    return found


def short_hash(content: str | bytes) -> str:
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()[:12]


def differing_key(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> str | None:
    """The first dotted key whose value is not the same in both, with both values."""
    for key in dict.fromkeys([*old, *new]):
        ours, theirs = old.get(key), new.get(key)
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
            if found := differing_key(ours, theirs, f"{prefix}{key}."):
                return found
        elif ours != theirs:
            return f"{prefix}{key} was {ours!r} and is {theirs!r}"
    return None
