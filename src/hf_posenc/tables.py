"""Saved scores to tables: pure functions from the results of the length_buckets metric to rows of text.

`results[system][test_set]` is what the metric returned (read back from JSON). A table compares systems on one test set,
so every system must have the same pairs in every group; systems that do not are refused, never silently compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Group = Mapping[str, Any]
Results = Mapping[str, Mapping[str, Mapping[str, Any]]]
TrainingLimits = Mapping[str, int | None]

# Field in the result, name in the legend, format.
SCORES = (
    ("bleu", "BLEU", ".1f"),
    ("ter", "TER", ".1f"),
    ("chrf", "chrF", ".1f"),
    ("length_ratio", "hypothesis:reference length", ".2f"),
)


HOOKS = ("embed", "rotate", "score_bias", "value_bias")


@dataclass(frozen=True)
class Table:
    """Cells as they are printed; `legend` says what a cell holds."""

    headers: list[str]
    rows: list[list[str]]
    legend: str


def length_table(results: Results, test_set: str, *, training_limits: TrainingLimits | None = None) -> Table:
    """One row per system; columns: the training limit (where given), all pairs, and each source-length group."""
    columns = shared_columns(results, test_set)
    entries = {system: [tests[test_set]["all"], *tests[test_set]["groups"]] for system, tests in results.items()}
    shown = [score for score in SCORES if any(score[0] in group for groups in entries.values() for group in groups)]
    headers = ["system", *(f"{column['label']} n={column['n']}" for column in columns)]
    rows = [[system, *(cell(group, shown) for group in groups)] for system, groups in entries.items()]
    if training_limits is not None:
        limits = checked_limits(results, training_limits)
        headers.insert(1, "trained to")
        for row in rows:
            limit = limits[row[0]]
            row.insert(1, "no limit" if limit is None else str(limit))
    return Table(headers, rows, f"{test_set}, by source length in subwords: {' / '.join(name for _, name, _ in shown)}")


def overview_table(results: Results) -> Table:
    """One row per system, one column per test set, over all its pairs."""
    first, *_ = results.values()
    columns = {test: shared_columns(results, test)[0] for test in first}
    entries = [tests[test]["all"] for tests in results.values() for test in columns]
    shown = [score for score in SCORES if any(score[0] in entry for entry in entries)]
    rows = [[system, *(cell(tests[test]["all"], shown) for test in columns)] for system, tests in results.items()]
    headers = ["system", *(f"{test} n={column['n']}" for test, column in columns.items())]
    return Table(headers, rows, f"all pairs: {' / '.join(name for _, name, _ in shown)}")


def cell(group: Group, shown: list[tuple[str, str, str]]) -> str:
    """`31.7 / 57.9 / 1.02`; a dash where a score is missing, a single dash for a group without pairs."""
    if not group["n"]:
        return "-"
    values = [(group.get(field), form) for field, _, form in shown]
    return " / ".join("-" if value is None else format(value, form) for value, form in values)


def markdown(table: Table) -> str:
    """A table of GitHub's Markdown: the first column left, the others right, the legend below."""
    lines = [table.headers, ["---", *["---:"] * (len(table.headers) - 1)], *table.rows]
    escaped = [[entry.replace("|", "\\|") for entry in line] for line in lines]
    return "\n".join([*("| " + " | ".join(line) + " |" for line in escaped), "", table.legend, ""])


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
    return "\n".join([*printed, "", table.legend, ""])


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
                f"pairs; on {test_set!r}, {first!r} has {described(expected)}, {system!r} has {described(sizes)}; "
                "score them again with one tokenizer, or show them apart"
            )
    return columns[first]


def described(sizes: list[tuple[str, int]]) -> str:
    return ", ".join(f"{label} n={n}" for label, n in sizes)


def checked_limits(results: Results, training_limits: TrainingLimits) -> dict[str, int | None]:
    """Each system's training limit in subwords, None where it had none."""
    for system in results:
        if system not in training_limits:
            raise ValueError(
                f"training_limits must have every system; {system!r} is not in it; "
                "add its longest training length in subwords, or None if it had no limit"
            )
        limit = training_limits[system]
        if limit is not None and limit <= 0:
            raise ValueError(f"a training limit must be positive; {system!r} has {limit}; write None for no limit")
    return {system: training_limits[system] for system in results}


def encodings_table(entries: Mapping[str, Any], config: Any) -> str:
    """The registry as a Markdown table: what each encoding is, the hooks it answers, the laws it obeys, its knobs."""
    rows = []
    for name, entry in entries.items():
        made = entry(config, causal=False, num_layers=1, num_heads=1, head_width=config.d_model)
        hooks = [f"`{hook}`" for hook in HOOKS if getattr(made, hook) is not None]
        knobs = [f"`{knob.name}` {knob.default}" for knob in entry.knobs]
        longest = f"`{entry.longest}`" if entry.longest else "any"
        invariant = "yes" if entry.shift_invariant else "no"
        rows.append([f"`{name}`", entry.summary, ", ".join(hooks) or "-", invariant, longest, ", ".join(knobs) or "-"])
    headers = ["encoding", "what it is", "hooks", "shift-invariant", "longest", "knobs"]
    return "\n".join("| " + " | ".join(row) + " |" for row in [headers, ["---"] * len(headers), *rows]) + "\n"
