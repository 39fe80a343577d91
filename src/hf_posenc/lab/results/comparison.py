"""Two systems on the same test set: paired tests with each seed, and pooled over the seeds."""

from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

import numpy as np

from ...metrics.length_buckets.scorers import PRECOMPUTED_SCORERS, corpus_score
from .saved_runs import SavedRow, chosen, read_row, validate_same_test_sets
from .significance import difference_interval, equivalence_test, paired_randomization
from .tables import SCORE_FORMATS, Table

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
        lines.append([f"seed {seed}", *cells(metric, [one], [other], labels, margin)])
    notes = [INTERVAL_NOTE, P_NOTE]
    if len(ours) > 1:
        lines.append(["pooled", *cells(metric, ours, theirs, labels, margin)])
        notes.append(POOLED_NOTE)
    headers = ["", *shown_names(first, second), "difference", "95 % interval", "p"]
    if margin is not None:
        headers.append("p within")
        notes.append(EQUIVALENCE_NOTE.format(margin))
    return Table(headers, lines, describe(metric, test, len(ours[0]), labels), tuple(notes))


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


def cells(
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


def describe(metric: str, test: str, num_pairs: int, units: Sequence[Hashable] | None) -> str:
    """Test set, numbers of pairs and units, and metric."""
    names = {name: legend_name for name, legend_name, _ in SCORE_FORMATS}
    num_units = num_pairs if units is None else len(set(units))
    return f"{test}, n={num_pairs}, {num_units} units: {names[metric]}"
