"""What users of transformers can do with each encoding, as exceptions from the rule; each is the outcome of tests.

python tests/capabilities.py        writes the table of docs/reference/compatibility.md; its tests are those marked
                                    `capability`
"""

import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "compatibility.md"
BEGIN, END = "<!-- made by tests/capabilities.py -->\n", "<!-- end -->\n"
ROWS = ("sides", "family", "registered", "single", "system")  # what a test may call its encoding
EVERY = "*"  # for a test that goes through all of them


class Outcomes:
    """A plugin of pytest's: by encoding and column, what the tests' outcomes mean."""

    def __init__(self) -> None:
        self.places: dict[str, tuple[str, str, str]] = {}
        self.cells: dict[tuple[str, str], set[str]] = {}
        self.notes: list[str] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Function]) -> None:
        for item in items:
            parameters = item.callspec.params if hasattr(item, "callspec") else {}
            encoding = next((parameters[name] for name in ROWS if name in parameters), EVERY)
            for mark in item.iter_markers("capability"):
                column, meaning = (*mark.args, "yes")[:2]
                self.places[item.nodeid] = (str(encoding), column.format(**parameters).removeprefix("torch."), meaning)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        encoding, column, meaning = self.places[report.nodeid]
        if report.skipped:
            reason = report.longrepr[2].removeprefix("Skipped: ")
            if reason not in self.notes:
                self.notes.append(reason)
            outcome = "not run" if "not installed" in reason else "no"
            meaning = f"{outcome} ({self.notes.index(reason) + 1})"
        self.cells.setdefault((encoding, column), set()).add("**FAILED**" if report.failed else meaning)

    def cell(self, encoding: str, column: str) -> set[str]:
        return self.cells.get((encoding, column)) or self.cells.get((EVERY, column)) or {"-"}

    def table(self, encodings: Iterable[str]) -> str:
        """A row for each column of cells: what most encodings have there, and which have something else."""
        columns = dict.fromkeys(column for _, column, _ in self.places.values())
        cells = {column: {one: ", ".join(sorted(self.cell(one, column))) for one in encodings} for column in columns}
        return exceptions_table(cells)


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
    from test_ecosystem import SYSTEMS

    notes = "".join(f"\n{number}. {note}" for number, note in enumerate(outcomes.notes, 1))
    start = (
        f"{len(outcomes.places)} tests, with transformers {version('transformers')} and torch {version('torch')}. "
        '"Not run": a package is missing. "-": there is no test.'
    )
    page = PAGE.read_text(encoding="utf-8")
    before, after = page.partition(BEGIN)[0], page.partition(BEGIN)[2].partition(END)[2]
    text = f"{start}\n\n{outcomes.table(SYSTEMS)}\n{notes}\n"
    PAGE.write_text(f"{before}{BEGIN}{text}{END}{after}", encoding="utf-8")
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
