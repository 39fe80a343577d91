"""What users of transformers can do with each encoding, as exceptions from the rule; each is the outcome of tests.

python tests/capabilities.py        writes the tables of docs/reference/compatibility.md, one for each architecture;
                                    their tests are those marked `capability`
"""

import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "compatibility.md"
BEGIN, END = "<!-- made by tests/capabilities.py -->\n", "<!-- end -->\n"
ROWS = ("sides", "family", "registered", "single", "decoder_only", "system")  # what a test may call its encoding
EVERY = "*"  # for a test that goes through all of them
ARCHITECTURES = ("encoder-decoder", "decoder-only")  # the mark's `model`; the first is its default


class Cell(NamedTuple):
    """Where an outcome stands: the table of an architecture, an encoding, and a column."""

    architecture: str
    encoding: str
    column: str


class Outcomes:
    """A plugin of pytest's: by cell, what the tests' outcomes mean."""

    def __init__(self) -> None:
        self.tests: dict[str, tuple[Cell, str]] = {}  # by test, its cell, and what the cell says if it passes
        self.cells: dict[Cell, set[str]] = {}
        self.notes: list[str] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Function]) -> None:
        for item in items:
            parameters = item.callspec.params if hasattr(item, "callspec") else {}
            encoding = next((parameters[name] for name in ROWS if name in parameters), EVERY)
            for mark in item.iter_markers("capability"):
                column, meaning = (*mark.args, "yes")[:2]
                column = column.format(**parameters).removeprefix("torch.")
                architecture = mark.kwargs.get("model", ARCHITECTURES[0])
                self.tests[item.nodeid] = (Cell(architecture, str(encoding), column), meaning)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        cell, meaning = self.tests[report.nodeid]
        if report.skipped:
            reason = report.longrepr[2].removeprefix("Skipped: ")
            if reason not in self.notes:
                self.notes.append(reason)
            outcome = "not run" if "not installed" in reason else "no"
            meaning = f"{outcome} ({self.notes.index(reason) + 1})"
        self.cells.setdefault(cell, set()).add("**FAILED**" if report.failed else meaning)

    def text(self, cell: Cell) -> str:
        found = self.cells.get(cell) or self.cells.get(cell._replace(encoding=EVERY)) or {"-"}
        return ", ".join(sorted(found))

    def table(self, architecture: str, encodings: Iterable[str]) -> str:
        """A row for each column of cells: what most encodings have there, and which have something else."""
        own = [cell for cell, _ in self.tests.values() if cell.architecture == architecture]
        rows = {cell.column: {one: self.text(cell._replace(encoding=one)) for one in encodings} for cell in own}
        return exceptions_table(rows)


def exceptions_table(cells: Mapping[str, Mapping[str, str]]) -> str:
    """A Markdown table of cells, given by column and encoding: in each row the commonest value, then the others."""
    lines = ["| feature | works | except |", "| --- | --- | --- |"]
    for column, by_encoding in cells.items():
        [(rule, _)] = Counter(by_encoding.values()).most_common(1)
        exceptions: dict[str, list[str]] = {}
        for encoding, value in by_encoding.items():
            if value != rule:
                exceptions.setdefault(value, []).append(f"`{encoding}`")
        others = "; ".join(f"{value}: {', '.join(names)}" for value, names in exceptions.items())
        lines.append(f"| {column} | {rule} | {others} |")
    return "\n".join(lines)


def main() -> int:
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "modeling")]
    os.environ["EVERY_ENCODING"] = "yes"
    outcomes = Outcomes()
    status = pytest.main(["-q", "-m", "capability", str(ROOT / "tests"), *sys.argv[1:]], plugins=[outcomes])
    from support.models import REGISTERED, SUMS
    from test_ecosystem import SYSTEMS

    notes = "".join(f"\n{number}. {note}" for number, note in enumerate(outcomes.notes, 1))
    versions = ", ".join(f"{name} {version(name)}" for name in ("transformers", "torch"))
    start = f'{len(outcomes.tests)} tests, with {versions}. "Not run": a package is missing. "-": there is no test.'
    encodings = dict(zip(ARCHITECTURES, (SYSTEMS, REGISTERED + SUMS), strict=True))
    tables = [f"### {name.capitalize()} models\n\n{outcomes.table(name, encodings[name])}" for name in ARCHITECTURES]
    page = PAGE.read_text(encoding="utf-8")
    before, after = page.partition(BEGIN)[0], page.partition(BEGIN)[2].partition(END)[2]
    text = "\n\n".join((start, *tables)) + f"\n{notes}\n"
    PAGE.write_text(f"{before}{BEGIN}{text}{END}{after}", encoding="utf-8")
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
