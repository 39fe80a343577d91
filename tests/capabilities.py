"""The table of what users of transformers can do with each encoding; each cell is the outcome of tests, run for it.

python tests/capabilities.py        writes docs/capabilities.md; the tests are those marked `capability`
"""

import os
import sys
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
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
        columns = list(dict.fromkeys(column for _, column, _ in self.places.values()))
        rows = [
            [f"`{encoding}`", *(", ".join(sorted(self.cell(encoding, column))) for column in columns)]
            for encoding in encodings
        ]
        lines = [["encoding", *columns], ["---"] * (len(columns) + 1), *rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> int:
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "modeling")]
    os.environ["EVERY_ENCODING"] = "yes"
    outcomes = Outcomes()
    status = pytest.main(["-q", "-m", "capability", str(ROOT / "tests"), *sys.argv[1:]], plugins=[outcomes])
    from test_ecosystem import SYSTEMS

    notes = "".join(f"\n{number}. {note}" for number, note in enumerate(outcomes.notes, 1))
    text = (
        f"# What works with which encoding\n\nMade by `python tests/capabilities.py`: {len(outcomes.places)} tests, "
        f"transformers {version('transformers')}, torch {version('torch')}; *yes*: they passed; *no*: for "
        f"the reason below; *not run*: for want of a package; *-*: there is no test of it.\n\n"
        f"{outcomes.table(SYSTEMS)}\n{notes}\n"
    )
    (ROOT / "docs" / "capabilities.md").write_text(text, encoding="utf-8")
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
