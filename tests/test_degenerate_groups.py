"""Groups of few, empty or odd pairs have the scores and intervals that sacrebleu defines, in every metric and table."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF, TER

from hf_posenc.metrics import load_length_buckets

SACREBLEU = {"bleu": BLEU, "chrf": CHRF, "ter": lambda: TER(case_sensitive=True)}
ALIKE = ("a b c d e", "a b c d e")
# Each pair is a translation and its reference or references.
PAIRS: dict[str, list[tuple[str, Any]]] = {
    "one empty translation": [("", "q r"), ALIKE, ("e f g h", "e f g i")],
    "one empty reference": [("x", ""), ALIKE],
    "one pair with nothing in common": [("zzz", "q r"), ALIKE],
    "one pair of two empty sides": [("", ""), ALIKE],
    "empty translations": [("", "q r"), ("", "a b")],
    "empty references": [("x", ""), ("y z", "")],
    "empty sides": [("", ""), ("", "")],
    "white space": [(" ", "\t"), ("\u3000", " a "), ("a", "  ")],
    "single characters": [("a", "a"), ("b", "c"), ("", ".")],
    "identical pairs": [ALIKE, ALIKE],
    "an empty one of several references": [("a b", ["", "a b"]), ("c", ["d", ""]), ("", ["", ""])],
    "a reference less": [("a b", ["a c", "a b"]), ("", ["x"]), ("y", [""])],
    "one pair": [("", "q r")],
    "one pair of two empty sides alone": [("", "")],
}


def scored(pairs: list[tuple[str, Any]], bootstrap: int = 100, **options: Any) -> dict[str, Any]:
    predictions, references = [one for one, _ in pairs], [other for _, other in pairs]
    result = load_length_buckets(keep_in_memory=True).compute(
        predictions=predictions, references=references, source_lengths=[1] * len(pairs),
        metrics=tuple(SACREBLEU), bootstrap=bootstrap, **options,
    )  # fmt: skip
    assert result is not None
    return result


def streams(pairs: list[tuple[str, Any]]) -> list[list[str | None]]:
    references = [[other] if isinstance(other, str) else other for _, other in pairs]
    return [
        [one[number] if number < len(one) else None for one in references]
        for number in range(max(map(len, references)))
    ]


@pytest.mark.filterwarnings("ignore:a confidence interval needs two pairs")
@pytest.mark.parametrize("name", PAIRS)
def test_scores_and_intervals_of_odd_groups_are_those_of_sacrebleu(name: str) -> None:
    """The interval is that of sacrebleu's samples, scored in double precision."""
    pairs = PAIRS[name]
    result = scored(pairs)
    drawn = np.random.default_rng(12345).choice(len(pairs), size=(100, len(pairs)))
    for metric, scorer in ((metric, make()) for metric, make in SACREBLEU.items()):
        texts = [one for one, _ in pairs], streams(pairs)
        for group in (result["all"], result["groups"][0]):
            assert group[metric] == pytest.approx(scorer.corpus_score(*texts).score, abs=1e-9)
            assert math.isfinite(group[metric])
            if len(pairs) == 1:
                assert group[f"{metric}_mean"] is group[f"{metric}_ci"] is None
                continue
            rows = np.array(scorer._extract_corpus_statistics(*texts), dtype=float)
            samples = sorted(float(scorer._compute_score_from_stats(rows[rows_of].sum(0)).score) for rows_of in drawn)
            assert group[f"{metric}_mean"] == pytest.approx(sum(samples) / 100, rel=1e-6, abs=1e-9)
            assert group[f"{metric}_ci"] == pytest.approx((samples[97] - samples[2]) / 2, rel=1e-6, abs=1e-9)
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_no_pairs_have_no_scores() -> None:
    result = scored([])
    assert result["all"]["n"] == 0 and all(result["all"][metric] is None for metric in SACREBLEU)
    assert set(result["signatures"].values()) == {None}
