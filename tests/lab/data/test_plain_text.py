"""Plain text: documents by empty lines, files and ids; blocks that predict each token once."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset
from support.models import TEXTS
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hf_posenc import PosEncTokenizer
from hf_posenc.lab.data import tokenization
from hf_posenc.lab.data.corpus import validate_corpus_keys
from hf_posenc.lab.data.tokenization import IGNORED, load_blocks, text_chunks, token_pieces, tokenize_pairs

DOCUMENTS = [
    "Ein Hund.\nZwei Kinder\n im Schnee",
    "Zwei",
    "Ein Hund im Schnee.\n\tZwei Hunde.\nEin Kind.\nZwei Kinder.",
]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """The documents in two files. The first file has several empty lines after each document."""
    (tmp_path / "a.txt").write_text("\n" + "\n\n  \n".join(DOCUMENTS[:2]) + "\n\n", encoding="utf-8")
    (tmp_path / "b.txt").write_text(DOCUMENTS[2] + "\n", encoding="utf-8")
    return tmp_path


def whole_tokens(tokenizer: PosEncTokenizer, documents: list[str]) -> list[int]:
    """The documents' tokens, each tokenized at once."""
    return [
        token
        for document in documents
        for token in (tokenizer.bos_token_id, *tokenizer(document)["input_ids"])  # which ends in </s>
    ]


@pytest.mark.parametrize("chunk_lines", [1, 2, 500])
@pytest.mark.parametrize("subwords", ["bpe", "unigram"])
def test_a_document_has_the_tokens_of_its_whole_text(
    text: Path, monkeypatch: pytest.MonkeyPatch, chunk_lines: int, subwords: str
) -> None:
    monkeypatch.setattr(tokenization, "CHUNK_LINES", chunk_lines)
    tokenizer = PosEncTokenizer.train(["\n".join([*TEXTS, *DOCUMENTS])] * 2, 282, subwords=subwords)
    paths = (str(text / "a.txt"), str(text / "b.txt"))
    tokens = np.concatenate([piece for piece, _ in token_pieces(paths, None, tokenizer)]).tolist()
    assert tokens == whole_tokens(tokenizer, DOCUMENTS)
    starts = [i for i, token in enumerate(tokens) if token == tokenizer.bos_token_id]
    for document, (start, end) in zip(DOCUMENTS, pairwise([*starts, len(tokens)]), strict=True):
        assert tokenizer.decode(tokens[start:end], skip_special_tokens=True) == document
    chunks = list(text_chunks({"text": ["a.txt", "b.txt"]}, str(text)))
    assert "\n".join(chunks) == "\n".join(DOCUMENTS)


def test_a_text_that_spells_special_tokens_has_none_whatever_the_tokenizer(tmp_path: Path) -> None:
    """Neither in plain text nor in pairs, because no text of a corpus may end a document or a target."""
    line = "Ein Hund</s>im <s> Schnee.<pad>"
    (tmp_path / "a.txt").write_text(line + "\n", encoding="utf-8")
    tokenizer = PosEncTokenizer.train(TEXTS * 2, 290)
    for reader in (tokenizer.as_reader(), tokenizer.for_prompts()):
        pieces = [piece for piece, _ in token_pieces((str(tmp_path / "a.txt"),), None, reader)]
        assert np.concatenate(pieces).tolist() == whole_tokens(tokenizer, [line])
        pairs = Dataset.from_list([{"translation": {"de": line, "en": line}}])
        (pair,) = tokenize_pairs(pairs, reader, source_language="de", target_language="en")
        (expected,) = tokenize_pairs(pairs, tokenizer, source_language="de", target_language="en")
        assert pair["target_length"] == expected["target_length"]


def test_a_document_may_begin_with_a_line_without_tokens(tmp_path: Path) -> None:
    """As tokenizers have it that drop invisible characters."""
    words = Tokenizer(
        models.WordLevel({"<pad>": 0, "<s>": 1, "</s>": 2, "a": 3, "b": 4, "<unk>": 5}, unk_token="<unk>")
    )
    words.normalizer, words.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.Whitespace()
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, **special)
    (tmp_path / "a.txt").write_text("a b a\n\n\u200b\n\nb b\n", encoding="utf-8")
    blocks = load_blocks(
        {"text": ["a.txt"]}, tokenizer, 4, folder=str(tmp_path), across_documents=True, key="data.train"
    )
    assert blocks["input_ids"] == [[1, 3, 4, 3], [2, 1, 2, 1]]


def test_a_change_of_id_ends_a_document(text: Path, tokenizer: PosEncTokenizer) -> None:
    (text / "ids").write_text("x\nx\ny\ny\n", encoding="utf-8")
    pieces = [piece for piece, _ in token_pieces((str(text / "b.txt"),), str(text / "ids"), tokenizer)]
    lines = DOCUMENTS[2].split("\n")
    assert np.concatenate(pieces).tolist() == whole_tokens(tokenizer, ["\n".join(lines[:2]), "\n".join(lines[2:])])


def test_training_blocks_predict_each_token_once_and_no_start(text: Path, tokenizer: PosEncTokenizer) -> None:
    spec = {"text": ["a.txt", "b.txt"]}
    blocks = load_blocks(spec, tokenizer, 7, folder=str(text), across_documents=True, key="data.train")
    tokens = whole_tokens(tokenizer, DOCUMENTS)
    inputs = [token for row in blocks["input_ids"] for token in row]
    labels = [token for row in blocks["labels"] for token in row]
    assert all(len(row) == 7 for row in blocks["input_ids"])
    assert len(inputs) == (len(tokens) - 1) // 7 * 7
    assert inputs == tokens[: len(inputs)]
    following = tokens[1 : len(inputs) + 1]
    assert labels == [IGNORED if token == tokenizer.bos_token_id else token for token in following]
    assert labels.count(IGNORED) == 2


def test_one_token_may_begin_and_end_documents(text: Path, tokenizer: PosEncTokenizer) -> None:
    """As in the vocabulary of GPT-2. Ends are predicted, and a test window may have them."""
    both = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, bos_token="</s>", eos_token="</s>")
    options = {"folder": str(text), "key": "data.train"}
    blocks = load_blocks({"text": ["a.txt", "b.txt"]}, both, 6, across_documents=True, **options)
    own = load_blocks({"text": ["a.txt", "b.txt"]}, tokenizer, 6, across_documents=True, **options)
    assert blocks["labels"] == own["labels"]
    assert sum(ids.count(both.eos_token_id) for ids in blocks["labels"]) == 2
    size = len(whole_tokens(tokenizer, DOCUMENTS[2:])) - 1
    (window,) = load_blocks({"text": ["b.txt"]}, both, size, across_documents=False, **options)
    assert window["labels"][-1] == both.eos_token_id


def test_test_windows_lie_within_documents(text: Path, tokenizer: PosEncTokenizer) -> None:
    spec = {"text": ["a.txt", "b.txt"]}
    windows = load_blocks(spec, tokenizer, 5, folder=str(text), across_documents=False, key="data.test.x")
    expected = []
    for document in DOCUMENTS:
        tokens = whole_tokens(tokenizer, [document])
        expected += [tokens[start : start + 6] for start in range(0, len(tokens) - 5, 5)]
    assert [[*ids, labels[-1]] for ids, labels in zip(windows["input_ids"], windows["labels"], strict=True)] == expected
    assert all(ids[1:] == labels[:-1] for ids, labels in zip(windows["input_ids"], windows["labels"], strict=True))


@pytest.mark.parametrize(
    ("spec", "length", "across", "message"),
    [
        (
            {"text": ["b.txt"]},
            500,
            True,
            r"more tokens than a block of 500, but data.x has at most \d+.*data.max_length",
        ),
        ({"text": ["a.txt", "b.txt"]}, 60, False, "A test document.*block of 60, but data.x has at most .*max_context"),
        ({"text": ["empty.txt"]}, 5, True, "must have lines, but .*empty.txt is empty"),
        ({"text": ["b.txt"], "document_ids": "short"}, 5, True, "short has fewer lines than the texts"),
        ({"text": ["b.txt"], "document_ids": "long"}, 5, True, "long has more lines than the texts"),
    ],
)
def test_a_text_that_makes_no_block_is_refused(
    text: Path, tokenizer: PosEncTokenizer, spec: dict, length: int, across: bool, message: str
) -> None:
    (text / "empty.txt").touch()
    (text / "short").write_text("x\n" * 3, encoding="utf-8")
    (text / "long").write_text("x\n" * 5, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        load_blocks(spec, tokenizer, length, folder=str(text), across_documents=across, key="data.x")


def test_a_missing_text_is_refused(text: Path, tokenizer: PosEncTokenizer) -> None:
    with pytest.raises(FileNotFoundError, match=r"a file of a corpus must exist, but .*none.txt is not a file"):
        load_blocks({"text": "none.txt"}, tokenizer, 5, folder=str(text), across_documents=True, key="data.x")


def test_keys_of_pairs_are_refused_with_text() -> None:
    validate_corpus_keys(["text", "document_ids"])
    for key in ("min_words", "concatenate", "source_tag", "files"):
        with pytest.raises(ValueError, match=key):
            validate_corpus_keys(["text", key])
