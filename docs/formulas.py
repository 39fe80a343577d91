"""Formulas of the registries as HTML, with subscripts, superscripts and symbols.

In the code a formula is plain text, such as "m_h = 2^(-8h/H)". GitHub removes MathML, and the site loads no script from
another server, so that none draws LaTeX. HTML shows a formula in both places.
"""

import inspect
import re
from html import escape

SYMBOLS = {"<-": "←", "<=": "≤", "..": "…", " . ": " · ", "-": "\N{MINUS SIGN}"}
GREEK = {"delta": "δ", "pi": "π", "psi": "ψ", "tau": "τ", "theta": "θ", "sum": "Σ"}
CODE = re.compile(r"`(\w+)`|\b([a-z]{3,}_[a-z]{4,})\b")  # a name in backticks, or a config field as it is
POWER_OF_TEN = re.compile(r"\b1e-(\d+)")
SQUARE_ROOT = re.compile(r"\bsqrt(?=\()")
MATRIX = re.compile(r"\b([aWb])(?:([KVQ])|(\d))(?![\w'])")  # aK, vectors of the keys; W2, of the second layer
PRIME = re.compile(r"(?<![A-Za-z])([A-Za-z]|δ)'")
SCRIPT = re.compile(r"([_^])(?:\(([^()]+)\)|(\w+))")
VARIABLE = re.compile(r"(?<![A-Za-z'])(?!a [a-z]{4})([A-Za-z])(?![A-Za-z])")  # one letter, but not the article


def formula_html(formula: str) -> str:
    """A paragraph of HTML, one line for each line of `formula`."""
    lines = [line_html(line.strip()) for line in inspect.cleandoc(formula).splitlines()]
    return "<p>\n" + "<br>\n".join(lines) + "\n</p>"


def line_html(line: str) -> str:
    parts, end = [], 0
    for name in CODE.finditer(line):
        parts += [math_html(line[end : name.start()]), f"<code>{name[1] or name[2]}</code>"]
        end = name.end()
    return "".join([*parts, math_html(line[end:])])


def math_html(text: str) -> str:
    """The part of a line that has no name of a config."""
    text = POWER_OF_TEN.sub(r"10^(-\1)", text)
    text = MATRIX.sub(lambda name: f"{name[1]}^({name[2]})" if name[2] else f"{name[1]}_({name[3]})", text)
    text = SQUARE_ROOT.sub("√", text)
    for word, letter in GREEK.items():
        text = re.sub(rf"(?<![A-Za-z]){word}(?![A-Za-z])", letter, text)
    text = PRIME.sub("\\1\N{PRIME}", text)
    for written, symbol in SYMBOLS.items():
        text = text.replace(written, symbol)
    pieces, end = [], 0
    for script in SCRIPT.finditer(text):
        tag, content = "sub" if script[1] == "_" else "sup", script[2] or script[3]
        letters = re.sub("[A-Za-z]+", r"<i>\g<0></i>", escape(content, quote=False))
        pieces += [with_variables(text[end : script.start()]), f"<{tag}>{letters}</{tag}>"]
        end = script.end()
    return "".join([*pieces, with_variables(text[end:])])


def with_variables(text: str) -> str:
    """Single letters in italics; words and names of functions stay upright."""
    return VARIABLE.sub(r"<i>\1</i>", escape(text, quote=False))
