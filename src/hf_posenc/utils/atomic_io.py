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

from filelock import FileLock, Timeout

MIN_FREE_BYTES = 2**16  # bytes
WRITE_COUNTER = count()
OWN_TEMP_NAMES: set[str] = set()  # the temporary names that this process writes


def atomic_write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    atomic_save(path, lambda temp_path: temp_path.write_text(text, encoding="utf-8", newline="\n"))


def atomic_save(path: Path, save: Callable[[Path], object]) -> None:
    """Let `save` write a file or a folder that is there either whole or not at all.

    `save` is given a temporary name beside it, which no other call has. A file takes the place of the one there was,
    and of several writers the last one's stays. A folder must be a new one: a FileExistsError if it is there by now.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    delete_stale_temp_files(path)
    temp_path = path.with_name(f".{path.name}.{machine_id()}-{os.getpid()}-{next(WRITE_COUNTER)}.unfinished")
    OWN_TEMP_NAMES.add(temp_path.name)
    try:
        save(temp_path)
        if path.is_dir():
            raise FileExistsError(
                f"A folder to write must be a new one, but another process has written {path} in the meantime; delete "
                "it, or choose another."
            )
        os.replace(temp_path, path)
    finally:
        delete(temp_path)
        OWN_TEMP_NAMES.discard(temp_path.name)


def machine_id() -> str:
    """A short name of this machine: process numbers of another one on the same file system say nothing here."""
    return short_hash(platform.node())[:6]


def delete_stale_temp_files(path: Path) -> None:
    """Delete what processes of this machine that no longer exist have left of earlier writes of `path`."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.{machine_id()}-(\d+)-\d+\.unfinished")
    for candidate in path.parent.iterdir():
        if (name := pattern.fullmatch(candidate.name)) and candidate.name not in OWN_TEMP_NAMES:
            import psutil  # here because accelerate brings it, and translating needs no accelerate

            writer = int(name[1])
            if writer == os.getpid() or not psutil.pid_exists(writer):
                with suppress(FileNotFoundError):  # another process deletes it too
                    delete(candidate)


def delete(path: Path) -> None:
    """Delete a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def exclusive_lock(lock: Path, *, blocking: bool = False) -> Iterator[None]:
    """While no other process of this machine holds that file: a `blocking` one waits until that is so, for any other
    it is a ValueError."""
    try:
        with FileLock(lock, timeout=-1 if blocking else 0):
            yield
    except Timeout:
        raise ValueError(
            f"One process at a time writes what {lock} guards, but another one than this is at work there; wait for "
            "it, or stop it."
        ) from None


@contextmanager
def explain_full_disk(folder: Path) -> Iterator[None]:
    """An OSError with the remedy for whatever fails in writing to a full disk: safetensors and torch raise errors of
    their own, and torch's does not say why."""
    try:
        yield
    except Exception as error:
        existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        if os.strerror(errno.ENOSPC) not in str(error) and shutil.disk_usage(existing).free > MIN_FREE_BYTES:
            raise
        raise OSError(
            f"A disk is full, likely that of {existing} ({error}); free some space and give the same command again, "
            "which goes on from the last whole checkpoint."
        ) from error


def expand_home(path: str | Path) -> str:
    """A path as it is typed in a config file or on a command line, with the home folder for `~`, and another user's for
    `~name`."""
    if (expanded := os.path.expanduser(path)).startswith("~"):
        raise ValueError(
            f"A path that begins with `~` is in a user's home, but for {expanded!r} there is no such user; write "
            f"./{expanded} for a folder of that name."
        )
    return expanded


def short_hash(content: str | bytes) -> str:
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()[:12]


def first_difference(old: Mapping[str, object], new: Mapping[str, object], prefix: str = "") -> str | None:
    """The first dotted key whose value is not the same in both, with both values."""
    for key in dict.fromkeys([*old, *new]):
        old_value, new_value = old.get(key), new.get(key)
        if isinstance(old_value, Mapping) and isinstance(new_value, Mapping):
            if difference := first_difference(old_value, new_value, f"{prefix}{key}."):
                return difference
        elif old_value != new_value:
            return f"{prefix}{key} was {old_value!r} and is {new_value!r}"
    return None
