"""Documents of each form: only their texts change."""

import gzip
import io
import zipfile
from pathlib import Path

import pytest

from hf_posenc.translator.documents import FORM_BY_SUFFIX, TextDocument, parse_document, read_document

DOCUMENTS = {
    "lines.txt": ("Ein Satz.\n\n  Noch einer.\r\n", "EIN SATZ.\n\n  NOCH EINER.\r\n"),
    "page.md": (
        "# Titel\n\nEin *Satz* mit `code` und [Verweis](http://x.y/z).\n\n"
        "- Punkt\n\n```py\nx = 1\n```\n\n| a | b |\n|---|---|\n",
        "# TITEL\n\nEIN *SATZ* MIT `code` UND [VERWEIS](http://x.y/z).\n\n"
        "- PUNKT\n\n```py\nx = 1\n```\n\n| A | B |\n|---|---|\n",
    ),
    "film.srt": (
        "1\n00:00:01,000 --> 00:00:02,000\nHallo,\nwie geht es?\n\n2\n00:00:03,000 --> 00:00:04,000\nGut.\n",
        "1\n00:00:01,000 --> 00:00:02,000\nHALLO, WIE GEHT ES?\n\n2\n00:00:03,000 --> 00:00:04,000\nGUT.\n",
    ),
    "page.html": (
        "<!DOCTYPE html><html><style>p{}</style><BODY>"
        "<p class='x'>Das &amp; <b>fett</b>.<br/>Neu</P><!-- c --></BODY></html>",
        "<!DOCTYPE html><html><style>p{}</style><BODY>"
        "<p class='x'>DAS &amp; <b>FETT</b>.<br/>NEU</P><!-- c --></BODY></html>",
    ),
    "rows.jsonl": ('{"id": 1, "text": "Ein Satz."}\n', '{"id": 1, "text": "EIN SATZ."}\n'),
}


def translate_to_capitals(document: TextDocument) -> None:
    for part in document.texts:
        part.replace(part.text.upper())


@pytest.mark.parametrize("name", DOCUMENTS)
def test_only_texts_change(name: str, tmp_path: Path) -> None:
    given, expected = DOCUMENTS[name]
    (tmp_path / name).write_bytes(given.encode())
    document = read_document(tmp_path / name)
    if not name.endswith(".srt"):
        assert document.to_bytes() == given.encode()
    translate_to_capitals(document)
    assert document.to_bytes() == expected.encode()


TEXTS = [  # form, document, and its texts
    ("html", "<a title='a > b' href=\"x>y\">Eins</a> &lt;zwei&gt;", ["Eins", "<zwei>"]),
    ("html", "<p a='a''>Eins</p> <p x=it\"s>Zwei</p>\n1 <2\n und\n<i>drei</i>", ["Eins", "Zwei", "1 <2 und", "drei"]),
    ("html", "<script>if (a<b) '<p>nein'</script><PRE a=b>nein <i>nein</i></PRE\n>Ja", ["Ja"]),
    ("html", "<script src='x'/>Ja<prefix>doch</prefix><!-- <p>nein --><![CDATA[ nein ]]>&nbsp;7", ["Ja", "doch"]),
    ("html", "Ja<pre>offen <", ["Ja"]),
    ("html", "offen <b", ["offen <b"]),
    ("html", "<!doctype html [\n<!ENTITY nein 'nein'>\n] ><p>Ja", ["Ja"]),
    ("markdown", "Ein Satz,\nder geht. \nNoch `einer`\nhier  \nNeu\n", ["Ein Satz, der geht. Noch", "hier", "Neu"]),
    ("markdown", "- a\n    - b\n        - c\n\n          d\n\n    e\n\nf\n\n    nein\n", list("abcdef")),
    ("markdown", "````\nnein\n```\nnein\n````\n> ~~~py\n> nein\n> ~~~\nJa\n", ["Ja"]),
    ("markdown", "```nein``` ja\n\n`` n`ein `` doch [x](y_(z)) 3 < 4 > 2 x\n", ["ja", "doch", "x", "3 < 4 > 2 x"]),
    ("markdown", "---\ntitle: nein\n---\n\n---\nJa\n\n---\n", ["Ja"]),
    ("markdown", "- [x] a[^nein]\n\n[^nein]: b\n[nein]: http://x \"nein\"\n[c]: d, e\n", ["a", "b", "c", ": d, e"]),
    ("markdown", "<!-- nein\nnein -->\n<style>\nnein\n</style>\n>a\n\nb | c\n--|--\nd | e\n", list("abcde")),
    ("text", "\n  Ein Satz,\r\nder weitergeht.\r\n \r\n* * *\r\n\r\nNeu\r\n", ["Ein Satz, der weitergeht.", "Neu"]),
    ("srt", "\n1\n0:00:01,0 --> 0:00:02,0\n<i>Eins</i>\n \n0:00:01,0 --> 0:00:02,0\n{\\an8}Zwei\n", ["Eins", "Zwei"]),
    ("srt", "1\n0:00:01,0 --> 0:00:02,0\r\nEins,\r\nzwei\r\n\r\n2\n0:00:01,0 --> 0:00:02,0", ["Eins, zwei"]),
    ("jsonl", '\n{"n": 1.10, "text":"B\\u00e4r", "n": 2, "a": {"text": "nein"}}\r\n{"text": ""}', ["B\u00e4r", ""]),
]  # fmt: skip


@pytest.mark.parametrize(("form", "content", "texts"), TEXTS)
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_the_texts_of_a_document_are_found_and_the_rest_stays(
    form: str, content: str, texts: list[str], mark: str
) -> None:
    document = parse_document((mark + content).encode(), Path("file"), form)
    assert [part.text for part in document.texts] == texts
    for part in document.texts:
        part.replace("")
    rest = document.to_bytes().decode()
    assert len(rest) < len(mark + content) and is_subsequence(rest, mark + content)
    if "&" not in content and "\\u" not in content:  # no escapes; only blanks inside a text change
        assert num_letters(rest) + num_letters("".join(texts)) == num_letters(mark + content)


def num_letters(text: str) -> int:
    return len("".join(text.split()))


def is_subsequence(short: str, long: str) -> bool:
    letters = iter(long)
    return all(letter in letters for letter in short)


def test_a_book_keeps_its_other_files_and_their_order(tmp_path: Path) -> None:
    book = tmp_path / "book.epub"
    with zipfile.ZipFile(book, "w") as archive:
        archive.writestr("mimetype", "application/epub+zip", zipfile.ZIP_STORED)
        archive.writestr("one.xhtml", "<?xml version='1.0'?><p>Ein Satz.</p>", zipfile.ZIP_DEFLATED)
        archive.writestr("image.png", b"\x89PNG\xff")
    document = read_document(book)
    translate_to_capitals(document)
    book.write_bytes(document.to_bytes())
    with zipfile.ZipFile(book) as archive:
        assert archive.namelist() == ["mimetype", "one.xhtml", "image.png"]
        assert archive.infolist()[0].compress_type == zipfile.ZIP_STORED
        assert archive.read("one.xhtml") == b"<?xml version='1.0'?><p>EIN SATZ.</p>"
        assert archive.read("image.png") == b"\x89PNG\xff"


def test_a_page_in_ascii_stays_in_ascii() -> None:
    """It may declare another character set, or none, and browsers then assume one."""
    document = parse_document(b"<meta charset=latin1>&auml; &amp; b", Path("page.html"), "html")
    translate_to_capitals(document)
    assert document.to_bytes() == b"<meta charset=latin1>&#196; &amp; B"


def test_json_lines_keep_all_but_the_text() -> None:
    given = '{"n": 1.10, "n": 1e999, "s": "\\ud800", "text":"a",\t"u": "\\u00e4"}\r\n\n{ "text" : "a"}'
    document = parse_document(given.encode(), Path("rows.jsonl"), "jsonl")
    for part in document.texts:
        part.replace('b"\u2028\n\u00e4')
    assert document.to_bytes().decode() == given.replace('"a"', '"b\\"  \u00e4"')


def test_of_a_repeated_field_the_last_text_is_translated_as_other_readers_take_it() -> None:
    document = parse_document(b'{"text": "first", "text": "last"}\n', Path("rows.jsonl"), "jsonl")
    translate_to_capitals(document)
    assert document.to_bytes() == b'{"text": "first", "text": "LAST"}\n'


def test_compressed_documents_keep_their_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "film.srt.gz"
    content = b"1\r\n0:00:01,0 --> 0:00:02,0\r\nHallo\r\n"
    path.write_bytes(gzip.compress(content))
    assert read_document(path).to_bytes() == content


def test_a_chapter_is_known_by_its_name_or_its_first_tag() -> None:
    names = {
        "a.XHTML": "<p>a</p>",
        "b.xml": "<?xml version='1.0'?><html><p>b</p></html>",
        "c.opf": "<package>c</package>",
    }
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as book:
        for name, content in names.items():
            book.writestr(name, content)
    document = parse_document(archive.getvalue(), Path("book.epub"), "epub")
    assert [(part.text, part.place) for part in document.texts] == [("a", "a.XHTML, line 1"), ("b", "b.xml, line 1")]


def test_a_damaged_book_is_refused() -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as book:
        book.writestr("a.html", "<p>Ein Satz.</p>" * 99, zipfile.ZIP_DEFLATED)
    content = bytearray(archive.getvalue())
    content[40:60] = b"\xff" * 20
    with pytest.raises(ValueError, match=r"book\.epub cannot be read \(.*\); get it again"):
        parse_document(bytes(content), Path("book.epub"), "epub")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"gut\nschlecht \xff", "byte 0xff in line 2"),
        ("a.srt", b"1\nHallo\n\n", "cue 1 begins with '1.*Hallo'"),
        ("a.epub", b"no archive", "a ZIP archive"),
        ("a.jsonl", b'{"text": "a"}\n{"other": 1}\n', "line 2 is"),
        ("a.jsonl", b"[1]\n", "line 1 is"),
        ("a.jsonl", b'"text"\n', "line 1 is"),
        ("a.jsonl", b'{"text": 1}\n', "line 1 is"),
        ("a.jsonl", b'\n{"text": ' + b"[" * 99999, "line 2 is"),
    ],
)
def test_what_cannot_be_read_is_named_by_file_and_place(
    name: str, content: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as raised:
        read_document(tmp_path / name)
    assert name in str(raised.value)


def test_every_suffix_has_a_reader() -> None:
    with pytest.raises(ValueError, match="form of a document"):
        read_document(Path("a.txt"), "pdf")
    assert set(FORM_BY_SUFFIX.values()) == {"markdown", "srt", "html", "epub", "jsonl"}
