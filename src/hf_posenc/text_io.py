"""Text in and out: UTF-8, and a line ends at a line feed.

Other characters that Unicode or a program calls line ends occur inside the lines of aligned corpora, so they end none
here. What is written as one line has none of them, because other programs that read it end a line there. A carriage
return before the line feed and a byte order mark before the first line are no text.
"""

import bz2
import codecs
import gzip
import io
import json
import lzma
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

# How what can be read begins, by the ending that its name has, and what cannot.
COMPRESSED: dict[str, tuple[re.Pattern[bytes], Callable[..., Any]]] = {
    ".gz": (re.compile(rb"\x1f\x8b"), gzip.open),
    ".bz2": (re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"), bz2.open),
    ".xz": (re.compile(rb"\xfd7zXZ\x00"), lzma.open),
}
FOREIGN: dict[str, tuple[tuple[bytes, ...], str]] = {
    "a zip archive": ((b"PK\x03\x04",), "unpack it, such as by unzip"),
    "zstandard": ((b"\x28\xb5\x2f\xfd",), "decompress it, such as by zstd -d"),
    "UTF-32": ((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE), "convert it, such as by iconv -f UTF-32 -t UTF-8"),
    "UTF-16": ((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE), "convert it, such as by iconv -f UTF-16 -t UTF-8"),
}
KINDS = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz"}
BROKEN = (OSError, EOFError, zlib.error, lzma.LZMAError)  # errors of a decompressor
LONGEST_LINE = 2**26  # bytes
# A compressed file that holds more bytes than this and more times its own size is refused: real text grows 3 to 10
# times as large, but a few bytes can be made to hold what fills any disk.
MOST_TIMES, LARGE = 200, 2**30

LINE_END = re.compile("\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
HIDDEN_IN_JSON = re.compile("[\x85\u2028\u2029]")  # json.dumps escapes the other ones


def read_lines(path: str | os.PathLike[str], limit: int = LARGE) -> Iterator[str]:
    """The lines of a text, plain or compressed (.gz, .bz2, .xz). A ValueError names the file and the line that cannot
    be read, and refuses a compressed one that holds more than `limit` bytes and more than MOST_TIMES its size."""
    path = os.fspath(path)
    empty = True
    with open(path, "rb") as file:
        for line in lines_of(file, path, max(limit, MOST_TIMES * os.path.getsize(path))):
            empty = False
            yield line
    if empty:
        raise ValueError(f"A text must have lines, but {path} is empty: fill it or take it off the list.")


def lines_of(stream: Any, name: str, most: int = 0) -> Iterator[str]:
    """The lines of a buffered binary stream of that name; of a compressed one at most so many bytes, and if that is 0
    none."""
    ending = compression_of(stream.peek(16), name)
    if ending and not most:
        raise ValueError(f"A stream must be plain text, but {name} is compressed ({ending}): decompress it first.")
    number = size = 0
    text = COMPRESSED[ending][1](stream) if ending else stream
    try:
        for number, line in enumerate(iter(partial(text.readline, LONGEST_LINE + 1), b""), 1):
            size += len(line)
            check_size(len(line), size if ending else 0, most, name, number)
            plain = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            yield plain.removesuffix(b"\n").removesuffix(b"\r").decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"A text must be UTF-8, but {name}, line {number}, is not ({error}): convert it, for example by "
            "iconv -f ISO-8859-1 -t UTF-8."
        ) from None
    except BROKEN as error:
        if not ending:
            raise
        raise ValueError(
            f"A file named {ending} must be whole and {KINDS[ending]}, but {name} breaks off after line {number} "
            f"({error}): fetch or compress it again."
        ) from None


def compression_of(first_bytes: bytes, name: str) -> str | None:
    """The ending of a kind that can be read, None for plain text. A ValueError for another kind, or a false ending."""
    for kind, (signs, remedy) in FOREIGN.items():
        if first_bytes.startswith(signs):
            raise ValueError(f"A text must be UTF-8, plain or {', '.join(COMPRESSED)}, but {name} is {kind}: {remedy}.")
    if b"\0" in first_bytes[:2]:
        raise ValueError(f"A text must be UTF-8, but {name} begins as UTF-16 does: convert it, such as by iconv.")
    for ending, (begins, _) in COMPRESSED.items():
        if begins.match(first_bytes):
            return ending
    if first_bytes and (ending := os.path.splitext(name)[1]) in COMPRESSED:
        raise ValueError(
            f"A file named {ending} must be whole and {KINDS[ending]}, but {name} breaks off after line 0 (it is "
            "another kind of file): fetch or compress it again, or give it another name."
        )
    return None


def check_size(line: int, lines: int, most: int, name: str, number: int) -> None:
    """A ValueError for a line, or for the lines of a compressed file up to there, of too many bytes."""
    if line > LONGEST_LINE:
        raise ValueError(
            f"A line must have at most {LONGEST_LINE} bytes, but {name}, line {number}, has more: end its lines by "
            "line feeds."
        )
    if lines > most:
        raise ValueError(
            f"A compressed text must have at most {most} bytes, {LARGE} or {MOST_TIMES} times its own size, but {name} "
            f"has more, from line {number} on: decompress it first if that is what it is meant to be."
        )


def one_line(text: str) -> str:
    """A text as one line to every program: each line end in it becomes a space."""
    return LINE_END.sub(" ", text)


def json_line(value: Any) -> str:
    """A value as one line of JSON to every program, with its line feed."""
    text = json.dumps(value, ensure_ascii=False)
    return HIDDEN_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n"


def print_utf8() -> None:
    """Let standard output be UTF-8 with line feeds, whatever the terminal's encoding is, which may lack characters."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")
