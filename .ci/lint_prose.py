"""Prose linter for Markdown pages and the docstrings and comments of modules.

It checks the length of sentences and lines, the density of numbers, and denied words. In modules it checks sentences
and denied words alone: ruff checks their lines.

    python .ci/lint_prose.py [PAGE ...]             complaints, one a line; exit status 1 if there is one
    python .ci/lint_prose.py --report [PAGE ...]    a table of measures, one row a page

`prose.yaml`, next to this file, has the limits, the pages, the modules and the denied words. Tables, code and front
matter are not prose. A code span counts as one word. Years and version numbers are not counted as numbers.
"""

import argparse
import ast
import re
import sys
import tokenize
from collections.abc import Iterator
from inspect import cleandoc
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import yaml
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[1]
RULES = yaml.safe_load((ROOT / ".ci" / "prose.yaml").read_text(encoding="utf-8"))
FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
ABBREVIATIONS = r"(?<!\bal)(?<!\be\.g)(?<!\bi\.e)(?<!\bcf)(?<!\bvs)(?<!\b[A-Z])"
SENTENCE_END = re.compile(rf"""{ABBREVIATIONS}[.!?]["')\]]*\s+""")
NUMBER = re.compile(r"(?<![\w.])(?!(?:19|20)\d\d\b)(?!\d+\.\d+\.\d+)\d[\d.,]*%?(?!\w)")
LINK_TARGET = re.compile(r"\]\([^)]*\)")
NO_TEXT = {"code_inline": "`code`", "softbreak": "\n", "hardbreak": "\n"}
DENIED = {re.compile(rf"\b(?:{words})\b", re.IGNORECASE): remedy for words, remedy in RULES["denied"].items()}


class Block(NamedTuple):
    """A paragraph, heading or list item: its first line and its text."""

    line: int
    text: str
    is_heading: bool

    def sentences(self) -> list[tuple[int, str]]:
        starts = [0, *(end.end() for end in SENTENCE_END.finditer(self.text)), len(self.text)]
        return [(self.line + self.text.count("\n", 0, start), self.text[start:end]) for start, end in pairwise(starts)]


def words_of(text: str) -> list[str]:
    return [word for word in text.split() if re.search(r"\w", word)]


def read_page(path: Path) -> tuple[list[Block], list[str]]:
    """The prose of a page, and its lines."""
    text = FRONT_MATTER.sub(lambda match: "\n" * match.group().count("\n"), path.read_text(encoding="utf-8"))
    return markdown_blocks(text), text.splitlines()


def markdown_blocks(text: str, first_line: int = 1) -> list[Block]:
    """The prose of Markdown that begins at `first_line`."""
    blocks, in_table = list[Block](), False
    for before, token in pairwise(MarkdownIt("commonmark").enable("table").parse(text)):
        in_table = (in_table or before.type == "table_open") and before.type != "table_close"
        if token.type == "inline" and token.map and not in_table:
            parts = [NO_TEXT.get(child.type, child.content * (child.type == "text")) for child in token.children or []]
            blocks.append(Block(token.map[0] + first_line, "".join(parts), before.type == "heading_open"))
    return blocks


def read_module(path: Path) -> list[Block]:
    """The prose of a module: its docstrings, and its comments, consecutive lines of them as one block."""
    blocks = list[Block]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            docstring = node.body[0]
            blocks += markdown_blocks(cleandoc(ast.literal_eval(docstring.value)), docstring.lineno)
    previous_line = 0
    with path.open("rb") as file:
        comments = [token for token in tokenize.tokenize(file.readline) if token.type == tokenize.COMMENT]
    for comment in comments:
        text, line = re.sub(r"`[^`]*`", "`code`", comment.string.lstrip("# ")), comment.start[0]
        if line == previous_line + 1 and not comment.line[: comment.start[1]].strip():
            text = f"{blocks.pop().text}\n{text}"
        blocks.append(Block(line - text.count("\n"), text, is_heading=False))
        previous_line = line
    return blocks


def long_lines(blocks: list[Block], lines: list[str]) -> list[int]:
    prose = [block.line + offset for block in blocks for offset in range(block.text.count("\n") + 1)]
    return [line for line in prose if len(LINK_TARGET.sub("]", lines[line - 1])) > RULES["max_line_length"]]


def densest_runs(blocks: list[Block]) -> Iterator[tuple[int, int]]:
    """Of each section the 100 consecutive words with the most numbers: line of the first number, and how many."""
    words = list[tuple[int, bool]]()
    for block in [*blocks, Block(0, "", is_heading=True)]:
        if block.is_heading:
            starts = range(max(1, len(words) - 99))
            runs = [[line for line, is_number in words[start : start + 100] if is_number] for start in starts]
            if densest := max(runs, key=len):
                yield densest[0], len(densest)
            words.clear()
        words += [(block.line, bool(NUMBER.search(word))) for word in words_of(block.text)]


def complaints_about(path: Path) -> Iterator[str]:
    is_module = path.suffix == ".py"
    blocks, lines = (read_module(path), []) if is_module else read_page(path)
    for line, sentence in [found for block in blocks for found in block.sentences()]:
        if (count := len(words_of(sentence))) > (limit := RULES["max_words_in_sentence"]):
            yield f"{path}:{line}: A sentence must have at most {limit} words, but this has {count}. Divide it."
        for pattern, remedy in DENIED.items():
            if match := pattern.search(" ".join(sentence.split())):
                yield f"{path}:{line}: Do not write “{match.group()}”. Write: {remedy}."
    if is_module:
        return
    for line in long_lines(blocks, lines):
        yield f"{path}:{line}: A line must have at most {RULES['max_line_length']} characters. Wrap it."
    for line, count in densest_runs(blocks):
        if count > (limit := RULES["max_numbers_in_100_words"]):
            yield f"{path}:{line}: 100 words must have at most {limit} numbers, but these have {count}. Use a table."


def report_row(path: Path) -> str:
    blocks, lines = read_page(path)
    sentences = [sentence for block in blocks if not block.is_heading for _, sentence in block.sentences()]
    lengths = sorted(len(words_of(sentence)) for sentence in sentences) or [0]
    words = [word for block in blocks for word in words_of(block.text)]
    numbers = 100 * sum(bool(NUMBER.search(word)) for word in words) / max(1, len(words))
    p90, wide = lengths[int(0.9 * len(lengths))], len(long_lines(blocks, lines))
    return f"| {path} | {len(lines)} | {mean(lengths):.1f} | {p90} | {numbers:.1f} | {wide} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help="default: the pages of prose.yaml")
    parser.add_argument("--report", action="store_true", help="print measures of each page and no complaints")
    options = parser.parse_args()
    listed, modules, excluded = (
        {path for pattern in RULES[key] for path in ROOT.glob(pattern)} for key in ("pages", "modules", "excluded")
    )
    pages = options.pages or sorted(page.relative_to(ROOT) for page in listed - excluded)
    if options.report:
        print("| page | lines | words a sentence | 90th percentile | numbers in 100 words | lines over the limit |")
        print("| --- | --- | --- | --- | --- | --- |", *map(report_row, pages), sep="\n")
        return 0
    if not options.pages:
        pages += sorted(module.relative_to(ROOT) for module in modules)
    complaints = [complaint for page in pages for complaint in complaints_about(page)]
    print("\n".join(complaints) or f"The prose of {len(pages)} pages and modules passes.")
    return int(bool(complaints))


if __name__ == "__main__":
    sys.exit(main())
