"""What is lost where training ended: from the last length group within a limit to the first beyond, on either side."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .comparison import LABELS, rows_of
from .tables import Group, Table, cell, system_in_words
from .training_lengths import lengths_of_rows, trained_on

BLEU = [("bleu", "BLEU", "z.1f")]  # no fall is 0.0, not -0.0
LEGEND = (
    "BLEU of the group before the arrow less that of the group behind it, where the training of one or another row "
    "ended, or began; what a row loses there that was trained further, or splits its inputs, is what such inputs are "
    "harder by; ± half of the 95 % interval, the root of the sum of both groups' squares, or Student's over the seeds "
    "where there are several"
)


def fall_table(runs: Mapping[str, Mapping[str, Any]]) -> Table | None:
    """One row per row of the other tables, one column per test set and training limit, of whichever row, the lower ones
    first; None if no test set has inputs on both sides of a limit, or none is scored by BLEU."""
    first, *_ = runs.values()
    lengths = lengths_of_rows(runs)
    limits, starts = (
        sorted({one for one in lengths[key].values() if one is not None})
        for key in ("training_limits", "training_starts")
    )
    around = [
        (test, pair)
        for test, result in first["tests"].items()
        for pair in (
            *(within_and_below(start, result["groups"]) for start in starts),
            *(within_and_beyond(limit, result["groups"]) for limit in limits),
        )
    ]
    columns = list(dict.fromkeys((test, *pair) for test, pair in around if pair is not None))
    if not columns or "bleu" not in first["tests"][columns[0][0]]["all"]:
        return None
    headers, rows = ["system", "trained to"], []
    for test, within, beyond in columns:
        groups = first["tests"][test]["groups"]
        sides = (f"{groups[place]['label']} n={groups[place]['n']}" for place in (within, beyond))
        headers.append(f"{test} {' → '.join(sides)}")
    falls = {
        name: {
            "falls": {
                "all": next(iter(run["tests"].values()))["all"],
                "groups": [fall(run["tests"][test]["groups"], *pair) for test, *pair in columns],
            }
        }
        for name, run in runs.items()
    }
    of_rows = rows_of(falls, {name: run["row"] for name, run in runs.items()})
    lengths_of = trained_on(of_rows, **lengths)
    for row, tests in of_rows.items():
        cells = (cell(one, BLEU, {}) for one in tests["falls"]["groups"])
        rows.append([system_in_words(row, tests["falls"]["all"]), lengths_of[row], *cells])
    return Table(headers, rows, LEGEND)


def within_and_beyond(limit: int, groups: Sequence[Group]) -> tuple[int, int] | None:
    """The places of the last group with pairs within the limit and of the first one beyond it."""
    within = [place for place, group in filled(groups) if group["high"] is not None and group["high"] <= limit]
    beyond = [place for place, group in filled(groups) if group["low"] > limit]
    return (within[-1], beyond[0]) if within and beyond else None


def within_and_below(start: int, groups: Sequence[Group]) -> tuple[int, int] | None:
    """The places of the first group with pairs from the shortest training length on and of the last one below it."""
    within = [place for place, group in filled(groups) if group["low"] >= start]
    below = [place for place, group in filled(groups) if group["high"] is not None and group["high"] < start]
    return (within[0], below[-1]) if within and below else None


def filled(groups: Sequence[Group]) -> list[tuple[int, Group]]:
    """The groups that have pairs, with their places."""
    return [(place, group) for place, group in enumerate(groups) if group["n"]]


def fall(groups: Sequence[Group], within: int, beyond: int) -> dict[str, Any]:
    """What a training loses from one group to another, as the entry of a group."""
    sides = [groups[place] for place in (within, beyond)]
    intervals = [one["bleu_ci"] for one in sides if one.get("bleu_ci") is not None]
    entry = {key: groups[beyond][key] for key in LABELS} | {"bleu": sides[0]["bleu"] - sides[1]["bleu"]}
    return entry | ({"bleu_ci": math.hypot(*intervals)} if len(intervals) == 2 else {})
