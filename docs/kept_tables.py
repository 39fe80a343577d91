"""Rewrites the kept tables of docs/results from the saved results beside them, after a change of their layout.

    python docs/kept_tables.py

No table is added, and no results are changed. Then run docs/saved_results.py, which fills the tables of the pages.
"""

from collections.abc import Iterator
from pathlib import Path

from hf_posenc.lab.reports.report import report_tables
from hf_posenc.lab.results.rendering import render_markdown
from hf_posenc.lab.results.saved_files import read_results
from hf_posenc.lab.results.tables import TableRows

RESULTS = Path(__file__).parent / "results"
KEPT = sorted(path.parent for path in RESULTS.glob("**/results.json*"))  # the folders, some of compressed results


def kept_tables(folder: Path) -> Iterator[tuple[Path, str]]:
    """The file of each table that is kept beside a results.json, and its text."""
    results = read_results(folder)
    for name, table in report_tables(results, TableRows.of(results)).items():
        if (kept := folder / f"table-{name}.md").exists():
            yield kept, render_markdown(table)


if __name__ == "__main__":
    for folder in KEPT:
        for kept, text in kept_tables(folder):
            kept.write_text(text, encoding="utf-8")
