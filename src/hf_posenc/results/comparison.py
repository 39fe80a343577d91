"""Scores of single trainings -> rows of a table, and which rows really differ from the baseline.

A row of one training has the bootstrap's 95 % interval over sentences. A row of several seeds has their mean and
Student's 95 % interval over them, which is the chance of training alone. Differences are tested by sacrebleu's own
paired bootstrap and by paired approximate randomisation on the sentence statistics that the metric has saved; a row of
several seeds is compared seed by seed, and its p-value is the largest of them, or 1 where they disagree which row is
better: a difference counts if it is there every time.
P-values are not corrected for the number of groups and rows.
"""

import math
import os
import statistics
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from sacrebleu.significance import PairedTest

from ..metrics.length_buckets.scorers import COUNTED

# Student's t at 97.5 % for 1 to 29 degrees of freedom, 2 to 30 seeds; for more the last one is a little too wide.
# A table, since nothing that this project needs anyway has the quantile: scipy, which has these digits, takes 140 MB.
T_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045,
)  # fmt: skip
LABELS = ("label", "low", "high", "n")

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
                gain = np.subtract(*(scorer._aggregate_and_compute(one).score for one in pair))
                signs.setdefault((label, metric), set()).add(bool(gain > 0))
    for label, metric in (one for one, seen in signs.items() if len(seen) > 1):
        found[label][metric] = dict.fromkeys(TESTS, 1.0)
    return found


def randomisation(scorer: Any, ours: np.ndarray, theirs: np.ndarray, trials: int) -> float:
    """How often a difference as large or larger comes about where chance says of each pair whose translation is whose.

    sacrebleu's test (its seed, its draws), except that it counts larger differences alone: of TER, where few edits make
    the difference, most trials differ by just as much, and it finds twice as many differences as chance allows.
    """
    seed = os.environ.get("SACREBLEU_SEED", "12345")
    chance = np.random.default_rng(None if seed.lower() == "none" else int(seed))
    swapped = chance.integers(2, size=(trials, len(ours)), dtype=bool)
    moved = swapped @ (theirs - ours)
    totals = ((ours.sum(0) + moved), (theirs.sum(0) - moved))
    each = [np.array([scorer._compute_score_from_stats(total).score for total in side]) for side in totals]
    real = abs(np.subtract(*(scorer._compute_score_from_stats(one.sum(0)).score for one in (ours, theirs))))
    return float((1 + (abs(each[0] - each[1]) >= real - 1e-9).sum()) / (1 + trials))


def bootstrap(scorer: Any, ours: np.ndarray, theirs: np.ndarray, samples: int) -> float:
    """sacrebleu's, but never less than 2^(1 - d) of d pairs that differ, which is all that can be told of so few."""
    systems: Any = [("baseline", theirs), ("ours", ours)]
    scorers: Any = {"score": Counted(scorer)}
    made: Any = PairedTest(systems, scorers, references=None, test_type="bs", n_samples=samples)()[1]
    (compared,) = (results[1] for name, results in made.items() if name != "System")
    differing = int((ours != theirs).any(1).sum())
    return max(float(compared.p_value), min(1.0, 2.0 ** (1 - differing)))


# Each test, and how many trials it has for each bootstrap sample, as in sacrebleu's defaults.
TESTS = {"randomisation": (randomisation, 10), "bootstrap": (bootstrap, 1)}


class Counted:
    """A scorer for pairs whose statistics have been taken already: they stand in place of the hypotheses."""

    def __init__(self, scorer: Any) -> None:
        self.scorer = scorer
        self._aggregate_and_compute = scorer._aggregate_and_compute
        self._compute_score_from_stats = scorer._compute_score_from_stats

    def _extract_corpus_statistics(self, statistics: np.ndarray, references: None) -> np.ndarray:
        return statistics

    def get_signature(self) -> Any:
        self.scorer.num_refs = 1
        return self.scorer.get_signature()
