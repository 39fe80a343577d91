"""The tutorial as a notebook, made from its page.

    python docs/tutorial_notebook.py        writes docs/start/tutorial.ipynb

Blocks of `bash` and `python` become code cells, all else Markdown cells. A first cell moves to the root of the clone,
where the page's commands run.
"""

import json
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent / "start" / "tutorial.md"
NOTEBOOK = PAGE.with_suffix(".ipynb")
CODE_BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
SET_UP = """import os

os.chdir("../..")  # the root of the clone"""


def split_page(text: str) -> list[tuple[str, str]]:
    """The page in order, as (kind, text): "markdown", "bash" or "python"."""
    pieces, end = [], 0
    for block in CODE_BLOCK.finditer(text):
        pieces += [("markdown", text[end : block.start()]), (block[1], block[2])]
        end = block.end()
    pieces.append(("markdown", text[end:]))
    return [(kind, piece.strip()) for kind, piece in pieces if piece.strip()]


def notebook(text: str) -> dict[str, Any]:
    """The page as a notebook of format 4.5."""
    title, *others = split_page(text)
    cells = [title, ("python", SET_UP), *others]
    return {
        "cells": [make_cell(number, *cell) for number, cell in enumerate(cells)],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def make_cell(number: int, kind: str, text: str) -> dict[str, Any]:
    cell = {"id": f"cell-{number}", "metadata": {}, "source": text.splitlines(keepends=True)}
    if kind == "markdown":
        return {"cell_type": "markdown"} | cell
    if kind == "bash":
        cell["source"] = ["!" + line for line in text.splitlines(keepends=True)]
    return {"cell_type": "code", "execution_count": None, "outputs": []} | cell


def render(text: str) -> str:
    return json.dumps(notebook(text), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    NOTEBOOK.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
