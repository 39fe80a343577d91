# SPDX-License-Identifier: Apache-2.0
"""Subword vocabularies: frequent words stay whole, rare ones fall apart, nothing is lost.

Byte-pair encoding: begin with characters and join the most frequent neighbours until the vocabulary is full.
Rico Sennrich, Barry Haddow, Alexandra Birch. Neural Machine Translation of Rare Words with Subword Units. ACL 2016.
https://aclanthology.org/P16-1162

Unigram: begin with far too many pieces, give each a probability by EM, and drop those whose loss costs the text least;
a word is cut into the pieces with the greatest product of probabilities.
Taku Kudo. Subword Regularization: Improving Neural Network Translation Models with Multiple Subword Candidates. ACL
2018. https://aclanthology.org/P18-1007

Departures: a subword carries the space before it (as in SentencePiece, which writes that space as U+2581; here it stays
a space, so a text that holds U+2581 comes back unchanged), a character never seen in training becomes its UTF-8 bytes
instead of an unknown token, and the unigram model always takes the best cut and samples none.
"""

import copy
import json
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors, trainers
from tokenizers.models import BPE, Unigram
from transformers import BatchEncoding, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from .text_checks import check_utf8

SPECIAL_TOKENS = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
RESERVED = [*SPECIAL_TOKENS.values(), *BYTES]
PUNCTUATION = r"\p{P}$+<=>^`|~"
# Subwords never cross these pieces: one punctuation mark, or a run of other characters, with the whitespace before it.
# No piece holds < and >, and so none can spell a reserved token.
PIECE = rf"\s?[{PUNCTUATION}]|\s?[^\s{PUNCTUATION}]+|\s"


class PosEncTokenizer(PreTrainedTokenizerFast):
    """Source and target subwords behind one tokenizer: one vocabulary for both sides, or one for each.

    Laws: `decode(encode(text), skip_special_tokens=True) == text` for every text, any whitespace included. Encoding
    appends `</s>` and nothing else, and `text_target=` does the same: the decoder's start `<s>` is the model's to add.
    A text that spells a special token, such as `</s>`, is read as the characters it consists of. (One that `adopt` took
    over keeps what its own subwords keep of a text.)

    `tokenizer(...)` and what else is asked for without a side is the source's, `text_target=` and `decode` are the
    target's; `decode(..., use_source_tokenizer=True)` reads source tokens. `len(tokenizer)` and `target_vocab_size` are
    the vocabulary sizes, special tokens included, whose numbers are the same on both sides.
    """

    _tokenizer: Tokenizer
    model_input_names = ["input_ids", "attention_mask"]
    vocab_files_names = {"tokenizer_file": "tokenizer.json", "target_tokenizer_file": "target_tokenizer.json"}

    def __init__(
        self,
        *args: Any,
        target_tokenizer_object: Tokenizer | None = None,
        target_tokenizer_file: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        if target_tokenizer_file is not None:
            target_tokenizer_object = Tokenizer.from_file(target_tokenizer_file)
        self._target = target_tokenizer_object
        self._aside: Tokenizer | None = None  # the source's while the target's is in its place

    @classmethod
    def convert_to_native_format(cls, **kwargs: Any) -> dict[str, Any]:
        """What a saved tokenizer is made from: its files as they are."""
        return kwargs

    @classmethod
    def train(
        cls, texts: Iterable[str], vocab_size: int, *, target_texts: Iterable[str] | None = None, subwords: str = "bpe"
    ) -> "PosEncTokenizer":
        """Learn `vocab_size` tokens: 4 special tokens, 256 bytes, each character of `texts`, then `subwords`, which are
        "bpe" or "unigram". With `target_texts`, each side has a vocabulary of its own and of that size.

        Texts are read once and never held. The same texts in the same order give the same tokenizer (but the last
        digits of a unigram's probabilities are chance). A ValueError if texts are empty, or if they have more
        characters or fewer subwords than `vocab_size` asks for.
        """
        if subwords not in SUBWORDS:
            raise ValueError(f"subwords are one of {', '.join(SUBWORDS)}, but not {subwords!r}; choose one of them.")
        source = train_vocabulary(texts, vocab_size, subwords)
        target = None if target_texts is None else train_vocabulary(target_texts, vocab_size, subwords)
        return cls(tokenizer_object=source, target_tokenizer_object=target, split_special_tokens=True, **SPECIAL_TOKENS)

    @classmethod
    def adopt(cls, tokenizer: PreTrainedTokenizerBase) -> "PosEncTokenizer":
        """An existing tokenizer, for both sides: its subwords and their numbers, but `</s>` and no more behind a text.

        A classifier's first and last token serve as `<s>` and `</s>`; those it does not have, and a missing `<pad>`,
        are added. A ValueError if it is not a fast one.
        """
        if isinstance(tokenizer, cls):
            return tokenizer
        if not isinstance(tokenizer, PreTrainedTokenizerFast):
            raise ValueError(
                "An existing tokenizer must be a fast one, with a tokenizer.json, but "
                f"{tokenizer.name_or_path or 'this one'} is a {type(tokenizer).__name__}; convert it, or train one."
            )
        special: dict[str, Any] = {
            "pad_token": tokenizer.pad_token or SPECIAL_TOKENS["pad_token"],
            "bos_token": tokenizer.bos_token or tokenizer.cls_token or SPECIAL_TOKENS["bos_token"],
            "eos_token": tokenizer.eos_token or tokenizer.sep_token or SPECIAL_TOKENS["eos_token"],
        }
        if tokenizer.unk_token is not None:
            special["unk_token"] = tokenizer.unk_token
        backend = copy.deepcopy(tokenizer.backend_tokenizer)
        backend.add_special_tokens(list(special.values()))
        backend.post_processor = end_of_text(special["eos_token"], backend.token_to_id(special["eos_token"]))
        return cls(tokenizer_object=backend, split_special_tokens=True, **special)

    def to_str(self) -> str:
        """All that encoding and decoding depend on."""
        return self._tokenizer.to_str() + (self._target.to_str() if self._target else "")

    @property
    def target_vocab_size(self) -> int:
        return (self._target or self._tokenizer).get_vocab_size()

    @property
    def is_joint(self) -> bool:
        """Whether source and target have one vocabulary."""
        return self._target is None

    def __call__(self, *args: Any, **kwargs: Any) -> BatchEncoding:
        try:
            return super().__call__(*args, **kwargs)
        finally:  # transformers leaves the target's mode only if all went well
            self._switch_to_input_mode()

    def _switch_to_input_mode(self) -> None:
        if self._aside is not None:
            self._tokenizer, self._aside = self._aside, None

    def _switch_to_target_mode(self) -> None:
        if self._target is not None and self._aside is None:
            self._tokenizer, self._aside = self._target, self._tokenizer

    def _decode(self, *args: Any, use_source_tokenizer: bool = False, **kwargs: Any) -> str:
        if not use_source_tokenizer:
            self._switch_to_target_mode()
        try:
            return super()._decode(*args, **kwargs)
        finally:
            self._switch_to_input_mode()

    def _save_pretrained(
        self,
        save_directory: str | os.PathLike,
        file_names: tuple[str, ...],
        legacy_format: bool | None = None,
        filename_prefix: str | None = None,
    ) -> tuple[str, ...]:
        file_names = super()._save_pretrained(save_directory, file_names, legacy_format, filename_prefix)
        if self._target is None:
            return file_names
        prefix = f"{filename_prefix}-" if filename_prefix else ""
        target = os.path.join(save_directory, prefix + self.vocab_files_names["target_tokenizer_file"])
        self._target.save(target)
        return (*file_names, target)


def train_vocabulary(texts: Iterable[str], vocab_size: int, subwords: str) -> Tokenizer:
    """One vocabulary learned from `texts`, ready to encode and decode."""
    empty, trainer, built = SUBWORDS[subwords]
    learner = Tokenizer(empty())
    learner.normalizer, learner.pre_tokenizer = normalizers.Prepend(" "), split()
    characters: set[str] = set()

    def seen() -> Iterator[str]:
        for number, text in enumerate(texts):
            check_utf8(text, f"text {number}")
            characters.update(text)
            yield text

    size = {"vocab_size": max(vocab_size, 0), "special_tokens": RESERVED, "show_progress": sys.stderr.isatty()}
    try:
        learner.train_from_iterator(seen(), trainer(**size))
    except Exception:  # a unigram trainer's, of no other class, where characters have no room
        refuse_characters(characters, vocab_size)
        raise
    refuse_characters(characters, vocab_size)
    model, vocabulary = built(json.loads(learner.to_str())["model"])
    if len(vocabulary) < vocab_size:
        raise ValueError(
            f"vocab_size must be one that the texts have subwords for, but it is {vocab_size} and they have "
            f"{len(vocabulary)}: use at most {len(vocabulary)}, or more text"
        )
    # A second tokenizer, because the learner counts the bytes among its special tokens and would not decode them.
    backend = Tokenizer(model)
    backend.add_special_tokens(list(SPECIAL_TOKENS.values()))
    backend.normalizer, backend.pre_tokenizer = learner.normalizer, split()
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    end = SPECIAL_TOKENS["eos_token"]
    backend.post_processor = end_of_text(end, vocabulary[end])
    return backend


def refuse_characters(characters: set[str], vocab_size: int) -> None:
    """A ValueError if a vocabulary of that size cannot be learned from texts of these characters."""
    if not characters:
        raise ValueError(
            "a tokenizer is trained on at least one character, but the texts are empty: "
            "check the files or the filter they come from"
        )
    least = len(RESERVED) + len(characters | {" "})
    if least > vocab_size:
        raise ValueError(
            f"vocab_size must hold {len(SPECIAL_TOKENS)} special tokens, {len(BYTES)} bytes and the "
            f"{len(characters | {' '})} different characters of the texts, but it is {vocab_size}: "
            f"use at least {least}, and more to have any longer subwords"
        )


def byte_pairs(model: dict[str, Any]) -> tuple[BPE, dict[str, int]]:
    merges = [(left, right) for left, right in model["merges"]]
    return BPE(model["vocab"], merges, unk_token=SPECIAL_TOKENS["unk_token"], byte_fallback=True), model["vocab"]


def unigrams(model: dict[str, Any]) -> tuple[Unigram, dict[str, int]]:
    """The pieces in alphabetical order, because the trainer's order is chance where probabilities are equal, and with
    so many digits as tokenizers' JSON gives back unchanged."""
    pieces = [(piece, 0.0) for piece in RESERVED]
    pieces += sorted((piece, round(score, 6)) for piece, score in model["vocab"][len(RESERVED) :])
    unknown = RESERVED.index(SPECIAL_TOKENS["unk_token"])
    return Unigram(pieces, unknown, byte_fallback=True), {piece: number for number, (piece, _) in enumerate(pieces)}


SUBWORDS = {"bpe": (BPE, trainers.BpeTrainer, byte_pairs), "unigram": (Unigram, trainers.UnigramTrainer, unigrams)}


def split() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(PIECE), "isolated")


def end_of_text(token: str, number: int) -> processors.PostProcessor:
    """Appends the token to each text."""
    return processors.TemplateProcessing(
        single=f"$A {token}", pair=f"$A {token} $B {token}", special_tokens=[(token, number)]
    )
