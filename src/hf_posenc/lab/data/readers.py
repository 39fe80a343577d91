"""Readers of parallel files: two aligned texts, tab-separated columns, or JSON lines, plain or compressed."""

import glob
import json
import os
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path

from ...utils.manifest import cached_digest
from ...utils.text_io import COMPRESSED_FORMATS, JsonObject, read_lines

# The description of a corpus, with the keys of config/settings.py.
CorpusSpec = JsonObject
Shard = tuple[str, ...]  # a table, or two aligned texts

TSV, JSONL = (tuple(suffix + ending for ending in ("", *COMPRESSED_FORMATS)) for suffix in (".tsv", ".jsonl"))
TABLE_SUFFIXES = TSV + JSONL


def parse_files(files: object) -> tuple[Shard, ...]:
    """The shards that `files` of a corpus names, in order; none if it has another form."""
    if isinstance(files, str) and files.endswith(TABLE_SUFFIXES):
        return ((files,),)
    if not isinstance(files, list | tuple):
        return ()
    if len(files) == 2 and all(map(is_text_name, files)):
        return (tuple(files),)
    shards: tuple[Shard, ...] = ()
    for item in files:
        of_item = parse_files(item)
        if not of_item:
            return ()
        shards += of_item
    return shards


def is_text_name(name: object) -> bool:
    return isinstance(name, str) and bool(name) and not name.endswith(TABLE_SUFFIXES)


def is_files_spec(files: object) -> bool:
    """Whether `files` names tables, pairs of aligned texts, or both."""
    return bool(parse_files(files))


def is_text_spec(files: object) -> bool:
    """Whether `files` is the name of one text, or a list of names, each once."""
    names = [files] if isinstance(files, str) else files
    return isinstance(names, list) and 0 < len(names) == len(set(map(str, names))) and all(map(is_text_name, names))


def resolve_shards(files: object, folder: str | None) -> tuple[Shard, ...]:
    """The shards of a corpus with absolute paths. A FileNotFoundError if a file does not exist."""
    return tuple(tuple(existing_file(name, folder) for name in shard) for shard in parse_files(files))


def resolve_texts(files: str | list[str], folder: str | None) -> Shard:
    """The absolute paths of the texts `{text: files}`, one file or several.

    A FileNotFoundError if one does not exist.
    """
    names = [files] if isinstance(files, str) else files
    return tuple(existing_file(name, folder) for name in names)


def existing_file(name: str, folder: str | None) -> str:
    path = absolute_path(name, folder)
    if not os.path.isfile(path):
        raise FileNotFoundError(
            f"a file of a corpus must exist, but {path} is not a file: correct the path; "
            f"a relative one starts at {absolute_path('', folder)}"
        )
    return path


def corpus_file_hashes(corpus_spec: CorpusSpec, folder: str | None) -> dict[str, str]:
    """The SHA-256 of each local file that `corpus_spec` reads, by its name in `folder`."""
    hashes: dict[str, str] = {}
    for part in corpus_spec.get("corpora") or []:
        hashes |= corpus_file_hashes(part, folder)
    paths: list[str] = []
    if corpus_spec.get("files"):
        for shard in resolve_shards(corpus_spec["files"], folder):
            paths += shard
    if corpus_spec.get("text"):
        paths += resolve_texts(corpus_spec["text"], folder)
    if corpus_spec.get("document_ids"):
        paths.append(absolute_path(corpus_spec["document_ids"], folder))
    if corpus_spec.get("dataset"):
        inside = glob.glob(os.path.join(resolve_name_or_path(corpus_spec["dataset"], folder), "**"), recursive=True)
        paths += filter(os.path.isfile, inside)
    return hashes | file_hashes(paths, folder)


def file_hashes(paths: Iterable[str], folder: str | None) -> dict[str, str]:
    """The SHA-256 of each file, by its name in `folder`."""
    start = absolute_path("", folder)
    return {os.path.relpath(path, start): cached_digest(path, os.stat(path).st_mtime_ns) for path in paths}


def resolve_name_or_path(name: str, folder: str | None) -> str:
    """The folder of that name, relative to `folder`. If it does not exist, the name itself, as a name on the Hub."""
    local = absolute_path(name, folder)
    return local if os.path.isdir(local) else name


def expand_home(path: str | Path) -> str:
    """A path from a config file or a command line, with `~` and `~name` expanded to home folders."""
    if (expanded := os.path.expanduser(path)).startswith("~"):
        raise ValueError(
            f"A path that begins with `~` is in a user's home, but for {expanded!r} there is no such user; write "
            f"./{expanded} for a folder of that name."
        )
    return expanded


def absolute_path(path: str, folder: str | None) -> str:
    return os.path.abspath(os.path.join(expand_home(folder or ""), expand_home(path)))


def read_shards(shards: tuple[Shard, ...], languages: tuple[str, str]) -> Iterator[tuple[str, str]]:
    """(source, target) of every line of every file. A ValueError names the file and the line that cannot be read."""
    for shard in shards:
        if len(shard) == 2:
            yield from _read_aligned(*shard)
        elif shard[0].endswith(TSV):
            yield from _read_tsv(shard[0])
        else:
            yield from _read_jsonl(shard[0], languages)


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
            # JSON can contain a lone surrogate, which UTF-8 cannot. A TypeError if a value is no text.
            ("" + source + target).encode()
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(
                f'a line of a .jsonl must be {{"translation": {{"{languages[0]}": text, "{languages[1]}": text}}}}, '
                f"but {path}, line {number}, is {line[:80]!r} ({type(error).__name__}: {error}): "
                "correct or remove the line"
            ) from None
        yield source, target
