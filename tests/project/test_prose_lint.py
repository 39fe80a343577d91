"""The prose linter: what it counts as prose, and that it reports each kind of fault with its line."""

import runpy
from pathlib import Path

import pytest

LINTER = runpy.run_path(str(Path(__file__).resolve().parents[2] / ".ci" / "lint_prose.py"))


def complaints(folder: Path, text: str) -> list[tuple[int, str]]:
    """The line and the first words of each complaint about a page."""
    (page := folder / "page.md").write_text(text, encoding="utf-8")
    fields = [complaint.split(":", 2) for complaint in LINTER["complaints_about"](page)]
    return [(int(line), message.strip()) for _, line, message in fields]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (f"# T\n\nA short one. {'word ' * 20}\n{'word ' * 16}.\n", 3, "A sentence must have at most 35 words"),
        (f"A line.\n{'a' * 131}\n", 2, "A line must have at most 130 characters"),
        ("---\ntitle: x\n---\n\nOne.\nTwo stands beside it.\n", 6, "Do not write “beside”"),
        (f"# T\n\n{'A word. ' * 9}\n\n{'12 ' * 9}words.\n", 5, "100 words must have at most 8 numbers"),
    ],
)
def test_a_fault_is_reported_with_its_line(tmp_path: Path, text: str, line: int, message: str) -> None:
    [(found_line, found)] = complaints(tmp_path, text)
    assert (found_line, found.startswith(message)) == (line, True), found


def test_tables_code_links_and_abbreviations_are_no_faults(tmp_path: Path) -> None:
    table = "| beside | b |\n| --- | --- |\n" + f"| {'1 ' * 60} | {'word ' * 60} |\n"
    code = f"```\nbeside {'1 ' * 80}\n```\n\nSpan `beside {'1 ' * 40}` of code.\n"
    link = f"See Shaw et al. (2018) and [a page](https://example.org/{'a' * 140}), version 0.2.0.\n"
    assert complaints(tmp_path, "\n".join([table, code, link])) == []


def test_sections_are_counted_apart(tmp_path: Path) -> None:
    numbers = "1 2 3 4 5 6 7 8 words.\n"
    assert complaints(tmp_path, f"# One\n\n{numbers}\n# Two\n\n{numbers}") == []
    assert [message[:9] for _, message in complaints(tmp_path, f"# One\n\n{numbers}\n{numbers}")] == ["100 words"]


def test_docstrings_and_comments_of_a_module_are_prose(tmp_path: Path) -> None:
    (module := tmp_path / "module.py").write_text(
        '"""A module.\n\n    beside = code\n\nIt stands beside it.\n"""\n\nbeside = "beside"  # beside it\n\n\n'
        f"def function():\n    # It is of\n    # which nobody.\n    # {'word ' * 36}.\n    return beside\n",
        encoding="utf-8",
    )
    fields = [complaint.split(":", 2) for complaint in LINTER["complaints_about"](module)]
    assert [(int(line), message.split(maxsplit=4)[:4]) for _, line, message in fields] == [
        (5, ["Do", "not", "write", "“beside”."]),
        (8, ["Do", "not", "write", "“beside”."]),
        (12, ["Do", "not", "write", "“of"]),
        (14, ["A", "sentence", "must", "have"]),
    ]
