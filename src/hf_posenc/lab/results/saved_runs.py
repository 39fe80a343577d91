"""Rows of saved runs, one table over several runs, and tests of two systems on the same test set.

A row has the results of its run, its seeds, and their sentence statistics. It is named by its name in results.json, and
by `run/row` if rows of several runs share that name.

A column of the table is a metric on all pairs or on one length bucket of a test set. Columns without a score are left
out. The best number of a column is marked, and so is each row that differs significantly from the baseline.

Two systems are compared by paired tests with each seed, and pooled over the seeds.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...hub.errors import closest_name
from ...metrics.length_buckets.scorers import PRECOMPUTED_SCORERS, corpus_score
from ...utils.run_folder import RunPaths
from .records import BucketScore, Comparison, LengthScores, RowPValues, RunResults, ScoredTestSet, ScoresByRow
from .saved_files import read_results, read_statistics
from .significance import difference_interval, equivalence_test, p_values, paired_randomization
from .tables import (
    SCORE_FORMATS,
    ScoreFormat,
    Table,
    TableRows,
    available_scores,
    describe_system,
    format_cell,
    has_pooled_tests,
    length_unit,
    sign_notes,
)


@dataclass(frozen=True)
class SavedRow:
    """A row of a run: its name in a table of several runs, and the systems that are its seeds.

    `system`: the one seed that is meant, None for all of them.
    """

    name: str
    row: str
    folder: Path
    results: RunResults
    system: str | None = None

    @property
    def systems(self) -> list[str]:
        """The names of its seeds, in the order of results.json."""
        if self.system is not None:
            return [self.system]
        return [name for name, system in self.results.systems.items() if system.row == self.row]

    @property
    def tests(self) -> Mapping[str, ScoredTestSet]:
        """The scores of its first seed. All seeds have the same test sets."""
        return self.results.systems[self.systems[0]].tests

    @property
    def means(self) -> Mapping[str, LengthScores]:
        """The scores of each test set, the mean over its seeds."""
        return TableRows.of(self.results).scores[self.row]

    def has_statistics(self, test: str) -> bool:
        """Whether the sentence statistics of each seed are in the run's folder."""
        paths = [RunPaths(self.folder).system(system).statistic(test) for system in self.systems]
        return all(path.exists() for path in paths)

    def statistics(self, test: str) -> list[dict[str, np.ndarray]]:
        """The sentence statistics of each seed: for each metric (pairs, counts), and the pairs' `lengths`."""
        return [read_statistics(RunPaths(self.folder).system(system).statistic(test)) for system in self.systems]


def read_rows(folders: Sequence[Path]) -> dict[str, SavedRow]:
    """All rows of the runs in these folders, by the names that tables show."""
    runs = {folder: read_results(folder) for folder in dict.fromkeys(folders)}
    names = [row for results in runs.values() for row in dict.fromkeys(results.row_by_system.values())]
    rows: dict[str, SavedRow] = {}
    for folder, results in runs.items():
        for row in dict.fromkeys(results.row_by_system.values()):
            name = row if names.count(row) == 1 else f"{folder.resolve().name}/{row}"
            if name in rows:
                raise ValueError(
                    f"Runs in one table must have names of their own, but {folder} and {rows[name].folder} both have a "
                    f"row {name}; rename one of the folders."
                )
            rows[name] = SavedRow(name, row, folder, results)
    return rows


def read_row(folder: Path, name: str, label: str) -> SavedRow:
    """The row of a run by its name, or one seed of a row by the system's name; `label` is the option that has it."""
    results = read_results(folder)
    rows = dict.fromkeys(results.row_by_system.values())
    chosen(f"{label}, of {folder},", [name], dict.fromkeys([*rows, *results.systems]))
    if name in rows:
        return SavedRow(name, name, folder, results)
    return SavedRow(name, results.row_by_system[name], folder, results, system=name)


def chosen(label: str, names: Iterable[str], known: Collection[str], remedy: str = "") -> list[str]:
    """The names, each checked to be a known one; `label` is the option that has them, `remedy` another way."""
    names = list(names)
    for name in names:
        if name not in known:
            nearest = closest_name(name, known)
            raise ValueError(
                f"{label} must be one of {', '.join(known)}, but {name!r} is none; the nearest one is "
                f"{nearest}{remedy}."
            )
    return names


def validate_same_test_sets(rows: Iterable[SavedRow], test: str) -> None:
    """Raise a ValueError unless all rows that have the test set have the same texts and lengths in it."""
    hashes = {row.name: row.tests[test].test_set_sha256 for row in rows if test in row.tests}
    first, *others = hashes
    for other in others:
        if hashes[other] != hashes[first]:
            raise ValueError(
                f"Rows are compared on one test set and with one tokenizer, but the pairs of {test} have the hash "
                f"{hashes[first][:12]} for {first} and {hashes[other][:12]} for {other}; leave one of them out, or "
                "train it again with the other's data.test and tokenizer."
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
                scores[line] = bucket.score(column.metric) or 0.0
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
    buckets_by_row = []
    for tests in means.values():
        buckets = [column.bucket(tests) for column in columns]
        buckets_by_row.append([bucket for bucket in buckets if bucket is not None])
    is_tested = any(tested.values())
    is_pooled = any(has_pooled_tests([by_test]) for by_test in tested.values())
    base_name = base.name if base and is_tested else None
    notes = [BEST_NOTE, *sign_notes(buckets_by_row, base_name, is_pooled=is_pooled)]
    if base and (untested := [name for name in means if name != base.name and not tested[name]]):
        notes.append(f"not tested, for want of saved statistics: {', '.join(untested)}")
    return tuple(notes)


INTERVAL_NOTE = "95 % interval of the difference, by the paired bootstrap over the units"
P_NOTE = "p: paired approximate randomization of the units"
POOLED_NOTE = "pooled: the mean over the seeds, with a unit swapped or resampled in all of them at once"
EQUIVALENCE_NOTE = "p within: two one-sided tests that the difference lies within ±{:g} points"


def compare_systems(
    folders: Sequence[Path],
    systems: Sequence[str],
    metric: str = "bleu",
    test: str | None = None,
    units: Callable[[SavedRow, str], Sequence[Hashable] | None] | None = None,
    margin: float | None = None,
) -> Table:
    """The table of two systems on one test set: a line for each seed, and one of all seeds together.

    `folders`: the run of each system, or one run of both.
    `systems`: the names of two rows, or of two systems of one seed each.
    `metric`: one that both systems are scored by.
    `test`: the test set; by default the only one that both have.
    `units`: returns a label for each scored pair of a row and test set. Pairs of one label are swapped together; by
        default each pair is a unit.
    `margin`: in points of the metric; adds the p-value of an equivalence test.

    Scores come from the saved statistics of the translations. A ValueError for systems that cannot be compared.
    """
    rows = [read_row(folders[place % len(folders)], systems[place], "--systems") for place in (0, 1)]
    test = common_test_set(rows, test)
    validate_same_test_sets(rows, test)
    first, second = rows
    if len(first.systems) != len(second.systems):
        raise ValueError(
            f"Both systems must have equally many seeds, but {first.name} has {len(first.systems)} and {second.name} "
            f"has {len(second.systems)}; name a seed of each, such as {first.systems[0]} and {second.systems[0]}."
        )
    ours, theirs = (metric_counts(row, test, metric) for row in rows)
    labels = units(first, test) if units else None
    lines = []
    for seed, (one, other) in enumerate(zip(ours, theirs, strict=True), 1):
        lines.append([f"seed {seed}", *comparison_cells(metric, [one], [other], labels, margin)])
    notes = [INTERVAL_NOTE, P_NOTE]
    if len(ours) > 1:
        lines.append(["pooled", *comparison_cells(metric, ours, theirs, labels, margin)])
        notes.append(POOLED_NOTE)
    headers = ["", *shown_names(first, second), "difference", "95 % interval", "p"]
    if margin is not None:
        headers.append("p within")
        notes.append(EQUIVALENCE_NOTE.format(margin))
    names, num_pairs = {name: legend_name for name, legend_name, _ in SCORE_FORMATS}, len(ours[0])
    num_units = num_pairs if labels is None else len(set(labels))
    return Table(headers, lines, f"{test}, n={num_pairs}, {num_units} units: {names[metric]}", tuple(notes))


def common_test_set(rows: Sequence[SavedRow], test: str | None) -> str:
    """The name of the test set. A ValueError if there is no choice, or one to make."""
    common = [name for name in rows[0].tests if name in rows[1].tests]
    if test is not None and common:
        return chosen("--test", [test], common)[0]
    if len(common) != 1:
        described = ", ".join(common) or "none"
        raise ValueError(
            f"Systems are compared on one test set, but {rows[0].name} and {rows[1].name} have {described} in common; "
            "name one by --test, or systems that share one."
        )
    return common[0]


def metric_counts(row: SavedRow, test: str, metric: str) -> list[np.ndarray]:
    """The counts (pairs, counts) of each seed."""
    if not row.has_statistics(test):
        raise ValueError(
            f"A comparison needs the translations of each seed, but {row.folder} has no statistics of {row.name}; "
            "give the folder of the whole run, as train.py wrote it."
        )
    statistics = row.statistics(test)
    if any(metric not in counts for counts in statistics):
        scored = ", ".join(name for name in statistics[0] if name != "lengths")
        raise ValueError(
            f"--metric must be one that both systems are scored by, but {row.name} has {scored} and not {metric!r}; "
            f"choose another, or give `hf-posenc score {row.folder} --metrics {metric}` before."
        )
    return [counts[metric] for counts in statistics]


def comparison_cells(
    metric: str,
    ours: Sequence[np.ndarray],
    theirs: Sequence[np.ndarray],
    units: Sequence[Hashable] | None,
    margin: float | None,
) -> list[str]:
    """Both scores, the means over the seeds; their difference, its interval and its p-values."""
    scorer = PRECOMPUTED_SCORERS[metric]()
    scores = [float(np.mean([corpus_score(scorer, counts).score for counts in seeds])) for seeds in (ours, theirs)]
    low, high = difference_interval(metric, ours, theirs, units=units)
    p_value = paired_randomization(metric, ours, theirs, units=units)
    shown = [*(f"{score:.2f}" for score in scores), f"{scores[0] - scores[1]:+.2f}"]
    shown += [f"{low:+.2f} to {high:+.2f}", f"{p_value:.4f}"]
    if margin is not None:
        shown.append(f"{equivalence_test(metric, ours, theirs, margin, units=units).p_value:.4f}")
    return shown


def shown_names(first: SavedRow, second: SavedRow) -> list[str]:
    """The names of both, with their runs if these are needed to tell them apart."""
    if first.name != second.name:
        return [first.name, second.name]
    return [f"{row.folder.resolve().name}/{row.name}" for row in (first, second)]
