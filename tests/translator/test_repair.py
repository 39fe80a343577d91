"""Repair: a translation that loops by construction becomes a good one, and a good one costs nothing more."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from hf_posenc.translator.checks import Doubt
from hf_posenc.translator.repair import Candidate, choose, repair
from hf_posenc.translator.segments import Segment, split_segments
from hf_posenc.translator.translator import Translator

FIXTURES = Path(__file__).parent / "fixtures"
GOOD = "Words are translated one by one, and nothing is lost on the way."
LONG = f"{GOOD[:-1]}, when the sentence of a text is longer than those that a model has seen."


class UpperCase:
    """Translates into capitals. `loops`: the fewest words of a source that it repeats, unless repetition is limited."""

    def __init__(self, loops: int, obeys: str = "") -> None:
        self.loops = loops
        self.obeys = obeys  # the option that ends loops
        self.generate_options: dict[str, Any] = {"do_sample": False}
        self.calls: list[tuple[int, Mapping[str, Any]]] = []

    def generate(self, sources: Sequence[str], options: Mapping[str, Any]) -> list[tuple[str, bool]]:
        self.calls.append((len(sources), options))
        is_loop = [self.count(source) >= self.loops and self.obeys not in options for source in sources]
        return [
            (" ".join([source.upper()] * (4 if loop else 1)), loop)
            for source, loop in zip(sources, is_loop, strict=True)
        ]

    def split(self, text: str, max_tokens: int) -> list[Segment]:
        return split_segments(text, "en", max_tokens, self.count)

    def count(self, text: str) -> int:
        return len(text.split())

    def log_probabilities(self, source: str, translations: Sequence[str]) -> list[float]:
        return [-float(len(text)) for text in translations]


def find_doubts(source: str, translation: str, was_cut: bool) -> list[Doubt]:
    return [Doubt("loop", "")] if translation.count(source.upper()[:9]) > 1 else []


def repaired(translator: UpperCase, source: str) -> Candidate:
    ((first, was_cut),) = translator.generate([source], translator.generate_options)
    (candidate,) = repair(translator, [source], [(first, find_doubts(source, first, was_cut))], find_doubts)
    return candidate


def test_a_long_sentence_that_loops_is_translated_in_parts() -> None:
    assert repaired(UpperCase(loops=20), LONG) == (LONG.upper(), [])


@pytest.mark.parametrize("option", ["no_repeat_ngram_size", "repetition_penalty"])
def test_a_short_sentence_that_loops_is_translated_with_limits(option: str) -> None:
    translator = UpperCase(loops=2, obeys=option)
    assert repaired(translator, GOOD) == (GOOD.upper(), [])
    assert not any(options.get("do_sample") for _, options in translator.calls)


def test_no_further_tries_after_a_candidate_without_doubts() -> None:
    translator = UpperCase(loops=20)
    repaired(translator, LONG)
    assert [number for number, _ in translator.calls[2:]] == [0, 0]


def test_of_equal_doubts_the_most_probable_and_never_a_blank_one() -> None:
    doubt = [Doubt("length", "")]
    translator = UpperCase(loops=1)
    assert choose(translator, "a", [("longer", doubt), ("long", doubt)]) == ("long", doubt)
    assert choose(translator, "a", [("", doubt), ("longer", doubt)]) == ("longer", doubt)
    assert choose(translator, "a", [("a", []), ("b", doubt)]) == ("a", [])


@pytest.mark.parametrize("name", ["marian", "m2m_100", "nllb", "mbart", "t5", "madlad", "bart", "pegasus"])
@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_a_score_is_that_of_generation(name: str) -> None:
    """The labels have the first token that generation is forced to; the score is the mean over the labels."""
    pytest.importorskip("sentencepiece")
    languages = {
        "m2m_100": ("de", "en"),
        "nllb": ("deu_Latn", "eng_Latn"),
        "mbart": ("de_DE", "en_XX"),
        "t5": ("de", "en"),
        "madlad": ("de", "en"),
    }
    translator = Translator.from_pretrained(FIXTURES / name, *languages.get(name, (None, None)))
    ids = translator.encode_target("Was ist das?")
    forced = translator.generate_options.get("forced_bos_token_id")
    assert forced is None or ids[0] == forced
    inputs = torch.tensor([translator.encode("Ein Satz.")])
    with torch.no_grad():
        loss = translator.model(input_ids=inputs, labels=torch.tensor([ids])).loss
    (score,) = translator.log_probabilities("Ein Satz.", ["Was ist das?"])
    assert score == pytest.approx(-float(loss), rel=1e-4)
