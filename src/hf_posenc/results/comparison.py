"""Scores of single trainings -> rows of a table, and which rows really differ from the baseline.

A row of one training has the bootstrap's 95 % interval over sentences. A row of several seeds has their mean and
Student's 95 % interval over them, which is the chance of training alone. Differences are tested by sacrebleu's own
paired bootstrap and approximate randomisation on the sentence statistics that the metric has saved; a row of several
seeds is compared seed by seed, and its p-value is the largest of them, or 1 where they disagree which row is better: a
difference counts if it is there every time.
P-values are not corrected for the number of groups and rows.
"""

import math
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
# sacrebleu's name for each test, and how many trials it has for each bootstrap sample, as in sacrebleu's defaults.
TESTS = {"randomisation": ("ar", 10), "bootstrap": ("bs", 1)}
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
                for test in TESTS:
                    p, gain = compare(metric, ours[metric][rows], theirs[metric][rows], test, samples)
                    worst[test] = max(worst[test], p)
                    signs.setdefault((label, metric), set()).add(gain > 0)
    for label, metric in (one for one, seen in signs.items() if len(seen) > 1):
        found[label][metric] = dict.fromkeys(TESTS, 1.0)
    return found


def compare(metric: str, ours: np.ndarray, theirs: np.ndarray, test: str, samples: int) -> tuple[float, float]:
    """How likely such a difference of the corpus scores is by chance, by `PairedTest`, and the difference.

    PairedTest counts the samples that differ by more than the systems do, not by as much. Where the translations of one
    pair alone differ, no sample differs by more, and p would be least; so it is never less than 2^(1 - d) of d pairs
    that differ, which is what the randomisation can tell: it has 2^d outcomes, as likely either way round.
    """
    scorer = COUNTED[metric]()
    systems: Any = [("baseline", theirs), ("ours", ours)]
    scorers: Any = {metric: Counted(scorer)}
    kind, trials = TESTS[test]
    made: Any = PairedTest(systems, scorers, references=None, test_type=kind, n_samples=trials * samples)()[1]
    ((baseline, compared),) = (results for name, results in made.items() if name != "System")
    differing = int((ours != theirs).any(1).sum())
    return max(float(compared.p_value), min(1.0, 2.0 ** (1 - differing))), compared.score - baseline.score


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
