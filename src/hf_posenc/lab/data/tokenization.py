"""Training of tokenizers on pairs, encoding of pairs as token ids, and slow tokenizers of transformers.

A fast tokenizer becomes a PosEncTokenizer. A slow one, such as that of opus-mt (MarianTokenizer) or M2M-100, runs
sentencepiece, which no fast tokenizer equals on every text. Therefore it is used as it is: ids, decoded texts and saved
files are its own.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import datasets
from datasets import Dataset, Features, Value
from transformers import AutoTokenizer, BatchEncoding, PreTrainedTokenizerBase

from ...convert.folders import auto_from_pretrained, language_token, language_tokens
from ...hub.errors import data_options
from ...tokenizer.tokenization_posenc import PosEncTokenizer
from ...utils.manifest import sha256
from .corpus import BATCH_SIZE, Batch, map_batches


def train_tokenizer(
    pairs: Dataset,
    vocab_size: int,
    *,
    source_language: str,
    target_language: str,
    joint: bool = True,
    subwords: str = "bpe",
    tags: Sequence[str] = (),
) -> PosEncTokenizer:
    """Train a tokenizer on unfiltered `pairs`: one vocabulary if `joint`, else one for each side."""

    def texts(*languages: str) -> Iterator[str]:
        for batch in pairs.iter(BATCH_SIZE):
            for row in batch["translation"]:
                yield from (row[language] for language in languages)

    sides = (source_language, target_language)
    first, second = (texts(*sides), None) if joint else map(texts, sides)
    return PosEncTokenizer.train(first, vocab_size, target_texts=second, subwords=subwords, tags=tags)


def tokenize_pairs(
    pairs: Dataset, tokenizer: PreTrainedTokenizerBase, *, source_language: str, target_language: str
) -> Dataset:
    """Encode pairs: `input_ids` and `labels` end in `</s>` and are neither truncated nor padded. `source_length` and
    `target_length` are in subwords without special tokens. All pairs are kept, in order."""
    num_special = tokenizer.num_special_tokens_to_add()
    options = {"truncation": False, "return_attention_mask": False} | data_options(tokenizer)

    def tokenize(batch: Batch) -> Batch:
        sources = [row[source_language] for row in batch["translation"]]
        targets = [row[target_language] for row in batch["translation"]]
        input_ids = tokenizer(sources, **options)["input_ids"]
        labels = tokenizer(text_target=targets, **options)["input_ids"]
        return {
            "input_ids": input_ids,
            "labels": labels,
            "source_length": [len(ids) - num_special for ids in input_ids],
            "target_length": [len(ids) - num_special for ids in labels],
        }

    ids, length = datasets.Sequence(Value("int32")), Value("int32")
    features = Features({"input_ids": ids, "labels": ids, "source_length": length, "target_length": length})
    return map_batches(pairs, tokenize, features)


class SlowTokenizer:
    """A slow tokenizer with the calls of PosEncTokenizer that experiments make. All other attributes are its own.

    Invariants: encoding appends `</s>` and nothing else, also with `text_target=`. Without a tag, ids are those of the
    wrapped tokenizer between its special tokens. A language tag is one token: `"__de__ " + text` has one token more
    than `text`, and no decoded text has tags. Tags are those of the wrapped tokenizer, such as `__de__` or `>>fra<<`.
    Departure from PosEncTokenizer: a text that spells `</s>`, or another special token, is read as that token.
    """

    normalization: dict[str, list[str]] = {}

    def __init__(self, wrapped: PreTrainedTokenizerBase) -> None:
        self.wrapped = wrapped
        self.tag_ids = {tag: wrapped.convert_tokens_to_ids(tag) for tag in language_tokens(wrapped).values()}
        if getattr(wrapped, "tgt_lang", "") is None:
            wrapped.tgt_lang = wrapped.src_lang  # M2M-100's encodes no target without a language

    def __getattr__(self, name: str) -> Any:
        if name == "wrapped":  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.wrapped, name)

    def __len__(self) -> int:
        return len(self.wrapped)

    def __call__(
        self,
        text: str | list[str] | None = None,
        text_target: str | list[str] | None = None,
        *,
        add_special_tokens: bool = True,
        truncation: bool = False,
        return_attention_mask: bool = False,
    ) -> BatchEncoding:
        """The `input_ids` of one side's text or texts; `truncation` and `return_attention_mask` must be False."""
        side, texts = ("text", text) if text_target is None else ("text_target", text_target)
        if texts is None or None not in (text, text_target):
            raise ValueError(
                "A slow tokenizer encodes one side at a time, so exactly one of `text` and `text_target` must be "
                "given; call it once for each side."
            )
        if truncation or return_attention_mask:
            raise ValueError(
                "A slow tokenizer returns whole texts without masks, but `truncation` or `return_attention_mask` was "
                "given; call `pad`, which returns masks, and filter by length."
            )
        batch = [texts] if isinstance(texts, str) else texts
        split = [self.split_tag(text) for text in batch]
        options = {"add_special_tokens": False, "truncation": False, "verbose": False, "split_special_tokens": True}
        encoded = self.wrapped(**{side: [text for _, text in split]}, **options)
        end = [self.wrapped.eos_token_id] if add_special_tokens else []
        ids = [[*tag, *subwords, *end] for (tag, _), subwords in zip(split, encoded["input_ids"], strict=True)]
        return BatchEncoding({"input_ids": ids[0] if isinstance(texts, str) else ids})

    def split_tag(self, text: str) -> tuple[list[int], str]:
        """The token of the tag that a text begins with, if any, and the text without it."""
        first, _, rest = text.partition(" ")
        return ([self.tag_ids[first]], rest) if first in self.tag_ids else ([], text)

    def batch_decode(
        self, sequences: Sequence[Sequence[int]], skip_special_tokens: bool = False, **options: object
    ) -> list[str]:
        """The texts of token ids; tags are special tokens."""
        tags = set(self.tag_ids.values()) if skip_special_tokens else set()
        rows = [[token for token in map(int, ids) if token not in tags] for ids in sequences]
        texts: list[str] = self.wrapped.batch_decode(rows, skip_special_tokens=skip_special_tokens, **options)
        return texts

    def num_special_tokens_to_add(self) -> int:
        return 1

    @property
    def bos_token_id(self) -> int:
        """The decoder's start token. MarianMT has no <s>: its decoder starts with <pad>."""
        token = self.wrapped.bos_token_id
        return self.wrapped.pad_token_id if token is None else token

    @property
    def target(self) -> "SlowTokenizer":
        return self

    @property
    def target_vocab_size(self) -> int:
        """The number of tokens of the target's side; a MarianTokenizer may have two vocabularies."""
        return len(getattr(self.wrapped, "target_encoder", self.wrapped))

    @property
    def shares_vocabulary(self) -> bool:
        return not hasattr(self.wrapped, "target_encoder")

    def add_special_tokens(self, special_tokens: dict[str, list[str]]) -> int:
        """Nothing is added: a ValueError for a tag that the tokenizer lacks."""
        for tag in special_tokens["extra_special_tokens"]:
            if tag not in self.tag_ids:
                token = language_token(self.wrapped, tag)
                raise ValueError(f"A tag must be a token, but it is {tag!r}, a language's name; write {token!r}.")
        return 0

    def with_normalization(self, **steps: Sequence[str]) -> "SlowTokenizer":
        """A ValueError: the text of a slow tokenizer is normalized by its own sentencepiece model."""
        raise ValueError(
            f"data.normalize is for fast tokenizers, but data.tokenizer is a {type(self.wrapped).__name__}, which "
            "normalizes by itself; leave data.normalize out, or change the files."
        )

    def to_str(self) -> str:
        """A JSON string of all that encoding and decoding depend on, for hashes."""
        with TemporaryDirectory() as folder:
            files = map(Path, self.wrapped.save_vocabulary(folder))
            hashes = {file.name: sha256(file) for file in files}
        return json.dumps({"class": type(self.wrapped).__name__, "files": hashes}, sort_keys=True)


ExperimentTokenizer = PosEncTokenizer | SlowTokenizer


def adopt_tokenizer(tokenizer: PreTrainedTokenizerBase) -> ExperimentTokenizer:
    """An existing tokenizer of transformers as one for experiments."""
    return PosEncTokenizer.from_fast_tokenizer(tokenizer) if tokenizer.is_fast else SlowTokenizer(tokenizer)


def load_experiment_tokenizer(folder: Path) -> ExperimentTokenizer:
    """The tokenizer of a run, saved in `folder`."""
    if (folder / PosEncTokenizer.vocab_files_names["tokenizer_file"]).exists():
        return PosEncTokenizer.from_pretrained(folder)
    return adopt_tokenizer(auto_from_pretrained(AutoTokenizer, folder))
