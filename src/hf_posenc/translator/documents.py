"""Files to translate: their texts, and the file in the same form with other texts in their place.

A document is a sequence of fixed parts, such as tags and line ends, and of texts. What is not text is kept byte for
byte, so the number of lines, cues, tags and fields stays.
"""

import html
import io
import json
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import regex

from ..hub.errors import require_choice
from ..utils.text_io import COMPRESSED_FORMATS, detect_compression, read_lines, replace_line_ends
from .checks import SegmentTranslation, TextTranslation

# Of HTML: comments, elements whose text is no language, tags. Values in quotation marks may have any signs. What lacks
# its end lasts to the end of the file, and nothing is tried twice, so the search takes linear time.
TAG_REST = r"""(?>[^<>=]|=(?:\s*(?:"[^"]*"|'[^']*'))?)*+>"""
HTML_KEPT = regex.compile(
    rf"(<!--.*?(?:-->|\Z)|<!\[CDATA\[.*?(?:\]\]>|\Z)"
    rf"|<(script|style|code|pre|kbd|samp|math|svg|textarea)(?=[\s/>]){TAG_REST}(?<!/>).*?(?:</\2\s*>|\Z)"
    rf"|<[!?/a-z]{TAG_REST})",
    regex.DOTALL | regex.IGNORECASE,
)
# Of Markdown: code, targets of links, tags, addresses. The text between them is translated.
MARKDOWN_KEPT = re.compile(r"(`+[^`]+`+|\]\([^)]*\)|!?\[|\]\[[^\]]*\]|\]|<[^<>]+>|https?://\S+|\*\*|__|\|)")
MARKDOWN_PREFIX = re.compile(r"\s*(?:(?:#{1,6}|[-*+]|\d+[.)]|>)\s+)*")
MARKDOWN_KEPT_LINE = re.compile(r"\s*(?:\|?[\s:|-]+\|?|\[[^\]]+\]:.*|[-*_=\s]{3,})$")
CUE_TIME = re.compile(r"\d+:\d\d:\d\d[,.]\d+ --> \d+:\d\d:\d\d[,.]\d+.*")


@dataclass
class Part:
    """A part of a document: `text` to translate if `place` says where it stands, such as "line 3", else fixed."""

    text: str
    place: str | None = None

    def replace(self, translation: str) -> None:
        """Set another text, on one line if the present one is."""
        self.text = translation if "\n" in self.text else replace_line_ends(translation)


@dataclass
class TextDocument:
    """Texts and fixed parts in order. `encode` writes the document again, with the parts' present texts.

    Without `encode`, the document is its parts one after another.
    """

    parts: list[Part]
    encode: Callable[[list[Part]], bytes] | None = None

    @property
    def texts(self) -> list[Part]:
        """The parts to translate, to be changed in place."""
        return [part for part in self.parts if part.place is not None]

    def to_bytes(self) -> bytes:
        return "".join(part.text for part in self.parts).encode() if self.encode is None else self.encode(self.parts)


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
        content = "".join(f"{line}\n" for line in read_lines(path)).encode()
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
    text = decode(content, path)
    if not text.strip():
        raise ValueError(f"A document must have text, but {path} is empty; name another file.")
    return read_json_lines(text, path, field) if form == "jsonl" else READERS[form](text, path)


def decode(content: bytes, path: Path) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ValueError(
            f"A text file must be UTF-8, but {path} has the byte {content[error.start]:#04x} in line {line}; convert "
            "it, for example by iconv."
        ) from None


def read_plain_lines(text: str, path: Path) -> TextDocument:
    """Each line is a text. A last line without an end gets one."""
    return TextDocument(list(line_parts(text)))


def line_parts(text: str) -> Iterator[Part]:
    for number, line in enumerate(lines_of(text), 1):
        content = line.rstrip("\r\n")
        yield Part(content, f"line {number}" if content.strip() else None)
        yield Part(line[len(content) :] or "\n")


def read_paragraphs(text: str, path: Path) -> TextDocument:
    """Paragraphs, which blank lines separate. The lines of a paragraph become one."""
    parts, line = [], 1
    for number, piece in enumerate(re.split(r"(\n\s*\n)", text)):
        is_blank = number % 2 == 1 or not has_letters(piece)
        parts.append(Part(piece) if is_blank else Part(" ".join(piece.split()), f"line {line}"))
        if not is_blank and piece.endswith("\n"):
            parts.append(Part("\n"))
        line += piece.count("\n")
    return TextDocument(parts)


def read_markdown(text: str, path: Path) -> TextDocument:
    """Paragraphs, headings, items and cells; code, tags and addresses stay."""
    parts: list[Part] = []
    fence = None
    for number, line in enumerate(lines_of(text), 1):
        mark = line.lstrip()[:3]
        if mark in ("```", "~~~"):
            fence = None if fence == mark else fence or mark
            parts.append(Part(line))
        elif fence or line.startswith(("    ", "\t")) or MARKDOWN_KEPT_LINE.match(line.rstrip()):
            parts.append(Part(line))
        else:
            parts += markdown_line(line, number)
    return TextDocument(parts)


def markdown_line(line: str, number: int) -> Iterator[Part]:
    prefix = MARKDOWN_PREFIX.match(line)
    start = prefix.end() if prefix else 0
    yield Part(line[:start])
    for index, piece in enumerate(MARKDOWN_KEPT.split(line[start:])):
        yield Part(piece, f"line {number}" if index % 2 == 0 and has_letters(piece) else None)


def read_subtitles(text: str, path: Path) -> TextDocument:
    """The cues of SubRip. The lines of a cue become one; numbers and times stay."""
    parts: list[Part] = []
    for number, cue in enumerate(re.split(r"(\r?\n(?:\r?\n)+)", text)):
        lines = lines_of(cue)
        if number % 2 or not cue.strip():
            parts.append(Part(cue))
            continue
        at = next((index for index, line in enumerate(lines[:2]) if CUE_TIME.match(line)), None)
        if at is None:
            raise ValueError(
                f"A cue of {path} must have its times in its first or second line, but cue {number // 2 + 1} begins "
                f"with {lines[0].strip()[:60]!r}; correct it."
            )
        parts.append(Part("".join(lines[: at + 1])))
        content = " ".join("".join(lines[at + 1 :]).split())
        parts.append(Part(content, f"cue {number // 2 + 1}" if has_letters(content) else None))
        parts.append(Part("\n" if cue.endswith("\n") else ""))
    return TextDocument(parts)


def read_html(text: str, path: Path) -> TextDocument:
    """The texts between tags."""
    parts, line = [], 1
    pieces = HTML_KEPT.split(text)  # text, markup and the name of a kept element in turn, with a text at the end
    for piece, markup in zip_longest(pieces[::3], pieces[1::3], fillvalue=""):
        content = html.unescape(piece)
        parts.append(Part(content, f"line {line}") if has_letters(content) else Part(piece))
        parts.append(Part(markup))
        line += piece.count("\n") + markup.count("\n")
    return TextDocument(parts, lambda parts: "".join(map(html_text, parts)).encode())


def html_text(part: Part) -> str:
    return part.text if part.place is None else html.escape(part.text, quote=False)


def read_epub(content: bytes, path: Path) -> TextDocument:
    """The texts of a book's chapters and its table of contents. Other files of it stay."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
        files = {info: archive.read(info) for info in archive.infolist()}
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise ValueError(f"A book must be a ZIP archive, but {path} cannot be read ({error}); get it again.") from None
    chapters = {
        info: read_html(decode(data, path / info.filename), path).parts
        for info, data in files.items()
        if info.filename.lower().endswith((".xhtml", ".html", ".htm", ".ncx"))
    }
    if not chapters:
        raise ValueError(f"A book must have chapters in HTML, but {path} has none; name an EPUB file.")
    for info, parts in chapters.items():
        for part in parts:
            part.place = part.place and f"{info.filename}, {part.place}"

    def encode(_: list[Part]) -> bytes:
        written = io.BytesIO()
        with zipfile.ZipFile(written, "w") as book:
            for info, data in files.items():
                text = "".join(map(html_text, chapters[info])).encode() if info in chapters else data
                book.writestr(info, text, compress_type=info.compress_type)  # `mimetype` is first and uncompressed
        return written.getvalue()

    return TextDocument([part for parts in chapters.values() for part in parts], encode)


def read_json_lines(text: str, path: Path, field: str) -> TextDocument:
    """The field of each line's object."""
    rows, parts = [], []
    for number, line in enumerate(lines_of(text), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            parts.append(Part(row[field], f"line {number}"))
            rows.append(row)
            if not isinstance(row[field], str):
                raise TypeError
        except (ValueError, KeyError, TypeError, IndexError):
            raise ValueError(
                f"A line of {path} must be a JSON object with a text in the field {field!r}, but line {number} is "
                f"{line[:60]!r}; correct it, or name another field."
            ) from None

    def encode(parts: list[Part]) -> bytes:
        lines = [
            json.dumps(row | {field: part.text}, ensure_ascii=False) for row, part in zip(rows, parts, strict=True)
        ]
        return "".join(f"{line}\n" for line in lines).encode()

    return TextDocument(parts, encode)


def lines_of(text: str) -> list[str]:
    """The lines with their ends."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def has_letters(text: str) -> bool:
    return any(map(str.isalpha, text))


READERS: dict[str, Callable[[str, Path], TextDocument]] = {
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
