"""Scores of single trainings -> rows of a table, and which rows really differ from the baseline.

A row of one training has the bootstrap's 95 % interval over sentences. A row of several seeds has their mean and
Student's 95 % interval over them, which is the chance of training alone. Differences are tested by sacrebleu's
paired bootstrap and by paired approximate randomisation on the sentence statistics that the metric has saved; a row of
several seeds is compared seed by seed, and its p-value is the largest of them, or 1 where they disagree which row is
better: a difference counts if it is there every time.
P-values are not corrected for the number of groups and rows.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np

from ..metrics.length_buckets.scorers import COUNTED, resampled, sacrebleu_seed, score_of, scores_of

# Student's t at 97.5 % for 1 to 29 degrees of freedom, 2 to 30 seeds; for more the last one is a little too wide.
# A table, since nothing that this project needs anyway has the quantile: scipy, which has these digits, takes 140 MB.
T_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045,
)  # fmt: skip
LABELS = ("label", "low", "high", "n")
DRAWS = 32  # Booleans are drawn so many at a time, and what is left of them at the end of a block is lost.
BLOCK = 2**21  # Booleans of a block, at least DRAWS of each pair

Statistics = Mapping[str, np.ndarray]  # of a training: for each metric (pairs, counts), and the pairs' lengths


def rows_of(runs: Mapping[str, Mapping[str, Any]], row_of: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The tests of each row; `runs` are the metric's results by training and test set."""
    members: dict[str, list[Mapping[str, Any]]] = {}
    for name, tests in runs.items():
        members.setdefault(row_of[name], []).append(tests)
    return {
        row: {
            test: {
                "all": mean_of([one[test]["all"] for one in trained]),
                "groups": [mean_of(groups) for groups in zip(*(one[test]["groups"] for one in trained), strict=True)],
            }
            for test in trained[0]
        }
        for row, trained in members.items()
    }


def mean_of(groups: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The group itself, or the mean of several seeds' and, in place of the bootstrap's, their `_ci`. Seeds that have no
    pairs there count in the number of pairs alone."""
    number = statistics.mean(group["n"] for group in groups)
    groups = [group for group in groups if group["n"]] or groups[:1]
    first = groups[0]
    if len(groups) == 1:
        return {**first, "n": number}
    made = {key: first[key] for key in LABELS} | {"n": number, "seeds": len(groups)}
    for key in first:
        if key in LABELS or key.endswith(("_mean", "_ci")):
            continue
        values = [group[key] for group in groups]
        if None in values:
            made[key] = None
            continue
        made[key] = statistics.mean(values)
        if f"{key}_ci" in first:
            t = T_95[min(len(values) - 1, len(T_95)) - 1]
            made[f"{key}_ci"] = t * statistics.stdev(values) / math.sqrt(len(values))
    return made


def p_values(
    trained: Sequence[Statistics],
    baseline: Sequence[Statistics],
    edges: Sequence[int],
    labels: Sequence[str],
    samples: int = 1000,
) -> dict[str, dict[str, dict[str, float]]]:
    """p[label of a group, "all" first][metric][test], of a row against the baseline; groups of one pair have none.

    Both hold the statistics of each seed; where one has fewer they are taken again. `samples` of the bootstrap, and
    ten times as many trials of the randomisation.
    """
    found: dict[str, dict[str, dict[str, float]]] = {}
    signs: dict[tuple[str, str], set[bool]] = {}
    number = max(len(trained), len(baseline))
    for ours, theirs, _ in zip(cycle(trained), cycle(baseline), range(number), strict=False):
        group_of = np.searchsorted(edges, ours["lengths"])
        for group, label in enumerate(labels, -1):
            rows = slice(None) if group < 0 else np.flatnonzero(group_of == group)
            if len(ours["lengths"][rows]) < 2:
                continue
            for metric in (name for name in ours if name != "lengths"):
                worst = found.setdefault(label, {}).setdefault(metric, dict.fromkeys(TESTS, 0.0))
                scorer, pair = COUNTED[metric](), (ours[metric][rows], theirs[metric][rows])
                for test, (p_value, trials) in TESTS.items():
                    worst[test] = max(worst[test], p_value(scorer, *pair, trials * samples))
                gain = np.subtract(*(score_of(scorer, one).score for one in pair))
                signs.setdefault((label, metric), set()).add(bool(gain > 0))
    for label, metric in (one for one, seen in signs.items() if len(seen) > 1):
        found[label][metric] = dict.fromkeys(TESTS, 1.0)
    return found


def randomisation(scorer: Any, ours: np.ndarray, theirs: np.ndarray, trials: int) -> float:
    """How often a difference as large or larger comes about where chance says of each pair whose translation is whose.

    sacrebleu's test (its seed, its draws), except that it counts larger differences alone: of TER, where few edits make
    the difference, most trials differ by just as much, and it finds twice as many differences as chance allows.
    """
    real = abs(np.subtract(*(score_of(scorer, one).score for one in (ours, theirs))))
    as_large = 0
    for moved in moved_sums(theirs - ours, trials):
        totals = (ours.sum(0) + moved, theirs.sum(0) - moved)
        as_large += int((abs(np.subtract(*(scores_of(scorer, one) for one in totals))) >= real - 1e-9).sum())
    return (1 + as_large) / (1 + trials)


def moved_sums(differences: np.ndarray, trials: int) -> Iterator[np.ndarray]:
    """(some of the trials, counts): the summed differences of the pairs that each trial swaps; blocks of trials, since
    all draws at once take trials x pairs numbers."""
    chance = np.random.default_rng(sacrebleu_seed())
    block = DRAWS * max(1, BLOCK // (DRAWS * len(differences)))
    for start in range(0, trials, block):
        swapped = chance.integers(2, size=(min(block, trials - start), len(differences)), dtype=bool)
        # BLAS multiplies floats alone, and whole numbers are exact in them.
        yield (swapped.astype(float) @ differences).astype(differences.dtype)


def bootstrap(scorer: Any, ours: np.ndarray, theirs: np.ndarray, samples: int) -> float:
    """sacrebleu's, but never less than 2^(1 - d) of d pairs that differ, which is all that can be told of so few."""
    totals = np.split(resampled(np.hstack([ours, theirs]), samples), 2, axis=1)
    gains = abs(np.subtract(*(scores_of(scorer, one) for one in totals)))
    real = abs(np.subtract(*(score_of(scorer, one).score for one in (ours, theirs))))
    p_value = (1 + int((gains - gains.mean() > real).sum())) / (1 + samples)
    differing = int((ours != theirs).any(1).sum())
    return max(p_value, min(1.0, 2.0 ** (1 - differing)))


# Each test, and how many trials it has for each bootstrap sample, as in sacrebleu's defaults.
TESTS = {"randomisation": (randomisation, 10), "bootstrap": (bootstrap, 1)}
