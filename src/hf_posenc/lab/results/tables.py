"""Tables of scores: pure functions from saved results to rows of text.

`TableRows` has the scores of each row on each test set, the shortest and longest training lengths in subwords, and
p-values. A table compares rows on one test set. Rows with different pairs in a length bucket are refused.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from statistics import mean
from typing import TypedDict

from ..config.settings import PublishedScore, ReferenceTable
from .records import (
    BucketPValues,
    BucketScore,
    Comparison,
    LengthScores,
    RunResults,
    Score,
    ScoredTestSet,
    ScoresByRow,
    SystemResult,
)
from .significance import mean_over_seeds

TrainingLengths = Mapping[str, int | None]


class TrainingLengthsByRow(TypedDict):
    """The longest and the shortest training length of each row, as tables and figures take them."""

    max_training_lengths: TrainingLengths
    min_training_lengths: TrainingLengths


def training_lengths_by_row(systems: Mapping[str, SystemResult]) -> TrainingLengthsByRow:
    return {
        "max_training_lengths": {system.row: system.max_length for system in systems.values()},
        "min_training_lengths": {system.row: system.min_length for system in systems.values()},
    }


@dataclass(frozen=True, kw_only=True)
class TableRows:
    """The rows of tables and figures: scores by row and test set, training lengths and comparisons.

    Training lengths are in subwords, None for no limit. Without `max_lengths` tables have no column for them.
    `comparisons` has, for each test set, the p-values of each row against the `baseline`.
    """

    scores: ScoresByRow
    max_lengths: TrainingLengths | None = None
    min_lengths: TrainingLengths | None = None
    baseline: str | None = None
    comparisons: Mapping[str, Comparison] = field(default_factory=dict)

    @classmethod
    def of(cls, results: RunResults) -> "TableRows":
        """The rows of a run, each the mean over its seeds."""
        lengths = training_lengths_by_row(results.systems)
        scores_by_system = {name: system.tests for name, system in results.systems.items()}
        return cls(
            scores=mean_over_seeds(scores_by_system, results.row_by_system),
            max_lengths=lengths["max_training_lengths"],
            min_lengths=lengths["min_training_lengths"],
            baseline=results.baseline,
            comparisons=results.comparisons,
        )

    def notes(self, entries: Collection[Sequence[BucketScore]], *tests: str) -> tuple[str, ...]:
        """The meaning of the signs in the cells of a table of these test sets."""
        compared = [self.comparisons[test] for test in tests if self.comparisons.get(test)]
        baseline = self.baseline if compared else None
        return sign_notes(entries, baseline, is_pooled=has_pooled_tests(compared))

    def described_lengths(self) -> dict[str, str]:
        """Each row's training lengths in words, for a column headed "trained to"."""
        return describe_training_lengths(self.scores, self.max_lengths or {}, self.min_lengths)


def min_lengths_above_one(
    systems: Iterable[str], min_training_lengths: TrainingLengths | None
) -> dict[str, int | None]:
    """Each system's minimum training length, None for 1 or no minimum."""
    min_lengths = {system: (min_training_lengths or {}).get(system) for system in systems}
    return {system: min_length if min_length and min_length > 1 else None for system, min_length in min_lengths.items()}


def describe_training_lengths(
    systems: Iterable[str], max_training_lengths: TrainingLengths, min_training_lengths: TrainingLengths | None
) -> dict[str, str]:
    """Each system's training lengths in words, for a column headed "trained to"."""
    described = {}
    for system, min_length in min_lengths_above_one(systems, min_training_lengths).items():
        max_length = max_training_lengths[system]
        upper_bound = "no limit" if max_length is None else str(max_length)
        described[system] = upper_bound if min_length is None else f"{upper_bound}, from {min_length}"
    return described


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
    "(a GPU's own are not among the latter); the mean of the seeds; compare times only if systems ran one at "
    "a time; - where it was not measured"
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
    return Table(headers, lines, what, rows.notes(groups_by_system.values(), test_set))


def is_perplexity(buckets: Iterable[BucketScore]) -> bool:
    """Whether plain text was scored, in buckets by context length, and not pairs by source length."""
    return any("perplexity" in bucket.scores for bucket in buckets)


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
    return Table(headers, lines, what, rows.notes(groups_by_system.values(), *columns))


def reference_table(rows: TableRows, paper: ReferenceTable) -> Table:
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
    return Table(headers, lines, what, rows.notes(entries, test_set))


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
    present: set[str] = set()
    for group in groups:
        present.update(group.scores)
    return [score for score in SCORE_FORMATS if score[0] in present]


def bucket_p_values(p_values: Comparison | None, system: str, group: BucketScore) -> BucketPValues:
    """The p-values of each metric in a group; none for the baseline and for groups of one pair."""
    return p_values.get(system, {}).get(group.label, {}) if p_values else {}


def format_cell(group: BucketScore, shown: Iterable[ScoreFormat], p_values: BucketPValues) -> str:
    """`31.7 ±0.5* / 57.9 ±0.6 / 1.02`, or `0.3 [0.0 to 0.9]` where ± leaves the scale; a dash where a score is missing,
    a single dash for a group without pairs."""
    if not group.n:
        return "-"
    parts = []
    for metric, _, format_spec in shown:
        score = group.scored(metric)
        part = "-" if score.value is None else format(score.value, format_spec)
        if (seed_range := score.seed_range(metric)) is not None:
            part += f" [{seed_range[0]:{format_spec}} to {seed_range[1]:{format_spec}}]"
        elif score.half_width is not None:
            part += f" ±{score.half_width:{format_spec}}"
        is_significant = metric in p_values and p_values[metric].deciding < SIGNIFICANCE_LEVEL
        parts.append(part + "*" * is_significant)
    return " / ".join(parts)


def sign_notes(
    entries: Collection[Sequence[BucketScore]], baseline: str | None, *, is_pooled: bool = False
) -> tuple[str, ...]:
    """The meaning of the signs in the cells. With a `baseline`, all other rows were compared with it, by tests pooled
    over the seeds or with each of them."""
    groups = list(chain.from_iterable(entries))
    is_text = any(map(is_perplexity, entries))
    notes = []
    if any(group.has_intervals for group in groups):
        notes.append(INTERVAL_NOTE.replace("sentences", "windows") if is_text else INTERVAL_NOTE)
    notes += range_notes(groups)
    if is_text:
        notes.append(CONTEXT_NOTE)
    if baseline and len(entries) > 1:
        scope = "pooled over the seeds" if is_pooled else "with each seed"
        notes.append(f"* p < {SIGNIFICANCE_LEVEL} against {baseline}, by approximate randomisation, {scope}")
    return tuple(notes)


def has_pooled_tests(p_values: Iterable[Comparison]) -> bool:
    """Whether any row is marked by a test pooled over the seeds."""
    for comparison in p_values:
        for by_bucket in comparison.values():
            for by_metric in by_bucket.values():
                if any(p.pooled is not None for p in by_metric.values()):
                    return True
    return False


def range_notes(groups: Iterable[BucketScore]) -> list[str]:
    """The meaning of square brackets, if a cell has them."""
    has_ranges = any(score.seed_range(metric) for group in groups for metric, score in group.scores.items())
    return [RANGE_NOTE] if has_ranges else []


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
    """The entries of all pairs and of each bucket; a ValueError unless these are the same for every system."""
    (first, first_tests), *others = results.items()
    columns = first_tests[test_set].all_buckets
    expected = describe_sizes(columns)
    for system, tests in others:
        if (sizes := describe_sizes(tests[test_set].all_buckets)) != expected:
            raise ValueError(
                f"systems in one comparison must share the test set and the tokenizer, so that each group has the same "
                f"pairs; on {test_set!r}, {first!r} has {expected}, {system!r} has {sizes}; score them again with one "
                "tokenizer, or show them apart"
            )
    return columns


def describe_sizes(buckets: Iterable[BucketScore]) -> str:
    return ", ".join(f"{bucket.label} n={bucket.n}" for bucket in buckets)


BLEU_LOST_FORMAT: list[ScoreFormat] = [("bleu_lost", "BLEU", "z.1f")]  # z: no degradation is 0.0, not -0.0
DEGRADATION_CAPTION = "BLEU lost from the last length bucket inside a training length to the first beyond it"
DEGRADATION_LEGEND = (
    "BLEU of the group before the arrow less that of the group behind it, where the training of one or another row "
    "ended, or began; rows that were trained further, or split their inputs, show how much harder the longer inputs "
    "are anyway; ± half of the 95 % interval, the root of the sum of both groups' squares, or Student's over the seeds "
    "where there are several"
)


def degradation_table(systems: Mapping[str, SystemResult]) -> Table | None:
    """One row per row of the other tables, one column per test set and training limit of any row, lower limits first.
    None if no test set has inputs on both sides of a limit, or if BLEU is not computed."""
    first, *_ = systems.values()
    lengths = training_lengths_by_row(systems)
    columns = degradation_columns(first.tests, lengths)
    if not columns or "bleu" not in first.tests[columns[0][0]].overall.scores:
        return None
    headers, rows = ["system", "trained to"], []
    for test, *places in columns:
        buckets = [first.tests[test].buckets[place] for place in places]
        headers.append(f"{test} {' → '.join(f'{bucket.label} n={bucket.n}' for bucket in buckets)}")
    degradations = {
        name: {
            "falls": LengthScores(
                overall=next(iter(system.tests.values())).overall,
                buckets=tuple(degradation(system.tests[test].buckets, *places) for test, *places in columns),
            )
        }
        for name, system in systems.items()
    }
    tests_by_row = mean_over_seeds(degradations, {name: system.row for name, system in systems.items()})
    training_lengths = describe_training_lengths(tests_by_row, **lengths)
    for row, tests in tests_by_row.items():
        cells = (format_cell(bucket, BLEU_LOST_FORMAT, {}) for bucket in tests["falls"].buckets)
        rows.append([describe_system(row, tests["falls"].overall), training_lengths[row], *cells])
    notes = range_notes(bucket for tests in tests_by_row.values() for bucket in tests["falls"].buckets)
    return Table(headers, rows, DEGRADATION_CAPTION, tuple(notes), details=DEGRADATION_LEGEND)


def degradation_columns(tests: Mapping[str, LengthScores], lengths: TrainingLengthsByRow) -> list[tuple[str, int, int]]:
    """Each column's test set, and the indices of the buckets before and after its arrow."""
    limits, starts = (
        sorted({length for length in by_row.values() if length is not None})
        for by_row in (lengths["max_training_lengths"], lengths["min_training_lengths"])
    )
    columns = []
    for test, result in tests.items():
        pairs = [buckets_around_minimum(start, result.buckets) for start in starts]
        pairs += [buckets_around_maximum(limit, result.buckets) for limit in limits]
        columns += [(test, *pair) for pair in pairs if pair is not None]
    return list(dict.fromkeys(columns))


def buckets_around_maximum(max_length: int, buckets: Sequence[BucketScore]) -> tuple[int, int] | None:
    """The indices of the last bucket with pairs within the limit and of the first one beyond it."""
    within = [
        place for place, bucket in nonempty_buckets(buckets) if bucket.high is not None and bucket.high <= max_length
    ]
    beyond = [place for place, bucket in nonempty_buckets(buckets) if bucket.low > max_length]
    return (within[-1], beyond[0]) if within and beyond else None


def buckets_around_minimum(min_length: int, buckets: Sequence[BucketScore]) -> tuple[int, int] | None:
    """The indices of the first bucket with pairs from the shortest training length on, and of the last one below it."""
    within = [place for place, bucket in nonempty_buckets(buckets) if bucket.low >= min_length]
    below = [
        place for place, bucket in nonempty_buckets(buckets) if bucket.high is not None and bucket.high < min_length
    ]
    return (within[0], below[-1]) if within and below else None


def nonempty_buckets(buckets: Sequence[BucketScore]) -> list[tuple[int, BucketScore]]:
    """The buckets that have pairs, with their indices."""
    return [(place, bucket) for place, bucket in enumerate(buckets) if bucket.n]


def degradation(buckets: Sequence[BucketScore], within: int, beyond: int) -> BucketScore:
    """The second bucket with the degradation from the first in place of its scores."""
    before, behind = buckets[within].scored("bleu"), buckets[beyond].scored("bleu")
    lost = Score(value=difference(before.value, behind.value))
    if before.half_width is not None and behind.half_width is not None:
        lost = replace(lost, half_width=math.hypot(before.half_width, behind.half_width))
    return replace(buckets[beyond], scores={"bleu_lost": lost})


def difference(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first - second
