"""Pairs from files: two aligned texts, tab-separated columns, or JSON lines, each plain or compressed, read line by
line (see `text_io`)."""

import glob
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import zip_longest
from typing import Any

from ..text_io import COMPRESSED, read_lines
from ..whole_files import with_home

TSV, JSONL = (tuple(kind + ending for ending in ("", *COMPRESSED)) for kind in (".tsv", ".jsonl"))
TABLES = TSV + JSONL


def file_parts(files: Any, folder: str | None) -> tuple[tuple[str, ...], ...]:
    """The parts of a corpus, each the absolute paths of one table or of two aligned texts.

    A ValueError if `files` is not of that shape, a FileNotFoundError if one does not exist.
    """
    parts = tuple(_parts(files))
    if not parts:
        raise _misshapen(files)
    resolved = tuple(tuple(absolute_path(name, folder) for name in part) for part in parts)
    for path in (path for part in resolved for path in part):
        if not os.path.isfile(path):
            raise FileNotFoundError(
                f"a file of pairs must exist, but {path} is not a file: correct the path; "
                f"a relative one starts at {absolute_path('', folder)}"
            )
    return resolved


def read_parts(parts: tuple[tuple[str, ...], ...], languages: tuple[str, str]) -> Iterator[tuple[str, str]]:
    """(source, target) of every line of every part. A ValueError names the file and the line that cannot be read."""
    for part in parts:
        if len(part) == 2:
            yield from _read_aligned(*part)
        elif part[0].endswith(TSV):
            yield from _read_tsv(part[0])
        else:
            yield from _read_jsonl(part[0], languages)


def digests(where: Mapping[str, Any], folder: str | None) -> dict[str, str]:
    """The SHA-256 of each local file that `where` reads, by its name in `folder`."""
    if where.get("corpora"):
        return {name: digest for one in where["corpora"] for name, digest in digests(one, folder).items()}
    paths = [path for part in file_parts(where["files"], folder) for path in part] if where.get("files") else []
    if where.get("documents"):
        paths.append(absolute_path(where["documents"], folder))
    if where.get("dataset"):
        inside = glob.glob(os.path.join(named_folder(where["dataset"], folder), "**"), recursive=True)
        paths += filter(os.path.isfile, inside)
    return path_digests(paths, folder)


def path_digests(paths: Iterable[str], folder: str | None) -> dict[str, str]:
    """The SHA-256 of each file, by its name in `folder`."""
    return {
        os.path.relpath(path, absolute_path("", folder)): _digest(path, os.stat(path).st_mtime_ns) for path in paths
    }


@cache
def _digest(path: str, modified: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def named_folder(name: str, folder: str | None) -> str:
    """The folder of that name, relative to `folder`; the name as it is, one on the Hub, if there is none."""
    local = absolute_path(name, folder)
    return local if os.path.isdir(local) else name


def absolute_path(path: str, folder: str | None) -> str:
    return os.path.abspath(os.path.join(with_home(folder or ""), with_home(path)))


def _parts(files: Any) -> Iterator[tuple[str, ...]]:
    if isinstance(files, str) and files.endswith(TABLES):
        yield (files,)
    elif not isinstance(files, list | tuple):
        raise _misshapen(files)
    elif len(files) == 2 and all(isinstance(name, str) and not name.endswith(TABLES) for name in files):
        yield tuple(files)
    else:
        for item in files:
            yield from _parts(item)


def names_files(files: Any) -> bool:
    """Whether `files` has the shape that `file_parts` reads."""
    try:
        return any(_parts(files))
    except ValueError:
        return False


def _misshapen(files: Any) -> ValueError:
    return ValueError(
        "`files` takes two aligned texts, a .tsv, a .jsonl (each plain or compressed), or a list of these, but "
        f"{files!r} is none of them: write for example [a.de, a.en] or [[a.de, a.en], [b.de, b.en]]"
    )


def _read_aligned(source: str, target: str) -> Iterator[tuple[str, str]]:
    sources, targets = read_lines(source), read_lines(target)
    for number, (source_text, target_text) in enumerate(zip_longest(sources, targets), 1):
        if source_text is None or target_text is None:
            shorter, longer, rest = (source, target, targets) if source_text is None else (target, source, sources)
            raise ValueError(
                f"aligned files must have the same number of lines, but {shorter} ends after line {number - 1} and "
                f"{longer} has {number + sum(1 for _ in rest)} lines: find where they part and align them again"
            )
        yield source_text, target_text


def _read_tsv(path: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(read_lines(path), 1):
        columns = line.split("\t")
        if len(columns) != 2:
            raise ValueError(
                f"a line of a .tsv must have two columns, source and target, but {path}, line {number}, has "
                f"{len(columns)}: separate the two texts by one tab and keep tabs out of them"
            )
        yield columns[0], columns[1]


def _read_jsonl(path: str, languages: tuple[str, str]) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(read_lines(path), 1):
        try:
            source, target = (json.loads(line)["translation"][language] for language in languages)
            # JSON can spell half a character, which no file can hold; and only text can be added to text.
            ("" + source + target).encode()
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f'a line of a .jsonl must be {{"translation": {{"{languages[0]}": text, "{languages[1]}": text}}}}, '
                f"but {path}, line {number}, is {line[:80]!r} ({type(error).__name__}: {error}): "
                "correct or remove the line"
            ) from None
        yield source, target
