"""Tests pooled over seeds and units: against enumeration, sacrebleu, chance, planted differences and theory."""

from __future__ import annotations

import math
import random
from itertools import product
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest

from hf_posenc.lab.results.significance import difference_interval, equivalence_test, p_values, paired_randomization
from hf_posenc.metrics.length_buckets.scorers import SCORERS, sentence_statistics

WORDS = ["the", "a", "cat", "dog", "house", "is", "was", "in", "on", "mat", "red", "green", "old"]
MEAN = "bertscore"  # the mean of sentence scores in percent: its counts are a score and 1


def corpus(pairs: int) -> list[str]:
    chance = random.Random(0)
    return [" ".join(chance.choices(WORDS, k=chance.randint(4, 14))) for _ in range(pairs)]


def noisy(texts: list[str], share: float, seed: int) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(w if chance.random() > share else chance.choice(WORDS) for w in t.split()) for t in texts]


def counts(metric: str, translations: list[str], references: list[str]) -> np.ndarray:
    scorers = {metric: SCORERS[metric]()}
    return sentence_statistics(scorers, translations, [[text] for text in references])[metric]


def means(scores: np.ndarray) -> list[np.ndarray]:
    """The counts (N, 2) of each seed from sentence scores (S, N) between 0 and 1."""
    return [np.stack([seed, np.ones(len(seed))], axis=1) for seed in scores]


def test_a_run_keeps_the_pooled_test_of_its_seeds() -> None:
    references = corpus(40)
    ours, theirs = (
        [counts("bleu", noisy(references, share, seed), references) for seed in (1, 2)] for share in (0.3, 0.4)
    )
    lengths = np.full(40, 5)
    seeds = [[{"lengths": lengths, "bleu": seed} for seed in system] for system in (ours, theirs)]
    found = p_values(*seeds, (), ["all"], 100)["all"]["bleu"]
    assert found.pooled == paired_randomization("bleu", ours, theirs, trials=1000)
    assert p_values(seeds[0], seeds[1][:1], (), ["all"], 100)["all"]["bleu"].pooled is None


@pytest.mark.parametrize(("metric", "scorer"), [("bleu", BLEU()), ("chrf", CHRF())])
def test_with_one_seed_it_is_the_test_of_sacrebleu(metric: str, scorer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same draws make the same p-value. Other draws differ by less than four standard errors of both."""
    references, trials = corpus(50), 1000
    theirs, ours = noisy(references, 0.4, 1), noisy(references, 0.34, 2)
    systems = [("theirs", theirs), ("ours", ours)]
    tested: Any = PairedTest(systems, {metric: scorer}, [references], test_type="ar", n_samples=trials)()[1]
    (expected,) = (results[1].p_value for name, results in tested.items() if name != "System")
    pair = [counts(metric, ours, references)], [counts(metric, theirs, references)]
    assert 0.05 < expected < 0.95, "else the tolerance is empty"
    assert paired_randomization(metric, *pair, trials=trials) == expected
    for seed in ("1", "2"):
        monkeypatch.setenv("SACREBLEU_SEED", seed)
        tolerance = 4 * math.sqrt(2 * expected * (1 - expected) / trials)
        assert paired_randomization(metric, *pair, trials=trials) == pytest.approx(expected, abs=tolerance)


@pytest.mark.full
@pytest.mark.parametrize("metric", ["bleu", "chrf", "ter"])
def test_it_is_the_share_of_all_swaps_of_units_in_all_seeds_at_once(metric: str) -> None:
    """All 2^6 swaps are scored from the texts."""
    references, units = corpus(13), list("aabbbcddeefff")
    ours = [noisy(references, 0.35, seed) for seed in (1, 2)]
    theirs = [noisy(references, 0.5, seed) for seed in (3, 4)]

    def difference(swapped: set[str]) -> float:
        total = 0.0
        for seed in range(2):
            sides = [list(ours[seed]), list(theirs[seed])]
            for row, unit in enumerate(units):
                if unit in swapped:
                    sides[0][row], sides[1][row] = sides[1][row], sides[0][row]
            scorer: Any = SCORERS[metric]()
            first, second = (scorer.corpus_score(side, [references]).score for side in sides)
            total += (first - second) / 2
        return total

    names = sorted(set(units))
    outcomes = []
    for chosen in product([False, True], repeat=len(names)):
        outcomes.append(abs(difference({name for name, swap in zip(names, chosen, strict=True) if swap})))
    exact = np.mean(np.array(outcomes) >= outcomes[0] - 1e-9)
    assert 0.02 < exact < 0.9
    seeds = ([counts(metric, texts, references) for texts in system] for system in (ours, theirs))
    found = paired_randomization(metric, *seeds, units=units, trials=4000)
    assert found == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 4000) + 1 / 4000)


@pytest.mark.full
def test_p_is_uniform_where_there_is_no_difference() -> None:
    """Kolmogorov-Smirnov over 200 test sets, with seeds that depend on each other: below the 1 % point of chance."""
    chance = np.random.default_rng(0)
    p_values = []
    for _ in range(200):
        difficulty = chance.random(30)
        scores = 0.5 * difficulty + 0.5 * chance.random((2, 3, 30))  # of two systems, three seeds each
        p_values.append(paired_randomization(MEAN, means(scores[0]), means(scores[1]), trials=199))
    distances = np.abs(np.sort(p_values) - (np.arange(200) + 0.5) / 200)
    assert distances.max() < 1.63 / math.sqrt(200)


@pytest.mark.full
def test_units_that_depend_on_each_other_must_be_swapped_together() -> None:
    """Eight sentences of one debate share most of their difference. Swapped one by one, they differ too often."""
    chance = np.random.default_rng(1)
    units = np.repeat(np.arange(20), 8).tolist()
    rejected = {"debate": 0, "sentence": 0}
    for _ in range(100):
        of_debates = np.repeat(chance.normal(size=(2, 1, 20)), 8, axis=2)
        scores = of_debates + 0.5 * chance.normal(size=(2, 2, 160))
        pair = means(scores[0]), means(scores[1])
        rejected["debate"] += paired_randomization(MEAN, *pair, units=units, trials=199) < 0.05
        rejected["sentence"] += paired_randomization(MEAN, *pair, trials=199) < 0.05
    assert rejected["debate"] <= 12, "5 expected of 100; more than 12 has a chance of 0.2 %"
    assert rejected["sentence"] >= 30


@pytest.mark.full
def test_a_small_difference_of_all_seeds_is_found_together_where_no_seed_shows_it() -> None:
    """The variation between trainings is averaged away. In most of 20 test sets pooling finds what is planted."""
    chance, found, found_by_each = np.random.default_rng(2), 0, 0
    for _ in range(20):
        scores = chance.normal(size=(2, 3, 100))
        scores[0] += 0.25
        ours, theirs = means(scores[0]), means(scores[1])
        found += paired_randomization(MEAN, ours, theirs, trials=499) < 0.05
        by_seed = [paired_randomization(MEAN, [a], [b], trials=499) for a, b in zip(ours, theirs, strict=True)]
        found_by_each += max(by_seed) < 0.05
    assert found >= 15 and found_by_each <= 5


@pytest.mark.parametrize("planted", [0.0, 0.02, 0.08, 0.15])
def test_equivalence_is_that_of_two_normal_tests(planted: float) -> None:
    """The mean of 400 differences is normal: p = Phi((|difference| - margin) / standard error)."""
    chance = np.random.default_rng(3)
    scores = chance.normal(scale=0.5, size=(2, 1, 400))
    scores[0] += planted
    found = equivalence_test(MEAN, means(scores[0]), means(scores[1]), margin=10.0, samples=2000)
    differences = 100 * (scores[0] - scores[1])[0]
    error = differences.std() / 20
    assert found.difference == pytest.approx(differences.mean())
    normal = NormalDist(abs(differences.mean()), error)
    assert found.p_value == pytest.approx(1 - normal.cdf(10.0), abs=0.03)
    assert (found.p_value < 0.05) == (found.low > -10 and found.high < 10)
    assert found.high - found.low == pytest.approx(2 * 1.645 * error, rel=0.1)


@pytest.mark.full
def test_a_difference_of_the_margin_is_called_equivalent_in_five_percent() -> None:
    chance, equivalent = np.random.default_rng(4), 0
    for _ in range(100):
        scores = chance.normal(size=(2, 2, 60))
        scores[0] += 0.3
        equivalent += equivalence_test(MEAN, means(scores[0]), means(scores[1]), 30.0, samples=200).p_value < 0.05
    assert equivalent <= 12, "5 expected of 100; more than 12 has a chance of 0.2 %"


@pytest.mark.full
def test_the_interval_covers_the_difference_of_all_seeds() -> None:
    chance, covered = np.random.default_rng(5), 0
    units = np.repeat(np.arange(40), 3).tolist()
    for _ in range(100):
        of_units = np.repeat(chance.normal(size=(2, 1, 40)), 3, axis=2)
        scores = of_units + chance.normal(size=(2, 2, 120))
        scores[0] += 0.5
        low, high = difference_interval(MEAN, means(scores[0]), means(scores[1]), units=units, samples=200)
        covered += low < 50 < high
    assert 86 <= covered <= 100, "95 expected, percentiles a bit fewer"


def test_what_cannot_be_paired_is_refused() -> None:
    two, three = means(np.ones((2, 4))), means(np.ones((3, 4)))
    with pytest.raises(ValueError, match="equally many seeds"):
        paired_randomization(MEAN, two, three)
    with pytest.raises(ValueError, match="same pairs"):
        paired_randomization(MEAN, two, means(np.ones((2, 5))))
    with pytest.raises(ValueError, match="one for each pair, but there are 3"):
        paired_randomization(MEAN, two, two, units=["a", "a", "b"])
    with pytest.raises(ValueError, match="2 or more units"):
        difference_interval(MEAN, two, two, units=["a"] * 4)
    with pytest.raises(ValueError, match="metric must be one of bleu"):
        paired_randomization("bleurt", two, two)
    with pytest.raises(ValueError, match="margin must be above 0"):
        equivalence_test(MEAN, two, two, 0.0)
