"""Manifests: the SHA-256 of each saved file, by which a file that changed since is refused by its name.

`manifest.json` lists files of its own folder. A folder that is saved at once has its manifest inside (`save_folder`). A
file that is saved alone is listed before it takes its place (`save_file`), beside the digest of the file it replaces:
after a kill either of them is found whole. A file that no manifest lists is not checked: those of an older version, and
those that a user may edit.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from .whole_files import delete, save_whole, write_whole

MANIFEST = "manifest.json"
LARGE = 2**24  # bytes: only files above it are worth a cache
TRAIN_AGAIN = "give the same train.py command again, which makes it anew"
COPY_AGAIN = "train, copy or download it again"


def save_folder(folder: Path, save: Callable[[Path], Any]) -> None:
    """`save_whole` of a new folder and its manifest."""

    def save_and_seal(unfinished: Path) -> None:
        save(unfinished)
        seal(unfinished)

    save_whole(folder, save_and_seal)


def seal(folder: Path) -> None:
    """Write the manifest of everything in a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / MANIFEST)
    write_manifest(folder, {path.relative_to(folder).as_posix(): [sha256(path)] for path in files})


def save_file(path: Path, save: Callable[[Path], Any]) -> None:
    """`save_whole` of a file that its folder's manifest lists."""

    def save_and_list(unfinished: Path) -> None:
        save(unfinished)
        list_file(path, unfinished)

    save_whole(path, save_and_list)


def write_file(path: Path, text: str) -> None:
    """`save_file` of a text."""
    save_file(path, lambda unfinished: unfinished.write_text(text, encoding="utf-8"))


def list_file(path: Path, content: Path | None = None) -> None:
    """Add a file to its folder's manifest: as it is, or as it is about to be replaced by `content`."""
    listed = read_manifest(path.parent)
    digests = dict.fromkeys([sha256(content or path), *listed.get(path.name, [])[:1]])
    write_manifest(path.parent, {**listed, path.name: list(digests)})


def unlist_file(path: Path) -> None:
    """Take a file that is about to change out of its folder's manifest."""
    listed = read_manifest(path.parent)
    if listed.pop(path.name, None):
        write_manifest(path.parent, listed)


def discard(folder: Path) -> None:
    """Delete a folder so that a kill leaves all of it or nothing."""
    gone = folder.with_name(f".{folder.name}.deleted")
    delete(gone)
    os.replace(folder, gone)
    delete(gone)


def read_manifest(folder: Path) -> dict[str, list[str]]:
    """The digests that each file may have, by its name; none where there is no manifest."""
    path = folder / MANIFEST
    if not path.exists():
        return {}
    try:
        listed = {name: list(digests) for name, digests in json.loads(path.read_text(encoding="utf-8")).items()}
        if outside := [name for name in listed if Path(name).is_absolute() or ".." in Path(name).parts]:
            raise ValueError(f"it lists {outside[0]}, which is not in its folder")
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(
            f"A manifest must be whole, but {path} is not ({error}); restore it, or delete {path} and give the same "
            "command again, which takes the files beside it unchecked."
        ) from None
    return listed


def is_listed(path: Path) -> bool:
    return path.name in read_manifest(path.parent)


def write_manifest(folder: Path, listed: Mapping[str, list[str]]) -> None:
    write_whole(folder / MANIFEST, json.dumps(listed, indent=1))


def check_file(path: Path) -> None:
    """A ValueError if a file is not as its folder's manifest lists it. One that is missing is not checked."""
    listed = read_manifest(path.parent)
    if path.name in listed and path.exists() and (flaw := flaw_of_file(path, listed[path.name])):
        raise refusal(path, flaw, path, TRAIN_AGAIN)


def check_files(folder: Path) -> None:
    """`check_file` of each file that a folder's manifest lists."""
    for name in read_manifest(folder):
        check_file(folder / name)


def check_folder(folder: Path, again: str = TRAIN_AGAIN, may_lack: str | None = None) -> None:
    """A ValueError if a file of a folder that was saved at once is missing or not as its manifest lists it.

    `again` is how the folder is made once it is deleted; `may_lack` a pattern of files that may be missing.
    """
    if found := first_flaw(folder, may_lack):
        raise refusal(*found, folder, again)


def first_flaw(folder: Path, may_lack: str | None = None) -> tuple[Path, str] | None:
    """The first file of a folder that is missing or not as its manifest lists it, and what is wrong with it."""
    for name, digests in read_manifest(folder).items():
        path = folder / name
        is_spared = may_lack is not None and path.match(may_lack) and not path.exists()
        if not is_spared and (flaw := flaw_of_file(path, digests)):
            return path, flaw
    return None


@contextmanager
def readable(path: Path, again: str = TRAIN_AGAIN) -> Iterator[None]:
    """Read a saved file or folder in the block: what fails there is a ValueError that names the file and the remedy."""
    try:
        yield
    except Exception as error:
        reason = "it is missing" if isinstance(error, FileNotFoundError) else f"{type(error).__name__}: {error}"
        raise refusal(path, " ".join(reason.split()), path, again) from None


def flaw_of_file(path: Path, digests: list[str]) -> str | None:
    """What is wrong with a file that should have one of these digests, None if it has."""
    if not path.is_file():
        return "it is missing"
    return None if sha256(path) in digests else "its content has changed"


def refusal(path: Path, flaw: str, target: Path, again: str) -> ValueError:
    """The error for a file with a flaw, whose remedy is to delete `target` and make it `again`."""
    manifest = (path.parent if target == path else target) / MANIFEST
    deletion = "" if target == path and not path.exists() else f"delete {target} and "
    own = f" If the change is your own, delete {manifest} instead." if manifest.exists() else ""
    return ValueError(f"{path} must be as it was saved, but {flaw}; restore it, or {deletion}{again}.{own}")


def sha256(path: Path) -> str:
    """The SHA-256 of a file. A large one is read once a process as long as its size and time are the same."""
    status = path.stat()
    if status.st_size < LARGE:
        return digest_of(str(path))
    return cached_digest(str(path), status.st_ino, status.st_size, status.st_mtime_ns)


def digest_of(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@lru_cache(maxsize=1024)
def cached_digest(path: str, *status: int) -> str:
    return digest_of(path)
