"""Tables of scores: pure functions from saved results to rows of text.

`TableRows` has the scores of each row on each test set. A table compares rows on one test set. Rows with different
pairs in a length bucket are refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from .length_limits import TableRows
from .records import (
    BucketPValues,
    BucketScore,
    Comparison,
    PublishedScore,
    PublishedTable,
    ScoredTestSet,
    ScoresByRow,
    SystemResult,
)

ScoreFormat = tuple[str, str, str]  # metric, name in the legend, format

SCORE_FORMATS: tuple[ScoreFormat, ...] = (
    ("bleu", "BLEU", ".1f"),
    ("ter", "TER", ".1f"),
    ("chrf", "chrF", ".1f"),
    ("bertscore", "BERTScore", ".1f"),
    ("exact_match", "exact match", ".1f"),
    ("token_accuracy", "token accuracy", ".1f"),
    ("perplexity", "perplexity", ".2f"),
    ("length_ratio", "hypothesis:reference length", ".2f"),
)
SIGNIFICANCE_LEVEL = 0.05
INTERVAL_NOTE = (
    "± half of the 95 % interval, bootstrapped over sentences, or Student's over the seeds where there are several"
)
RANGE_NOTE = "[ ] the lowest and the highest seed, where Student's interval leaves the scale of the metric"
CONTEXT_NOTE = (
    "position: each token by the number of tokens up to it, in windows of the longest context; whole: windows of each "
    "length, read at once; sliding: the same windows, each token with at most as many tokens before it as in training; "
    "both of these score the same tokens in every column, and all is of all columns together"
)

TIME_CAPTION = "seconds to translate one source: wall clock / processors (not comparable between parallel systems)"
TIME_LEGEND = (
    "seconds that one source took to translate: by the clock / of the computer's processors, by all processes together "
    "(a GPU's own are not among the latter); the mean of the seeds; rows compare where each had the same machine to "
    "itself, so not those of jobs side by side; - where it was not measured"
)


@dataclass(frozen=True)
class Table:
    """Printed cells, a caption, and notes on the signs in cells. `legend` is caption and notes.

    `best`: the line and the place of each cell whose number is the best of its column.
    """

    headers: list[str]
    rows: list[list[str]]
    caption: str
    notes: tuple[str, ...] = ()
    details: str = ""  # the caption of a file, if that of a terminal is shorter
    best: frozenset[tuple[int, int]] = frozenset()

    @property
    def legend(self) -> str:
        return "; ".join([self.details or self.caption, *self.notes])


def length_table(
    rows: TableRows,
    test_set: str,
) -> Table:
    """One line per row; columns: the training lengths (where known), all pairs, and each length bucket."""
    columns = common_buckets(rows.scores, test_set)
    groups_by_system = {system: tests[test_set].all_buckets for system, tests in rows.scores.items()}
    p_values = rows.comparisons.get(test_set)
    shown = available_scores(group for groups in groups_by_system.values() for group in groups)
    headers = ["system", *(f"{column.label} n={column.n}" for column in columns)]
    lines = [
        [
            describe_system(system, groups[0]),
            *(format_cell(group, shown, bucket_p_values(p_values, system, group)) for group in groups),
        ]
        for system, groups in groups_by_system.items()
    ]
    if rows.max_lengths is not None:
        headers.insert(1, "trained to")
        lengths = rows.described_lengths()
        for line, system in zip(lines, groups_by_system, strict=True):
            line.insert(1, lengths[system])
    what = f"{test_set}, by {length_unit(columns)}: {' / '.join(name for _, name, _ in shown)}"
    notes = sign_notes(groups_by_system.values(), rows.baseline if p_values else None)
    return Table(headers, lines, what, notes)


def is_perplexity(buckets: Iterable[BucketScore]) -> bool:
    """Whether plain text was scored, in buckets by context length, and not pairs by source length."""
    return any("perplexity" in bucket.values for bucket in buckets)


def length_unit(buckets: Iterable[BucketScore]) -> str:
    """The length that the buckets are of, with its unit."""
    return "context length in tokens" if is_perplexity(buckets) else "source length in subwords"


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


def overview_table(rows: TableRows) -> Table:
    """One line per row, one column per test set, over all its pairs."""
    first, *_ = rows.scores.values()
    columns = {test: common_buckets(rows.scores, test)[0] for test in first}
    groups_by_system = {system: [tests[test].overall for test in columns] for system, tests in rows.scores.items()}
    shown = available_scores(entry for groups in groups_by_system.values() for entry in groups)
    lines = [
        [
            describe_system(system, groups[0]),
            *(
                format_cell(group, shown, bucket_p_values(rows.comparisons.get(test), system, group))
                for test, group in zip(columns, groups, strict=True)
            ),
        ]
        for system, groups in groups_by_system.items()
    ]
    headers = ["system", *(f"{test} n={column.n}" for test, column in columns.items())]
    what = f"all pairs: {' / '.join(name for _, name, _ in shown)}"
    notes = sign_notes(groups_by_system.values(), rows.baseline if rows.comparisons else None)
    return Table(headers, lines, what, notes)


def reference_table(rows: TableRows, paper: PublishedTable) -> Table:
    """A published table, each of its rows below ours: a cell has the first metric, and the others in brackets."""
    results, test_set, published = rows.scores, paper.test, paper.rows
    p_values = rows.comparisons.get(test_set)
    first_row = next(iter(published.values()))
    by_group = isinstance(next(iter(first_row.values())), list)
    all_pairs, *groups = common_buckets(results, test_set)
    columns = groups if by_group else [all_pairs]
    sizes = [f", paper n={paper_n}" for paper_n in paper.num_pairs] if paper.num_pairs else [""] * len(columns)
    headers = [
        "#",
        "system",
        "trained to",
        "",
        *(f"{column.label} n={column.n}{paper_n}" for column, paper_n in zip(columns, sizes, strict=True)),
    ]
    shown = [score for metric in first_row for score in SCORE_FORMATS if score[0] == metric]
    lengths, lines = rows.described_lengths(), []
    for row_number, (system, paper_scores) in enumerate(published.items(), 1):
        tests = results[system][test_set]
        ours = tests.buckets if by_group else [tests.overall]
        cells = [
            with_parentheses(format_cell(group, shown, bucket_p_values(p_values, system, group)).split(" / "))
            for group in ours
        ]
        lines.append([str(row_number), describe_system(system, ours[0]), lengths[system], "ours", *cells])
        lines.append(["", "", "", "paper", *reference_cells(paper_scores, shown)])
    scope = "by source length in subwords" if by_group else "all pairs"
    what = f"{paper.source}, on {test_set}, {scope}: {with_parentheses([name for _, name, _ in shown])}"
    entries = [[tests[test_set].overall] for tests in results.values()]
    return Table(headers, lines, what, sign_notes(entries, rows.baseline if p_values else None))


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
    """`31.7 ±0.5* / 57.9 ±0.6 / 1.02`, or `0.3 [0.0 to 0.9]` where ± leaves the scale; a dash where a score is missing,
    a single dash for a group without pairs."""
    if not group.n:
        return "-"
    parts = []
    for metric, _, format_spec in shown:
        value, half_width, seed_range = group.score(metric), group.half_width(metric), group.seed_range(metric)
        part = "-" if value is None else format(value, format_spec)
        if seed_range is not None:
            part += f" [{seed_range[0]:{format_spec}} to {seed_range[1]:{format_spec}}]"
        elif value is not None and half_width is not None:
            part += f" ±{half_width:{format_spec}}"
        parts.append(part + "*" * is_significant(p_values, metric))
    return " / ".join(parts)


def sign_notes(entries: Collection[Sequence[BucketScore]], baseline: str | None) -> tuple[str, ...]:
    """The meaning of the signs in the cells. With a `baseline`, all other rows were compared with it."""
    has_intervals = any(group.has_intervals for groups in entries for group in groups)
    is_text = any(map(is_perplexity, entries))
    notes = [INTERVAL_NOTE.replace("sentences", "windows") if is_text else INTERVAL_NOTE] if has_intervals else []
    notes += range_notes(group for groups in entries for group in groups)
    if is_text:
        notes.append(CONTEXT_NOTE)
    if baseline and len(entries) > 1:
        notes.append(f"* p < {SIGNIFICANCE_LEVEL} against {baseline}, by approximate randomisation, with each seed")
    return tuple(notes)


def range_notes(groups: Iterable[BucketScore]) -> list[str]:
    """The meaning of square brackets, if a cell has them."""
    return [RANGE_NOTE] if any(group.seed_range(metric) for group in groups for metric in group.values) else []


def time_table(systems: Mapping[str, SystemResult]) -> Table | None:
    """One row per row of the other tables, one column per test set; None if no time was measured."""
    members: dict[str, list[Mapping[str, ScoredTestSet]]] = {}
    for system in systems.values():
        members.setdefault(system.row, []).append(system.tests)
    first = next(iter(systems.values())).tests
    rows = [
        [row, *(format_times([tests[test] for tests in row_tests]) for test in first)]
        for row, row_tests in members.items()
    ]
    if all(entry == "-" for _, *entries in rows for entry in entries):
        return None
    headers = ["system", *(f"{test} n={result.overall.n}" for test, result in first.items())]
    return Table(headers, rows, TIME_CAPTION, details=TIME_LEGEND)


def format_times(results: Sequence[ScoredTestSet]) -> str:
    """`0.0124 / 0.0236`; a dash unless the time of each training is known."""
    times = [result.time for result in results if result.time is not None]
    num_sources = results[0].overall.n
    if len(times) < len(results) or not num_sources:
        return "-"
    means = [mean(time.seconds for time in times), mean(time.processor_seconds for time in times)]
    return " / ".join(f"{seconds / num_sources:.3g}" for seconds in means)


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
