"""One table over several runs: rows of any of them, and one number with its interval in each cell.

A column is a metric on all pairs or on one length bucket of a test set. Columns without a score are left out. The best
number of a column is marked, and so is each row that differs significantly from the baseline.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .records import BucketScore, Comparison, LengthScores, RowPValues, ScoresByRow
from .saved_runs import SavedRow, chosen, read_rows, validate_same_test_sets
from .significance import p_values
from .tables import (
    ScoreFormat,
    Table,
    available_scores,
    describe_system,
    format_cell,
    length_unit,
    sign_notes,
)

LENGTHS = "lengths"  # a column TEST:lengths stands for all buckets of the test set
LOWER_IS_BETTER = ("ter", "perplexity")
UNRANKED = ("length_ratio",)  # neither more nor less is better
BEST_NOTE = "bold: the best number of its column"


@dataclass(frozen=True)
class Column:
    """A column: one metric on one length bucket of a test set, or on all of its pairs."""

    test: str
    label: str
    score_format: ScoreFormat

    @property
    def metric(self) -> str:
        return self.score_format[0]

    def printed(self, score: float) -> str:
        return format(score, self.score_format[2])

    def bucket(self, tests: Mapping[str, LengthScores]) -> BucketScore | None:
        """The bucket of a row, None if the row lacks it or has no pairs in it."""
        if self.test not in tests:
            return None
        labelled = {bucket.label: bucket for bucket in tests[self.test].all_buckets}
        bucket = labelled.get(self.label)
        return bucket if bucket is not None and bucket.score(self.metric) is not None else None

    def buckets(self, means: ScoresByRow) -> list[BucketScore]:
        """The buckets of all rows that have a score in this column."""
        found = [self.bucket(tests) for tests in means.values()]
        return [bucket for bucket in found if bucket is not None]


def table_of_runs(
    folders: Sequence[Path],
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    metrics: Sequence[str] | None = None,
    baseline: str | None = None,
) -> Table:
    """The table of the runs in `folders`, each with a results.json.

    `rows`: names in the order of the table; all rows by default. A name that is in several runs is `run/row`.
    `columns`: `TEST` for all pairs of a test set, `TEST:LABEL` for a bucket such as `news:[26,50]`, or `TEST:lengths`
        for all of its buckets. By default all pairs of each test set, and the buckets if there is one test set.
    `metrics`: by default all that rank systems, in the order of other tables.
    `baseline`: the row that the others are tested against; by default that of the first run, if the table has it.

    A ValueError for unknown names, and for rows whose test sets differ.
    """
    saved = read_rows(folders)
    shown = {name: saved[name] for name in chosen("--rows", rows or saved, saved)}
    tests = list(dict.fromkeys(test for row in shown.values() for test in row.tests))
    for test in tests:
        validate_same_test_sets(shown.values(), test)
    means = {name: row.means for name, row in shown.items()}
    kept = [column for column in wanted_columns(tests, means, columns, metrics) if column.buckets(means)]
    if not kept:
        raise ValueError("A table needs a score, but the rows have none in these columns; choose other columns.")
    base = baseline_row(shown, baseline)
    tested = {name: p_values_against(row, base, kept) for name, row in shown.items()} if base else {}
    lines = []
    for name, scores in means.items():
        cells = [column_cell(column, column.bucket(scores), tested.get(name, {})) for column in kept]
        first_scores, *_ = scores.values()
        lines.append([describe_system(name, first_scores.overall), *cells])
    caption, headers = headings(kept, means)
    notes = table_notes(kept, means, tested, base)
    return Table(["system", *headers], lines, caption, notes, best=best_cells(kept, means))


def wanted_columns(
    tests: Sequence[str],
    means: ScoresByRow,
    columns: Sequence[str] | None,
    metrics: Sequence[str] | None,
) -> list[Column]:
    """The columns that the options name, in their order, each with a column for each metric."""
    groups = [group for scores in means.values() for result in scores.values() for group in result.all_buckets]
    formats = {score_format[0]: score_format for score_format in available_scores(groups)}
    default_metrics = [metric for metric in formats if metric not in UNRANKED]
    remedy = "; `hf-posenc score RUN --metrics METRIC` adds one to a run"
    shown_metrics = chosen("--metrics", metrics or default_metrics, formats, remedy)
    labels: dict[str, dict[str, None]] = {test: {} for test in tests}
    for scores in means.values():
        for test, result in scores.items():
            labels[test] |= dict.fromkeys(bucket.label for bucket in result.buckets)
    known = [*tests, *(f"{test}:{label}" for test in tests for label in (LENGTHS, *labels[test]))]
    default = [*tests, f"{tests[0]}:{LENGTHS}"] if len(tests) == 1 else tests
    wanted: dict[Column, None] = {}
    for name in chosen("--columns", columns or default, known):
        test, _, label = (name, "", "all") if name in tests else name.rpartition(":")
        for shown_label in labels[test] if label == LENGTHS else [label]:
            wanted |= dict.fromkeys(Column(test, shown_label, formats[metric]) for metric in shown_metrics)
    return list(wanted)


def baseline_row(shown: Mapping[str, SavedRow], name: str | None) -> SavedRow | None:
    """The row that the others are tested against, None if the table lacks the first run's."""
    if name is not None:
        return shown[chosen("--baseline", [name], shown)[0]]
    first = next(iter(shown.values()))
    rows = [row for row in shown.values() if row.folder == first.folder and row.row == first.results.baseline]
    return rows[0] if rows else None


def p_values_against(row: SavedRow, base: SavedRow, columns: Sequence[Column]) -> Comparison:
    """The p-values of a row against the baseline, by test set, bucket and metric.

    Those of results.json if that is its comparison. Otherwise they are computed where both runs have statistics.
    """
    if row is base:
        return {}
    if row.folder == base.folder and base.row == base.results.baseline:
        return {test: comparison[row.row] for test, comparison in row.results.comparisons.items()}
    tested = {}
    for test in dict.fromkeys(column.test for column in columns):
        if test in row.tests and test in base.tests and row.has_statistics(test) and base.has_statistics(test):
            tested[test] = computed_p_values(row, base, [column for column in columns if column.test == test])
    return tested


def computed_p_values(row: SavedRow, base: SavedRow, columns: Sequence[Column]) -> RowPValues:
    """The p-values of a row against the baseline in the columns of one test set, from the saved statistics."""
    test = columns[0].test
    ours, theirs = row.statistics(test), base.statistics(test)
    shown = {"lengths", *(column.metric for column in columns)} & ours[0].keys() & theirs[0].keys()
    ours, theirs = ([{name: seed[name] for name in shown} for seed in seeds] for seeds in (ours, theirs))
    if all(column.label == "all" for column in columns):
        return p_values(ours, theirs, edges=(), labels=("all",))
    buckets = row.tests[test].buckets
    edges = [bucket.high for bucket in buckets if bucket.high is not None]
    return p_values(ours, theirs, edges, ["all", *(bucket.label for bucket in buckets)])


def column_cell(column: Column, bucket: BucketScore | None, tested: Comparison) -> str:
    """The number, its interval and its mark; a dash without a score."""
    if bucket is None:
        return "-"
    return format_cell(bucket, [column.score_format], tested.get(column.test, {}).get(column.label, {}))


def best_cells(columns: Sequence[Column], means: ScoresByRow) -> frozenset[tuple[int, int]]:
    """(line, place) of the best number of each column, and of numbers that are printed alike. None of one row."""
    found = set()
    for place, column in enumerate(columns, 1):
        scores = {}
        for line, tests in enumerate(means.values()):
            if bucket := column.bucket(tests):
                scores[line] = bucket.values[column.metric] or 0.0
        if len(scores) < 2 or column.metric in UNRANKED:
            continue
        best = min(scores.values()) if column.metric in LOWER_IS_BETTER else max(scores.values())
        printed = column.printed(best)
        found |= {(line, place) for line, score in scores.items() if column.printed(score) == printed}
    return frozenset(found)


def headings(columns: Sequence[Column], means: ScoresByRow) -> tuple[str, list[str]]:
    """The caption, which has what all columns share of test set and metric, and a header for each column."""
    tests = {column.test for column in columns}
    metrics = {column.score_format[1] for column in columns}
    headers = []
    for column in columns:
        parts = [column.test] if len(tests) > 1 else []
        if column.label != "all" or len(tests) == 1:
            parts.append(column.label)
        parts.append(f"n={column.buckets(means)[0].n:g}")
        if len(metrics) > 1:
            parts.append(column.score_format[1])
        headers.append(" ".join(parts))
    shared = [*(tests if len(tests) == 1 else []), *(metrics if len(metrics) == 1 else [])]
    caption = ", ".join(shared) or "scores by test set"
    if any(column.label != "all" for column in columns):
        caption += f", by {length_unit(columns[0].buckets(means))}"
    return caption, headers


def table_notes(
    columns: Sequence[Column],
    means: ScoresByRow,
    tested: Mapping[str, Comparison],
    base: SavedRow | None,
) -> tuple[str, ...]:
    """The meaning of the signs in the cells, and the rows that were not tested."""
    buckets = [column.buckets(means) for column in columns]
    is_tested = any(tested.values())
    notes = [BEST_NOTE, *sign_notes(buckets, base.name if base and is_tested else None)]
    if base and (untested := [name for name in means if name != base.name and not tested[name]]):
        notes.append(f"not tested, for want of saved statistics: {', '.join(untested)}")
    return tuple(notes)
