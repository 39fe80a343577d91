"""Atomic writes, file locks, short hashes."""

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
FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # no space, no quota, or a limit on the size of a file
TORCH_WRITER = "inline_container.cc"  # the part of torch that writes its files; its errors give no reason
WRITE_COUNTER = count()
OWN_TEMP_NAMES: set[str] = set()  # the temporary names that this process writes


def atomic_write(path: Path, content: str | bytes) -> None:
    """Write a file atomically: readers see the old or the new content. A text is written as UTF-8."""
    data = content.encode() if isinstance(content, str) else content
    atomic_save(path, lambda temp_path: temp_path.write_bytes(data))


def atomic_save(path: Path, save: Callable[[Path], object]) -> None:
    """Write a file or a folder atomically by `save`, which is called with a unique temporary path in the same folder.

    A file replaces the old one; of several writers the last one wins. A folder must be new: a FileExistsError if it
    exists when it is complete.
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
    """A short hash of this machine's name; process numbers are comparable on one machine only."""
    return short_hash(platform.node())[:6]


def delete_stale_temp_files(path: Path) -> None:
    """Delete temporary files of `path` left by processes of this machine that have ended."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.{machine_id()}-(\d+)-\d+\.unfinished")
    for candidate in path.parent.iterdir():
        if (name := pattern.fullmatch(candidate.name)) and candidate.name not in OWN_TEMP_NAMES:
            import psutil  # imported here because translating does not need it

            writer = int(name[1])
            if writer == os.getpid() or not psutil.pid_exists(writer):
                with suppress(FileNotFoundError):  # another process deletes it too
                    delete(candidate)


def delete(path: Path) -> None:
    """Delete a file or a folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def exclusive_lock(lock: Path, *, blocking: bool = False) -> Iterator[None]:
    """Context manager: holds the lock of that file, alone on this machine.

    With `blocking` it waits for another process; without, a ValueError while another process holds the lock.
    """
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
    """Context manager: an error on a full disk becomes an OSError with the remedy.

    safetensors and torch raise errors of their own, and torch's does not name the reason. Errors of settings, and of
    files for another reason, stay as they are.
    """
    try:
        yield
    except ValueError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno not in (None, *FULL_DISK):
            raise
        existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        is_named = any(reason in str(error) for reason in (*map(os.strerror, FULL_DISK), TORCH_WRITER))
        if not is_named and shutil.disk_usage(existing).free > MIN_FREE_BYTES:
            raise
        raise OSError(
            f"A disk is full, likely that of {existing} ({error}); free some space and give the same command again, "
            "which goes on from what is saved."
        ) from error


def short_hash(content: str | bytes) -> str:
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()[:12]


def first_difference(old: Mapping[str, object], new: Mapping[str, object], prefix: str = "") -> str | None:
    """The first dotted key whose values differ, with both values; None if there are no differences."""
    for key in dict.fromkeys([*old, *new]):
        old_value, new_value = old.get(key), new.get(key)
        if isinstance(old_value, Mapping) and isinstance(new_value, Mapping):
            if difference := first_difference(old_value, new_value, f"{prefix}{key}."):
                return difference
        elif old_value != new_value:
            return f"{prefix}{key} was {old_value!r} and is {new_value!r}"
    return None
