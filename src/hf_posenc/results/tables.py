"""Saved scores to tables: pure functions from the results of the length_buckets metric to rows of text.

`results[system][test_set]` has the scores of a test set. A table compares systems on one test set, so every system must
have the same pairs in every group; systems that do not are refused, never silently compared.
"""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from .length_limits import TrainingLengths, describe_training_lengths
from .markup import csv_cell, latex_text, markdown_text, one_line
from .records import BucketPValues, BucketScore, Comparison, PublishedScore, PublishedTable, ScoresByRow

Comparisons = Mapping[str, Comparison]  # of each test set
ScoreFormat = tuple[str, str, str]  # metric, name in the legend, format

SCORE_FORMATS: tuple[ScoreFormat, ...] = (
    ("bleu", "BLEU", ".1f"),
    ("ter", "TER", ".1f"),
    ("chrf", "chrF", ".1f"),
    ("bertscore", "BERTScore", ".1f"),
    ("length_ratio", "hypothesis:reference length", ".2f"),
)
SIGNIFICANCE_LEVEL = 0.05
TEXT_WIDTH = 100  # of a terminal's table
INTERVAL_NOTE = (
    "± half of the 95 % interval, bootstrapped over sentences, or Student's over the seeds where there are several"
)


@dataclass(frozen=True)
class Table:
    """Cells as they are printed, a caption of what they hold, and notes on their signs. `legend` is all of it."""

    headers: list[str]
    rows: list[list[str]]
    caption: str
    notes: tuple[str, ...] = ()
    details: str = ""  # the caption of a file, if that of a terminal is shorter

    @property
    def legend(self) -> str:
        return "; ".join([self.details or self.caption, *self.notes])


def length_table(
    results: ScoresByRow,
    test_set: str,
    *,
    max_training_lengths: TrainingLengths | None = None,
    min_training_lengths: TrainingLengths | None = None,
    baseline: str | None = None,
    p_values: Comparison | None = None,
) -> Table:
    """One row per system; columns: the training limit (where given), all pairs, and each source-length group.

    `min_training_lengths` has each system's shortest training length; one without, or with None, has no such limit.
    """
    columns = common_buckets(results, test_set)
    groups_by_system = {system: tests[test_set].all_buckets for system, tests in results.items()}
    shown = available_scores(group for groups in groups_by_system.values() for group in groups)
    headers = ["system", *(f"{column.label} n={column.n}" for column in columns)]
    rows = [
        [
            describe_system(system, groups[0]),
            *(format_cell(group, shown, bucket_p_values(p_values, system, group)) for group in groups),
        ]
        for system, groups in groups_by_system.items()
    ]
    if max_training_lengths is not None:
        headers.insert(1, "trained to")
        lengths = describe_training_lengths(results, max_training_lengths, min_training_lengths)
        for row, system in zip(rows, groups_by_system, strict=True):
            row.insert(1, lengths[system])
    what = f"{test_set}, by source length in subwords: {' / '.join(name for _, name, _ in shown)}"
    return Table(headers, rows, what, sign_notes(groups_by_system.values(), baseline if p_values else None))


def prediction_table(results: ScoresByRow, test_set: str) -> Table:
    """One row per system, by the length of its translations: each has other pairs in a group, and says how many."""
    groups_by_system = {system: tests[test_set].buckets for system, tests in results.items()}
    shown = available_scores(group for groups in groups_by_system.values() for group in groups)
    rows = []
    for system, groups in groups_by_system.items():
        all_pairs = results[system][test_set].overall
        cells = (f"{format_cell(group, shown, {})} ({describe_pairs(group, all_pairs)})" for group in groups)
        rows.append([describe_system(system, all_pairs), *cells])
    headers = ["system", *(group.label for group in next(iter(groups_by_system.values())))]
    what = (
        f"{test_set}, by the translation's length in subwords: {' / '.join(name for _, name, _ in shown)} (pairs, the "
        "mean of the seeds; the seeds that have any, where not all have)"
    )
    return Table(headers, rows, what, sign_notes(groups_by_system.values(), None))


def overview_table(
    results: ScoresByRow, *, baseline: str | None = None, comparisons: Comparisons | None = None
) -> Table:
    """One row per system, one column per test set, over all its pairs."""
    first, *_ = results.values()
    columns = {test: common_buckets(results, test)[0] for test in first}
    groups_by_system = {system: [tests[test].overall for test in columns] for system, tests in results.items()}
    shown = available_scores(entry for groups in groups_by_system.values() for entry in groups)
    rows = [
        [
            describe_system(system, groups[0]),
            *(
                format_cell(group, shown, bucket_p_values(comparisons[test] if comparisons else None, system, group))
                for test, group in zip(columns, groups, strict=True)
            ),
        ]
        for system, groups in groups_by_system.items()
    ]
    headers = ["system", *(f"{test} n={column.n}" for test, column in columns.items())]
    what = f"all pairs: {' / '.join(name for _, name, _ in shown)}"
    return Table(headers, rows, what, sign_notes(groups_by_system.values(), baseline if comparisons else None))


def reference_table(
    results: ScoresByRow,
    paper: PublishedTable,
    *,
    max_training_lengths: TrainingLengths,
    min_training_lengths: TrainingLengths | None = None,
    baseline: str | None = None,
    p_values: Comparison | None = None,
) -> Table:
    """A published table, each of its rows below ours: a cell has the first metric, and the others in brackets."""
    test_set, published = paper.test, paper.rows
    first_row = next(iter(published.values()))
    by_group = isinstance(next(iter(first_row.values())), list)
    all_pairs, *groups = common_buckets(results, test_set)
    columns = groups if by_group else [all_pairs]
    sizes = [f", paper n={paper_n}" for paper_n in paper.n] if paper.n else [""] * len(columns)
    headers = [
        "#",
        "system",
        "trained to",
        "",
        *(f"{column.label} n={column.n}{paper_n}" for column, paper_n in zip(columns, sizes, strict=True)),
    ]
    shown = [score for metric in first_row for score in SCORE_FORMATS if score[0] == metric]
    lengths = describe_training_lengths(results, max_training_lengths, min_training_lengths)
    rows = []
    for row_number, (system, paper_scores) in enumerate(published.items(), 1):
        tests = results[system][test_set]
        ours = tests.buckets if by_group else [tests.overall]
        cells = [
            with_parentheses(format_cell(group, shown, bucket_p_values(p_values, system, group)).split(" / "))
            for group in ours
        ]
        rows.append([str(row_number), describe_system(system, ours[0]), lengths[system], "ours", *cells])
        rows.append(["", "", "", "paper", *reference_cells(paper_scores, shown)])
    scope = "by source length in subwords" if by_group else "all pairs"
    what = f"{paper.source}, on {test_set}, {scope}: {with_parentheses([name for _, name, _ in shown])}"
    entries = [[tests[test_set].overall] for tests in results.values()]
    return Table(headers, rows, what, sign_notes(entries, baseline if p_values else None))


def reference_cells(paper_scores: Mapping[str, PublishedScore], shown: list[ScoreFormat]) -> list[str]:
    """A paper's numbers of one row: of each metric one, for all pairs, or a list with one for each group."""
    columns = []
    for metric, *_ in shown:
        scores = paper_scores[metric]
        columns.append(scores if isinstance(scores, list) else [scores])
    formats = [format_spec for *_, format_spec in shown]
    return [
        with_parentheses(list(map(published_cell, column_scores, formats)))
        for column_scores in zip(*columns, strict=True)
    ]


def published_cell(score: float | None, format_spec: str) -> str:
    return "-" if score is None else f"{score:{format_spec}}"


def with_parentheses(parts: list[str]) -> str:
    first, *others = parts
    return f"{first} ({' / '.join(others)})" if others else first


def describe_system(system: str, group: BucketScore) -> str:
    return f"{system} ({group.seeds} seeds)" if group.seeds > 1 else system


def describe_pairs(group: BucketScore, all_pairs: BucketScore) -> str:
    number = f"{group.n:.2g}" if 0 < group.n < 1 else f"{group.n:.0f}"
    if not group.n or group.seeds >= all_pairs.seeds:
        return number
    return f"{number}; {group.seeds} seed{'s' * (group.seeds > 1)}"


def available_scores(groups: Iterable[BucketScore]) -> list[ScoreFormat]:
    present = {metric for group in groups for metric in group.values}
    return [score for score in SCORE_FORMATS if score[0] in present]


def bucket_p_values(p_values: Comparison | None, system: str, group: BucketScore) -> BucketPValues:
    """The p-values of each metric in a group; none for the baseline and for groups of one pair."""
    return p_values.get(system, {}).get(group.label, {}) if p_values else {}


def is_significant(p_values: BucketPValues, metric: str) -> bool:
    return metric in p_values and p_values[metric].randomisation < SIGNIFICANCE_LEVEL


def format_cell(group: BucketScore, shown: Iterable[ScoreFormat], p_values: BucketPValues) -> str:
    """`31.7 ±0.5* / 57.9 ±0.6 / 1.02`; a dash where a score is missing, a single dash for a group without pairs."""
    if not group.n:
        return "-"
    parts = []
    for metric, _, format_spec in shown:
        value, half_width = group.score(metric), group.half_width(metric)
        part = "-" if value is None else format(value, format_spec)
        if value is not None and half_width is not None:
            part += f" ±{half_width:{format_spec}}"
        parts.append(part + "*" * is_significant(p_values, metric))
    return " / ".join(parts)


def sign_notes(entries: Collection[Sequence[BucketScore]], baseline: str | None) -> tuple[str, ...]:
    """What the signs in the cells mean, if there are any; where a `baseline` is named, all others were compared."""
    has_intervals = any(group.has_intervals for groups in entries for group in groups)
    notes = [INTERVAL_NOTE] if has_intervals else []
    if baseline and len(entries) > 1:
        notes.append(f"* p < {SIGNIFICANCE_LEVEL} against {baseline}, by approximate randomisation, with each seed")
    return tuple(notes)


def render_markdown(table: Table) -> str:
    """A table of GitHub's Markdown: the first column left, the others right, the legend below."""
    lines = [table.headers, ["---", *["---:"] * (len(table.headers) - 1)], *table.rows]
    escaped = [[markdown_text(entry) for entry in line] for line in lines]
    return "\n".join([*("| " + " | ".join(line) + " |" for line in escaped), "", markdown_text(table.legend), ""])


def render_latex(table: Table) -> str:
    """A tabular of LaTeX for the package booktabs: the first column left, the others right, the legend below."""
    lines = [" & ".join(map(latex_text, line)) + r" \\" for line in [table.headers, *table.rows]]
    columns = "l" + "r" * (len(table.headers) - 1)
    top, *below = lines
    begin, end = f"\\begin{{tabular}}{{{columns}}}", r"\end{tabular}"
    return "\n".join(
        [begin, r"\toprule", top, r"\midrule", *below, r"\bottomrule", end, "", latex_text(table.legend), ""]
    )


def render_csv(results: ScoresByRow, comparisons: Comparisons) -> str:
    """Every score in full, a line each, with its interval and p-values against the baseline."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    names = ("test_set", "system", "seeds", "group", "low", "high", "n", "metric", "score", "ci")
    writer.writerow([*names, "p_randomisation", "p_bootstrap"])
    for system, tests in results.items():
        for test, result in tests.items():
            for group in result.all_buckets:
                p_values = bucket_p_values(comparisons[test], system, group)
                fields = [test, system, group.seeds, group.label, group.low, group.high, group.n]
                for metric, *_ in available_scores([group]):
                    p = p_values.get(metric)
                    scores = [group.score(metric), group.half_width(metric), p and p.randomisation, p and p.bootstrap]
                    writer.writerow(map(csv_cell, [*fields, metric, *scores]))
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


def common_buckets(results: ScoresByRow, test_set: str) -> Sequence[BucketScore]:
    """The entries (low, high, label, n) of all pairs and of each group, checked to be the same for every system."""
    if not results:
        raise ValueError("a comparison needs at least one system; results is empty; score a system first")
    first, *_ = results
    columns: dict[str, Sequence[BucketScore]] = {}
    for system, tests in results.items():
        if test_set not in tests:
            raise ValueError(
                f"every system must be scored on the test set; {system!r} has no {test_set!r} "
                f"but {', '.join(tests) or 'nothing'}; score it there or leave it out"
            )
        columns[system] = tests[test_set].all_buckets
        sizes, expected = ([(group.label, group.n) for group in columns[name]] for name in (system, first))
        if sizes != expected:
            raise ValueError(
                f"systems in one comparison must share the test set and the tokenizer, so that each group has the same "
                f"pairs; on {test_set!r}, {first!r} has {describe_sizes(expected)}, {system!r} has "
                f"{describe_sizes(sizes)}; score them again with one tokenizer, or show them apart"
            )
    return columns[first]


def describe_sizes(sizes: list[tuple[str, float]]) -> str:
    return ", ".join(f"{label} n={n}" for label, n in sizes)
