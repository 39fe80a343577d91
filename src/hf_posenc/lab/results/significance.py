"""Means over seeds, confidence intervals, and significance tests against the baseline.

A row of one training has the bootstrap's 95 % interval over sentences. A row of several seeds has their mean and
Student's 95 % interval over them, the variation of training alone. Differences are tested by sacrebleu's paired
bootstrap and by paired approximate randomisation, on the saved sentence statistics.

A row of several seeds is compared seed by seed, and its p-value is the largest of them. It is 1 if seeds disagree on
which row is better. P-values are not corrected for multiple comparisons.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import cycle

import numpy as np

from ...metrics.length_buckets.scorers import (
    PRECOMPUTED_SCORERS,
    CorpusScorer,
    bootstrap_sums,
    corpus_score,
    corpus_scores,
    sacrebleu_seed,
)
from .records import BucketScore, LengthScores, PValues

# Student's t at 97.5 % for 1 to 29 degrees of freedom, 2 to 30 seeds. For more seeds the last one is conservative.
# A table, because no dependency has the quantile. scipy, which has these digits, takes 140 MB.
STUDENT_T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045,
)  # fmt: skip
DRAWS_PER_CALL = 32  # numpy draws Booleans in groups of 32; the rest of a group is lost at the end of a block
DRAWS_PER_BLOCK = 2**21  # Booleans of a block, at least DRAWS of each pair

Statistics = Mapping[str, np.ndarray]  # for each metric (pairs, counts), and the pairs' lengths


def mean_over_seeds(
    scores: Mapping[str, Mapping[str, LengthScores]], row_by_system: Mapping[str, str]
) -> dict[str, dict[str, LengthScores]]:
    """The scores of each row and test set, from those of each system and test set."""
    members: dict[str, list[Mapping[str, LengthScores]]] = {}
    for name, tests in scores.items():
        members.setdefault(row_by_system[name], []).append(tests)
    return {
        row: {test: mean_length_scores([seed[test] for seed in seeds]) for test in seeds[0]}
        for row, seeds in members.items()
    }


def mean_length_scores(seeds: Sequence[LengthScores]) -> LengthScores:
    """The mean of several seeds on one test set, bucket by bucket."""
    buckets = zip(*(seed.buckets for seed in seeds), strict=True)
    return LengthScores(
        overall=mean_bucket_scores([seed.overall for seed in seeds]),
        buckets=tuple(mean_bucket_scores(of_seeds) for of_seeds in buckets),
    )


def mean_bucket_scores(buckets: Sequence[BucketScore]) -> BucketScore:
    """The bucket itself, or the mean of several seeds' with Student's interval over them, the lowest and the highest.

    Seeds without pairs count only in the number of pairs.
    """
    mean_n = statistics.mean(bucket.n for bucket in buckets)
    nonempty = [bucket for bucket in buckets if bucket.n] or buckets[:1]
    first = nonempty[0]
    if len(nonempty) == 1:
        return replace(first, n=mean_n)
    values: dict[str, float | None] = {}
    for metric in first.values:
        if metric.endswith(("_mean", "_ci")):
            continue
        scores = [bucket.score(metric) for bucket in nonempty]
        known_scores = [score for score in scores if score is not None]
        if len(known_scores) < len(scores):
            values[metric] = None
            continue
        values[metric] = statistics.mean(known_scores)
        if first.interval(metric):
            t = STUDENT_T_975[min(len(scores) - 1, len(STUDENT_T_975)) - 1]
            values[f"{metric}_ci"] = t * statistics.stdev(known_scores) / math.sqrt(len(scores))
            values |= {f"{metric}_low": min(known_scores), f"{metric}_high": max(known_scores)}
    return replace(first, n=mean_n, values=values, seeds=len(nonempty))


def p_values(
    system: Sequence[Statistics],
    baseline: Sequence[Statistics],
    edges: Sequence[int],
    labels: Sequence[str],
    samples: int = 1000,
) -> dict[str, dict[str, PValues]]:
    """The p-values by bucket, "all" first, and metric, of a row against the baseline. Buckets of one pair have none.

    Both arguments hold the statistics of each seed. If one has fewer seeds, they are reused. The bootstrap has
    `samples`, and the randomisation ten times as many trials.
    """
    p_by_label: dict[str, dict[str, dict[str, float]]] = {}
    signs: dict[tuple[str, str], set[bool]] = {}
    num_seeds = max(len(system), len(baseline))
    for ours, theirs, _ in zip(cycle(system), cycle(baseline), range(num_seeds), strict=False):
        bucket_ids = np.searchsorted(edges, ours["lengths"])
        for bucket, label in enumerate(labels, -1):
            rows = slice(None) if bucket < 0 else np.flatnonzero(bucket_ids == bucket)
            if len(ours["lengths"][rows]) < 2:
                continue
            for metric in (name for name in ours if name != "lengths"):
                worst = p_by_label.setdefault(label, {}).setdefault(metric, dict.fromkeys(SIGNIFICANCE_TESTS, 0.0))
                scorer, pair = PRECOMPUTED_SCORERS[metric](), (ours[metric][rows], theirs[metric][rows])
                for test, (p_value, trials_per_sample) in SIGNIFICANCE_TESTS.items():
                    worst[test] = max(worst[test], p_value(scorer, *pair, trials_per_sample * samples))
                gain = np.subtract(*(corpus_score(scorer, sums).score for sums in pair))
                signs.setdefault((label, metric), set()).add(bool(gain > 0))
    for label, metric in (sums for sums, seen in signs.items() if len(seen) > 1):
        p_by_label[label][metric] = dict.fromkeys(SIGNIFICANCE_TESTS, 1.0)
    return {
        label: {metric: PValues(**p_by_test) for metric, p_by_test in p_by_metric.items()}
        for label, p_by_metric in p_by_label.items()
    }


def approximate_randomization(
    scorer: CorpusScorer, ours: np.ndarray, theirs: np.ndarray, trials: int, draws_per_block: int = DRAWS_PER_BLOCK
) -> float:
    """The fraction of trials with an absolute difference at least as large as observed, when translations are swapped
    at random.

    sacrebleu's test with its seed, except that only larger differences count. For TER, in which few edits make the
    difference, most trials differ by exactly as much, and sacrebleu's count finds twice as many differences as chance
    allows.
    """
    observed = abs(np.subtract(*(corpus_score(scorer, stats).score for stats in (ours, theirs))))
    num_as_large = 0
    for swapped_sum in swapped_sums(theirs - ours, trials, draws_per_block):
        totals = (ours.sum(0) + swapped_sum, theirs.sum(0) - swapped_sum)
        num_as_large += int(
            (abs(np.subtract(*(corpus_scores(scorer, stats) for stats in totals))) >= observed - 1e-9).sum()
        )
    return (1 + num_as_large) / (1 + trials)


def swapped_sums(differences: np.ndarray, trials: int, draws_per_block: int = DRAWS_PER_BLOCK) -> Iterator[np.ndarray]:
    """(trials of a block, counts): the summed differences of the pairs that each trial swaps. The trials are divided
    into blocks, because all at once take trials x pairs numbers."""
    rng = np.random.default_rng(sacrebleu_seed())
    block = DRAWS_PER_CALL * max(1, draws_per_block // (DRAWS_PER_CALL * len(differences)))
    for start in range(0, trials, block):
        swapped = rng.integers(2, size=(min(block, trials - start), len(differences)), dtype=bool)
        # BLAS multiplies floats only, which represent these integers exactly.
        yield (swapped.astype(float) @ differences).astype(differences.dtype)


def paired_bootstrap(scorer: CorpusScorer, ours: np.ndarray, theirs: np.ndarray, samples: int) -> float:
    """The p-value of sacrebleu's paired bootstrap, and at least 2^(1 - d) for d differing pairs, the resolution of so
    few pairs."""
    totals = np.split(bootstrap_sums(np.hstack([ours, theirs]), samples), 2, axis=1)
    gains = abs(np.subtract(*(corpus_scores(scorer, stats) for stats in totals)))
    observed = abs(np.subtract(*(corpus_score(scorer, stats).score for stats in (ours, theirs))))
    p_value = (1 + int((gains - gains.mean() > observed).sum())) / (1 + samples)
    num_differing = int((ours != theirs).any(1).sum())
    return max(p_value, min(1.0, 2.0 ** (1 - num_differing)))


def difference_interval(
    scorer: CorpusScorer, ours: np.ndarray, theirs: np.ndarray, samples: int
) -> tuple[float, float]:
    """The 95 % interval (low, high) of the score of `ours` less that of `theirs`: percentiles of the paired bootstrap.

    Each sample has the same pairs of both. Two systems are alike within a margin if the interval lies inside it; a
    large p-value alone does not show that.
    """
    totals = np.split(bootstrap_sums(np.hstack([ours, theirs]), samples), 2, axis=1)
    low, high = np.percentile(np.subtract(*(corpus_scores(scorer, total) for total in totals)), [2.5, 97.5])
    return float(low), float(high)


# Each test takes scorer, statistics of both systems and a number of trials. It has so many trials for each bootstrap
# sample, as in sacrebleu's defaults.
SignificanceTest = Callable[[CorpusScorer, np.ndarray, np.ndarray, int], float]
SIGNIFICANCE_TESTS: dict[str, tuple[SignificanceTest, int]] = {
    "randomisation": (approximate_randomization, 10),
    "bootstrap": (paired_bootstrap, 1),
}
