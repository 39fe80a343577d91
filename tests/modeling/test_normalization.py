"""Normalization steps of a tokenizer: what a text becomes, and that a saved tokenizer does it alone."""

from pathlib import Path
from typing import Any

import pytest
from support.models import tiny_model
from support.tokenizers import ANY_TEXT, KINDS, SOURCES, TARGETS, bert
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from hf_posenc import PosEncTokenizer
from hf_posenc.tokenizer.tokenization_posenc import NORMALIZATION_STEPS, build_normalizer, split_normalizer, with_steps

BOTH = ["lowercase", "no_punctuation"]


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> PosEncTokenizer:
    kind = KINDS[request.param]
    return PosEncTokenizer.train(SOURCES if "target_texts" in kind else SOURCES + TARGETS, 390, **kind)


@pytest.mark.parametrize(
    ("steps", "normalized"),
    [
        ([], " Das T-Shirt,  z. B. ÄRGERT'S? "),
        (["lowercase"], " das t-shirt,  z. b. ärgert's? "),
        (["no_punctuation"], "Das T Shirt z B ÄRGERT S"),
        (BOTH, "das t shirt z b ärgert s"),
    ],
)
def test_what_steps_do(steps: list[str], normalized: str) -> None:
    assert build_normalizer(steps).normalize_str(" Das T-Shirt,  z. B. ÄRGERT'S? ") == normalized


@pytest.mark.parametrize("step", NORMALIZATION_STEPS)
def test_a_normalized_text_does_not_change(step: str) -> None:
    normalizer = build_normalizer([step])
    for text in [*ANY_TEXT, *SOURCES, "\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}"]:
        once = normalizer.normalize_str(text)
        assert normalizer.normalize_str(once) == once


def test_a_saved_tokenizer_normalizes_its_source_alone(tokenizer: PosEncTokenizer, tmp_path: Path) -> None:
    changed = tokenizer.with_normalization(source=BOTH)
    changed.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.normalization == changed.normalization == {"source": BOTH} and tokenizer.normalization == {}
    assert loaded.to_str() == changed.to_str() != tokenizer.to_str()
    assert loaded.shares_vocabulary == tokenizer.shares_vocabulary
    text, plain = "Das „Mädchen“, es kauft!", "das mädchen es kauft"
    for other in (changed, loaded):
        assert other(text)["input_ids"] == tokenizer(plain)["input_ids"] != tokenizer(text)["input_ids"]
        assert other(text_target=text)["input_ids"] == tokenizer(text_target=text)["input_ids"]
        assert other.decode(other(text_target=text)["input_ids"], skip_special_tokens=True) == text
        assert other.get_vocab() == tokenizer.get_vocab()
        assert other.target.get_vocab() == tokenizer.target.get_vocab()


def test_both_sides_may_have_steps(tokenizer: PosEncTokenizer) -> None:
    changed = tokenizer.with_normalization(["lowercase"], ["no_punctuation"])
    assert changed("Ja!", text_target="Ja!") == tokenizer("ja!", text_target="Ja")
    alike = tokenizer.with_normalization(["lowercase"], ["lowercase"])
    assert alike("JA!", text_target="JA!") == tokenizer("ja!", text_target="ja!")


def test_steps_replace_earlier_ones(tokenizer: PosEncTokenizer) -> None:
    changed = tokenizer.with_normalization(BOTH).with_normalization(["lowercase"])
    assert changed.normalization == {"source": ["lowercase"]}
    assert changed.with_normalization()("A, b")["input_ids"] == tokenizer("A, b")["input_ids"]


def test_tags_are_read_before_a_text_is_normalized(tmp_path: Path) -> None:
    tokenizer = PosEncTokenizer.train(SOURCES, 390, tags=["<2EN>", "(de)"]).with_normalization(BOTH)
    tokenizer.save_pretrained(tmp_path)
    for other in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        ids = other("<2EN> Das Mädchen.")["input_ids"]
        assert ids == other.convert_tokens_to_ids(["<2EN>"]) + other("das mädchen")["input_ids"]
        assert other("(de) Das")["input_ids"][0] == other.convert_tokens_to_ids("(de)")


def test_an_existing_tokenizer_keeps_its_own_normalizer() -> None:
    converted = PosEncTokenizer.from_fast_tokenizer(bert())
    changed = converted.with_normalization(["no_punctuation"])
    assert changed("Das kauft 3.")["input_ids"] == converted("Das kauft 3")["input_ids"]
    backend = with_steps(converted.backend_tokenizer, BOTH)
    assert split_normalizer(backend) == (BOTH, split_normalizer(converted.backend_tokenizer)[1])
    assert with_steps(backend, []).to_str() == Tokenizer.from_str(converted.backend_tokenizer.to_str()).to_str()


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (["lower"], r"must be one of lowercase, no_punctuation, but it is 'lower'; the nearest one is 'lowercase'"),
        (["lowercase", "lowercase"], r"must be given once, but they are \['lowercase', 'lowercase'\]; remove"),
        ("lowercase", r"must be a list of steps, but it is the text 'lowercase'; write \['lowercase'\]"),
    ],
)
def test_unknown_steps_are_refused(tokenizer: PosEncTokenizer, steps: Any, message: str) -> None:
    for side in ("source", "target"):
        with pytest.raises(ValueError, match=message):
            tokenizer.with_normalization(**{side: steps})


@pytest.mark.full
def test_a_text_of_punctuation_has_an_empty_translation() -> None:
    tokenizer = PosEncTokenizer.train(SOURCES, 390).with_normalization(BOTH)
    output = tiny_model("relative", vocab_size=390, decoder_vocab_size=390).translations(
        ["...", "Ein Hund", "ein hund!"], tokenizer
    )
    assert output.texts[0] == "" and output.texts[1] == output.texts[2]
