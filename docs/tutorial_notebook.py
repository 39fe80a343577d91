"""The tutorial as a notebook, made from its page, with the outputs of its cells.

    python docs/tutorial_notebook.py              writes docs/start/tutorial.ipynb; same code, same outputs
    python docs/tutorial_notebook.py --run        runs the cells first, which trains what runs/quickstart lacks

Blocks of `bash` and `python` become code cells, all else Markdown cells. A first cell moves to the root of the clone,
where the page's commands run. Outputs are what a cell prints to standard output and the value of its last expression.
"""

import argparse
import ast
import base64
import contextlib
import io
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parent / "start" / "tutorial.md"
NOTEBOOK = PAGE.with_suffix(".ipynb")
CODE_BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
SET_UP = """import os

os.chdir("../..")  # the root of the clone; the outputs below were made with the three systems already trained"""


def split_page(text: str) -> list[tuple[str, str]]:
    """The page in order, as (kind, text): "markdown", "bash" or "python"."""
    pieces, end = [], 0
    for block in CODE_BLOCK.finditer(text):
        pieces += [("markdown", text[end : block.start()]), (block[1], block[2])]
        end = block.end()
    pieces.append(("markdown", text[end:]))
    return [(kind, piece.strip()) for kind, piece in pieces if piece.strip()]


def notebook(text: str) -> dict[str, Any]:
    """The page as a notebook of format 4.5, without outputs."""
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


def code_cells(book: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in book["cells"] if cell["cell_type"] == "code"]


def set_outputs(cell: dict[str, Any], number: int, outputs: list[dict[str, Any]]) -> None:
    """As the cell that was run as the `number`th; a value carries this number, too."""
    cell["execution_count"] = number
    cell["outputs"] = [
        output | {"execution_count": number} if output["output_type"] == "execute_result" else output
        for output in outputs
    ]


def run_cells(cells: list[dict[str, Any]]) -> None:
    """Runs code cells from the folder of the notebook and sets their outputs. A command that fails is an error."""
    os.chdir(NOTEBOOK.parent)
    namespace: dict[str, object] = {}
    for number, cell in enumerate(cells, start=1):
        code = "".join(cell["source"])
        if code.startswith("!"):
            done = subprocess.run(code.replace("!", "", 1), shell=True, stdout=subprocess.PIPE, text=True, check=True)
            printed, value = done.stdout, None
        else:
            printed, value = run_python(code, namespace)
        outputs: list[dict[str, Any]] = []
        if printed:
            outputs.append({"name": "stdout", "output_type": "stream", "text": printed.splitlines(keepends=True)})
        if value is not None:
            outputs.append({"data": shown(value), "metadata": {}, "output_type": "execute_result"})
        set_outputs(cell, number, outputs)


def run_python(code: str, namespace: dict[str, object]) -> tuple[str, object]:
    """What the code prints, and the value of its last line if that is an expression."""
    tree, value = ast.parse(code), None
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, "cell", "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), namespace)
    return printed.getvalue(), value


def shown(value: object) -> dict[str, str]:
    """A value as a notebook shows it: an image, or its text."""
    text = re.sub(" at 0x[0-9A-F]+", "", repr(value))
    if hasattr(value, "_repr_png_"):
        return {"image/png": base64.b64encode(value._repr_png_()).decode(), "text/plain": text}
    return {"text/plain": text}


def keep_outputs(cells: list[dict[str, Any]], stored: list[dict[str, Any]]) -> None:
    """Gives each cell the outputs of the stored cell that has the same code."""
    known = {"".join(cell["source"]): cell["outputs"] for cell in stored}
    for number, cell in enumerate(cells, start=1):
        code = "".join(cell["source"])
        if code in known:
            set_outputs(cell, number, known[code])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true", help="run the cells")
    book = notebook(PAGE.read_text(encoding="utf-8"))
    if parser.parse_args().run:
        run_cells(code_cells(book))
    else:
        keep_outputs(code_cells(book), code_cells(json.loads(NOTEBOOK.read_text(encoding="utf-8"))))
    NOTEBOOK.write_text(json.dumps(book, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
