"""Coverage: a translation of another sentence is found, and right ones are not doubted."""

import random

import pytest

from hf_posenc.lab.data.synthetic import generate_pairs
from hf_posenc.translator import coverage
from hf_posenc.translator.checks import SegmentTranslation
from hf_posenc.translator.coverage import MIN_SEGMENTS, doubt_uncovered


def segments_with_foreign_translations(number: int, foreign: set[int]) -> list[SegmentTranslation]:
    """Generated sentences, of which some have the translation of the sentence 100 before."""
    pairs = list(generate_pairs(seed=5, pairs=number, min_words=10, max_words=24))
    return [
        SegmentTranslation(f"line {row}", source, pairs[row - 100][1] if row in foreign else translation)
        for row, (source, translation) in enumerate(pairs)
    ]


@pytest.mark.full
def test_a_translation_of_another_sentence_is_found() -> None:
    foreign = set(random.Random(0).sample(range(MIN_SEGMENTS), 20))
    segments = segments_with_foreign_translations(MIN_SEGMENTS, foreign)
    doubt_uncovered(segments)
    doubted = {row for row, segment in enumerate(segments) if segment.doubts}
    assert {doubt.check for row in doubted for doubt in segments[row].doubts} == {"coverage"}
    assert len(doubted & foreign) >= 10 and len(doubted - foreign) <= MIN_SEGMENTS // 100


def test_few_segments_are_not_judged() -> None:
    segments = segments_with_foreign_translations(120, {110})
    doubt_uncovered(segments)
    assert not any(segment.doubts for segment in segments)


@pytest.mark.parametrize(("number", "sizes"), [(999, []), (1000, [1000]), (5000, [5000]), (5500, [2750, 2750])])
def test_no_block_is_too_short_to_be_judged(number: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    blocks: list[int] = []
    monkeypatch.setattr(coverage, "doubt_dropped", lambda block: blocks.append(len(block)))
    doubt_uncovered([SegmentTranslation("", "", "")] * number)
    assert blocks == sizes
