"""What users of transformers can do with each encoding, as exceptions from the rule; each is the outcome of tests.

python tests/capabilities.py                runs the tests marked `capability`, writes their outcomes, and the tables of
                                            docs/reference/compatibility.md: one for each architecture
python tests/capabilities.py -k "alibi"     the same of some tests, by pytest's arguments; the other outcomes stay
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "compatibility.md"
SAVED = Path(__file__).with_suffix(".json")
BEGIN, END = "<!-- made by tests/capabilities.py -->\n", "<!-- end -->\n"
ROWS = ("sides", "family", "registered", "single", "decoder_only", "system")  # what a test may call its encoding
EVERY = "*"  # for a test that goes through all of them
ARCHITECTURES = ("encoder-decoder", "decoder-only")  # the mark's `model`; the first is its default
Table = dict[str, dict[str, str]]  # by column and encoding, what the tests' outcomes mean


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

    @pytest.hookimpl(tryfirst=True)  # before pytest leaves tests out, so that rows stay in order
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
            meaning = f"{'not run' if 'not installed' in reason else 'no'}: {reason}"
        self.cells.setdefault(cell, set()).add("**FAILED**" if report.failed else meaning)

    def table(self, architecture: str, encodings: Iterable[str], before: Table) -> Table:
        """The outcomes of an architecture: those of this run, and those of the run `before` where it had no test."""
        columns = dict.fromkeys(cell.column for cell, _ in self.tests.values() if cell.architecture == architecture)
        found: Table = {column: {} for column in columns}
        for column, encoding in product(columns, encodings):
            cell = Cell(architecture, encoding, column)
            meanings = self.cells.get(cell) or self.cells.get(cell._replace(encoding=EVERY), set())
            found[column][encoding] = " / ".join(sorted(meanings)) or before.get(column, {}).get(encoding, "-")
        return found


def section(tables: Mapping[str, Table], versions: Mapping[str, str]) -> str:
    """The tables as Markdown, with the reasons of all "no" as numbered notes below them."""
    names = " and ".join(f"{name} {number}" for name, number in versions.items())
    blocks = [f'Outcomes with {names}. "Not run": a package is missing. "-": there is no test.']
    notes: list[str] = []
    for architecture, table in tables.items():
        blocks.append(f"### {architecture.capitalize()} models\n\n{exceptions_table(table, notes)}")
    numbered_notes = "".join(f"\n{number}. {note}." for number, note in enumerate(notes, 1))
    return "\n\n".join(blocks) + f"\n{numbered_notes}\n"


def exceptions_table(cells: Mapping[str, Mapping[str, str]], notes: list[str]) -> str:
    """A Markdown table of cells, given by column and encoding: in each row the commonest value, then the others.

    Reasons become numbers of `notes`, to which new ones are added.
    """
    lines = ["| feature | works | except |", "| --- | --- | --- |"]
    for column, by_encoding in cells.items():
        [(rule, _)] = Counter(by_encoding.values()).most_common(1)
        exceptions: dict[str, list[str]] = {}
        for encoding, value in by_encoding.items():
            if value != rule:
                exceptions.setdefault(value, []).append(f"`{encoding}`")
        others = "; ".join(f"{numbered(value, notes)}: {', '.join(names)}" for value, names in exceptions.items())
        lines.append(f"| {column} | {numbered(rule, notes)} | {others} |")
    return "\n".join(lines)


def numbered(value: str, notes: list[str]) -> str:
    """`no (2)` of `no: reason`, where `notes` has the reason second."""
    parts = []
    for outcome, _, reason in (part.partition(": ") for part in value.split(" / ")):
        if reason and reason not in notes:
            notes.append(reason)
        parts.append(f"{outcome} ({notes.index(reason) + 1})" if reason else outcome)
    return " / ".join(parts)


def encodings_by_architecture() -> dict[str, list[str]]:
    """The rows of the tables; to be called with EVERY_ENCODING in the environment."""
    from support.models import REGISTERED, SUMS
    from test_ecosystem import SYSTEMS

    return dict(zip(ARCHITECTURES, (SYSTEMS, REGISTERED + SUMS), strict=True))


def main() -> int:
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "modeling")]
    os.environ["EVERY_ENCODING"] = "yes"
    arguments, versions = sys.argv[1:], {name: version(name) for name in ("transformers", "torch")}
    saved = json.loads(SAVED.read_text(encoding="utf-8")) if arguments else {"versions": versions, "tables": {}}
    if saved["versions"] != versions:
        raise SystemExit(
            f"Some tests must have the saved versions, {saved['versions']}, but these are {versions}. Run all."
        )
    outcomes = Outcomes()
    status = pytest.main(["-q", "-m", "capability", str(ROOT / "tests"), *arguments], plugins=[outcomes])
    encodings = encodings_by_architecture()
    tables = {name: outcomes.table(name, encodings[name], saved["tables"].get(name, {})) for name in ARCHITECTURES}
    SAVED.write_text(json.dumps({"versions": versions, "tables": tables}, indent=1) + "\n", encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    before, after = page.partition(BEGIN)[0], page.partition(BEGIN)[2].partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}{section(tables, versions)}{END}{after}", encoding="utf-8")
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
