"""The time that translating took, as saved beside the scores, to a table."""

from collections.abc import Mapping, Sequence
from statistics import mean

from .records import ScoredTestSet, SystemResult
from .tables import Table

CAPTION = "seconds to translate one source: wall clock / processors (not comparable between parallel systems)"
LEGEND = (
    "seconds that one source took to translate: by the clock / of the computer's processors, by all processes together "
    "(a GPU's own are not among the latter); the mean of the seeds; rows compare where each had the same machine to "
    "itself, so not those of jobs side by side; - where it was not measured"
)


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
    return Table(headers, rows, CAPTION, details=LEGEND)


def format_times(results: Sequence[ScoredTestSet]) -> str:
    """`0.0124 / 0.0236`; a dash unless the time of each training is known."""
    times = [result.time for result in results if result.time is not None]
    num_sources = results[0].overall.n
    if len(times) < len(results) or not num_sources:
        return "-"
    means = [mean(time.seconds for time in times), mean(time.processor_seconds for time in times)]
    return " / ".join(f"{seconds / num_sources:.3g}" for seconds in means)
