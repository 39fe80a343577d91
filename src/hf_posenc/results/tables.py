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

from .markup import csv_cell, latex_text, markdown_text, one_line
from .training_lengths import TrainingLimits, trained_on

Group = Mapping[str, Any]
Results = Mapping[str, Mapping[str, Mapping[str, Any]]]
PValues = Mapping[str, Mapping[str, Mapping[str, Mapping[str, float]]]]  # of a test set: row, group, metric, test
Comparisons = Mapping[str, PValues]  # of each test set

# Field in the result, name in the legend, format.
SCORES = (
    ("bleu", "BLEU", ".1f"),
    ("ter", "TER", ".1f"),
    ("chrf", "chrF", ".1f"),
    ("bertscore", "BERTScore", ".1f"),
    ("length_ratio", "hypothesis:reference length", ".2f"),
)
SIGNIFICANT = 0.05
INTERVALS = (
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
    training_limits: TrainingLimits | None = None,
    training_starts: TrainingLimits | None = None,
    baseline: str | None = None,
    p_values: PValues | None = None,
) -> Table:
    """One row per system; columns: the training limit (where given), all pairs, and each source-length group.

    `training_starts` has each system's shortest training length; one that it lacks, or has None for, has no such limit.
    """
    columns = shared_columns(results, test_set)
    entries = {system: [tests[test_set]["all"], *tests[test_set]["groups"]] for system, tests in results.items()}
    shown = shown_scores(group for groups in entries.values() for group in groups)
    headers = ["system", *(f"{column['label']} n={column['n']}" for column in columns)]
    rows = [
        [system_in_words(system, groups[0]), *(cell(group, shown, p_of(p_values, system, group)) for group in groups)]
        for system, groups in entries.items()
    ]
    if training_limits is not None:
        headers.insert(1, "trained to")
        lengths = trained_on(results, training_limits, training_starts)
        for row, system in zip(rows, entries, strict=True):
            row.insert(1, lengths[system])
    what = f"{test_set}, by source length in subwords: {' / '.join(name for _, name, _ in shown)}"
    return Table(headers, rows, f"{what}{legend_of(entries.values(), baseline if p_values else None)}")


def prediction_table(results: Results, test_set: str) -> Table:
    """One row per system, by the length of its translations: each has other pairs in a group, and says how many."""
    entries = {system: tests[test_set]["groups"] for system, tests in results.items()}
    shown = shown_scores(group for groups in entries.values() for group in groups)
    rows = []
    for system, groups in entries.items():
        whole = results[system][test_set]["all"]
        cells = (f"{cell(group, shown, {})} ({pairs_in_words(group, whole)})" for group in groups)
        rows.append([system_in_words(system, whole), *cells])
    headers = ["system", *(group["label"] for group in next(iter(entries.values())))]
    what = (
        f"{test_set}, by the translation's length in subwords: {' / '.join(name for _, name, _ in shown)} (pairs, the "
        "mean of the seeds; the seeds that have any, where not all have)"
    )
    return Table(headers, rows, f"{what}{legend_of(entries.values(), None)}")


def overview_table(results: Results, *, baseline: str | None = None, comparisons: Comparisons | None = None) -> Table:
    """One row per system, one column per test set, over all its pairs."""
    first, *_ = results.values()
    columns = {test: shared_columns(results, test)[0] for test in first}
    entries = {system: [tests[test]["all"] for test in columns] for system, tests in results.items()}
    shown = shown_scores(entry for groups in entries.values() for entry in groups)
    rows = [
        [
            system_in_words(system, groups[0]),
            *(
                cell(group, shown, p_of(comparisons[test] if comparisons else None, system, group))
                for test, group in zip(columns, groups, strict=True)
            ),
        ]
        for system, groups in entries.items()
    ]
    headers = ["system", *(f"{test} n={column['n']}" for test, column in columns.items())]
    what = f"all pairs: {' / '.join(name for _, name, _ in shown)}"
    return Table(headers, rows, f"{what}{legend_of(entries.values(), baseline if comparisons else None)}")


def paper_table(
    results: Results,
    paper: Mapping[str, Any],
    *,
    training_limits: TrainingLimits,
    training_starts: TrainingLimits | None = None,
    baseline: str | None = None,
    p_values: PValues | None = None,
) -> Table:
    """A published table, each of its rows below ours; `paper` is `settings.Paper` as plain values.

    A cell has the paper's first metric and the others in brackets.
    """
    test_set, published = paper["test"], paper["rows"]
    first = next(iter(published.values()))
    by_group = isinstance(next(iter(first.values())), list)
    all_pairs, *groups = shared_columns(results, test_set)
    columns = groups if by_group else [all_pairs]
    sizes = [f", paper n={n}" for n in paper["n"]] if paper["n"] else [""] * len(columns)
    headers = [
        "#",
        "system",
        "trained to",
        "",
        *(f"{c['label']} n={c['n']}{n}" for c, n in zip(columns, sizes, strict=True)),
    ]
    shown = [score for metric in first for score in SCORES if score[0] == metric]
    lengths = trained_on(results, training_limits, training_starts)
    rows = []
    for number, (system, numbers) in enumerate(published.items(), 1):
        tests = results[system][test_set]
        ours = tests["groups"] if by_group else [tests["all"]]
        cells = [bracketed(cell(group, shown, p_of(p_values, system, group)).split(" / ")) for group in ours]
        rows.append([str(number), system_in_words(system, ours[0]), lengths[system], "ours", *cells])
        rows.append(["", "", "", "paper", *published_cells(numbers, shown)])
    of = "by source length in subwords" if by_group else "all pairs"
    what = f"{paper['source']}, on {test_set}, {of}: {bracketed([name for _, name, _ in shown])}"
    entries = [[tests[test_set]["all"]] for tests in results.values()]
    return Table(headers, rows, f"{what}{legend_of(entries, baseline if p_values else None)}")


def published_cells(numbers: Mapping[str, Any], shown: list[tuple[str, str, str]]) -> list[str]:
    """A paper's numbers of one row: of each metric one, for all pairs, or a list with one for each group."""
    lists = [numbers[metric] if isinstance(numbers[metric], list) else [numbers[metric]] for metric, *_ in shown]
    return [
        bracketed(["-" if value is None else f"{value:{form}}" for value, (*_, form) in zip(one, shown, strict=True)])
        for one in zip(*lists, strict=True)
    ]


def bracketed(parts: list[str]) -> str:
    first, *others = parts
    return f"{first} ({' / '.join(others)})" if others else first


def system_in_words(system: str, group: Group) -> str:
    return f"{system} ({group['seeds']} seeds)" if "seeds" in group else system


def pairs_in_words(group: Group, whole: Group) -> str:
    number, seeds = f"{group['n']:.2g}" if 0 < group["n"] < 1 else f"{group['n']:.0f}", group.get("seeds", 1)
    return f"{number}; {seeds} seed{'s' * (seeds > 1)}" if group["n"] and seeds < whole.get("seeds", 1) else number


def shown_scores(groups: Iterable[Group]) -> list[tuple[str, str, str]]:
    present = {field for group in groups for field in group}
    return [score for score in SCORES if score[0] in present]


def p_of(p_values: PValues | None, system: str, group: Group) -> Mapping[str, Mapping[str, float]]:
    """The p-values of each metric in a group; none for the baseline and for groups of one pair."""
    return p_values.get(system, {}).get(group["label"], {}) if p_values else {}


def cell(group: Group, shown: list[tuple[str, str, str]], p_values: Mapping[str, Mapping[str, float]]) -> str:
    """`31.7 ±0.5* / 57.9 ±0.6 / 1.02`; a dash where a score is missing, a single dash for a group without pairs."""
    if not group["n"]:
        return "-"
    parts = []
    for field, _, form in shown:
        value, ci = group.get(field), group.get(f"{field}_ci")
        part = "-" if value is None else format(value, form)
        part += "" if value is None or ci is None else f" ±{ci:{form}}"
        parts.append(part + "*" * (field in p_values and p_values[field]["randomisation"] < SIGNIFICANT))
    return " / ".join(parts)


def legend_of(entries: Collection[list[Group]], baseline: str | None) -> str:
    """What the signs in the cells mean, if there are any; where a `baseline` is named, all others were compared."""
    intervals = any(key.endswith("_ci") for groups in entries for group in groups for key in group)
    signs = [INTERVALS] if intervals else []
    if baseline and len(entries) > 1:
        signs.append(f"* p < {SIGNIFICANT} against {baseline}, by approximate randomisation, with each seed")
    return "".join(f"; {sign}" for sign in signs)


def markdown(table: Table) -> str:
    """A table of GitHub's Markdown: the first column left, the others right, the legend below."""
    lines = [table.headers, ["---", *["---:"] * (len(table.headers) - 1)], *table.rows]
    escaped = [[markdown_text(entry) for entry in line] for line in lines]
    return "\n".join([*("| " + " | ".join(line) + " |" for line in escaped), "", markdown_text(table.legend), ""])


def latex(table: Table) -> str:
    """A tabular of LaTeX for the package booktabs: the first column left, the others right, the legend below."""
    lines = [" & ".join(map(latex_text, line)) + r" \\" for line in [table.headers, *table.rows]]
    columns = "l" + "r" * (len(table.headers) - 1)
    top, *below = lines
    begin, end = f"\\begin{{tabular}}{{{columns}}}", r"\end{tabular}"
    return "\n".join(
        [begin, r"\toprule", top, r"\midrule", *below, r"\bottomrule", end, "", latex_text(table.legend), ""]
    )


def csv_text(results: Results, comparisons: Comparisons) -> str:
    """Every score in full, a line each, with its interval and p-values against the baseline."""
    made = io.StringIO()
    writer = csv.writer(made, lineterminator="\n")
    names = ("test_set", "system", "seeds", "group", "low", "high", "n", "metric", "score", "ci")
    writer.writerow([*names, "p_randomisation", "p_bootstrap"])
    for system, tests in results.items():
        for test, result in tests.items():
            for group in (result["all"], *result["groups"]):
                p_values = p_of(comparisons[test], system, group)
                first = [test, system, group.get("seeds", 1), group["label"], group["low"], group["high"], group["n"]]
                for metric, *_ in shown_scores([group]):
                    p = p_values.get(metric, {})
                    scores = [group[metric], group.get(f"{metric}_ci"), p.get("randomisation"), p.get("bootstrap")]
                    writer.writerow(map(csv_cell, [*first, metric, *scores]))
    return made.getvalue()


def text(table: Table) -> str:
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


def shared_columns(results: Results, test_set: str) -> list[Group]:
    """The entries (low, high, label, n) of all pairs and of each group, checked to be the same for every system."""
    if not results:
        raise ValueError("a comparison needs at least one system; results is empty; score a system first")
    first, *_ = results
    columns: dict[str, list[Group]] = {}
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
                f"pairs; on {test_set!r}, {first!r} has {sizes_in_words(expected)}, {system!r} has "
                f"{sizes_in_words(sizes)}; score them again with one tokenizer, or show them apart"
            )
    return columns[first]


def sizes_in_words(sizes: list[tuple[str, int]]) -> str:
    return ", ".join(f"{label} n={n}" for label, n in sizes)
