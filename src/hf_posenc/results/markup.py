"""Text in Markdown, LaTeX, CSV and Python: one function each, by which it shows as it is written and does nothing.

Names of systems and test sets, licences, sources of tables: all of them may come from files of others.
"""

import json
import re

LATEX_ESCAPES = {sign: f"\\{sign}" for sign in "&%$#_{}"}
LATEX_ESCAPES |= {"±": "$\\pm$", ">": "$>$", "<": "$<$", "*": "$^{*}$", "→": r"$\to$"}
LATEX_ESCAPES |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


def one_line(text: object) -> str:
    """Text without what ends a line or moves a terminal's cursor."""
    return "".join(char if char.isprintable() else " " for char in str(text))


def markdown_text(text: object) -> str:
    """Text in a paragraph or a cell of a table: no tag, link, code or further cell comes of it."""
    escaped = re.sub(r"[\\`|]|(?<=\])[(\[]", r"\\\g<0>", one_line(text))
    return re.sub("<(?=[A-Za-z/!?])", "&lt;", escaped)


def markdown_code(text: object) -> str:
    """Text as code in a line."""
    line = one_line(text)
    fence = "`" * (longest_backtick_run(line) + 1)
    return f"{fence}{line}{fence}" if len(fence) == 1 else f"{fence} {line} {fence}"


def markdown_block(text: str, language: str) -> str:
    """Lines as a block of code."""
    fence = "`" * max(3, longest_backtick_run(text) + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def longest_backtick_run(text: str) -> int:
    """The most backticks in a row."""
    return max(map(len, re.findall("`+", text)), default=0)


def latex_text(text: object) -> str:
    return "".join(LATEX_ESCAPES.get(char, char) for char in one_line(text))


def csv_cell(value: object) -> object:
    """A value that no spreadsheet takes for a formula; numbers stay numbers."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def python_string(text: object) -> str:
    """The literal of a string, in double quotes."""
    return json.dumps(str(text), ensure_ascii=False)
