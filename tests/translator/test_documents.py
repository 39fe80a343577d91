"""Documents of each form: only their texts change."""

import zipfile
from pathlib import Path

import pytest

from hf_posenc.translator.documents import FORM_BY_SUFFIX, TextDocument, read_document, read_html

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


HTML = [  # markup, and its texts
    ("<a title='a > b' href=\"x>y\">Eins</a> &lt;zwei&gt;", ["Eins", " <zwei>"]),
    (
        '<p class="a"">Eins</p> <p data-x=it\'s>Zwei</p>\n1 < 2 und\n<i>drei</i>',
        ["Eins", "Zwei", "\n1 < 2 und\n", "drei"],
    ),
    ("<script>if (a<b) '<p>nein</p>'</script><PRE a=b>nein <i>nein</i></PRE\n>Ja", ["Ja"]),
    ("<script src='x'/>Ja<prefix>doch</prefix><!-- <p>nein</p> --><![CDATA[ nein ]]>&nbsp;7", ["Ja", "doch"]),
    ("Ja<pre>offen <", ["Ja"]),
    ("offen <b", ["offen <b"]),
]


@pytest.mark.parametrize(("markup", "texts"), HTML)
def test_the_texts_between_tags_are_found(markup: str, texts: list[str]) -> None:
    document = read_html(markup, Path("page.html"))
    assert [part.text for part in document.texts] == texts
    for part in document.texts:
        part.replace("")
    rest = document.to_bytes().decode()
    assert len(rest) < len(markup) and is_subsequence(rest, markup)


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


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"gut\nschlecht \xff", "byte 0xff in line 2"),
        ("a.srt", b"1\nHallo\n\n", "cue 1 begins with '1'"),
        ("a.epub", b"no archive", "a ZIP archive"),
        ("a.jsonl", b'{"text": "a"}\n{"other": 1}\n', "line 2 is"),
        ("a.jsonl", b"[1]\n", "line 1 is"),
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
