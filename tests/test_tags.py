"""Language tags: tokens that are read in a text, on either side, and said by no translation."""

import copy
from pathlib import Path
from typing import Any

import pytest
from test_tokenizer import ANY_TEXT, KINDS, SOURCES, TARGETS, bert
from tokenizers import AddedToken
from transformers import AutoTokenizer

from hf_posenc import PosEncTokenizer

TAGS = ["<2en>", "<2de>"]


def trained(kind: str) -> PosEncTokenizer:
    how = KINDS[kind]
    return PosEncTokenizer.train(SOURCES if "target_texts" in how else SOURCES + TARGETS, 380, tags=TAGS, **how)


def grown(kind: str) -> PosEncTokenizer:
    """Tags added to a vocabulary that was trained without them."""
    how = KINDS[kind]
    made = PosEncTokenizer.train(SOURCES if "target_texts" in how else SOURCES + TARGETS, 378, **how)
    assert made.add_special_tokens({"additional_special_tokens": TAGS}) == 2
    return made


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> PosEncTokenizer:
    return trained(request.param)


@pytest.mark.parametrize("text", [text for text in ANY_TEXT if text == text.lstrip()])
def test_a_tag_is_one_token_more_and_decoding_leaves_it_out(tokenizer: PosEncTokenizer, text: str) -> None:
    for source in (f"<2en> {text}", f"<2en>{text}"):
        assert tokenizer(source)["input_ids"] == [378, *tokenizer(text)["input_ids"]]
        target = tokenizer(text_target=source)["input_ids"]
        assert target == [378, *tokenizer(text_target=text)["input_ids"]]
        assert tokenizer.decode(target, skip_special_tokens=True) == text
        assert tokenizer.batch_decode([target], skip_special_tokens=True) == [text]
        assert tokenizer.decode([378, *target[1:]], skip_special_tokens=False).startswith("<2en>")


def test_tags_are_special_tokens_of_both_sides(tokenizer: PosEncTokenizer) -> None:
    assert len(tokenizer) == tokenizer.target_vocab_size == 380
    for side in (tokenizer, tokenizer.target):
        assert side.convert_tokens_to_ids(TAGS) == [378, 379]
        assert side.extra_special_tokens == TAGS and set(side.all_special_ids) == {0, 1, 2, 3, 378, 379}


@pytest.mark.parametrize("kind", KINDS)
def test_tags_may_be_added_later_and_travel(kind: str, tmp_path: Path) -> None:
    made = grown(kind)
    made.add_special_tokens({"extra_special_tokens": ["<2fr>"]})
    made.save_pretrained(tmp_path)
    for one in (made, copy.deepcopy(made), AutoTokenizer.from_pretrained(tmp_path)):
        ids = one(text_target="<2en> a <2fr> b")["input_ids"]
        assert [token for token in ids if token >= 378] == [378, 380]
        assert one.decode(ids, skip_special_tokens=True) == "a b"
        assert one.to_str() == made.to_str() and len(one) == one.target_vocab_size == 381
        assert not set(one("</s><s><pad>")["input_ids"][:-1]) & {0, 1, 2, 3}


def test_a_word_that_is_added_is_said(tokenizer: PosEncTokenizer) -> None:
    other = copy.deepcopy(tokenizer)
    other.add_tokens(["<word>"])
    assert "<word>" in other.decode(other(text_target="a <word> b")["input_ids"], skip_special_tokens=True)
    assert other.add_tokens(["<tag>"], special_tokens=True) == 1
    assert other("<tag>", text_target="<tag>")["labels"] == [381, 2]


def test_a_tag_keeps_the_flags_it_is_given() -> None:
    tokenizer = grown("bpe")
    tokenizer.add_special_tokens({"extra_special_tokens": [AddedToken("en_XX", single_word=True)]})
    assert 380 in tokenizer("en_XX a")["input_ids"] and 380 not in tokenizer("men_XX a")["input_ids"]


def test_languages_of_an_adopted_tokenizer_are_tags(tmp_path: Path) -> None:
    theirs = bert()
    theirs.add_special_tokens({"extra_special_tokens": ["deu_Latn"]})
    assert theirs("deu_Latn 3")["input_ids"][1] == 10
    PosEncTokenizer.adopt(theirs).save_pretrained(tmp_path)
    for ours in (PosEncTokenizer.adopt(theirs), AutoTokenizer.from_pretrained(tmp_path)):
        assert ours("deu_Latn 3")["input_ids"] == [10, 7, ours.eos_token_id]
        assert ours.decode([10, 7], skip_special_tokens=True) == "3"
        assert 3 not in ours("[SEP]")["input_ids"][:-1]


@pytest.mark.parametrize(
    ("tags", "rule"),
    [
        (["en"], "no text holds by chance, such as '<2en>', but it is 'en'"),
        (["<2 en>"], "but it is '<2 en>'"),
        ([" <2en>"], "but it is ' <2en>'"),
        ([""], "but it is ''"),
        ([5], "but it is 5"),
        (["</s>"], "a token of its own, but '</s>' is another's name"),
        (["<2en>", "<2en>"], "a list of different tokens"),
        ("<2en>", "a list of different tokens, such as"),
    ],
)
def test_a_tag_that_could_be_text_is_refused(tags: Any, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        PosEncTokenizer.train(SOURCES, 380, tags=tags)
