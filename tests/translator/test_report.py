"""The report of a translation: all doubts are in it, and texts are no markup."""

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hf_posenc.lab import cli
from hf_posenc.translator.checks import Doubt, SegmentTranslation
from hf_posenc.translator.report import validate_report_path, write_report

MARKUP = '<script>alert("1")</script> & <b>'
SEGMENTS = [
    SegmentTranslation("line 1", "Gut.", "Good."),
    SegmentTranslation("line 2", MARKUP, MARKUP, [Doubt("copy", f"found {MARKUP}"), Doubt("cut", "at the limit")]),
    SegmentTranslation(f"line {MARKUP}", "Neu.", "New.", repaired=True),
]


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.rows: list[list[str]] = []
        self.marked: list[int] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])
            self.marked += [len(self.rows) - 2] if ("class", "doubtful") in attrs else []
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


def test_a_page_shows_all_segments_and_marks_the_doubtful(tmp_path: Path) -> None:
    write_report(tmp_path / "r.html", SEGMENTS, MARKUP)
    page = Page()
    page.feed((tmp_path / "r.html").read_text(encoding="utf-8"))
    cells = [[segment.place, segment.source, segment.translation] for segment in SEGMENTS]
    assert [row[:3] for row in page.rows[1:]] == cells
    assert page.marked == [1]
    assert MARKUP in page.rows[2][3]
    assert not {"script", "link", "img"} & set(page.tags)


def test_a_record_has_the_doubtful_segments(tmp_path: Path) -> None:
    write_report(tmp_path / "r.json", SEGMENTS)
    record = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert (record["segments"], record["doubtful"], record["repaired"]) == (3, 1, 1)
    assert record["checks"] == {"copy": 1, "cut": 1}
    (doubt,) = record["doubts"]
    assert (doubt["place"], doubt["source"], doubt["translation"]) == ("line 2", MARKUP, MARKUP)
    assert [reason["check"] for reason in doubt["reasons"]] == ["copy", "cut"]


def test_a_report_of_another_form_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\.json or \.html"):
        validate_report_path(Path("r.txt"))


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_the_command_reports_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The translations of a random model are doubtful."""
    pytest.importorskip("sentencepiece")
    (tmp_path / "in.txt").write_text("Das kleine Haus steht am Meer.\n\nNoch ein Satz steht hier.\n", encoding="utf-8")
    model = str(Path(__file__).parent / "fixtures" / "marian")
    arguments = ["translate", model, "--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "out.txt")]
    arguments += ["--num-beams", "1", "--max-new-tokens", "4", "--report", str(tmp_path / "r.json")]
    with pytest.raises(SystemExit) as exited:
        cli.main([*arguments, "--fail-on-doubtful"])
    record = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert exited.value.code == 3
    assert [doubt["place"] for doubt in record["doubts"]] == ["line 1", "line 3"]
    assert len((tmp_path / "out.txt").read_text(encoding="utf-8").split("\n")) == 4, "the translation is written, too"
    assert "2 of 2 segments are doubtful" in capsys.readouterr().err
    (tmp_path / "out.txt").unlink()
    cli.main(arguments)
