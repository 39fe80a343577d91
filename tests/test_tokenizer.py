"""Laws of the tokenizer: nothing is lost, `</s>` ends what it encodes, and it travels with a checkpoint."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from hf_posenc import PosEncConfig, PosEncTokenizer

TEXTS = [
    "Das Mädchen kauft 3 Äpfel, und der Junge isst sie.",
    "The girl buys 3 apples, and the boy eats them.",
    "Die Äpfel (rot) sind größer als der Kopf des Jungen!",
    "The apples (red) are bigger than the boy's head!",
]
ANY_TEXT = [
    "",
    "Das Mädchen kauft die Äpfel.",
    "Größe, Übel, Öl: straße ẞ",
    "„Zitat“ «citation» \"quote\" 'single' ‚tief‘",  # noqa: RUF001
    "3.5 % of 1,000 is 35; $5 + 5€ = x^2 ~ `code` | a<b>c",
    "he's the boys' re-do - and–so—on…",  # noqa: RUF001
    "https://example.org/a_b?c=d&e=%20#f",
    "\N{GRINNING FACE} \N{WOMAN}\N{ZERO WIDTH JOINER}\N{PERSONAL COMPUTER} 中文没有空格。 Ελληνικά עברית",
    "e\u0301 is not \u00e9, and ﬁ is not fi",
    "the mark \u2581 of \u2581others\u2581",
    "<s> and </s>, <pad>, <unk> or <0x41> are characters here",
    " leading, trailing ",
    "two  spaces,   three",
    "tab\there, no-break\u00a0space, line\u2028separator, \x0b, \r and\n",
    " ",
    "\ufeff\x00\x1f",
]


@pytest.fixture(scope="module")
def tokenizer() -> PosEncTokenizer:
    return PosEncTokenizer.train(TEXTS, 380)


@pytest.mark.parametrize("text", ANY_TEXT)
def test_decoding_gives_the_text_back(tokenizer: PosEncTokenizer, text: str) -> None:
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert ids[-1] == tokenizer.eos_token_id
    assert not set(ids[:-1]) & {0, 1, 2, 3}, "no text, whatever it spells, is encoded as a special token"


def test_ids_of_special_tokens(tokenizer: PosEncTokenizer) -> None:
    names = (tokenizer.pad_token, tokenizer.bos_token, tokenizer.eos_token, tokenizer.unk_token)
    assert names == ("<pad>", "<s>", "</s>", "<unk>")
    assert tokenizer.convert_tokens_to_ids(names) == [0, 1, 2, 3]
    assert tokenizer.convert_tokens_to_ids(["<0x00>", "<0xFF>"]) == [4, 259]
    assert len(tokenizer) == tokenizer.vocab_size == 380


def test_source_and_target_are_encoded_alike(tokenizer: PosEncTokenizer) -> None:
    both = tokenizer(TEXTS[0], text_target=TEXTS[0])
    assert both["labels"] == both["input_ids"]
    plain = tokenizer(TEXTS[0], add_special_tokens=False)["input_ids"]
    assert both["input_ids"] == [*plain, 2]
    assert len(plain) == len(tokenizer.tokenize(TEXTS[0]))


def test_padding_is_on_the_right_and_masked(tokenizer: PosEncTokenizer) -> None:
    batch = tokenizer(["the girl buys apples", "the"], padding=True)
    assert set(batch) == {"input_ids", "attention_mask"}
    num_short = len(tokenizer("the")["input_ids"])
    num_pads = len(batch["input_ids"][0]) - num_short
    assert num_pads > 0
    assert batch["input_ids"][1][num_short:] == [0] * num_pads
    assert batch["attention_mask"][1] == [1] * num_short + [0] * num_pads


def test_merges_stay_inside_words_and_punctuation_stands_alone() -> None:
    tokenizer = PosEncTokenizer.train(["the boy's head, the boy's head (the boy's head)"] * 9, 1000)
    assert tokenizer.tokenize("the boy's head, (the") == [" the", " boy", "'", "s", " head", ",", " (", "the"]


def test_an_unseen_character_becomes_its_bytes(tokenizer: PosEncTokenizer) -> None:
    assert tokenizer.tokenize("中")[-3:] == ["<0xE4>", "<0xB8>", "<0xAD>"]


def test_training_reads_a_stream_once_and_is_deterministic() -> None:
    def stream() -> Iterator[str]:
        yield from TEXTS

    first, second = (PosEncTokenizer.train(stream(), 380) for _ in range(2))
    assert first.backend_tokenizer.to_str() == second.backend_tokenizer.to_str()


def test_fewer_tokens_where_the_text_supports_no_more() -> None:
    tokenizer = PosEncTokenizer.train(["ab ab"], 50_000)
    assert len(tokenizer) == 4 + 256 + 3 + 2  # characters: space, a, b; merges: "ab" and " ab", in some order


@pytest.mark.parametrize("texts", [[], ["", ""]])
def test_empty_texts_are_refused(texts: list[str]) -> None:
    with pytest.raises(ValueError, match=r"at least one character, but the texts are empty: check the files"):
        PosEncTokenizer.train(texts, 400)


@pytest.mark.parametrize("vocab_size", [-1, 10, 262])
def test_a_vocabulary_without_room_is_refused(vocab_size: int) -> None:
    rule = r"must hold 4 special tokens, 256 bytes and the 3 different characters"
    with pytest.raises(ValueError, match=rf"{rule}.* but it is {vocab_size}: use at least 263"):
        PosEncTokenizer.train(["ab ab"], vocab_size)
    assert len(PosEncTokenizer.train(["ab ab"], 263)) == 263


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
        assert loaded(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert loaded.padding_side == "right" and loaded.model_max_length > 10**9


STRANGER = """
import sys
sys.modules["hf_posenc"] = None  # as if it were not installed
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=True)
assert type(tokenizer).__name__ == "PosEncTokenizer" and "transformers_modules" in type(tokenizer).__module__
ids = tokenizer(sys.argv[2])["input_ids"]
assert tokenizer.decode(ids, skip_special_tokens=True) == sys.argv[2]
tokenizer.save_pretrained(sys.argv[3])  # what a stranger saves again must still carry its code
print(*ids)
"""


def test_a_stranger_without_the_package_loads_it(tokenizer: PosEncTokenizer, tmp_path: Path) -> None:
    text = "Die Äpfel </s> \u2581 中  Ende"
    folders = [str(tmp_path / "ours"), str(tmp_path / "theirs")]
    tokenizer.save_pretrained(folders[0])
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HF_", "TRANSFORMERS_"))
    }
    environment = kept | {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1", "PYTHONUTF8": "1"}
    command = [sys.executable, "-c", STRANGER, folders[0], text, folders[1]]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert [int(token) for token in done.stdout.split()] == tokenizer(text)["input_ids"]
    assert (tmp_path / "theirs" / "tokenization_posenc.py").is_file()
