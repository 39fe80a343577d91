"""What is lost where training ended: from the last length group within a limit to the first beyond, on either side."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .length_limits import describe_training_lengths, training_lengths_by_row
from .significance import BUCKET_FIELDS, mean_over_seeds
from .tables import BucketScores, Table, describe_system, format_cell

BLEU_FORMAT = [("bleu", "BLEU", "z.1f")]  # no fall is 0.0, not -0.0
LEGEND = (
    "BLEU of the group before the arrow less that of the group behind it, where the training of one or another row "
    "ended, or began; what a row loses there that was trained further, or splits its inputs, is what such inputs are "
    "harder by; ± half of the 95 % interval, the root of the sum of both groups' squares, or Student's over the seeds "
    "where there are several"
)


def degradation_table(runs: Mapping[str, Mapping[str, Any]]) -> Table | None:
    """One row per row of the other tables, one column per test set and training limit, of whichever row, the lower ones
    first; None if no test set has inputs on both sides of a limit, or none is scored by BLEU."""
    first, *_ = runs.values()
    lengths = training_lengths_by_row(runs)
    limits, starts = (
        sorted({length for length in lengths[key].values() if length is not None})
        for key in ("max_training_lengths", "min_training_lengths")
    )
    bucket_pairs = [
        (test, pair)
        for test, result in first["tests"].items()
        for pair in (
            *(buckets_around_minimum(start, result["groups"]) for start in starts),
            *(buckets_around_maximum(limit, result["groups"]) for limit in limits),
        )
    ]
    columns = list(dict.fromkeys((test, *pair) for test, pair in bucket_pairs if pair is not None))
    if not columns or "bleu" not in first["tests"][columns[0][0]]["all"]:
        return None
    headers, rows = ["system", "trained to"], []
    for test, within, beyond in columns:
        groups = first["tests"][test]["groups"]
        sides = (f"{groups[index]['label']} n={groups[index]['n']}" for index in (within, beyond))
        headers.append(f"{test} {' → '.join(sides)}")
    degradations = {
        name: {
            "falls": {
                "all": next(iter(run["tests"].values()))["all"],
                "groups": [degradation(run["tests"][test]["groups"], *pair) for test, *pair in columns],
            }
        }
        for name, run in runs.items()
    }
    tests_by_row = mean_over_seeds(degradations, {name: run["row"] for name, run in runs.items()})
    training_lengths = describe_training_lengths(tests_by_row, **lengths)
    for row, tests in tests_by_row.items():
        cells = (format_cell(group, BLEU_FORMAT, {}) for group in tests["falls"]["groups"])
        rows.append([describe_system(row, tests["falls"]["all"]), training_lengths[row], *cells])
    return Table(headers, rows, LEGEND)


def buckets_around_maximum(max_length: int, groups: Sequence[BucketScores]) -> tuple[int, int] | None:
    """The places of the last group with pairs within the limit and of the first one beyond it."""
    within = [
        index for index, group in nonempty_buckets(groups) if group["high"] is not None and group["high"] <= max_length
    ]
    beyond = [index for index, group in nonempty_buckets(groups) if group["low"] > max_length]
    return (within[-1], beyond[0]) if within and beyond else None


def buckets_around_minimum(min_length: int, groups: Sequence[BucketScores]) -> tuple[int, int] | None:
    """The places of the first group with pairs from the shortest training length on and of the last one below it."""
    within = [index for index, group in nonempty_buckets(groups) if group["low"] >= min_length]
    below = [
        index for index, group in nonempty_buckets(groups) if group["high"] is not None and group["high"] < min_length
    ]
    return (within[0], below[-1]) if within and below else None


def nonempty_buckets(groups: Sequence[BucketScores]) -> list[tuple[int, BucketScores]]:
    """The groups that have pairs, with their places."""
    return [(index, group) for index, group in enumerate(groups) if group["n"]]


def degradation(groups: Sequence[BucketScores], within: int, beyond: int) -> dict[str, Any]:
    """What a training loses from one group to another, as the entry of a group."""
    sides = [groups[place] for place in (within, beyond)]
    intervals = [group["bleu_ci"] for group in sides if group.get("bleu_ci") is not None]
    entry = {key: groups[beyond][key] for key in BUCKET_FIELDS} | {"bleu": sides[0]["bleu"] - sides[1]["bleu"]}
    return entry | ({"bleu_ci": math.hypot(*intervals)} if len(intervals) == 2 else {})
