"""Significance tests and the bootstrap sample in blocks: the numbers of one call, in constant memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sacrebleu.metrics.base import Signature
from sacrebleu.significance import PairedTest, _bootstrap_resample

from hf_posenc.lab.results.records import PValues
from hf_posenc.lab.results.significance import approximate_randomization, p_values, paired_bootstrap, swapped_sums
from hf_posenc.metrics.length_buckets.scorers import PRECOMPUTED_SCORERS, bootstrap_sums, corpus_scores, score_fields

COUNTS = {"bleu": 10, "chrf": 18, "ter": 2, "bertscore": 2}


def counted(metric: str, pairs: int, seed: int = 0) -> np.ndarray:
    """Statistics of pairs, some of them empty: whole numbers, but for BERTScore's."""
    chance = np.random.default_rng(seed)
    rows = chance.integers(1, 30, (pairs, COUNTS[metric])) * (chance.random((pairs, 1)) < 0.8)
    return np.stack([chance.random(pairs), np.ones(pairs)], axis=1) if metric == "bertscore" else rows


@pytest.mark.parametrize("block", [1, 100, 2**21])
@pytest.mark.parametrize("metric", COUNTS)
def test_blockwise_randomization_equals_one_call(metric: str, block: int) -> None:
    ours, theirs = counted(metric, 7), counted(metric, 7, seed=1)
    swapped = np.random.default_rng(12345).integers(2, size=(150, 7), dtype=bool)
    sums = np.concatenate([*swapped_sums(theirs - ours, 150, draws_per_block=block)])
    assert sums.dtype == ours.dtype
    assert np.allclose(sums, swapped @ (theirs - ours), rtol=0, atol=0 if metric != "bertscore" else 1e-12)
    scorer: Any = PRECOMPUTED_SCORERS[metric]()

    def gain(one: np.ndarray, other: np.ndarray) -> float:
        return abs(scorer._aggregate_and_compute(one).score - scorer._aggregate_and_compute(other).score)

    mixed = [[np.where(trial[:, None], *both) for both in ((theirs, ours), (ours, theirs))] for trial in swapped]
    as_large = sum(gain(*one) >= gain(ours, theirs) - 1e-9 for one in mixed)
    p_value = approximate_randomization(scorer, ours, theirs, 150, draws_per_block=block)
    assert p_value == (1 + as_large) / 151


class Counted:
    """A scorer of sacrebleu's that is given statistics in place of translations."""

    def __init__(self, scorer: Any) -> None:
        self._aggregate_and_compute = scorer._aggregate_and_compute
        self._compute_score_from_stats = scorer._compute_score_from_stats

    def _extract_corpus_statistics(self, statistics: np.ndarray, references: None) -> np.ndarray:
        return statistics

    def get_signature(self) -> Signature:
        return Signature({"num_refs": 1})


@pytest.mark.parametrize("metric", COUNTS)
def test_bootstrap_samples_are_those_of_sacrebleu(metric: str) -> None:
    """The draws, the scores, and with them the p-value."""
    ours, theirs = counted(metric, 33), counted(metric, 33, seed=1)
    scorer: Any = PRECOMPUTED_SCORERS[metric]()
    expected = [one.score for one in _bootstrap_resample(ours.tolist(), scorer, 50)[1]]
    assert corpus_scores(scorer, bootstrap_sums(ours, 50)).tolist() == expected
    systems: Any = [("baseline", theirs), ("ours", ours)]
    tested: Any = PairedTest(systems, {"": Counted(scorer)}, None, test_type="bs", n_samples=50)()[1]
    (of_sacrebleu,) = (results[1].p_value for name, results in tested.items() if name != "System")
    assert paired_bootstrap(scorer, ours, theirs, 50) == of_sacrebleu


def test_without_a_seed_both_systems_have_the_same_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", "none")
    rows = counted("bleu", 33)
    assert not np.array_equal(bootstrap_sums(rows, 5), bootstrap_sums(rows, 5))
    assert paired_bootstrap(PRECOMPUTED_SCORERS["bleu"](), rows, rows, 50) == 1.0


@pytest.mark.parametrize(
    "take",
    [
        lambda rows, number: score_fields("ter", PRECOMPUTED_SCORERS["ter"](), rows, number),
        lambda rows, number: paired_bootstrap(PRECOMPUTED_SCORERS["ter"](), rows, rows[::-1], number),
        lambda rows, number: approximate_randomization(
            PRECOMPUTED_SCORERS["ter"](), rows, rows[::-1], number, draws_per_block=1
        ),
    ],
    ids=["interval", "bootstrap", "randomisation"],
)
def test_more_samples_take_no_more_memory(take: Callable[[np.ndarray, int], object]) -> None:
    rows = counted("ter", 3000)

    def peak(number: int) -> int:
        tracemalloc.start()
        take(rows, number)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(1)  # what is imported or cached by the first call
    assert peak(320) - peak(32) < (320 - 32) * len(rows), "less than a byte for each pair of a sample"


@pytest.mark.parametrize("metric", COUNTS)
def test_identical_buckets_have_p_values_of_1(metric: str) -> None:
    """Whatever is in them; of one pair there is none."""
    some = counted(metric, 40)
    for rows in (some, 0 * some, some[:2], np.tile(some[:1], (9, 1))):
        if metric == "bertscore":
            rows[:, 1] = 1
        statistics = {"lengths": np.full(len(rows), 5), metric: rows}
        found = p_values([statistics], [statistics], (10,), ["all", "[0,10]", ">10"], 100)
        assert found == {label: {metric: PValues(randomisation=1.0, bootstrap=1.0)} for label in ("all", "[0,10]")}
    one = {"lengths": np.array([5]), metric: some[:1]}
    assert p_values([one], [one], (10,), ["all", "[0,10]", ">10"], 100) == {}
