"""Files to translate: their texts, and the file in the same form with other texts in their place.

A document is a sequence of fixed parts, such as tags and line ends, and of texts. What is not text is kept byte for
byte, so the number of lines, cues, tags and fields stays.
"""

import html
import io
import json
import re
import zipfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import regex

from ..hub.errors import require_choice
from ..utils.text_io import (
    COMPRESSED_FORMATS,
    DECOMPRESSION_ERRORS,
    detect_compression,
    json_line,
    read_lines,
    replace_line_ends,
)
from .checks import SegmentTranslation, TextTranslation
from .segments import with_blanks_apart

BYTE_ORDER_MARK = "\ufeff"
# Of HTML: comments, declarations, elements whose text is no language, tags. Values in quotation marks may have any
# signs. What lacks its end lasts to the end of the file, and nothing is tried twice, so the search takes linear time.
TAG_REST = r"""(?>[^<>=]|=(?:\s*(?:"[^"]*"|'[^']*'))?)*+>"""
HTML_KEPT = regex.compile(
    rf"(<!--.*?(?:-->|\Z)|<!\[CDATA\[.*?(?:\]\]>|\Z)"
    rf"|<!DOCTYPE[^<>\[]*\[.*?(?:\]\s*>|\Z)"
    rf"|<(script|style|code|pre|kbd|samp|math|svg|textarea)(?=[\s/>]){TAG_REST}(?<!/>).*?(?:</\2\s*>|\Z)"
    rf"|<[!?/a-z]{TAG_REST})",
    regex.DOTALL | regex.IGNORECASE,
)
# Of Markdown: code, targets of links, references, tags, addresses. The text between them is translated.
MARKDOWN_KEPT = regex.compile(
    r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)|\]\((?:[^()]|\([^()]*\))*+\)|!?\[(?:\^[^\]]*)?|\]\[[^\]]*\]|\]"
    r"|</?[a-z!][^<>]*>|https?://\S+|\*\*|__|\|",
    regex.DOTALL | regex.IGNORECASE,
)
MARKDOWN_PREFIX = re.compile(r"\s*(?:(?:(?:#{1,6}|[-*+]|\d+[.)])\s+(?:\[[ xX]\]\s+)?|>\s*|\[\^[^\]]+\]:\s*))*")
MARKDOWN_KEPT_LINE = re.compile(r"""[\s:|-]+|\[(?!\^)[^\]]+\]:\s*\S+(?:\s+["'(].*)?|[-*_=\s]{3,}""")
FRONT_MATTER = re.compile(r"(---|\+\+\+)[ \t]*\r?\n(?=[\w\"'-]+\s*[:=])")
MARKDOWN_BLOCK = regex.compile(  # its first line, from which nothing is translated up to its end
    r"(?P<fence>`{3,}(?=[^`]*$)|~{3,})|<(?P<tag>script|style|pre|textarea)\b(?!.*</\2)|<!--(?!.*-->)", regex.IGNORECASE
)
PARAGRAPH_END = re.compile(r"(\n\s*\n)")
CUE_HEAD = regex.compile(r"\s*+(?:[^\n]*\n)?[^\S\n]*+\d+:\d\d:\d\d[,.]\d+ --> \d+:\d\d:\d\d[,.]\d+[^\n]*\n?")
CUE_TAG = regex.compile(r"</?[a-z][^<>]*>|\{\\[^{}]*\}", regex.IGNORECASE)
JSON_NAME = re.compile(r'[\s,{]*("(?:[^"\\]|\\.)*")\s*:\s*')


ChangeText = Callable[[str], str]


@dataclass
class Part:
    """A part of a document: `text` to translate if `place` says where it stands, such as "line 3", else fixed.

    `escape` makes of the text what the document writes.
    """

    text: str
    place: str | None = None
    escape: ChangeText = str

    @property
    def escaped(self) -> str:
        return self.escape(self.text)

    def replace(self, translation: str) -> None:
        """Set another text, on one line if the present one is."""
        self.text = translation if "\n" in self.text else replace_line_ends(translation)


@dataclass
class TextDocument:
    """Texts and fixed parts in order. `encode` writes the document again, with the parts' present texts.

    Without `encode`, the document is its parts one after another.
    """

    parts: list[Part]
    encode: Callable[[], bytes] | None = None

    @property
    def texts(self) -> list[Part]:
        """The parts to translate, to be changed in place."""
        return [part for part in self.parts if part.place is not None]

    def to_bytes(self) -> bytes:
        return join_parts(self.parts) if self.encode is None else self.encode()


def join_parts(parts: Iterable[Part]) -> bytes:
    return "".join(part.escaped for part in parts).encode()


Reader = Callable[[str, Path], Iterable[Part]]


def replace_texts(parts: Sequence[Part], translations: Iterable[TextTranslation]) -> list[SegmentTranslation]:
    """Replace the texts of the parts, and return the segments."""
    segments = []
    for part, translation in zip(parts, translations, strict=True):
        part.replace(translation.text)
        segments += translation.segments
    return segments


def read_document(path: Path, form: str | None = None, field: str = "text") -> TextDocument:
    """The document of a file, plain or compressed. `form`: one of FORMS, by default that of the suffix, or lines.

    `field`: of JSON lines. A ValueError with the file and the place for what cannot be read.
    """
    form = form or form_of(path)
    require_choice("The form of a document", form, FORMS)
    if path.suffix in COMPRESSED_FORMATS:
        deque(read_lines(path), maxlen=0)  # a ValueError if it cannot be read
        with COMPRESSED_FORMATS[path.suffix][1](path) as file:
            content = file.read()
        path = path.with_suffix("")
    else:
        content = path.read_bytes()
    return parse_document(content, path, form, field)


def form_of(path: Path) -> str:
    """The form of a file, plain or compressed, by its suffix.

    A ValueError for a suffix of files that have no text of their own.
    """
    suffix = (path.with_suffix("") if path.suffix in COMPRESSED_FORMATS else path).suffix.lower()
    if suffix in UNSUPPORTED:
        raise ValueError(
            f"A document must be one of {', '.join(FORMS)}, but {path} is none; save its text as one of these, or "
            "name the form if its suffix is wrong."
        )
    return FORM_BY_SUFFIX.get(suffix, "lines")


def parse_document(content: bytes, path: Path, form: str, field: str = "text") -> TextDocument:
    """The document with that content; `path` names it in errors. See `read_document`."""
    if form == "epub":
        return read_epub(content, path)
    detect_compression(content[:16], str(path))
    if not content.strip():
        raise ValueError(f"A document must have text, but {path} is empty; name another file.")
    reader = partial(read_json_lines, field=field) if form == "jsonl" else READERS[form]
    return TextDocument(read_text(content, path, reader))


def read_text(content: bytes, path: Path, reader: Reader) -> list[Part]:
    """The parts that the reader finds, after the byte order mark if there is one."""
    text = decode(content, path)
    mark = BYTE_ORDER_MARK if text.startswith(BYTE_ORDER_MARK) else ""
    return [Part(mark), *reader(text.removeprefix(mark), path)]


def decode(content: bytes, path: Path) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ValueError(
            f"A text file must be UTF-8, but {path} has the byte {content[error.start]:#04x} in line {line}; convert "
            "it, for example by iconv."
        ) from None


def read_plain_lines(text: str, path: Path) -> Iterator[Part]:
    """Each line is a text. A last line without an end gets one."""
    for number, line in enumerate(lines_of(text), 1):
        content = line.rstrip("\r\n")
        yield Part(content, f"line {number}" if content.strip() else None)
        yield Part(line[len(content) :] or "\n")


def read_paragraphs(text: str, path: Path) -> Iterator[Part]:
    """Paragraphs, which blank lines separate. The lines of a paragraph become one."""
    line = 1
    for piece in PARAGRAPH_END.split(text):
        yield from text_parts(piece, line)
        line += piece.count("\n")


def text_parts(piece: str, line: int, unescape: ChangeText = str, escape: ChangeText = str) -> Iterator[Part]:
    """A text on one line, and the blanks around it; a fixed part without letters. `line`: where the piece begins."""
    segment = with_blanks_apart(piece)
    text = unescape(segment.text)
    if not any(map(str.isalpha, text)):
        yield Part(piece)
        return
    yield Part(segment.before)
    line += segment.before.count("\n")
    yield Part(re.sub(r"\s+", " ", text, flags=re.ASCII), f"line {line}", escape)
    yield Part(segment.after)


def texts_between(
    kept: "regex.Pattern[str]", text: str, line: int = 1, unescape: ChangeText = str, escape: ChangeText = str
) -> Iterator[Part]:
    """The texts between the matches of a pattern, and the matches, which stay."""
    start = 0
    for match in (*kept.finditer(text), None):
        piece = text[start:] if match is None else text[start : match.start()]
        yield from text_parts(piece, line, unescape, escape)
        if match is not None:
            yield Part(match[0])
            line += piece.count("\n") + match[0].count("\n")
            start = match.end()


def read_markdown(text: str, path: Path) -> Iterator[Part]:
    """Paragraphs, headings, items and cells; code, comments, tags, addresses and front matter stay."""
    for line, block, is_text in markdown_blocks(text):
        if is_text:
            start = prefix_length(block)
            yield Part(block[:start])
            yield from texts_between(MARKDOWN_KEPT, block[start:], line)
        else:
            yield Part(block)


def markdown_blocks(text: str) -> Iterator[tuple[int, str, bool]]:
    """Paragraphs and other lines in order, the number of their first line, and whether they are text.

    A line without marks continues the paragraph before it, except rows of tables and lines after a hard break.
    """
    front_matter = FRONT_MATTER.match(text)
    end = re.compile(re.escape(front_matter[1])) if front_matter else None  # of the lines that are no text
    paragraph, start, is_open = "", 1, False
    item_column = 0  # where the text of the present item begins; what is four columns deeper is code
    for number, line in enumerate(lines_of(text), 1):
        marks, content = line[: prefix_length(line)], line[prefix_length(line) :].strip()
        opening = None if end else MARKDOWN_BLOCK.match(content)
        is_code = not paragraph and width(line[: -len(line.lstrip())]) >= item_column + 4
        is_text = bool(content) and not (end or opening or is_code or MARKDOWN_KEPT_LINE.fullmatch(content))
        continues = is_text and is_open and not marks.strip() and "|" not in line
        if paragraph and not continues:
            yield start, paragraph, True
            paragraph = ""
        if continues:
            paragraph += line
        elif is_text:
            paragraph, start = line, number
            is_item = not set("# >").issuperset(marks.strip())
            item_column = width(marks) if is_item else min(item_column, width(marks))
        else:
            yield number, line, False
        is_open = is_text and not ("#" in marks or "|" in line or line.rstrip("\r\n").endswith(("  ", "\\")))
        if opening:
            end = block_end(opening)
        elif end and number > 1 and end.fullmatch(content):
            end = None
    if paragraph:
        yield start, paragraph, True


def block_end(opening: "regex.Match[str]") -> "re.Pattern[str]":
    """What the last line of a block of code, of an element or of a comment has."""
    if fence := opening["fence"]:
        return re.compile(f"{fence[0]}{{{len(fence)},}}")
    return re.compile(f".*</{opening['tag']}.*" if opening["tag"] else ".*-->.*", re.IGNORECASE)


def prefix_length(line: str) -> int:
    """Characters of a line of Markdown before its text."""
    prefix = MARKDOWN_PREFIX.match(line)
    return prefix.end() if prefix else 0


def width(text: str) -> int:
    return len(text.expandtabs(4))


def read_subtitles(text: str, path: Path) -> Iterator[Part]:
    """The cues of SubRip. The lines of a cue become one; numbers, times and tags stay."""
    number = 0
    for cue in PARAGRAPH_END.split(text):
        if not cue.strip():
            yield Part(cue)
            continue
        number += 1
        head = CUE_HEAD.match(cue)
        if head is None:
            raise ValueError(
                f"A cue of {path} must have its times in its first or second line, but cue {number} begins with "
                f"{cue.strip()[:60]!r}; correct it."
            )
        yield Part(head[0])
        for part in texts_between(CUE_TAG, cue[head.end() :]):
            part.place = part.place and f"cue {number}"
            yield part


def read_html(text: str, path: Path) -> Iterator[Part]:
    """The texts between tags."""
    # A page in ASCII may declare any character set, or none.
    escape = escape_to_ascii if text.isascii() else partial(html.escape, quote=False)
    return texts_between(HTML_KEPT, text, unescape=html.unescape, escape=escape)


def escape_to_ascii(text: str) -> str:
    return html.escape(text, quote=False).encode("ascii", "xmlcharrefreplace").decode()


def read_epub(content: bytes, path: Path) -> TextDocument:
    """The texts of a book's chapters and its table of contents. Other files of it stay."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
        files = {info: archive.read(info) for info in archive.infolist()}
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, *DECOMPRESSION_ERRORS) as error:
        raise ValueError(f"A book must be a ZIP archive, but {path} cannot be read ({error}); get it again.") from None
    chapters = {
        info: read_text(data, path / info.filename, read_html) for info, data in files.items() if is_chapter(info, data)
    }
    if not chapters:
        raise ValueError(f"A book must have chapters in HTML, but {path} has none; name an EPUB file.")
    for info, parts in chapters.items():
        for part in parts:
            part.place = part.place and f"{info.filename}, {part.place}"

    def encode() -> bytes:
        written = io.BytesIO()
        with zipfile.ZipFile(written, "w") as book:
            for info, data in files.items():
                text = join_parts(chapters[info]) if info in chapters else data
                book.writestr(info, text, compress_type=info.compress_type)  # `mimetype` is first and uncompressed
        return written.getvalue()

    return TextDocument([part for parts in chapters.values() for part in parts], encode)


def is_chapter(info: zipfile.ZipInfo, content: bytes) -> bool:
    """Whether a file of a book has text, by its suffix or its first tag."""
    return info.filename.lower().endswith((".xhtml", ".html", ".htm", ".ncx")) or b"<html" in content[:1000]


def read_json_lines(text: str, path: Path, field: str) -> Iterator[Part]:
    """The field of each line's object."""
    for number, line in enumerate(lines_of(text), 1):
        if not line.strip():
            yield Part(line)
            continue
        try:
            value, start, end = find_value(line, field)
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ValueError(
                f"A line of {path} must be a JSON object with a text in the field {field!r}, but line {number} is "
                f"{line[:60]!r}; correct it, or name another field."
            ) from None
        yield Part(line[:start])
        yield Part(value, f"line {number}", lambda value: json_line(value).removesuffix("\n"))
        yield Part(line[end:])


def find_value(line: str, field: str) -> tuple[str, int, int]:
    """The text in a field of an object of JSON, of several the last one as in other readers, and where it stands.

    A ValueError for what is no JSON, a TypeError if it is no object or the value no text, a KeyError without the field.
    """
    row = json.loads(line)
    if not isinstance(row, dict) or not isinstance(row[field], str):
        raise TypeError
    decoder = json.JSONDecoder()
    start = end = position = 0
    while name := JSON_NAME.match(line, position):
        _, position = decoder.raw_decode(line, name.end())
        if json.loads(name[1]) == field:
            start, end = name.end(), position
    return row[field], start, end


def lines_of(text: str) -> list[str]:
    """The lines with their ends."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


READERS: dict[str, Reader] = {
    "lines": read_plain_lines,
    "text": read_paragraphs,
    "markdown": read_markdown,
    "srt": read_subtitles,
    "html": read_html,
}
FORMS = (*READERS, "epub", "jsonl")
FORM_BY_SUFFIX = {".md": "markdown", ".htm": "html", ".xhtml": "html"}
FORM_BY_SUFFIX |= {f".{form}": form for form in ("srt", "html", "epub", "jsonl")}
UNSUPPORTED = frozenset({".pdf", ".doc", ".docx", ".odt", ".rtf", ".xlsx", ".pptx", ".mobi", ".azw3", ".zip"})
