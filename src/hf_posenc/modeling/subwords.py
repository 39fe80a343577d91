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

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors, trainers
from tokenizers.models import BPE, Unigram

from .text_checks import check_utf8

SPECIAL_TOKENS = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
RESERVED = [*SPECIAL_TOKENS.values(), *BYTES]
PUNCTUATION = r"\p{P}$+<=>^`|~"
# Subwords never cross these pieces: one punctuation mark, or a run of other characters, with the whitespace before it.
# No piece holds < and >, and so none can spell a reserved token.
PIECE = rf"\s?[{PUNCTUATION}]|\s?[^\s{PUNCTUATION}]+|\s"


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
