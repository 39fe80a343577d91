"""Saved scores to tables: pure functions from the results of the length_buckets metric to rows of text.

`results[system][test_set]` is what the metric returned (read back from JSON). A table compares systems on one test set,
so every system must have the same pairs in every group; systems that do not are refused, never silently compared.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .length_limits import TrainingLengths, describe_training_lengths
from .markup import csv_cell, latex_text, markdown_text, one_line

BucketScores = Mapping[str, Any]
Results = Mapping[str, Mapping[str, Mapping[str, Any]]]
PValues = Mapping[str, Mapping[str, Mapping[str, Mapping[str, float]]]]  # of a test set: row, group, metric, test
Comparisons = Mapping[str, PValues]  # of each test set

# Field in the result, name in the legend, format.
SCORE_FORMATS = (
    ("bleu", "BLEU", ".1f"),
    ("ter", "TER", ".1f"),
    ("chrf", "chrF", ".1f"),
    ("bertscore", "BERTScore", ".1f"),
    ("length_ratio", "hypothesis:reference length", ".2f"),
)
SIGNIFICANCE_LEVEL = 0.05
INTERVAL_NOTE = (
    "± half of the 95 % interval, bootstrapped over sentences, or Student's over the seeds where there are several"
)


@dataclass(frozen=True)
class Table:
    """Cells as they are printed; `legend` says what a cell holds."""

    headers: list[str]
    rows: list[list[str]]
    legend: str


def length_table(
    results: Results,
    test_set: str,
    *,
    max_training_lengths: TrainingLengths | None = None,
    min_training_lengths: TrainingLengths | None = None,
    baseline: str | None = None,
    p_values: PValues | None = None,
) -> Table:
    """One row per system; columns: the training limit (where given), all pairs, and each source-length group.

    `min_training_lengths` has each system's shortest training length; one that it lacks, or has None for, has no such
    limit.
    """
    columns = common_buckets(results, test_set)
    groups_by_system = {
        system: [tests[test_set]["all"], *tests[test_set]["groups"]] for system, tests in results.items()
    }
    shown = available_scores(group for groups in groups_by_system.values() for group in groups)
    headers = ["system", *(f"{column['label']} n={column['n']}" for column in columns)]
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
    return Table(headers, rows, f"{what}{legend_notes(groups_by_system.values(), baseline if p_values else None)}")


def prediction_table(results: Results, test_set: str) -> Table:
    """One row per system, by the length of its translations: each has other pairs in a group, and says how many."""
    groups_by_system = {system: tests[test_set]["groups"] for system, tests in results.items()}
    shown = available_scores(group for groups in groups_by_system.values() for group in groups)
    rows = []
    for system, groups in groups_by_system.items():
        all_pairs = results[system][test_set]["all"]
        cells = (f"{format_cell(group, shown, {})} ({describe_pairs(group, all_pairs)})" for group in groups)
        rows.append([describe_system(system, all_pairs), *cells])
    headers = ["system", *(group["label"] for group in next(iter(groups_by_system.values())))]
    what = (
        f"{test_set}, by the translation's length in subwords: {' / '.join(name for _, name, _ in shown)} (pairs, the "
        "mean of the seeds; the seeds that have any, where not all have)"
    )
    return Table(headers, rows, f"{what}{legend_notes(groups_by_system.values(), None)}")


def overview_table(results: Results, *, baseline: str | None = None, comparisons: Comparisons | None = None) -> Table:
    """One row per system, one column per test set, over all its pairs."""
    first, *_ = results.values()
    columns = {test: common_buckets(results, test)[0] for test in first}
    groups_by_system = {system: [tests[test]["all"] for test in columns] for system, tests in results.items()}
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
    headers = ["system", *(f"{test} n={column['n']}" for test, column in columns.items())]
    what = f"all pairs: {' / '.join(name for _, name, _ in shown)}"
    return Table(headers, rows, f"{what}{legend_notes(groups_by_system.values(), baseline if comparisons else None)}")


def reference_table(
    results: Results,
    paper: Mapping[str, Any],
    *,
    max_training_lengths: TrainingLengths,
    min_training_lengths: TrainingLengths | None = None,
    baseline: str | None = None,
    p_values: PValues | None = None,
) -> Table:
    """A published table, each of its rows below ours; `paper` is `settings.ReferenceTable` as plain values.

    A cell has the paper's first metric and the others in brackets.
    """
    test_set, published = paper["test"], paper["rows"]
    first_row = next(iter(published.values()))
    by_group = isinstance(next(iter(first_row.values())), list)
    all_pairs, *groups = common_buckets(results, test_set)
    columns = groups if by_group else [all_pairs]
    sizes = [f", paper n={paper_n}" for paper_n in paper["n"]] if paper["n"] else [""] * len(columns)
    headers = [
        "#",
        "system",
        "trained to",
        "",
        *(f"{column['label']} n={column['n']}{paper_n}" for column, paper_n in zip(columns, sizes, strict=True)),
    ]
    shown = [score for metric in first_row for score in SCORE_FORMATS if score[0] == metric]
    lengths = describe_training_lengths(results, max_training_lengths, min_training_lengths)
    rows = []
    for row_number, (system, paper_scores) in enumerate(published.items(), 1):
        tests = results[system][test_set]
        ours = tests["groups"] if by_group else [tests["all"]]
        cells = [
            with_parentheses(format_cell(group, shown, bucket_p_values(p_values, system, group)).split(" / "))
            for group in ours
        ]
        rows.append([str(row_number), describe_system(system, ours[0]), lengths[system], "ours", *cells])
        rows.append(["", "", "", "paper", *reference_cells(paper_scores, shown)])
    scope = "by source length in subwords" if by_group else "all pairs"
    what = f"{paper['source']}, on {test_set}, {scope}: {with_parentheses([name for _, name, _ in shown])}"
    entries = [[tests[test_set]["all"]] for tests in results.values()]
    return Table(headers, rows, f"{what}{legend_notes(entries, baseline if p_values else None)}")


def reference_cells(paper_scores: Mapping[str, Any], shown: list[tuple[str, str, str]]) -> list[str]:
    """A paper's numbers of one row: of each metric one, for all pairs, or a list with one for each group."""
    columns = [
        paper_scores[metric] if isinstance(paper_scores[metric], list) else [paper_scores[metric]]
        for metric, *_ in shown
    ]
    return [
        with_parentheses(
            [
                "-" if value is None else f"{value:{format_spec}}"
                for value, (*_, format_spec) in zip(scores, shown, strict=True)
            ]
        )
        for scores in zip(*columns, strict=True)
    ]


def with_parentheses(parts: list[str]) -> str:
    first, *others = parts
    return f"{first} ({' / '.join(others)})" if others else first


def describe_system(system: str, group: BucketScores) -> str:
    return f"{system} ({group['seeds']} seeds)" if "seeds" in group else system


def describe_pairs(group: BucketScores, all_pairs: BucketScores) -> str:
    number, seeds = f"{group['n']:.2g}" if 0 < group["n"] < 1 else f"{group['n']:.0f}", group.get("seeds", 1)
    return f"{number}; {seeds} seed{'s' * (seeds > 1)}" if group["n"] and seeds < all_pairs.get("seeds", 1) else number


def available_scores(groups: Iterable[BucketScores]) -> list[tuple[str, str, str]]:
    present = {field for group in groups for field in group}
    return [score for score in SCORE_FORMATS if score[0] in present]


def bucket_p_values(p_values: PValues | None, system: str, group: BucketScores) -> Mapping[str, Mapping[str, float]]:
    """The p-values of each metric in a group; none for the baseline and for groups of one pair."""
    return p_values.get(system, {}).get(group["label"], {}) if p_values else {}


def format_cell(
    group: BucketScores, shown: list[tuple[str, str, str]], p_values: Mapping[str, Mapping[str, float]]
) -> str:
    """`31.7 ±0.5* / 57.9 ±0.6 / 1.02`; a dash where a score is missing, a single dash for a group without pairs."""
    if not group["n"]:
        return "-"
    parts = []
    for field, _, format_spec in shown:
        value, ci = group.get(field), group.get(f"{field}_ci")
        part = "-" if value is None else format(value, format_spec)
        part += "" if value is None or ci is None else f" ±{ci:{format_spec}}"
        parts.append(part + "*" * (field in p_values and p_values[field]["randomisation"] < SIGNIFICANCE_LEVEL))
    return " / ".join(parts)


def legend_notes(entries: Collection[list[BucketScores]], baseline: str | None) -> str:
    """What the signs in the cells mean, if there are any; where a `baseline` is named, all others were compared."""
    has_intervals = any(key.endswith("_ci") for groups in entries for group in groups for key in group)
    notes = [INTERVAL_NOTE] if has_intervals else []
    if baseline and len(entries) > 1:
        notes.append(f"* p < {SIGNIFICANCE_LEVEL} against {baseline}, by approximate randomisation, with each seed")
    return "".join(f"; {note}" for note in notes)


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


def render_csv(results: Results, comparisons: Comparisons) -> str:
    """Every score in full, a line each, with its interval and p-values against the baseline."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    names = ("test_set", "system", "seeds", "group", "low", "high", "n", "metric", "score", "ci")
    writer.writerow([*names, "p_randomisation", "p_bootstrap"])
    for system, tests in results.items():
        for test, result in tests.items():
            for group in (result["all"], *result["groups"]):
                p_values = bucket_p_values(comparisons[test], system, group)
                fields = [test, system, group.get("seeds", 1), group["label"], group["low"], group["high"], group["n"]]
                for metric, *_ in available_scores([group]):
                    p = p_values.get(metric, {})
                    scores = [group[metric], group.get(f"{metric}_ci"), p.get("randomisation"), p.get("bootstrap")]
                    writer.writerow(map(csv_cell, [*fields, metric, *scores]))
    return buffer.getvalue()


def render_text(table: Table) -> str:
    """The table aligned for a terminal: the first column left, the others right, the legend below."""
    lines = [table.headers, *table.rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(table.headers))]
    first, *others = widths
    printed = [
        "  ".join([line[0].ljust(first), *(entry.rjust(width) for entry, width in zip(line[1:], others, strict=True))])
        for line in lines
    ]
    printed.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join([*printed, "", one_line(table.legend), ""])


def common_buckets(results: Results, test_set: str) -> list[BucketScores]:
    """The entries (low, high, label, n) of all pairs and of each group, checked to be the same for every system."""
    if not results:
        raise ValueError("a comparison needs at least one system; results is empty; score a system first")
    first, *_ = results
    columns: dict[str, list[BucketScores]] = {}
    for system, tests in results.items():
        if test_set not in tests:
            raise ValueError(
                f"every system must be scored on the test set; {system!r} has no {test_set!r} "
                f"but {', '.join(tests) or 'nothing'}; score it there or leave it out"
            )
        columns[system] = [tests[test_set]["all"], *tests[test_set]["groups"]]
        sizes, expected = ([(group["label"], group["n"]) for group in columns[name]] for name in (system, first))
        if sizes != expected:
            raise ValueError(
                f"systems in one comparison must share the test set and the tokenizer, so that each group has the same "
                f"pairs; on {test_set!r}, {first!r} has {describe_sizes(expected)}, {system!r} has "
                f"{describe_sizes(sizes)}; score them again with one tokenizer, or show them apart"
            )
    return columns[first]


def describe_sizes(sizes: list[tuple[str, int]]) -> str:
    return ", ".join(f"{label} n={n}" for label, n in sizes)
