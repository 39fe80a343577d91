"""The time that translating took, as saved beside the scores, to a table."""

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from .tables import Table

LEGEND = (
    "seconds that one source took to translate: by the clock / of the computer's processors, by all processes together "
    "(a GPU's own are not among the latter); the mean of the seeds; rows compare where each had the same machine to "
    "itself, so not those of jobs side by side; - where it was not measured"
)


def time_table(runs: Mapping[str, Mapping[str, Any]]) -> Table | None:
    """One row per row of the other tables, one column per test set; None if no time was measured."""
    members: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs.values():
        members.setdefault(run["row"], []).append(run["tests"])
    first = next(iter(runs.values()))["tests"]
    rows = [
        [row, *(format_times([tests[test] for tests in row_tests]) for test in first)]
        for row, row_tests in members.items()
    ]
    if all(entry == "-" for _, *entries in rows for entry in entries):
        return None
    return Table(["system", *(f"{test} n={result['all']['n']}" for test, result in first.items())], rows, LEGEND)


def format_times(results: Sequence[Mapping[str, Any]]) -> str:
    """`0.0124 / 0.0236`; a dash unless the time of each training is known."""
    times = [result.get("time") for result in results]
    if None in times or not results[0]["all"]["n"]:
        return "-"
    each = [mean(time[kind] for time in times if time) for kind in ("seconds", "processor_seconds")]
    return " / ".join(f"{seconds / results[0]['all']['n']:.3g}" for seconds in each)
