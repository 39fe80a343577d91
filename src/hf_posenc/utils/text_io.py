"""Text files and streams: UTF-8, with lines that end at a line feed.

Lines of aligned corpora contain other characters that Unicode or programs treat as line ends. They do not end a line
here. Lines that are written contain none of them, because other programs would end a line there. A carriage return
before the line feed and a byte order mark are removed.
"""

import bz2
import codecs
import gzip
import json
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import regex

JsonObject = dict[str, Any]  # keys and plain values, as YAML and JSON have them

# The first bytes of supported formats by suffix, and of unsupported ones.
COMPRESSED_FORMATS: dict[str, tuple[re.Pattern[bytes], Callable[..., Any]]] = {
    ".gz": (re.compile(rb"\x1f\x8b"), gzip.open),
    ".bz2": (re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"), bz2.open),
    ".xz": (re.compile(rb"\xfd7zXZ\x00"), lzma.open),
}
UNSUPPORTED_FORMATS: dict[str, tuple[tuple[bytes, ...], str]] = {
    "a zip archive": ((b"PK\x03\x04",), "unpack it, such as by unzip"),
    "zstandard": ((b"\x28\xb5\x2f\xfd",), "decompress it, such as by zstd -d"),
    "UTF-32": ((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE), "convert it, such as by iconv -f UTF-32 -t UTF-8"),
    "UTF-16": ((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE), "convert it, such as by iconv -f UTF-16 -t UTF-8"),
}
FORMAT_NAMES = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz"}
DECOMPRESSION_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError)  # errors of a decompressor
STREAM_BYTES = 2**16  # the most that is read from a stream at once
MAX_LINE_BYTES = 2**26  # bytes
# No WINDOW_BYTES in a row of a compressed text may be more than MAX_COMPRESSION_RATIO times as large as compressed. A
# few bytes can be made to decompress to more than any disk holds. Real text is 3 to 10 times as large. A line counts as
# at least MIN_LINE_BYTES, because each one takes time.
MAX_COMPRESSION_RATIO, WINDOW_BYTES, MIN_LINE_BYTES = 100, 2**26, 64

# Lines end as for `str.splitlines`. Blanks are those of tokenizers: `str.isspace` also has the unit separator.
LINE_END = regex.compile(r"\r\n|[\p{Line_Break=BK}\p{Line_Break=NL}\p{Bidi_Class=B}]")
SEPARATOR = rf"(?:\p{{White_Space}}|{LINE_END.pattern})"
BROKEN_LINE = regex.compile(rf"{SEPARATOR}*(?:{LINE_END.pattern}){SEPARATOR}*")
SEPARATORS = "".join(dict.fromkeys(regex.findall(SEPARATOR, " ".join(map(chr, range(0x3001))))))
UNESCAPED_LINE_ENDS = re.compile("[\x85\u2028\u2029]")  # json.dumps escapes the other ones


def read_lines(path: str | os.PathLike[str], window_bytes: int = WINDOW_BYTES) -> Iterator[str]:
    """The lines of a text, plain or compressed (.gz, .bz2, .xz). A ValueError names the file and the line that cannot
    be read. A compressed text is refused if any `window_bytes` of it are more than MAX_COMPRESSION_RATIO times as large
    as compressed."""
    path = os.fspath(path)
    is_empty = True
    with open(path, "rb") as file:
        for line in iter_lines(file, path, window_bytes):
            is_empty = False
            yield line
    if is_empty:
        raise ValueError(f"A text must have lines, but {path} is empty: fill it or take it off the list.")


def iter_lines(stream: Any, name: str, window_bytes: int = 0, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[str]:
    """The lines of a buffered binary stream of that name, each of at most `max_line_bytes`. The compression ratio of a
    compressed stream is checked at each `window_bytes`; 0 refuses such a stream."""
    suffix = detect_compression(stream.peek(16), name)
    if suffix and not window_bytes:
        raise ValueError(f"A stream must be plain text, but {name} is compressed ({suffix}): decompress it first.")
    line_number = window = window_start = 0
    text = COMPRESSED_FORMATS[suffix][1](stream) if suffix else stream
    try:
        for line_number, line in enumerate(iter(partial(text.readline, max_line_bytes + 1), b""), 1):
            if len(line) > max_line_bytes:
                raise ValueError(
                    f"A line must have at most {max_line_bytes} bytes, but {name}, line {line_number}, has more: "
                    "end its lines by line feeds."
                )
            window += max(len(line), MIN_LINE_BYTES)
            if suffix and window > window_bytes:
                compressed_bytes = stream.tell() - window_start
                if window > MAX_COMPRESSION_RATIO * compressed_bytes:
                    raise ValueError(
                        f"A compressed text must be at most {MAX_COMPRESSION_RATIO} times as large as compressed, but "
                        f"in {name}, up to line {line_number}, {compressed_bytes} bytes hold {window} of text (a line "
                        f"counts as at least {MIN_LINE_BYTES}): decompress it first if that is what it is meant to be."
                    )
                window, window_start = 0, stream.tell()
            stripped = line.removeprefix(codecs.BOM_UTF8) if line_number == 1 else line
            yield stripped.removesuffix(b"\n").removesuffix(b"\r").decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"A text must be UTF-8, but {name}, line {line_number}, is not ({error}): convert it, for example by "
            "iconv -f ISO-8859-1 -t UTF-8."
        ) from None
    except DECOMPRESSION_ERRORS as error:
        if not suffix:
            raise
        raise ValueError(
            f"A file named {suffix} must be whole and {FORMAT_NAMES[suffix]}, but {name} "
            f"breaks off after line {line_number} ({error}): fetch or compress it again."
        ) from None


def read_stream(stream: Any, name: str) -> Iterator[str]:
    """The text of a buffered binary stream of that name, in chunks as they arrive, without its line ends.

    A line end, with the whitespace around it, separates words as a space does. Leading and trailing whitespace is
    removed. For invalid UTF-8 a ValueError is raised after the text before it.
    """
    if suffix := detect_compression(stream.peek(16), name):
        raise ValueError(f"A stream must be plain text, but {name} is compressed ({suffix}): decompress it first.")
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    held, has_begun, is_open = "", False, True
    while is_open:
        data = stream.read1(STREAM_BYTES)
        is_open, problem = bool(data), None
        try:
            piece = decoder.decode(data, final=not is_open)
        except UnicodeDecodeError as error:
            piece, problem, is_open = error.object[: error.start].decode(), error, False
        text = held + piece
        words = text.rstrip(SEPARATORS)
        # Whitespace waits for the next word. Of many line ends one is kept, so that blank lines take no memory.
        held = text[len(words) :]
        held = "\n" if LINE_END.search(held) else held
        if words:
            words = BROKEN_LINE.sub(" ", words if has_begun else words.lstrip(SEPARATORS))
            has_begun = True
            yield words
        if problem is not None:
            invalid = problem.object[problem.start : problem.start + 4]
            raise ValueError(
                f"A stream must be UTF-8, but {name} has {invalid!r} ({problem.reason}): "
                "convert it, for example by iconv -f ISO-8859-1 -t UTF-8."
            )


def detect_compression(first_bytes: bytes, name: str) -> str | None:
    """The suffix of a supported compression, None for plain text. A ValueError for another format or a wrong suffix."""
    for format_name, (magic_bytes, remedy) in UNSUPPORTED_FORMATS.items():
        if first_bytes.startswith(magic_bytes):
            raise ValueError(
                f"A text must be UTF-8, plain or {', '.join(COMPRESSED_FORMATS)}, but "
                f"{name} is {format_name}: {remedy}."
            )
    if b"\0" in first_bytes[:2]:
        raise ValueError(f"A text must be UTF-8, but {name} begins as UTF-16 does: convert it, such as by iconv.")
    for suffix, (magic_pattern, _) in COMPRESSED_FORMATS.items():
        if magic_pattern.match(first_bytes):
            return suffix
    if first_bytes and (suffix := os.path.splitext(name)[1]) in COMPRESSED_FORMATS:
        raise ValueError(
            f"A file named {suffix} must be whole and {FORMAT_NAMES[suffix]}, but {name} "
            "breaks off after line 0 (it is another kind of file): fetch or compress it again, or give it another name."
        )
    return None


def replace_line_ends(text: str) -> str:
    """The text with each line end replaced by a space."""
    return LINE_END.sub(" ", text)


def json_line(value: object) -> str:
    """A value as one line of JSON in every program, with its line feed."""
    text = json.dumps(value, ensure_ascii=False)
    return UNESCAPED_LINE_ENDS.sub(lambda match: f"\\u{ord(match[0]):04x}", text) + "\n"
