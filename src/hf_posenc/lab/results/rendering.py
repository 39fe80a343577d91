"""Rendering of tables and texts as Markdown, LaTeX, HTML, CSV and plain text.

Names of systems and test sets, licences and sources of tables may come from files of others. They are escaped, so that
each shows as it is written.
"""

import csv
import html
import io
import json
import re
import textwrap
from collections.abc import Callable, Iterable

from .tables import Table, TableRows, available_scores, bucket_p_values

JOINERS = "\u200c\u200d"
NUMBER = re.compile(r"-?[\d.]+")  # the score at the beginning of a cell
TEXT_WIDTH = 100  # of a terminal's table
LATEX_ESCAPES = {sign: f"\\{sign}" for sign in "&%$#_{}"}
LATEX_ESCAPES |= {"±": "$\\pm$", ">": "$>$", "<": "$<$", "*": "$^{*}$", "→": r"$\to$"}
LATEX_ESCAPES |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


def one_line(text: object) -> str:
    """Text without what ends a line or moves a terminal's cursor. Joiners stay: words of some scripts have them."""
    return "".join(char if char.isprintable() or char in JOINERS else " " for char in str(text))


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
    """The length of the longest run of backticks."""
    return max(map(len, re.findall("`+", text)), default=0)


def latex_text(text: object) -> str:
    return "".join(LATEX_ESCAPES.get(char, char) for char in one_line(text))


def csv_cell(value: object) -> object:
    """A value that no spreadsheet takes for a formula; numbers stay numbers."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def python_string(text: object) -> str:
    """The literal of a string, in double quotes."""
    return json.dumps(str(text), ensure_ascii=False)


def render_markdown(table: Table) -> str:
    """A table of GitHub's Markdown: the first column left, the others right, the legend below."""
    rule = ["---", *["---:"] * (len(table.headers) - 1)]
    lines = [list(map(markdown_text, table.headers)), rule, *escaped_rows(table, markdown_text, "**{}**")]
    return "\n".join([*("| " + " | ".join(line) + " |" for line in lines), "", markdown_text(table.legend), ""])


def render_latex(table: Table) -> str:
    """A tabular of LaTeX for the package booktabs: the first column left, the others right, the legend below."""
    rows = [list(map(latex_text, table.headers)), *escaped_rows(table, latex_text, r"\textbf{{{}}}")]
    top, *below = [" & ".join(line) + r" \\" for line in rows]
    columns = "l" + "r" * (len(table.headers) - 1)
    begin, end = f"\\begin{{tabular}}{{{columns}}}", r"\end{tabular}"
    return "\n".join(
        [begin, r"\toprule", top, r"\midrule", *below, r"\bottomrule", end, "", latex_text(table.legend), ""]
    )


def render_html(table: Table) -> str:
    """A table of HTML with its legend as the caption."""
    headers = "".join(f"<th>{html_text(header)}</th>" for header in table.headers)
    rows = []
    for line in escaped_rows(table, html_text, "<strong>{}</strong>"):
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in line) + "</tr>")
    head = ["<table>", f"<caption>{html_text(table.legend)}</caption>", f"<thead><tr>{headers}</tr></thead>"]
    return "\n".join([*head, "<tbody>", *rows, "</tbody>", "</table>", ""])


def html_text(text: object) -> str:
    return html.escape(one_line(text))


def render_table_csv(table: Table) -> str:
    """The cells of a table as they are printed, without its legend."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    for line in (table.headers, *table.rows):
        writer.writerow(map(csv_cell, map(one_line, line)))
    return buffer.getvalue()


def escaped_rows(table: Table, escape: Callable[[object], str], bold: str) -> list[list[str]]:
    """The rows in a language of markup, with the number of each best cell set in `bold`."""
    rows = []
    for line, cells in enumerate(table.rows):
        escaped = list(map(escape, cells))
        for place in range(len(cells)):
            if (line, place) in table.best:
                escaped[place] = NUMBER.sub(lambda number: bold.format(number[0]), escaped[place], count=1)
        rows.append(escaped)
    return rows


TABLE_FORMATS: dict[str, Callable[[Table], str]] = {
    "markdown": render_markdown,
    "latex": render_latex,
    "csv": render_table_csv,
    "html": render_html,
}
TABLE_SUFFIXES = {".md": "markdown", ".tex": "latex", ".csv": "csv", ".html": "html"}


CSV_COLUMNS = (
    "test_set", "system", "seeds", "group", "low", "high", "n", "metric", "score", "ci", "lowest_seed", "highest_seed",
    "p_randomisation", "p_bootstrap", "p_pooled",
)  # fmt: skip


def render_csv(rows: TableRows) -> str:
    """Every score in full, a line each, with its interval and p-values against the baseline.

    As in the tables, the interval is `ci`, half of it, or the lowest and the highest seed where it leaves the scale.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for system, tests in rows.scores.items():
        for test, result in tests.items():
            for group in result.all_buckets:
                p_values = bucket_p_values(rows.comparisons.get(test), system, group)
                fields = [test, system, group.seeds, group.label, group.low, group.high, group.n]
                for metric, *_ in available_scores([group]):
                    score = group.scored(metric)
                    interval: list[float | None] = [score.half_width, None, None]
                    if (seed_range := score.seed_range(metric)) is not None:
                        interval = [None, *seed_range]
                    p = p_values.get(metric)
                    tests_of_metric = [p.randomisation, p.bootstrap, p.pooled] if p else [None, None, None]
                    line = [*fields, metric, score.value, *interval, *tests_of_metric]
                    writer.writerow(map(csv_cell, line))
    return buffer.getvalue()


def render_text(table: Table) -> str:
    """The table aligned for a terminal, its caption above: the first column left, the others right.

    A table of more than TEXT_WIDTH characters is printed in blocks, each with the first column.
    """
    lines = [list(map(one_line, line)) for line in (table.headers, *table.rows)]
    first, *others = [max(len(line[column]) for line in lines) for column in range(len(table.headers))]
    blocks: list[list[int]] = [[]]
    for column in range(1, len(table.headers)):
        if blocks[-1] and first + sum(2 + others[shown - 1] for shown in [*blocks[-1], column]) > TEXT_WIDTH:
            blocks.append([])
        blocks[-1].append(column)
    printed = textwrap.wrap(one_line(table.caption), TEXT_WIDTH)
    for block in blocks:
        widths = [others[column - 1] for column in block]
        printed.append("")
        for line in lines:
            cells = [line[column].rjust(width) for column, width in zip(block, widths, strict=True)]
            printed.append("  ".join([line[0].ljust(first), *cells]))
        printed.insert(-len(table.rows) or len(printed), "  ".join("-" * width for width in [first, *widths]))
    return "\n".join([*printed, ""])


def render_notes(tables: Iterable[Table]) -> str:
    """The notes of several tables for a terminal, each once."""
    notes = dict.fromkeys(one_line(note) for table in tables for note in table.notes)
    return "".join(f"{line}\n" for note in notes for line in textwrap.wrap(note, TEXT_WIDTH, subsequent_indent="  "))
