"""The tokenizer: lossless, `</s>` at the end, saved with a checkpoint."""

import copy
import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.tokenizers import ANY_TEXT, KINDS, SOURCES, TARGETS, TEXTS, bert
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import AutoTokenizer, ByT5Tokenizer, PreTrainedTokenizerFast

from hf_posenc import PosEncConfig, PosEncTokenizer
from hf_posenc.generation.translate import encode_texts


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> PosEncTokenizer:
    how = KINDS[request.param]
    return PosEncTokenizer.train(SOURCES if "target_texts" in how else SOURCES + TARGETS, 380, **how)


@pytest.fixture(scope="module")
def two() -> PosEncTokenizer:
    return PosEncTokenizer.train(SOURCES, 380, target_texts=TARGETS, subwords="unigram")


@pytest.mark.parametrize("text", ANY_TEXT)
def test_decoding_gives_the_text_back(tokenizer: PosEncTokenizer, text: str) -> None:
    for how, ids in (
        ({"use_source_tokenizer": True}, tokenizer(text)["input_ids"]),
        ({}, tokenizer(text_target=text)["input_ids"]),
    ):
        assert tokenizer.decode(ids, skip_special_tokens=True, **how) == text
        assert tokenizer.batch_decode([ids, ids], skip_special_tokens=True, **how) == [text, text]
        assert ids[-1] == tokenizer.eos_token_id
        assert not set(ids[:-1]) & {0, 1, 2, 3}, "no text, whatever it spells, is encoded as a special token"


@pytest.mark.parametrize("make", [PosEncTokenizer.as_reader, PosEncTokenizer.for_prompts])
def test_a_decoder_only_models_tokenizer_reads_special_tokens(tokenizer, make, tmp_path):
    """What trainers and chat templates write as text: one id each, also when it is saved, copied or cut."""
    reader = make(tokenizer)
    reader.save_pretrained(tmp_path)
    plain = tokenizer(TEXTS[0], add_special_tokens=False)["input_ids"]
    for loaded in (reader, AutoTokenizer.from_pretrained(tmp_path), copy.deepcopy(reader)):
        for _ in range(2):  # a call changes nothing for the next one
            ids = loaded(TEXTS[0] + loaded.eos_token, add_special_tokens=False, truncation=True)["input_ids"]
            assert ids == [*plain, loaded.eos_token_id]
        loaded.chat_template = "{{ bos_token }}{% for turn in messages %}{{ turn.content + eos_token }}{% endfor %}"
        chat = loaded.apply_chat_template([{"role": "user", "content": TEXTS[0]}])["input_ids"]
        assert chat == [loaded.bos_token_id, *plain, loaded.eos_token_id]
    strict = tokenizer(ANY_TEXT, text_target=ANY_TEXT)
    for name, ids in PosEncTokenizer.from_fast_tokenizer(reader)(ANY_TEXT, text_target=ANY_TEXT).items():
        assert ids == strict[name], "a tokenizer for training is strict again"
    if make is PosEncTokenizer.as_reader:
        assert encode_texts(ANY_TEXT, reader) == encode_texts(ANY_TEXT, tokenizer), "and so is a translation"


def test_ids_of_special_tokens(tokenizer: PosEncTokenizer) -> None:
    names = (tokenizer.pad_token, tokenizer.bos_token, tokenizer.eos_token, tokenizer.unk_token)
    assert names == ("<pad>", "<s>", "</s>", "<unk>")
    assert tokenizer.convert_tokens_to_ids(names) == [0, 1, 2, 3]
    assert tokenizer.convert_tokens_to_ids(["<0x00>", "<0xFF>"]) == [4, 259]
    assert len(tokenizer) == tokenizer.vocab_size == tokenizer.target_vocab_size == 380
    assert tokenizer.convert_ids_to_tokens(range(4)) == [*names[:4]]


@pytest.mark.parametrize("subwords", ["bpe", "unigram"])
def test_one_vocabulary_encodes_source_and_target_alike(subwords: str) -> None:
    tokenizer = PosEncTokenizer.train(SOURCES, 380, subwords=subwords)
    assert tokenizer.shares_vocabulary
    both = tokenizer(TEXTS[0], text_target=TEXTS[0])
    assert both["labels"] == both["input_ids"]
    plain = tokenizer(TEXTS[0], add_special_tokens=False)["input_ids"]
    assert both["input_ids"] == [*plain, 2]
    assert len(plain) == len(tokenizer.tokenize(TEXTS[0]))


def test_two_vocabularies_know_their_own_language(two: PosEncTokenizer) -> None:
    assert not two.shares_vocabulary
    german, english = PosEncTokenizer.train(SOURCES, 380, subwords="unigram"), TEXTS[1]
    assert two(TEXTS)["input_ids"] == german(TEXTS)["input_ids"]
    as_target = two(text_target=english)["input_ids"]
    assert len(as_target) < len(two(english)["input_ids"])
    assert two(TEXTS[0], text_target=english)["labels"] == as_target
    assert two.decode(as_target, skip_special_tokens=True) == english
    assert two.decode(as_target, skip_special_tokens=True, use_source_tokenizer=True) != english
    assert two(english)["input_ids"] == german(english)["input_ids"], "whatever came before, a text is a source"


def test_a_target_that_is_no_text_leaves_the_sources_vocabulary_in_place(two: PosEncTokenizer) -> None:
    before = two(TEXTS)["input_ids"]
    for wrong in ([None], ["a", None], 5):
        with pytest.raises((TypeError, ValueError)):
            two(["a"], text_target=wrong)
        assert two.encode(TEXTS[0]) == before[0] and two.to_str() == copy.deepcopy(two).to_str()


def in_threads(calls: dict[str, Callable[[], Any]]) -> dict[str, int]:
    """How often each call, made again and again by two threads beside the others, gave another value than alone."""
    alone = {name: call() for name, call in calls.items()}
    wrong = dict.fromkeys(calls, 0)

    def again(name: str) -> None:
        for _ in range(30):
            wrong[name] += calls[name]() != alone[name]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=again, args=(name,)) for name in calls for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    return wrong


@pytest.mark.full
def test_threads_share_a_tokenizer(tokenizer: PosEncTokenizer) -> None:
    source, target = " ".join(SOURCES[:20]), " ".join(TARGETS[:20])
    ids = tokenizer(text_target=target)["input_ids"]
    wrong = in_threads(
        {
            "encode": lambda: tokenizer([source, "a"])["input_ids"],
            "encode targets": lambda: tokenizer(text_target=[target, "a"])["input_ids"],
            "pad and cut": lambda: tokenizer([source, "a"], padding=True, truncation=True, max_length=5)["input_ids"],
            "read special tokens": lambda: tokenizer("a</s>", split_special_tokens=False)["input_ids"],
            "decode": lambda: tokenizer.decode(ids, skip_special_tokens=True),
            "vocabulary": lambda: tokenizer.convert_ids_to_tokens([300, 301]),
        }
    )
    assert not any(wrong.values()), wrong


def test_a_call_changes_nothing_that_another_could_see(two: PosEncTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of each call, a call for the other side is right, and so is the first one afterwards."""
    source, target = two(TEXTS[0])["input_ids"], two(text_target=TEXTS[1])["input_ids"]
    decode, encode = PreTrainedTokenizerFast._decode, PreTrainedTokenizerFast._encode_plus
    seen = []

    def interrupted(original: Callable[..., Any], *args: Any, **options: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(PreTrainedTokenizerFast, "_decode", decode)
            patch.setattr(PreTrainedTokenizerFast, "_encode_plus", encode)
            seen.append(two(TEXTS[0])["input_ids"] == source and two.convert_ids_to_tokens(300) == middle)
        return original(*args, **options)

    middle = two.convert_ids_to_tokens(300)
    monkeypatch.setattr(PreTrainedTokenizerFast, "_decode", lambda *args, **how: interrupted(decode, *args, **how))
    monkeypatch.setattr(PreTrainedTokenizerFast, "_encode_plus", lambda *args, **how: interrupted(encode, *args, **how))
    assert two.decode(target, skip_special_tokens=True) == TEXTS[1]
    assert two.batch_decode([target], skip_special_tokens=True) == [TEXTS[1]]
    assert two(text_target=TEXTS[1])["input_ids"] == target
    assert seen == [True] * 3


def test_the_targets_side_is_a_tokenizer_of_its_own(two: PosEncTokenizer) -> None:
    english = PosEncTokenizer.train(TARGETS, 380, subwords="unigram")
    side = two.target
    assert side.shares_vocabulary and len(side) == two.target_vocab_size
    assert side.get_vocab() == english.get_vocab() != two.get_vocab()
    ids = side(TEXTS[1])["input_ids"]
    assert ids == two(text_target=TEXTS[1])["input_ids"]
    assert side.convert_ids_to_tokens(ids) == english.convert_ids_to_tokens(ids) != two.convert_ids_to_tokens(ids)
    assert side.convert_tokens_to_ids(side.convert_ids_to_tokens(ids)) == ids
    assert side.decode(ids, skip_special_tokens=True) == TEXTS[1]
    assert english.target is english


@pytest.mark.parametrize("add", ["add_tokens", "add_special_tokens"])
def test_tokens_are_added_to_both_sides_alone(two: PosEncTokenizer, add: str) -> None:
    given: Any = {"extra_special_tokens": ["<new>"]} if add == "add_special_tokens" else ["<new>"]
    with pytest.raises(ValueError, match="but this is the target's side"):
        getattr(copy.deepcopy(two).target, add)(given)
    both = copy.deepcopy(two)
    assert getattr(both, add)(given) == 1
    assert len(both) == both.target_vocab_size == 381
    assert both("<new>", text_target="<new>")["labels"] == [380, 2] == both("<new>")["input_ids"]
    assert len(two) == two.target_vocab_size == 380, "another one's copy"


def test_a_call_leaves_nothing_behind(tokenizer: PosEncTokenizer, tmp_path: Path) -> None:
    """Neither in what is hashed, nor in what is saved."""
    before = tokenizer.to_str()
    how: dict[str, Any] = {"padding": True, "truncation": True, "max_length": 5, "split_special_tokens": False}
    tokenizer([TEXTS[0], "a"], text_target=[TEXTS[1], "a"], **how)
    assert tokenizer.to_str() == before
    assert (
        tokenizer.backend_tokenizer.encode_special_tokens and tokenizer.target.backend_tokenizer.encode_special_tokens
    )
    tokenizer.save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path).to_str() == before


def test_two_vocabularies_with_other_special_tokens_are_refused() -> None:
    source, target = (Tokenizer(BPE({token: id for id, token in enumerate(order)}, [])) for order in ("ab", "ba"))
    with pytest.raises(ValueError, match=r"eos_token .*, but 'a' is 0"):
        PosEncTokenizer(tokenizer_object=source, target_tokenizer_object=target, eos_token="a")


def test_two_vocabularies_are_not_trained_anew_from_one_iterator(two: PosEncTokenizer) -> None:
    with pytest.raises(ValueError, match="has two; call PosEncTokenizer"):
        two.train_new_from_iterator(["ab ab ab"], 265)


def test_each_side_has_its_own_truncation_length(two: PosEncTokenizer) -> None:
    both = two(TEXTS[0], text_target=TEXTS[1], truncation=True, max_length=9, max_target_length=4)
    assert (len(both["input_ids"]), len(both["labels"])) == (9, 4)


def test_a_copied_tokenizer_tokenizes_the_same(tokenizer: PosEncTokenizer) -> None:
    for other in (copy.deepcopy(tokenizer), pickle.loads(pickle.dumps(tokenizer))):
        assert other.shares_vocabulary == tokenizer.shares_vocabulary and other.to_str() == tokenizer.to_str()
        assert other(TEXTS, text_target=TEXTS) == tokenizer(TEXTS, text_target=TEXTS)


def test_train_new_from_iterator_gives_a_tokenizer_of_its_class() -> None:
    again = PosEncTokenizer.train(TEXTS, 380).train_new_from_iterator(["ab ab ab"], 265)
    assert isinstance(again, PosEncTokenizer)
    assert again.tokenize("ab") == [" ab"]
    assert again.decode(again(text_target="ab ab")["input_ids"], skip_special_tokens=True) == "ab ab"


def test_padding_is_on_the_right_and_masked(tokenizer: PosEncTokenizer) -> None:
    batch = tokenizer(["the girl buys apples", "the"], padding=True)
    assert set(batch) == {"input_ids", "attention_mask"}
    num_short = len(tokenizer("the")["input_ids"])
    num_pads = len(batch["input_ids"][0]) - num_short
    assert num_pads > 0
    assert batch["input_ids"][1][num_short:] == [0] * num_pads
    assert batch["attention_mask"][1] == [1] * num_short + [0] * num_pads


def test_merges_stay_inside_words_and_punctuation_stands_alone() -> None:
    tokenizer = PosEncTokenizer.train(["the boy's head, the boy's head (the boy's head)"] * 9, 284)
    assert tokenizer.tokenize("the boy's head, (the") == [" the", " boy", "'", "s", " head", ",", " (", "the"]


def test_an_unseen_character_becomes_its_bytes(tokenizer: PosEncTokenizer) -> None:
    assert tokenizer.tokenize("中")[-3:] == ["<0xE4>", "<0xB8>", "<0xAD>"]


def test_training_reads_a_stream_once_and_is_deterministic() -> None:
    def stream() -> Iterator[str]:
        yield from TEXTS

    first, second = (PosEncTokenizer.train(stream(), 380) for _ in range(2))
    assert first.backend_tokenizer.to_str() == second.backend_tokenizer.to_str()
    first, second = (PosEncTokenizer.train(iter(SOURCES), 380, subwords="unigram") for _ in range(2))
    for text in ANY_TEXT:
        assert first.tokenize(text) == second.tokenize(text)


def test_unigram_segmentation_has_the_greatest_probability() -> None:
    tokenizer = PosEncTokenizer.train(SOURCES, 380, subwords="unigram")
    scores = dict(json.loads(tokenizer.backend_tokenizer.to_str())["model"]["vocab"])

    def best(word: str) -> float:
        cuts = [scores[word[:end]] + best(word[end:]) for end in range(1, len(word) + 1) if word[:end] in scores]
        return max(cuts, default=float("-inf")) if word else 0.0

    for word in (" Mädchen", " kauft", " größer", " Jungen"):
        pieces = [piece for piece, _ in pieces_of(tokenizer, word)]
        assert "".join(pieces) == word
        assert sum(scores[piece] for piece in pieces) == pytest.approx(best(word))


def pieces_of(tokenizer: PosEncTokenizer, word: str) -> list[tuple[str, int]]:
    return [(token.value, token.id) for token in tokenizer.backend_tokenizer.model.tokenize(word)]


@pytest.mark.parametrize("subwords", ["bpe", "unigram"])
def test_a_vocabulary_larger_than_the_text_supports_is_refused(subwords: str) -> None:
    with pytest.raises(ValueError, match=r"but it is 50000; use at most \d+") as refused:
        PosEncTokenizer.train(TEXTS, 50_000, subwords=subwords)
    most = int(str(refused.value).rpartition("at most ")[2].partition(",")[0])
    assert len(PosEncTokenizer.train(TEXTS, most, subwords=subwords)) == most


def test_unknown_subwords_are_refused() -> None:
    with pytest.raises(ValueError, match="one of bpe, unigram, but it is 'words'"):
        PosEncTokenizer.train(SOURCES, 380, subwords="words")


@pytest.mark.parametrize("subwords", ["bpe", "unigram"])
@pytest.mark.parametrize("side", ["texts", "target_texts"])
def test_half_a_character_is_refused_with_the_number_of_its_text(subwords: str, side: str) -> None:
    texts = {"texts": SOURCES * 5, "target_texts": SOURCES * 5}
    texts[side] = [*SOURCES[:1], "Ein \ud83d Hund", *SOURCES]
    with pytest.raises(ValueError, match=r"UTF-8, but text 1 .*'\\ud83d', at index 4"):
        PosEncTokenizer.train(texts.pop("texts"), 380, subwords=subwords, **texts)


@pytest.mark.parametrize("texts", [[], ["", ""]])
def test_empty_texts_are_refused(texts: list[str]) -> None:
    with pytest.raises(ValueError, match=r"one character, but .* empty"):
        PosEncTokenizer.train(texts, 400)


@pytest.mark.parametrize("subwords", ["bpe", "unigram"])
@pytest.mark.parametrize("vocab_size", [-1, 10, 262])
def test_a_vocabulary_without_room_is_refused(vocab_size: int, subwords: str) -> None:
    rule = r"must have room for 4 special tokens, 256 bytes and the 3 different characters"
    with pytest.raises(ValueError, match=rf"{rule}.* but it is {vocab_size}; use at least 263"):
        PosEncTokenizer.train(["ab ab"], vocab_size, subwords=subwords)
    assert len(PosEncTokenizer.train(["ab ab"], 263, subwords=subwords)) == 263


@pytest.mark.parametrize("with_config", [True, False])
@pytest.mark.parametrize("trust", [None, False])
def test_auto_tokenizer_gives_the_class_back(
    tokenizer: PosEncTokenizer, tmp_path: Path, with_config: bool, trust: bool | None
) -> None:
    tokenizer.save_pretrained(tmp_path)
    if with_config:
        PosEncConfig(vocab_size=len(tokenizer)).save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=trust)
    assert isinstance(loaded, PosEncTokenizer)
    assert loaded.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
    for text in ANY_TEXT:
        assert loaded(text, text_target=text) == tokenizer(text, text_target=text)
        assert loaded.decode(loaded(text_target=text)["input_ids"], skip_special_tokens=True) == text
    assert (
        (tmp_path / "target_tokenizer.json").exists()
        == (not tokenizer.shares_vocabulary)
        == (not loaded.shares_vocabulary)
    )
    assert loaded.padding_side == "right" and loaded.model_max_length > 10**9


STRANGER = """
import sys
sys.modules["hf_posenc"] = None  # as if it were not installed
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=True)
assert type(tokenizer).__name__ == "PosEncTokenizer" and "transformers_modules" in type(tokenizer).__module__
ids = tokenizer(sys.argv[2], text_target=sys.argv[2])
assert tokenizer.decode(ids["labels"], skip_special_tokens=True) == sys.argv[2]
tokenizer.save_pretrained(sys.argv[3])  # what a stranger saves again must still carry its code
print(*ids["input_ids"], *ids["labels"])
"""


@pytest.mark.full
def test_a_stranger_without_the_package_loads_it(two: PosEncTokenizer, tmp_path: Path) -> None:
    text = "Die Äpfel </s> \u2581 中  Ende"
    folders = [str(tmp_path / "ours"), str(tmp_path / "theirs")]
    two.save_pretrained(folders[0])
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HF_", "TRANSFORMERS_"))
    }
    environment = kept | {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1", "PYTHONUTF8": "1"}
    command = [sys.executable, "-c", STRANGER, folders[0], text, folders[1]]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    ours = two(text, text_target=text)
    assert [int(token) for token in done.stdout.split()] == ours["input_ids"] + ours["labels"]
    assert (tmp_path / "theirs" / "tokenization_posenc.py").is_file()
    assert AutoTokenizer.from_pretrained(tmp_path / "theirs")(text, text_target=text) == ours


def test_an_existing_tokenizer_is_taken_over(tmp_path: Path) -> None:
    bert().save_pretrained(tmp_path / "bert")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "bert")
    assert theirs("Das kaufte.")["input_ids"][0] == 2, "a classifier's first token"
    ours = PosEncTokenizer.from_fast_tokenizer(theirs)
    ours.save_pretrained(tmp_path / "ours")
    for tokenizer in (ours, AutoTokenizer.from_pretrained(tmp_path / "ours")):
        assert isinstance(tokenizer, PosEncTokenizer) and tokenizer.shares_vocabulary and len(tokenizer) == 10
        assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 2, 3)
        both = tokenizer("Das kaufte.", text_target="Das Das kaufte 3.")
        assert both["input_ids"] == [4, 5, 6, 8, 9, 3] and both["labels"] == [4, 4, 5, 6, 8, 7, 9, 3], "not cut"
        assert tokenizer.decode(both["labels"], skip_special_tokens=True) == "Das Das kaufte 3."
        assert 3 not in tokenizer("[SEP]")["input_ids"][:-1]
    assert theirs("Das kaufte.")["input_ids"][0] == 2, "theirs is left as it was"
    assert PosEncTokenizer.from_fast_tokenizer(ours) is ours


def test_an_existing_tokenizer_is_given_the_tokens_that_it_lacks() -> None:
    backend = Tokenizer(BPE({"a": 0, "<|end|>": 1}, []))
    theirs = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")
    ours = PosEncTokenizer.from_fast_tokenizer(theirs)
    assert (ours.pad_token_id, ours.bos_token_id, ours.eos_token_id, len(ours)) == (2, 3, 1, 4)
    assert ours("aa")["input_ids"] == [0, 0, 1]


def test_a_slow_tokenizer_is_refused() -> None:
    with pytest.raises(ValueError, match=r"fast one.* ByT5Tokenizer; convert"):
        PosEncTokenizer.from_fast_tokenizer(ByT5Tokenizer())
