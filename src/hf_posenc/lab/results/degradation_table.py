"""Degradation beyond the training length: BLEU lost between the length buckets on both sides of a limit."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from .length_limits import TrainingLengthsByRow, describe_training_lengths, training_lengths_by_row
from .records import BucketScore, LengthScores, SystemResult
from .significance import mean_over_seeds
from .tables import ScoreFormat, Table, describe_system, format_cell, range_notes

BLEU_FORMAT: list[ScoreFormat] = [("bleu_lost", "BLEU", "z.1f")]  # z: no degradation is 0.0, not -0.0
CAPTION = "BLEU lost from the last length bucket inside a training length to the first beyond it"
LEGEND = (
    "BLEU of the group before the arrow less that of the group behind it, where the training of one or another row "
    "ended, or began; what a row loses there that was trained further, or splits its inputs, is what such inputs are "
    "harder by; ± half of the 95 % interval, the root of the sum of both groups' squares, or Student's over the seeds "
    "where there are several"
)


def degradation_table(systems: Mapping[str, SystemResult]) -> Table | None:
    """One row per row of the other tables, one column per test set and training limit of any row, lower limits first.
    None if no test set has inputs on both sides of a limit, or if BLEU is not computed."""
    first, *_ = systems.values()
    lengths = training_lengths_by_row(systems)
    columns = degradation_columns(first.tests, lengths)
    if not columns or "bleu" not in first.tests[columns[0][0]].overall.values:
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
        cells = (format_cell(bucket, BLEU_FORMAT, {}) for bucket in tests["falls"].buckets)
        rows.append([describe_system(row, tests["falls"].overall), training_lengths[row], *cells])
    notes = range_notes(bucket for tests in tests_by_row.values() for bucket in tests["falls"].buckets)
    return Table(headers, rows, CAPTION, tuple(notes), details=LEGEND)


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
    before, behind = buckets[within], buckets[beyond]
    values: dict[str, float | None] = {"bleu_lost": difference(before.score("bleu"), behind.score("bleu"))}
    half_widths = [before.half_width("bleu"), behind.half_width("bleu")]
    known_widths = [half_width for half_width in half_widths if half_width is not None]
    if len(known_widths) == 2:
        values["bleu_lost_ci"] = math.hypot(*known_widths)
    return replace(behind, values=values)


def difference(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first - second
