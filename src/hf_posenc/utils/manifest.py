"""Manifests: the SHA-256 of each saved file, to detect files that have changed.

`manifest.json` lists files of its own folder. A folder that is saved at once contains its manifest (`save_folder`). A
single file is listed before it is replaced (`save_file`), next to the digest of the old file: after a kill either of
them is valid. Files without an entry are not checked: those of an older version, and those that a user may edit.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from safetensors import SafetensorError, safe_open

from .atomic_io import atomic_save, atomic_write, delete

MANIFEST = "manifest.json"
CACHE_MIN_BYTES = 2**24  # bytes: digests of smaller files are not cached
TRAIN_AGAIN = "give the same train.py command again, which makes it anew"
COPY_AGAIN = "train, copy or download it again"
MODEL_WEIGHTS_GLOB = "model*.safetensors"


def save_folder(folder: Path, save: Callable[[Path], object]) -> None:
    """Save a new folder with its manifest atomically."""

    def save_with_manifest(temp_path: Path) -> None:
        save(temp_path)
        write_folder_manifest(temp_path)

    atomic_save(folder, save_with_manifest)


def write_folder_manifest(folder: Path) -> None:
    """Write the manifest of everything in a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / MANIFEST)
    write_manifest(folder, {path.relative_to(folder).as_posix(): [sha256(path)] for path in files})


def save_file(path: Path, save: Callable[[Path], object]) -> None:
    """Save a file atomically, with an entry in its folder's manifest."""

    def save_and_add(temp_path: Path) -> None:
        save(temp_path)
        add_to_manifest(path, temp_path)

    atomic_save(path, save_and_add)


def write_file(path: Path, text: str) -> None:
    """Save a text atomically, with an entry in its folder's manifest."""
    save_file(path, lambda temp_path: temp_path.write_text(text, encoding="utf-8"))


def add_to_manifest(path: Path, content: Path | None = None) -> None:
    """Add a file's digest to its folder's manifest: of the file, or of the `content` that will replace it."""
    entries = read_manifest(path.parent)
    digests = dict.fromkeys([sha256(content or path), *entries.get(path.name, [])[:1]])
    write_manifest(path.parent, {**entries, path.name: list(digests)})


def remove_from_manifest(path: Path) -> None:
    """Remove a file that will change from its folder's manifest."""
    entries = read_manifest(path.parent)
    if entries.pop(path.name, None):
        write_manifest(path.parent, entries)


def atomic_delete(folder: Path) -> None:
    """Delete a folder atomically: a kill leaves all of it or nothing."""
    trash = folder.with_name(f".{folder.name}.deleted")
    delete(trash)
    os.replace(folder, trash)
    delete(trash)


def read_manifest(folder: Path) -> dict[str, list[str]]:
    """The valid digests of each file, by name; empty without a manifest."""
    path = folder / MANIFEST
    if not path.exists():
        return {}
    try:
        entries = {name: list(digests) for name, digests in json.loads(path.read_text(encoding="utf-8")).items()}
        if outside := [name for name in entries if Path(name).is_absolute() or ".." in Path(name).parts]:
            raise ValueError(f"it lists {outside[0]}, which is not in its folder")
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise ValueError(
            f"A manifest must be whole, but {path} is not ({error}); restore it, or delete {path} and give the same "
            "command again, which takes the files beside it unchecked."
        ) from None
    return entries


def is_in_manifest(path: Path) -> bool:
    return path.name in read_manifest(path.parent)


def write_manifest(folder: Path, entries: Mapping[str, list[str]]) -> None:
    atomic_write(folder / MANIFEST, json.dumps(entries, indent=1))


def verify_file(path: Path) -> None:
    """Raise a ValueError if a file differs from its manifest's entry. A missing file is not checked."""
    entries = read_manifest(path.parent)
    if path.name in entries and path.exists() and (defect := file_defect(path, entries[path.name])):
        raise integrity_error(path, defect, path, TRAIN_AGAIN)


def verify_files(folder: Path) -> None:
    """`verify_file` of each file that a folder's manifest lists."""
    for name in read_manifest(folder):
        verify_file(folder / name)


def verify_folder(folder: Path, remedy: str = TRAIN_AGAIN, allow_missing: str | None = None) -> None:
    """Raise a ValueError if a file of a folder that was saved at once is missing or differs from its manifest.

    `remedy` says how to make the folder again; `allow_missing` is a pattern of files that may be missing.
    """
    if defect := first_defect(folder, allow_missing):
        raise integrity_error(*defect, folder, remedy)


def first_defect(folder: Path, allow_missing: str | None = None) -> tuple[Path, str] | None:
    """The first missing or different file of a folder and its defect, None if all are valid."""
    for name, digests in read_manifest(folder).items():
        path = folder / name
        may_be_missing = allow_missing is not None and path.match(allow_missing) and not path.exists()
        if not may_be_missing and (defect := file_defect(path, digests)):
            return path, defect
    return None


@contextmanager
def verified(path: Path) -> Iterator[None]:
    """Context manager: verifies a file or a folder before it is read, and explains errors of reading it."""
    if path.is_dir():
        verify_folder(path)
    else:
        verify_file(path)
    with explain_read_errors(path):
        yield


@contextmanager
def explain_read_errors(path: Path, remedy: str = TRAIN_AGAIN) -> Iterator[None]:
    """Context manager: errors in reading a saved file or folder become a ValueError with file and remedy."""
    try:
        yield
    except Exception as error:
        reason = "it is missing" if isinstance(error, FileNotFoundError) else f"{type(error).__name__}: {error}"
        raise integrity_error(path, " ".join(reason.split()), path, remedy) from None


def file_defect(path: Path, digests: list[str]) -> str | None:
    """The defect of a file that must have one of these digests, None if it has."""
    if not path.is_file():
        return "it is missing"
    return None if sha256(path) in digests else "its content has changed"


def integrity_error(path: Path, defect: str, target: Path, remedy: str) -> ValueError:
    """The error for a defective file; its remedy is to delete `target`, then `remedy`."""
    manifest = (path.parent if target == path else target) / MANIFEST
    deletion = "" if target == path and not path.exists() else f"delete {target} and "
    own = f" If the change is your own, delete {manifest} instead." if manifest.exists() else ""
    return ValueError(f"{path} must be as it was saved, but {defect}; restore it, or {deletion}{remedy}.{own}")


def sha256(path: Path) -> str:
    """The SHA-256 of a file; that of a large file is cached in this process until size or time changes."""
    status = path.stat()
    if status.st_size < CACHE_MIN_BYTES:
        return compute_digest(str(path))
    return cached_digest(str(path), status.st_ino, status.st_size, status.st_mtime_ns)


def compute_digest(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@lru_cache(maxsize=1024)
def cached_digest(path: str, *status: int) -> str:
    return compute_digest(path)


def validate_weights(folder: Path) -> None:
    """Raise a ValueError if the weights in `folder` are missing or truncated, or if a file in it has changed."""
    verify_folder(folder, COPY_AGAIN)
    files = sorted(folder.glob(MODEL_WEIGHTS_GLOB))
    if not files:
        raise ValueError(f"A model's folder holds model.safetensors, but {folder} has none; name a folder that does.")
    for file in files:
        try:
            with safe_open(str(file), framework="pt"):
                pass
        except SafetensorError as error:
            raise ValueError(
                f"Weights must be whole, but {file} is cut short ({error}); delete {folder} and train, copy or "
                "download it again."
            ) from None
