"""Means over seeds, confidence intervals, and significance tests against the baseline.

A row of one training has the bootstrap's 95 % interval over sentences. A row of several seeds has their mean and
Student's 95 % interval over them, the variation of training alone. Differences are tested by sacrebleu's paired
bootstrap and by paired approximate randomisation, on the saved sentence statistics.

A row of several seeds is compared seed by seed, where its p-value is the largest of them, or 1 if seeds disagree on
which row is better. A test pooled over the seeds marks a difference in tables. `paired_randomization` is that test for
any units. P-values are not corrected for multiple comparisons.
"""

import math
import statistics
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from typing import NamedTuple

import numpy as np

from ...metrics.length_buckets.scorers import (
    PRECOMPUTED_SCORERS,
    CorpusScorer,
    bootstrap_sums,
    corpus_score,
    corpus_scores,
    sacrebleu_seed,
)
from .records import WITHOUT_INTERVAL, BucketScore, LengthScores, PValues, Score

# Student's t at 97.5 % for 1 to 29 degrees of freedom, 2 to 30 seeds. For more seeds the last one is conservative.
# A table, because no dependency has the quantile. scipy, which has these digits, takes 140 MB.
STUDENT_T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045,
)  # fmt: skip
TRIALS_PER_SAMPLE = 10  # of randomisation, for each bootstrap sample: the ratio of sacrebleu's defaults
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
    rows: dict[str, dict[str, LengthScores]] = {}
    for row, seeds in members.items():
        rows[row] = {test: mean_length_scores([seed[test] for seed in seeds]) for test in seeds[0]}
    return rows


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
    scores = {}
    for metric in first.scores:
        scores[metric] = mean_score(metric, [bucket.score(metric) for bucket in nonempty])
    return replace(first, n=mean_n, scores=scores, seeds=len(nonempty))


def mean_score(metric: str, seeds: Sequence[float | None]) -> Score:
    """The mean of two seeds or more with Student's 95 % interval over them; without a value if a seed has none."""
    known = [seed for seed in seeds if seed is not None]
    if len(known) < len(seeds):
        return Score()
    if metric in WITHOUT_INTERVAL:
        return Score(value=statistics.mean(known))
    t = STUDENT_T_975[min(len(known) - 1, len(STUDENT_T_975)) - 1]
    half_width = t * statistics.stdev(known) / math.sqrt(len(known))
    return Score(value=statistics.mean(known), half_width=half_width, lowest=min(known), highest=max(known))


def p_values(
    system: Sequence[Statistics],
    baseline: Sequence[Statistics],
    edges: Sequence[int],
    labels: Sequence[str],
    samples: int = 1000,
) -> dict[str, dict[str, PValues]]:
    """The p-values by bucket, "all" first, and metric, of a row against the baseline. Buckets of one pair have none.

    Both arguments hold the statistics of each seed, of the same pairs. The bootstrap has `samples`, and the
    randomisation ten times as many trials.
    """
    bucket_ids = np.searchsorted(edges, system[0]["lengths"])
    found: dict[str, dict[str, PValues]] = {}
    for bucket, label in enumerate(labels, -1):
        rows = np.arange(len(bucket_ids)) if bucket < 0 else np.flatnonzero(bucket_ids == bucket)
        if len(rows) < 2:
            continue
        found[label] = {}
        for metric in system[0]:
            if metric != "lengths":
                ours, theirs = ([seed[metric][rows] for seed in seeds] for seeds in (system, baseline))
                found[label][metric] = metric_p_values(PRECOMPUTED_SCORERS[metric](), ours, theirs, samples)
    return found


def metric_p_values(
    scorer: CorpusScorer, ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray], samples: int
) -> PValues:
    """The p-values of one metric, from the counts (pairs, counts) of each seed.

    If one system has fewer seeds, they are reused for the tests of each seed, and there is no pooled test.
    """
    randomisation, bootstrap, signs = 0.0, 0.0, set()
    for one, other, _ in zip(cycle(ours), cycle(theirs), range(max(len(ours), len(theirs))), strict=False):
        randomisation = max(randomisation, approximate_randomization(scorer, one, other, TRIALS_PER_SAMPLE * samples))
        bootstrap = max(bootstrap, paired_bootstrap(scorer, one, other, samples))
        signs.add(corpus_score(scorer, one).score > corpus_score(scorer, other).score)
    if len(signs) > 1:  # seeds disagree
        randomisation = bootstrap = 1.0
    pooled = None
    if len(ours) == len(theirs) > 1:
        trials = TRIALS_PER_SAMPLE * samples
        pooled = pooled_randomization(scorer, np.stack(ours), np.stack(theirs), trials, DRAWS_PER_BLOCK)
    return PValues(randomisation, bootstrap, pooled)


def approximate_randomization(
    scorer: CorpusScorer, ours: np.ndarray, theirs: np.ndarray, trials: int, draws_per_block: int = DRAWS_PER_BLOCK
) -> float:
    """The fraction of trials with an absolute difference at least as large as observed, when translations are swapped
    at random.

    sacrebleu's test with its seed, except that only larger differences count. For TER, in which few edits make the
    difference, most trials differ by exactly as much, and sacrebleu's count finds twice as many differences as chance
    allows.
    """
    return pooled_randomization(scorer, ours[None], theirs[None], trials, draws_per_block)


def pooled_randomization(
    scorer: CorpusScorer, ours_SUC: np.ndarray, theirs_SUC: np.ndarray, trials: int, draws_per_block: int
) -> float:
    """`approximate_randomization` of the mean difference over S seeds, when a unit is swapped in all seeds at once."""
    num_seeds, num_units, _ = ours_SUC.shape
    ours_SC, theirs_SC = ours_SUC.sum(1), theirs_SUC.sum(1)
    (observed,) = abs(mean_differences(scorer, ours_SC[None], theirs_SC[None]))
    differences = (theirs_SUC - ours_SUC).swapaxes(0, 1).reshape(num_units, -1)
    num_as_large = 0
    for swapped_sum in swapped_sums(differences, trials, draws_per_block):
        swapped_TSC = swapped_sum.reshape(len(swapped_sum), num_seeds, -1)
        gains_T = abs(mean_differences(scorer, ours_SC + swapped_TSC, theirs_SC - swapped_TSC))
        num_as_large += int((gains_T >= observed - 1e-9).sum())
    return (1 + num_as_large) / (1 + trials)


def mean_differences(scorer: CorpusScorer, ours_TSC: np.ndarray, theirs_TSC: np.ndarray) -> np.ndarray:
    """(T,): the difference of corpus scores in T samples of summed counts, the mean over S seeds."""
    differences_ST = [
        corpus_scores(scorer, ours_TSC[:, seed]) - corpus_scores(scorer, theirs_TSC[:, seed])
        for seed in range(ours_TSC.shape[1])
    ]
    return np.mean(differences_ST, axis=0)


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
    gains = abs(bootstrap_differences(scorer, ours[None], theirs[None], samples))
    observed = abs(np.subtract(*(corpus_score(scorer, stats).score for stats in (ours, theirs))))
    p_value = (1 + int((gains - gains.mean() > observed).sum())) / (1 + samples)
    num_differing = int((ours != theirs).any(1).sum())
    return max(p_value, min(1.0, 2.0 ** (1 - num_differing)))


def bootstrap_differences(
    scorer: CorpusScorer, ours_SUC: np.ndarray, theirs_SUC: np.ndarray, samples: int
) -> np.ndarray:
    """(samples,): the mean difference over S seeds in bootstrap samples. A sample has the same units in each seed of
    both systems."""
    num_seeds, num_units, num_counts = ours_SUC.shape
    both = np.concatenate([ours_SUC, theirs_SUC]).swapaxes(0, 1).reshape(num_units, -1)
    totals = bootstrap_sums(both, samples).reshape(samples, 2, num_seeds, num_counts)
    return mean_differences(scorer, totals[:, 0], totals[:, 1])


# The public tests of two systems. Each takes the metric's name and, for each seed, the counts that the metric sums: an
# array (pairs, counts), as in a run's `statistics/` and in `length_buckets.statistics`.


def paired_randomization(
    metric: str,
    ours: Sequence[np.ndarray],
    theirs: Sequence[np.ndarray],
    *,
    units: Sequence[Hashable] | None = None,
    trials: int = 10_000,
) -> float:
    """The p-value of the mean difference over seeds, by paired approximate randomization. With one seed and a unit for
    each pair it is `approximate_randomization`.

    `ours`, `theirs`: the counts (pairs, counts) of each seed, in the same order of seeds and pairs.
    `units`: a label for each pair, such as its document. Pairs of one label are swapped together, and in all seeds at
        once, because their scores depend on each other. Without labels each pair is a unit.

    The p-value is two-sided and has a resolution of 1 / (1 + trials). It covers the sample of units for these
    trainings; it says nothing on trainings with new seeds. A ValueError for an unknown metric, for seeds or pairs
    without a partner, and for fewer than two units. Source: Riezler and Maxwell, "On Some Pitfalls in Automatic
    Evaluation and Significance Testing for MT", 2005 (https://aclanthology.org/W05-0908).
    """
    ours_SUC, theirs_SUC = unit_sums(metric, ours, theirs, units)
    return pooled_randomization(PRECOMPUTED_SCORERS[metric](), ours_SUC, theirs_SUC, trials, DRAWS_PER_BLOCK)


def difference_interval(
    metric: str,
    ours: Sequence[np.ndarray],
    theirs: Sequence[np.ndarray],
    *,
    units: Sequence[Hashable] | None = None,
    samples: int = 1000,
    level: float = 0.95,
) -> tuple[float, float]:
    """The interval (low, high) of the mean over seeds of ours less theirs, in the metric's points: percentiles of the
    paired bootstrap over units.

    The other arguments and errors are those of `paired_randomization`. Source: Koehn, "Statistical Significance Tests
    for Machine Translation Evaluation", 2004 (https://aclanthology.org/W04-3250).
    """
    ours_SUC, theirs_SUC = unit_sums(metric, ours, theirs, units)
    differences = bootstrap_differences(PRECOMPUTED_SCORERS[metric](), ours_SUC, theirs_SUC, samples)
    return percentile_interval(differences, level)


class Equivalence(NamedTuple):
    """The result of an equivalence test: the difference, its 90 % interval (low, high), and the p-value."""

    difference: float
    low: float
    high: float
    p_value: float


def equivalence_test(
    metric: str,
    ours: Sequence[np.ndarray],
    theirs: Sequence[np.ndarray],
    margin: float,
    *,
    units: Sequence[Hashable] | None = None,
    samples: int = 1000,
) -> Equivalence:
    """Two one-sided tests: whether the mean difference over seeds lies within `margin` points of the metric.

    With p < 0.05 the systems are equivalent within the margin: both the hypothesis that ours is worse by `margin` or
    more, and that it is better by `margin` or more, are rejected. Each one-sided p-value is the share of bootstrap
    samples beyond its end of the margin, and the larger one counts. The 90 % interval then lies inside the margin.
    Choose the margin before you see the scores. With fewer than some twenty units the bootstrap's interval is too
    narrow.

    The other arguments and errors are those of `paired_randomization`; a ValueError for a margin that is not positive
    too. Source: Schuirmann, "A comparison of the Two One-Sided Tests Procedure and the Power Approach", 1987
    (https://doi.org/10.1007/BF01068419).
    """
    if not margin > 0:
        raise ValueError(f"margin must be above 0 points of the metric, but it is {margin}; choose one, such as 1.0.")
    ours_SUC, theirs_SUC = unit_sums(metric, ours, theirs, units)
    scorer = PRECOMPUTED_SCORERS[metric]()
    (difference,) = mean_differences(scorer, ours_SUC.sum(1)[None], theirs_SUC.sum(1)[None])
    differences = bootstrap_differences(scorer, ours_SUC, theirs_SUC, samples)
    beyond = max(int((differences <= -margin).sum()), int((differences >= margin).sum()))
    return Equivalence(float(difference), *percentile_interval(differences, 0.9), (1 + beyond) / (1 + samples))


def percentile_interval(differences: np.ndarray, level: float) -> tuple[float, float]:
    """The percentiles between which a share of `level` of the bootstrap samples lies."""
    low, high = np.percentile(differences, [50 * (1 - level), 50 * (1 + level)])
    return float(low), float(high)


def unit_sums(
    metric: str, ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray], units: Sequence[Hashable] | None
) -> tuple[np.ndarray, np.ndarray]:
    """The counts (seeds, units, counts) of both systems, summed over the pairs of each unit. A ValueError for what
    cannot be paired."""
    if metric not in PRECOMPUTED_SCORERS:
        raise ValueError(f"metric must be one of {', '.join(PRECOMPUTED_SCORERS)}, but it is {metric!r}; choose one.")
    shapes = {np.shape(counts) for counts in (*ours, *theirs)}
    if len(ours) != len(theirs) or len(shapes) != 1:
        described = [", ".join(str(np.shape(counts)) for counts in seeds) or "none" for seeds in (ours, theirs)]
        raise ValueError(
            "Both systems must have counts of the same pairs with equally many seeds, but their arrays (pairs, counts) "
            f"are {described[0]} and {described[1]}; pass one array for each seed of each system."
        )
    ((num_pairs, _),) = shapes
    labels = range(num_pairs) if units is None else units
    if len(labels) != num_pairs:
        raise ValueError(f"units must be {num_pairs} labels, one for each pair, but there are {len(labels)}; add them.")
    unit_ids = {label: unit for unit, label in enumerate(dict.fromkeys(labels))}
    if len(unit_ids) < 2:
        raise ValueError(
            f"A test needs 2 or more units, but there are {len(unit_ids)}; take smaller ones, or more text."
        )
    unit_N = np.array([unit_ids[label] for label in labels])
    ours_SUC, theirs_SUC = (
        np.stack([sums_by_unit(counts, unit_N, len(unit_ids)) for counts in seeds]) for seeds in (ours, theirs)
    )
    return ours_SUC, theirs_SUC


def sums_by_unit(counts: np.ndarray, unit_N: np.ndarray, num_units: int) -> np.ndarray:
    """(units, counts): the sums over the pairs of each unit."""
    sums = np.zeros((num_units, counts.shape[1]), counts.dtype)
    np.add.at(sums, unit_N, counts)
    return sums
