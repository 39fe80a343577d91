"""Rewrites the kept tables of docs/results from the saved results beside them, after a change of their layout.

    python docs/kept_tables.py

No table is added, and no results are changed. Then run docs/saved_results.py, which fills the tables of the pages.
"""

import json
import lzma
from collections.abc import Iterator
from pathlib import Path

from hf_posenc.lab.reports.report import report_tables
from hf_posenc.lab.results.rendering import render_markdown
from hf_posenc.lab.results.saved_files import parse_results
from hf_posenc.lab.results.tables import TableRows

RESULTS = Path(__file__).parent / "results"


def saved_results() -> list[Path]:
    """The results.json of each saved run, some of them compressed."""
    return sorted(RESULTS.glob("**/results.json*"))


def saved_text(path: Path) -> str:
    """The text of a results.json."""
    content = path.read_bytes()
    return (lzma.decompress(content) if path.suffix == ".xz" else content).decode()


def kept_tables(path: Path) -> Iterator[tuple[Path, str]]:
    """The file of each table that is kept beside a results.json, and its text."""
    results = parse_results(json.loads(saved_text(path)), path)
    for name, table in report_tables(results, TableRows.of(results)).items():
        if (kept := path.parent / f"table-{name}.md").exists():
            yield kept, render_markdown(table)


if __name__ == "__main__":
    for path in saved_results():
        for kept, text in kept_tables(path):
            kept.write_text(text, encoding="utf-8")
