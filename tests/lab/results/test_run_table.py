"""One table over runs: its numbers are those saved, the best are bold, and marks are of tests against the baseline."""

from __future__ import annotations

import csv
import io
import lzma
import sys
from pathlib import Path

import pytest
from support.saved_runs import write_run

from hf_posenc.__main__ import main as command_line
from hf_posenc.lab.results.rendering import TABLE_FORMATS
from hf_posenc.lab.results.saved_files import read_results
from hf_posenc.lab.results.saved_runs import table_of_runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("runs")
    seeds = {"good-seed1": 0.1, "good-seed2": 0.12}
    rows = {"plain": "plain", "good-seed1": "good", "good-seed2": "good"}
    return (
        write_run(folder / "first", {"plain": 0.4} | seeds, rows),
        write_run(folder / "second", {"plain": 0.41, "bad": 0.9}, {"plain": "plain", "bad": "bad"}),
    )


def test_a_cell_has_one_number_of_the_run_with_its_interval_and_mark(runs: tuple[Path, Path]) -> None:
    """The best of a column is marked where more is better, and where less is. The empty bucket has no column."""
    table = table_of_runs([runs[0]])
    buckets = read_results(runs[0]).systems["plain"].tests["news"].all_buckets
    expected = [f"{bucket.label} n={bucket.n:g} {name}" for bucket in buckets[:3] for name in ("BLEU", "TER")]
    assert table.headers == ["system", *expected]
    assert [line[0] for line in table.rows] == ["plain", "good (2 seeds)"]
    plain = buckets[0]
    assert table.rows[0][1] == f"{plain.score('bleu'):.1f} ±{plain.scored('bleu').half_width:.1f}"
    assert table.rows[1][1].endswith("*") and not table.rows[0][1].endswith("*")
    assert table.best == {(1, place) for place in range(1, 7)}
    assert "* p < 0.05 against plain" in table.legend


@pytest.mark.full
def test_rows_of_other_runs_are_tested_from_their_statistics(runs: tuple[Path, Path], tmp_path: Path) -> None:
    """Rows of equal names have those of their runs. Without statistics a row has no mark, and the table says so."""
    folders = list(runs)
    table = table_of_runs(folders, columns=["news"], metrics=["bleu"])
    assert [line[0] for line in table.rows] == ["first/plain", "good (2 seeds)", "second/plain", "bad"]
    assert [line[1].endswith("*") for line in table.rows] == [False, True, False, True]
    assert table.best == {(1, 1)} and table.headers == ["system", "all n=40"]
    turned = table_of_runs(folders, rows=["bad", "good"], columns=["news"], metrics=["bleu"], baseline="bad")
    assert [line[1].endswith("*") for line in turned.rows] == [False, True] and turned.best == {(1, 1)}
    copied = tmp_path / "copy"
    copied.mkdir()
    (copied / "results.json").write_bytes((runs[1] / "results.json").read_bytes())
    untested = table_of_runs([runs[0], copied], columns=["news"])
    assert not untested.rows[3][1].endswith("*")
    assert untested.notes[-1] == "not tested, for want of saved statistics: copy/plain, bad"


def test_a_table_of_one_column_explains_its_marks(runs: tuple[Path, Path]) -> None:
    table = table_of_runs([runs[0]], columns=["news"], metrics=["bleu"])
    assert len(table.headers) == 2
    is_marked = any("*" in cell for _, *cells in table.rows for cell in cells)
    assert is_marked and "* p < 0.05 against" in table.legend


def test_results_that_are_kept_compressed_are_read(runs: tuple[Path, Path], tmp_path: Path) -> None:
    kept = tmp_path / runs[0].name
    kept.mkdir()
    (kept / "results.json.xz").write_bytes(lzma.compress((runs[0] / "results.json").read_bytes()))
    assert table_of_runs([kept]) == table_of_runs([runs[0]])


def test_columns_are_chosen_by_test_set_and_bucket(runs: tuple[Path, Path]) -> None:
    table = table_of_runs([runs[0]], columns=["news:[11,20]", "news"], metrics=["ter", "length_ratio"])
    assert [header.partition(" ")[0] for header in table.headers[1:]] == ["[11,20]"] * 2 + ["all"] * 2
    assert {place for _, place in table.best} == {1, 3}, "no ratio is best"


def test_every_format_has_every_cell(runs: tuple[Path, Path]) -> None:
    table = table_of_runs([runs[0]], columns=["news"], metrics=["bleu"])
    number, _, rest = table.rows[1][1].partition(" ")
    markdown, latex, html = (TABLE_FORMATS[name](table) for name in ("markdown", "latex", "html"))
    assert f"| **{number}** {rest} |" in markdown
    assert rf"\textbf{{{number}}} {rest[:-1]}$^{{*}}$ \\" in latex
    assert f"<td><strong>{number}</strong> {rest}</td></tr>" in html and html.count("<td>") == 4
    assert list(csv.reader(io.StringIO(TABLE_FORMATS["csv"](table)))) == [table.headers, *table.rows]


def test_unknown_names_and_other_test_sets_are_refused(runs: tuple[Path, Path], tmp_path: Path) -> None:
    other = write_run(tmp_path / "third", {"plain": 0.4}, {"plain": "plain"}, text_seed=1)
    with pytest.raises(ValueError, match="hash text 0 for first/plain and text 1 for third/plain; leave one"):
        table_of_runs([runs[0], other])
    with pytest.raises(
        ValueError, match="--rows must be one of plain, good, but 'goood' is none; the nearest one is good"
    ):
        table_of_runs([runs[0]], rows=["goood"])
    with pytest.raises(ValueError, match=r"--columns must be one of news, news:lengths, news:\[0,10\]"):
        table_of_runs([runs[0]], columns=["news:all"])
    with pytest.raises(ValueError, match="--metrics must be one of bleu, ter"):
        table_of_runs([runs[0]], metrics=["chrf"])
    with pytest.raises(ValueError, match="have none in these columns"):
        table_of_runs([runs[0]], columns=["news:>20"])


def test_names_cannot_leave_their_cells(runs: tuple[Path, Path]) -> None:
    table = table_of_runs([runs[0]])
    table.rows[0][0] = "<b>&|"
    assert "&lt;b&gt;&amp;|" in TABLE_FORMATS["html"](table) and r"&lt;b>&\|" in TABLE_FORMATS["markdown"](table)


@pytest.mark.full
def test_the_command_prints_or_writes_the_table(
    runs: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["hf_posenc", "table", *map(str, runs), "--columns", "news", *arguments])
        command_line()
        return capsys.readouterr().out

    table = table_of_runs(list(runs), columns=["news"], metrics=["bleu"])
    assert run("--metrics", "bleu") == TABLE_FORMATS["markdown"](table)
    assert run("--metrics", "bleu", "--format", "csv") == TABLE_FORMATS["csv"](table)
    assert run("--metrics", "bleu", "--output", str(tmp_path / "table.tex")) == ""
    assert (tmp_path / "table.tex").read_text(encoding="utf-8") == TABLE_FORMATS["latex"](table)
