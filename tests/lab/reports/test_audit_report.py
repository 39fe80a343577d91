"""The command `audit` reads documents of every form, and reports as `translate` does."""

import gzip
import json
import zipfile
from pathlib import Path

import pytest

from hf_posenc.lab.cli import DOCUMENT_FORMS, main
from hf_posenc.lab.reports.audit import Document, audit_files, in_sentences

pytest.importorskip("sentencex")

PARAGRAPHS = [
    ["The old house stands near the river.", "Its garden is very beautiful.", "Nobody has lived there since winter."],
    ["Our neighbours want to buy it.", "They have saved money for years.", "The bank refuses their application."],
    ["The parliament voted on the budget.", "Several members criticised new taxes.", "A second reading follows soon."],
]
INVENTED = "Yesterday the president opened a museum of modern art."
SUFFIXES = {
    "lines": "",
    "text": "",
    "markdown": ".md",
    "srt": ".srt",
    "html": ".html",
    "epub": ".epub",
    "jsonl": ".jsonl",
}


def with_errors() -> list[list[str]]:
    first, second, third = PARAGRAPHS
    return [[first[0], first[2]], [*second[:2], *second[1:]], [*third[:2], INVENTED, third[2]]]


def write(path: Path, form: str, paragraphs: list[list[str]]) -> Path:
    """A document of the form with these paragraphs, each of which is one text."""
    texts = [" ".join(sentences) for sentences in paragraphs]
    chapter = "<html><body><h1>Code</h1><p>{}</p></body></html>"
    cues = [f"{number}\n00:00:0{number},000 --> 00:00:0{number + 1},000\n{text}" for number, text in enumerate(texts)]
    if form == "epub":
        with zipfile.ZipFile(path, "w") as book:
            for number, text in enumerate(texts):
                book.writestr(f"{number}.xhtml", chapter.format(text))
        return path
    content = {
        "lines": " ".join(texts) + "\n",
        "text": "\n\n".join(text.replace(". ", ".\n") for text in texts),
        "markdown": "# Code\n\n" + "\n".join(f"- {text}" for text in texts),
        "srt": "\n\n".join(cues) + "\n",
        "html": chapter.format("</p><p>".join(texts)),
        "jsonl": "".join(json.dumps({"text": text}) + "\n" for text in texts),
    }[form]
    path.write_text(content, encoding="utf-8")
    return path


@pytest.mark.parametrize("form", DOCUMENT_FORMS)
def test_errors_are_found_in_documents_of_every_form(form: str, tmp_path: Path) -> None:
    source = write(tmp_path / f"source{SUFFIXES[form]}", form, PARAGRAPHS)
    translation = write(tmp_path / f"translation{SUFFIXES[form]}", form, with_errors())
    options = ["--form", form] if form == "text" else []
    arguments = ["audit", str(source), str(translation), "--references", str(source), *options]
    main([*arguments, "--report", str(tmp_path / "r.json")])
    main([*arguments, "--report", str(tmp_path / "r.html")])
    record = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    found = [(doubt["reasons"][0]["check"], doubt["source"], doubt["translation"]) for doubt in record["doubts"]]
    repeated = PARAGRAPHS[1][1]
    assert [row[:2] for row in found] == [("dropped", PARAGRAPHS[0][1]), ("repeated", repeated), ("invented", "")]
    assert found[0][2] == "" and found[1][2].count(repeated[:-1]) == 2 and found[2][2] == INVENTED
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert page.count('class="doubtful"') == 3
    assert all(sentence in page for paragraph in PARAGRAPHS for sentence in paragraph)


def test_a_compressed_document_has_the_form_of_its_inner_suffix(tmp_path: Path) -> None:
    source = write(tmp_path / "source.md", "markdown", PARAGRAPHS)
    packed = tmp_path / "source.md.gz"
    packed.write_bytes(gzip.compress(source.read_bytes()))
    assert audit_files(packed, source, references=packed) == audit_files(source, source, references=source)


def test_chapters_are_compared_in_order_and_must_be_as_many(tmp_path: Path) -> None:
    source = write(tmp_path / "source.jsonl", "jsonl", PARAGRAPHS)
    short = write(tmp_path / "short.jsonl", "jsonl", PARAGRAPHS[:2])
    with pytest.raises(ValueError, match=r"short.jsonl has 2 and the source 3 chapters or rows"):
        audit_files(source, short)


def test_a_report_of_another_form_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.json or \.html"):
        audit_files(tmp_path / "none", tmp_path / "none", report=tmp_path / "r.txt")


def test_a_text_stays_whole_if_its_reference_has_another_number_of_sentences() -> None:
    texts = ["Ein Haus. Ein Garten.", "Es regnet. Wir gehen."]
    document = Document(None, 1, texts, ["line 1", "line 2"])
    divided, references = in_sentences(document, ["A house. A garden.", "We leave as it rains."], "de")
    assert divided.lines == ["Ein Haus.", "Ein Garten.", texts[1]]
    assert divided.places == ["line 1", "line 1", "line 2"]
    assert references == ["A house.", "A garden.", "We leave as it rains."]
