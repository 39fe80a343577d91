# SPDX-License-Identifier: Apache-2.0
"""Subword vocabularies, special tokens and normalization: what the package tokenizers stores in tokenizer.json.

Byte-pair encoding: start with characters and merge the most frequent pair of neighbours until the vocabulary is full.
Rico Sennrich, Barry Haddow, Alexandra Birch. Neural Machine Translation of Rare Words with Subword Units. ACL 2016.
https://aclanthology.org/P16-1162

Unigram: start with a large set of subwords, estimate their probabilities by EM, and remove those whose removal lowers
the likelihood least; a word is segmented into the subwords with the greatest product of probabilities.
Taku Kudo. Subword Regularization: Improving Neural Network Translation Models with Multiple Subword Candidates. ACL
2018. https://aclanthology.org/P18-1007

Departures: a subword includes the space before it. (SentencePiece writes that space as U+2581; here it remains a space,
and a text with U+2581 is decoded unchanged.) A character that is not in the training texts becomes its UTF-8 bytes
instead of an unknown token. The unigram model always takes the best segmentation and samples none.

Normalization steps change a text before it is split. Each is idempotent, and saved with the tokenizer.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors, trainers
from tokenizers.models import BPE, Unigram
from transformers import PreTrainedTokenizerFast

from ..hub.errors import closest_name, validate_utf8

SPECIAL_TOKENS = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
RESERVED_TOKENS = [*SPECIAL_TOKENS.values(), *BYTE_TOKENS]
PUNCTUATION = r"\p{P}$+<=>^`|~"
# Pre-tokens, which no subword crosses: one punctuation mark, or other characters in sequence, with the space before it.
# No pre-token has both < and >, and therefore no subword spells a reserved token.
PRETOKEN_PATTERN = rf"\s?[{PUNCTUATION}]|\s?[^\s{PUNCTUATION}]+|\s"


def train_subwords(texts: Iterable[str], vocab_size: int, subwords: str) -> Tokenizer:
    """A trained backend for one vocabulary, with normalizer, pre-tokenizer, decoder and post-processor.

    Raises a ValueError if the texts have too many characters or too few subwords for `vocab_size`.
    """
    model_class, trainer_class, build_model = SUBWORD_MODELS[subwords]
    learner = Tokenizer(model_class())
    learner.normalizer, learner.pre_tokenizer = normalizers.Prepend(" "), pretokenizer()
    characters: set[str] = set()

    def validated_texts() -> Iterator[str]:
        for number, text in enumerate(texts):
            validate_utf8(text, f"text {number}")
            characters.update(text)
            yield text

    trainer = trainer_class(
        vocab_size=max(vocab_size, 0), special_tokens=RESERVED_TOKENS, show_progress=sys.stderr.isatty()
    )
    try:
        learner.train_from_iterator(validated_texts(), trainer)
    except Exception:  # the unigram trainer raises a bare one if the characters do not fit
        validate_vocab_size(characters, vocab_size)
        raise
    validate_vocab_size(characters, vocab_size)
    model, vocabulary = build_model(learner)
    if len(vocabulary) < vocab_size:
        raise ValueError(
            f"vocab_size must be at most the number of subwords of the texts, {len(vocabulary)}, but it is "
            f"{vocab_size}; use at most {len(vocabulary)}, or more text."
        )
    # A second tokenizer, because in the learner the bytes are special tokens, which it would not decode.
    backend = Tokenizer(model)
    backend.add_special_tokens(list(SPECIAL_TOKENS.values()))
    backend.normalizer, backend.pre_tokenizer = learner.normalizer, pretokenizer()
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    end_token = SPECIAL_TOKENS["eos_token"]
    backend.post_processor = append_token_processor(end_token, vocabulary[end_token])
    return backend


def validate_vocab_size(characters: set[str], vocab_size: int) -> None:
    """Raise a ValueError if a vocabulary of that size has no room for these characters, or if there are none."""
    if not characters:
        raise ValueError(
            "A tokenizer must be trained on at least one character, but the texts are empty; "
            "check their files and filters."
        )
    num_characters = len(characters | {" "})
    min_size = len(RESERVED_TOKENS) + num_characters
    if min_size > vocab_size:
        raise ValueError(
            f"vocab_size must have room for {len(SPECIAL_TOKENS)} special tokens, {len(BYTE_TOKENS)} bytes and the "
            f"{num_characters} different characters of the texts, but it is {vocab_size}; "
            f"use at least {min_size}, and more for longer subwords."
        )


def build_bpe(learner: Tokenizer) -> tuple[BPE, dict[str, int]]:
    """The model with bytes for unknown characters, and its vocabulary, from the learner's JSON."""
    model = json.loads(learner.to_str())["model"]
    merges = [(left, right) for left, right in model["merges"]]
    return BPE(model["vocab"], merges, unk_token=SPECIAL_TOKENS["unk_token"], byte_fallback=True), model["vocab"]


def build_unigram(learner: Tokenizer) -> tuple[Unigram, dict[str, int]]:
    """The model with bytes for unknown characters, and its vocabulary, from the learner's JSON.

    Subwords are in alphabetical order, because the trainer's order is random for equal probabilities. Scores have 6
    digits, which tokenizers' JSON preserves.
    """
    trained = json.loads(learner.to_str())["model"]["vocab"][len(RESERVED_TOKENS) :]
    scored = [(subword, 0.0) for subword in RESERVED_TOKENS]
    scored += sorted((subword, round(score, 6)) for subword, score in trained)
    unknown_id = RESERVED_TOKENS.index(SPECIAL_TOKENS["unk_token"])
    vocabulary = {subword: number for number, (subword, _) in enumerate(scored)}
    return Unigram(scored, unknown_id, byte_fallback=True), vocabulary


SUBWORD_MODELS = {
    "bpe": (BPE, trainers.BpeTrainer, build_bpe),
    "unigram": (Unigram, trainers.UnigramTrainer, build_unigram),
}


def pretokenizer() -> pre_tokenizers.PreTokenizer:
    """The splitter of texts into pre-tokens."""
    return pre_tokenizers.Split(Regex(PRETOKEN_PATTERN), "isolated")


def append_token_processor(token: str, number: int) -> processors.PostProcessor:
    """A post-processor that appends `token`, whose id is `number`, to each text."""
    pair = f"$A {token} $B {token}"
    return processors.TemplateProcessing(single=f"$A {token}", pair=pair, special_tokens=[(token, number)])


def validate_tags(tags: Sequence[str]) -> None:
    """Raise a ValueError for tags that could occur in ordinary text."""
    if isinstance(tags, str) or len(set(tags)) < len(tags):
        raise ValueError(f"Tags must be a list of different tokens, such as ['<2en>', '<2de>'], but they are {tags!r}.")
    for tag in tags:
        if not isinstance(tag, str) or len(tag.split()) != 1 or tag != tag.strip() or tag.isalnum():
            raise ValueError(
                f"A tag must be a word that does not occur in ordinary text, such as '<2en>', but it is {tag!r}; give "
                "it a character that is no letter or digit, and no space."
            )
        if tag in RESERVED_TOKENS:
            raise ValueError(f"A tag must be a new token, but {tag!r} is a reserved one; choose another.")


def existing_special_tokens(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """The named special tokens of an existing tokenizer, by name. Those of a classifier serve as `<s>` and `</s>`."""
    special = {
        "pad_token": tokenizer.pad_token or SPECIAL_TOKENS["pad_token"],
        "bos_token": tokenizer.bos_token or tokenizer.cls_token or SPECIAL_TOKENS["bos_token"],
        "eos_token": tokenizer.eos_token or tokenizer.sep_token or SPECIAL_TOKENS["eos_token"],
    }
    return special if tokenizer.unk_token is None else special | {"unk_token": tokenizer.unk_token}


def to_added_token(token: str | AddedToken, special: bool, named: bool) -> AddedToken:
    """The token in the backend's form: special only if it has a name."""
    added_token = AddedToken(token, special=special) if isinstance(token, str) else token
    special = special or added_token.special
    options = {name: getattr(added_token, name) for name in ("single_word", "lstrip", "rstrip")}
    return AddedToken(
        str(token), special=special and named, normalized=added_token.normalized and not special, **options
    )


def with_tags_read_in_text(backend: Tokenizer, tags: Sequence[str]) -> Tokenizer:
    """A copy of the backend that recognizes these special tokens in a text."""
    state = json.loads(backend.to_str())
    for token in state["added_tokens"]:
        if token["content"] in tags:
            token["special"] = False
    return Tokenizer.from_str(json.dumps(state))


# Normalization.

State = dict[str, Any]  # a normalizer as in tokenizer.json


def no_punctuation() -> normalizers.Normalizer:
    """Each run of punctuation marks and whitespace as one space, none at either end: `T-Shirt.` is `T Shirt`."""
    return normalizers.Sequence([normalizers.Replace(Regex(r"[\p{P}\s]+"), " "), normalizers.Strip()])


NORMALIZATION_STEPS: dict[str, Callable[[], normalizers.Normalizer]] = {
    "lowercase": normalizers.Lowercase,
    "no_punctuation": no_punctuation,
}


def validate_steps(steps: Sequence[str]) -> None:
    """Raise a ValueError for an unknown step, and for one that is given twice."""
    if isinstance(steps, str):
        raise ValueError(f"Normalization must be a list of steps, but it is the text {steps!r}; write [{steps!r}].")
    for step in steps:
        if step not in NORMALIZATION_STEPS:
            raise ValueError(
                f"A normalization step must be one of {', '.join(NORMALIZATION_STEPS)}, but it is {step!r}; the "
                f"nearest one is {closest_name(str(step), NORMALIZATION_STEPS)!r}."
            )
    if len(set(steps)) < len(steps):
        raise ValueError(f"Each normalization step must be given once, but they are {list(steps)}; remove the repeats.")


def build_normalizer(steps: Sequence[str]) -> normalizers.Normalizer:
    """The steps in their order as one normalizer."""
    return normalizers.Sequence([NORMALIZATION_STEPS[step]() for step in steps])


def with_steps(backend: Tokenizer, steps: Sequence[str]) -> Tokenizer:
    """A copy of the backend that applies `steps`, and no other steps, before its own normalizer."""
    state = json.loads(backend.to_str())
    states = [state for step in steps for state in step_states()[step]] + split_normalizer(backend)[1]
    state["normalizer"] = {"type": "Sequence", "normalizers": states} if len(states) > 1 else next(iter(states), None)
    return Tokenizer.from_str(json.dumps(state))


def split_normalizer(backend: Tokenizer) -> tuple[list[str], list[State]]:
    """The steps at the head of a backend's normalizer, and the normalizers behind them as in tokenizer.json."""
    own = flat_states(backend)
    steps: list[str] = []
    while step := next((name for name, states in step_states().items() if own[: len(states)] == states), None):
        steps.append(step)
        own = own[len(step_states()[step]) :]
    return steps, own


@cache
def step_states() -> dict[str, list[State]]:
    """Each step as in tokenizer.json."""
    states = {}
    for step, build in NORMALIZATION_STEPS.items():
        backend = Tokenizer(BPE())
        backend.normalizer = build()
        states[step] = flat_states(backend)
    return states


def flat_states(backend: Tokenizer) -> list[State]:
    """A backend's normalizers as in tokenizer.json: tokenizers saves nested sequences as one."""
    state = json.loads(backend.to_str())["normalizer"]
    if state is None:
        return []
    return state["normalizers"] if state["type"] == "Sequence" else [state]
