"""TER has sacrebleu's edits: its tokens, its search for shifts and all of its limits."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest
from sacrebleu.metrics import TER as SacrebleuTER
from sacrebleu.metrics import lib_ter

from hf_posenc.metrics.length_buckets import ter
from hf_posenc.metrics.length_buckets.scorers import SCORERS

LIMITS = {
    "MAX_BLOCK_LENGTH": "_MAX_SHIFT_SIZE",
    "MAX_MOVE_DISTANCE": "_MAX_SHIFT_DIST",
    "BEAM": "_BEAM_WIDTH",
    "MAX_CANDIDATE_MOVES": "_MAX_SHIFT_CANDIDATES",
}


def edited(words: list[str], chance: random.Random, wrong: float) -> list[str]:
    """A copy in which up to four blocks are moved, and words are lost and added."""
    for _ in range(chance.randint(0, 4)):
        a, b, c = sorted(chance.randint(0, len(words)) for _ in range(3))
        words = words[:a] + words[b:c] + words[a:b] + words[c:]
    kept = [word for word in words if chance.random() > wrong]
    for _ in range(chance.randint(0, 1 + int(wrong * len(words)))):
        kept.insert(chance.randint(0, len(kept)), chance.choice([*words, "new"]))
    return kept


def pairs(number: int, longest: int, seed: int) -> Iterator[tuple[str, list[str], list[str]]]:
    """(kind, hypothesis, reference) of all kinds in turn, of few different words: blocks match in many places."""
    chance = random.Random(seed)

    def some(least: int = 0, most: int = longest) -> list[str]:
        return [f"w{chance.randrange(vocabulary)}" for _ in range(chance.randint(least, most))]

    for _ in range(number // 8):
        vocabulary = chance.choice((2, 4, 10, 100))
        yield "unrelated", some(), some()
        yield "empty hypothesis", [], some()
        yield "empty reference", some(), []
        reference = some()
        yield "edited", edited(reference, chance, 0.1), reference
        reference = some()
        yield "much edited", edited(reference, chance, 0.4), reference
        yield "runaway", some(longest, 10 * longest), some(0, longest // 2)
        yield "broken off", some(0, longest // 3), some(longest, 6 * longest)
        reference = some(longest)
        yield "late", some(longest // 2) + reference, reference + some()


def differing(number: int, longest: int, seed: int = 0) -> list[tuple[str, list[str], list[str]]]:
    return [
        (kind, hypothesis, reference)
        for kind, hypothesis, reference in pairs(number, longest, seed)
        if ter.count_edits(hypothesis, reference) != lib_ter.translation_edit_rate(hypothesis, reference)[0]
    ]


def test_the_limits_are_sacrebleus() -> None:
    assert {ours: getattr(ter, ours) for ours in LIMITS} == {
        ours: getattr(lib_ter, theirs) for ours, theirs in LIMITS.items()
    }


@pytest.mark.full
def test_edits_are_sacrebleus() -> None:
    assert not differing(240, longest=8)


@pytest.mark.full
@pytest.mark.parametrize(
    "limits",
    [(10, 50, 2, 1000), (10, 50, 5, 1000), (2, 50, 25, 1000), (10, 3, 25, 1000), (10, 50, 25, 20), (3, 4, 3, 50)],
    ids=["beam-2", "beam-5", "block", "distance", "moves", "all"],
)
def test_each_limit_binds_as_sacrebleus_does(limits: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """With limits so low that sentences of a few words reach them.

    These are patched on both sides, because sacrebleu takes no such arguments.
    """
    for (ours, theirs), limit in zip(LIMITS.items(), limits, strict=True):
        monkeypatch.setattr(ter, ours, limit)
        monkeypatch.setattr(lib_ter, theirs, limit)
    assert not differing(240, longest=10)
    assert not differing(1600, longest=3)


@pytest.mark.parametrize(
    ("hypothesis", "reference"),
    [
        ("b a b a a b b", "b b b b a a a"),
        ("b i c j d j c c e a", "b i d c c j j c e a"),
        ("d d a b c b a", "c b c a d d a b"),
    ],
)
def test_a_target_inside_the_block_is_a_distance_to_go(hypothesis: str, reference: str) -> None:
    """Such a move is seldom the best one; in these pairs it is."""
    texts = hypothesis.split(), reference.split()
    assert ter.count_edits(*texts) == lib_ter.translation_edit_rate(*texts)[0]


@pytest.mark.slow
def test_words_lost_or_added_at_the_beginning_leave_the_beam_where_sacrebleu_does() -> None:
    chance = random.Random(0)
    for words in (24, 25, 26):
        reference = [f"w{chance.randrange(40)}" for _ in range(60)]
        added = [f"x{chance.randrange(5)}" for _ in range(words)]
        for hypothesis in (added + reference[: 60 - words], reference[words:] + added, reference[words:]):
            assert ter.count_edits(hypothesis, reference) == lib_ter.translation_edit_rate(hypothesis, reference)[0]


def test_a_round_with_too_many_moves_measures_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes none, so that the slowest pairs of sacrebleu's cost nothing here."""
    words = [f"w{number % 40}" for number in range(200)]
    measured = []
    monkeypatch.setattr(ter.EditDistances, "saved", lambda *arguments: measured.append(arguments) or 0)
    ter.count_edits(words[7:] + words[:3], words)
    assert not measured
    ter.count_edits(["a", "b", "c"], ["c", "a", "b"])
    assert measured


TEXT = """
The the THE house, House. (old) it's 3.5 1,000 well-known &quot;so&quot; A&amp;B - red; blue? no! end.
他们 喜欢 东京。 「日本」 カタカナ ひらがな ㈱
"""


@pytest.mark.parametrize("switches", list(itertools.product([False, True], repeat=4)), ids=str)
def test_statistics_and_signature_are_sacrebleus_under_every_switch(switches: tuple[bool, ...]) -> None:
    names = ("normalized", "no_punct", "asian_support", "case_sensitive")
    options = dict(zip(names, switches, strict=True))
    ours, theirs = ter.TER(**options), SacrebleuTER(**options)
    chance = random.Random(repr(switches))
    hypotheses, first, second = (
        [" ".join(chance.choices(TEXT.split(), k=chance.randint(0, 12))) for _ in range(20)] for _ in range(3)
    )
    hypotheses += ["", " ", "one\ttwo "]
    first += ["the house", "", "one two"]
    for references in ([first], [first, [*second, None, None, "two one"]]):
        statistics = theirs._extract_corpus_statistics(hypotheses, references)
        assert ours._extract_corpus_statistics(hypotheses, references) == statistics
        assert ours.corpus_score(hypotheses, references).score == theirs.corpus_score(hypotheses, references).score
        assert str(ours.get_signature()) == str(theirs.get_signature())


def test_the_metric_counts_with_it() -> None:
    assert isinstance(SCORERS["ter"](), ter.TER)
    assert SCORERS["ter"]().case_sensitive


@pytest.mark.slow
def test_two_thousand_pairs_have_the_edits_of_sacrebleu() -> None:
    assert not differing(1_900, longest=7, seed=1)
    assert not differing(100, longest=24, seed=2)
