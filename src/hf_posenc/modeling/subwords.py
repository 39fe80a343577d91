# SPDX-License-Identifier: Apache-2.0
"""Subword vocabularies: byte-pair encoding and unigram, with bytes for unknown characters.

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

from .text_validation import validate_utf8

SPECIAL_TOKENS = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
RESERVED_TOKENS = [*SPECIAL_TOKENS.values(), *BYTE_TOKENS]
PUNCTUATION = r"\p{P}$+<=>^`|~"
# Subwords never cross these pieces: one punctuation mark, or a run of other characters, with the whitespace before it.
# No piece holds < and >, and so none can spell a reserved token.
PRETOKEN_PATTERN = rf"\s?[{PUNCTUATION}]|\s?[^\s{PUNCTUATION}]+|\s"


def train_subwords(texts: Iterable[str], vocab_size: int, subwords: str) -> Tokenizer:
    """One vocabulary learned from `texts`, ready to encode and decode."""
    model_class, trainer_class, build_model = SUBWORD_MODELS[subwords]
    learner = Tokenizer(model_class())
    learner.normalizer, learner.pre_tokenizer = normalizers.Prepend(" "), pretokenizer()
    characters: set[str] = set()

    def validated_texts() -> Iterator[str]:
        for number, text in enumerate(texts):
            validate_utf8(text, f"text {number}")
            characters.update(text)
            yield text

    trainer_options = {
        "vocab_size": max(vocab_size, 0),
        "special_tokens": RESERVED_TOKENS,
        "show_progress": sys.stderr.isatty(),
    }
    try:
        learner.train_from_iterator(validated_texts(), trainer_class(**trainer_options))
    except Exception:  # a unigram trainer's, of no other class, where characters have no room
        validate_vocab_size(characters, vocab_size)
        raise
    validate_vocab_size(characters, vocab_size)
    model, vocabulary = build_model(json.loads(learner.to_str())["model"])
    if len(vocabulary) < vocab_size:
        raise ValueError(
            f"vocab_size must be one that the texts have subwords for, but it is {vocab_size} and they have "
            f"{len(vocabulary)}: use at most {len(vocabulary)}, or more text"
        )
    # A second tokenizer, because the learner counts the bytes among its special tokens and would not decode them.
    backend = Tokenizer(model)
    backend.add_special_tokens(list(SPECIAL_TOKENS.values()))
    backend.normalizer, backend.pre_tokenizer = learner.normalizer, pretokenizer()
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    end_token = SPECIAL_TOKENS["eos_token"]
    backend.post_processor = append_token_processor(end_token, vocabulary[end_token])
    return backend


def validate_vocab_size(characters: set[str], vocab_size: int) -> None:
    """A ValueError if a vocabulary of that size cannot be learned from texts of these characters."""
    if not characters:
        raise ValueError(
            "a tokenizer is trained on at least one character, but the texts are empty: "
            "check the files or the filter they come from"
        )
    min_size = len(RESERVED_TOKENS) + len(characters | {" "})
    if min_size > vocab_size:
        raise ValueError(
            f"vocab_size must hold {len(SPECIAL_TOKENS)} special tokens, {len(BYTE_TOKENS)} bytes and the "
            f"{len(characters | {' '})} different characters of the texts, but it is {vocab_size}: "
            f"use at least {min_size}, and more to have any longer subwords"
        )


def build_bpe(model: dict[str, Any]) -> tuple[BPE, dict[str, int]]:
    merges = [(left, right) for left, right in model["merges"]]
    return BPE(model["vocab"], merges, unk_token=SPECIAL_TOKENS["unk_token"], byte_fallback=True), model["vocab"]


def build_unigram(model: dict[str, Any]) -> tuple[Unigram, dict[str, int]]:
    """The pieces in alphabetical order, because the trainer's order is chance where probabilities are equal, and with
    so many digits as tokenizers' JSON gives back unchanged."""
    pieces = [(piece, 0.0) for piece in RESERVED_TOKENS]
    pieces += sorted((piece, round(score, 6)) for piece, score in model["vocab"][len(RESERVED_TOKENS) :])
    unknown = RESERVED_TOKENS.index(SPECIAL_TOKENS["unk_token"])
    return Unigram(pieces, unknown, byte_fallback=True), {piece: number for number, (piece, _) in enumerate(pieces)}


SUBWORD_MODELS = {
    "bpe": (BPE, trainers.BpeTrainer, build_bpe),
    "unigram": (Unigram, trainers.UnigramTrainer, build_unigram),
}


def pretokenizer() -> pre_tokenizers.PreTokenizer:
    """Splits texts where no subword may cross."""
    return pre_tokenizers.Split(Regex(PRETOKEN_PATTERN), "isolated")


def append_token_processor(token: str, number: int) -> processors.PostProcessor:
    """Appends the token to each text."""
    return processors.TemplateProcessing(
        single=f"$A {token}", pair=f"$A {token} $B {token}", special_tokens=[(token, number)]
    )
