"""Resegmentation: a document's translation in the segments of its references, on cases with a known answer."""

import random
import sys

import pytest

from hf_posenc.metrics.translation_audit import decoding
from hf_posenc.metrics.translation_audit.decoding import resegment

mweralign = pytest.importorskip("mweralign")
REFERENCES = ["A man walks down the street.", "A woman sits on a bench.", "Two dogs run."]


@pytest.mark.parametrize(
    ("translation", "segments"),
    [
        (" ".join(REFERENCES), REFERENCES),
        # Another case and other words, but each segment keeps its own.
        ("a man goes down the road. A Woman sits on a bench. Two cats run.",
         ["a man goes down the road.", "A Woman sits on a bench.", "Two cats run."]),
        ("A man walks down the street. Two dogs run.", ["A man walks down the street.", "", "Two dogs run."]),
        ("", ["", "", ""]),
    ],
)  # fmt: skip
def test_planted_segments_are_found(translation: str, segments: list[str]) -> None:
    assert resegment(translation, REFERENCES) == segments


def test_no_word_is_lost_and_boundaries_are_nearly_the_best() -> None:
    """Against the word errors of every other cut into two: the package sometimes makes one more than the best."""
    rng = random.Random(0)
    for _ in range(20):
        references = [" ".join(rng.choices("abcd", k=rng.randint(1, 5))) for _ in range(2)]
        words = rng.choices("abcd", k=rng.randint(0, 9))
        segments = resegment(" ".join(words), references)
        assert " ".join(segments).split() == words
        cuts = [(" ".join(words[:cut]), " ".join(words[cut:])) for cut in range(len(words) + 1)]
        assert errors(segments, references) <= 1 + min(errors(cut, references) for cut in cuts)


def errors(segments: list[str] | tuple[str, str], references: list[str]) -> int:
    return sum(
        sum(mweralign.score_tokens(reference.split(), segment.split()))
        for segment, reference in zip(segments, references, strict=True)
    )


def test_whitespace_inside_a_text_is_no_boundary() -> None:
    assert resegment("a\nb  c", ["a\nb", "c"]) == ["a b", "c"]


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    resegment("a b", ["a", "b"])
    assert capfd.readouterr() == ("", "")


def test_missing_references_or_package_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="no references; give"):
        resegment("a", [])
    decoding.load_aligner.cache_clear()
    monkeypatch.setitem(sys.modules, "mweralign", None)
    with pytest.raises(ValueError, match=r'extra "resegmentation", but .* `pip install'):
        resegment("a", ["a"])
