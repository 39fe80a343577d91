# SPDX-License-Identifier: Apache-2.0
"""Tokenizer of source and target: subwords of both sides, special tokens, language tags and normalization.

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

import copy
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors, trainers
from tokenizers.models import BPE, Unigram
from transformers import BatchEncoding, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from ..hub.errors import TOKENIZER_FILES, closest_name, explain_unreadable, require, require_choice, validate_utf8

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
    require(
        len(vocabulary) >= vocab_size,
        f"vocab_size must be at most the number of subwords of the texts, {len(vocabulary)}, but it is {vocab_size}; "
        f"use at most {len(vocabulary)}, or more text.",
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
    require(
        characters,
        "A tokenizer must be trained on at least one character, but the texts are empty; check their files and "
        "filters.",
    )
    num_characters = len(characters | {" "})
    min_size = len(RESERVED_TOKENS) + num_characters
    require(
        min_size <= vocab_size,
        f"vocab_size must have room for {len(SPECIAL_TOKENS)} special tokens, {len(BYTE_TOKENS)} bytes and the "
        f"{num_characters} different characters of the texts, but it is {vocab_size}; use at least {min_size}, and "
        "more for longer subwords.",
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
    require(
        not isinstance(tags, str) and len(set(tags)) == len(tags),
        f"Tags must be a list of different tokens, such as ['<2en>', '<2de>'], but they are {tags!r}.",
    )
    for tag in tags:
        is_word = isinstance(tag, str) and len(tag.split()) == 1 and tag == tag.strip() and not tag.isalnum()
        require(
            is_word,
            f"A tag must be a word that does not occur in ordinary text, such as '<2en>', but it is {tag!r}; give it a "
            "character that is no letter or digit, and no space.",
        )
        require(
            tag not in RESERVED_TOKENS,
            f"A tag must be a new token, but {tag!r} is a reserved one; choose another.",
        )


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
    require(
        not isinstance(steps, str),
        f"Normalization must be a list of steps, but it is the text {steps!r}; write [{steps!r}].",
    )
    for step in steps:
        remedy = f"the nearest one is {closest_name(str(step), NORMALIZATION_STEPS)!r}"
        require_choice("A normalization step", step, NORMALIZATION_STEPS, remedy)
    require(
        len(set(steps)) == len(steps),
        f"Each normalization step must be given once, but they are {list(steps)}; remove the repeats.",
    )


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


# The tokenizer.

# Padding and truncation are state of the backend, which each call sets, and resets because it must not be saved or
# hashed. Therefore calls encode one at a time.
ENCODING_LOCK = threading.RLock()
if hasattr(os, "register_at_fork"):  # a forked process must not start with a lock that no thread in it releases
    os.register_at_fork(
        before=ENCODING_LOCK.acquire, after_in_parent=ENCODING_LOCK.release, after_in_child=ENCODING_LOCK.release
    )

# A text, a batch of texts, or either as words.
TextInput = str | list[str] | list[list[str]] | None


class PosEncTokenizer(PreTrainedTokenizerFast):
    """Tokenizer of source and target, with one vocabulary for both sides or one for each.

    Invariants: `decode(encode(text), skip_special_tokens=True) == text` for every text without tags, including its
    whitespace. Encoding appends `</s>` and nothing else, also with `text_target=`: the model adds the decoder's start
    `<s>`. A text that spells `</s>`, or another named special token, is read as ordinary characters. (With a tokenizer
    from `from_fast_tokenizer` the text is what its subwords preserve.) Threads may share a tokenizer.

    The tokenizer of a decoder-only model, `as_reader`, reads special tokens in a text instead, because chat templates
    and trainers write them as text. With `data_options`, as in `translate`, no tokenizer finds one in a text.

    Tags are special tokens that are recognized in a text, such as `<2en>`: `train(tags=...)`, or
    `add_special_tokens({"extra_special_tokens": [...]})`. `"<2en> " + text` has one token more than `text`.

    `tokenizer(...)`, `len(tokenizer)`, `get_vocab()` and all that names no side is the source's. `text_target=` and
    `decode` are the target's; `decode(..., use_source_tokenizer=True)` decodes source tokens. `tokenizer.target` is the
    target's side as a tokenizer. Both sides have all special tokens; those of a model's config have one id on both.
    """

    # As of configs: the class in a checkpoint's code, and the function that writes it, None in that code.
    _auto_map: ClassVar = {"AutoTokenizer": ["tokenization_posenc.PosEncTokenizer", None]}
    write_code: ClassVar[Callable[[Path], None] | None] = None
    _tokenizer: Tokenizer
    _extra_special_tokens: list[str | AddedToken]
    # The options of a call for a text that is data.
    data_options: ClassVar = {"split_special_tokens": True}
    model_input_names = ["input_ids", "attention_mask"]
    vocab_files_names = {"tokenizer_file": "tokenizer.json", "target_tokenizer_file": "target_tokenizer.json"}
    _is_target_view = False

    def __init__(
        self,
        *args: object,
        target_tokenizer_object: Tokenizer | None = None,
        target_tokenizer_file: str | None = None,
        **kwargs: object,
    ) -> None:
        # None where both sides have one vocabulary.
        self._target: Tokenizer | None = copy.deepcopy(target_tokenizer_object)
        if target_tokenizer_file is not None:
            self._target = Tokenizer.from_file(target_tokenizer_file)
        super().__init__(*args, **kwargs)
        self._validate_special_ids()

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike, *args: object, **kwargs: object) -> Any:
        """transformers' loading; a ValueError for files that cannot be read."""
        with explain_unreadable(pretrained_model_name_or_path, TOKENIZER_FILES, kwargs):
            return super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)

    @classmethod
    def convert_to_native_format(cls, **kwargs: object) -> dict[str, object]:
        """The constructor's arguments from a saved tokenizer: its files, unchanged."""
        return kwargs

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        vocab_size: int,
        *,
        target_texts: Iterable[str] | None = None,
        subwords: str = "bpe",
        tags: Sequence[str] = (),
    ) -> "PosEncTokenizer":
        """Train a tokenizer of `vocab_size` tokens on `texts`.

        The tokens are 4 special tokens, the `tags`, 256 bytes, each character of the texts, then `subwords`: "bpe" or
        "unigram". With `target_texts`, each side has its own vocabulary of that size.

        Texts are read once and not stored. The same texts in the same order give the same tokenizer, except for the
        last digits of unigram probabilities. Raises a ValueError for empty texts, and for a `vocab_size` that has no
        room for all characters or more room than subwords.
        """
        require_choice("subwords", subwords, SUBWORD_MODELS)
        validate_tags(tags)
        size = vocab_size - len(tags)
        source = train_subwords(texts, size, subwords)
        target = None if target_texts is None else train_subwords(target_texts, size, subwords)
        tokenizer = cls(
            tokenizer_object=source, target_tokenizer_object=target, split_special_tokens=True, **SPECIAL_TOKENS
        )
        tokenizer.add_special_tokens({"extra_special_tokens": list(tags)})
        return tokenizer

    @classmethod
    def from_fast_tokenizer(cls, tokenizer: PreTrainedTokenizerBase) -> "PosEncTokenizer":
        """Convert an existing tokenizer, for both sides: its subwords and ids, with only `</s>` after a text.

        A classifier's first and last token serve as `<s>` and `</s>`; missing ones, and a missing `<pad>`, are added.
        Its special tokens without a name, such as the languages of NLLB, are tags. Raises a ValueError for a tokenizer
        that is not a fast one.
        """
        if isinstance(tokenizer, cls):
            if tokenizer("")["input_ids"] == [tokenizer.eos_token_id] and tokenizer.split_special_tokens:
                return tokenizer
            tokenizer = tokenizer._reading(special_tokens=False)
            processor = append_token_processor(tokenizer.eos_token, tokenizer.eos_token_id)
            tokenizer._tokenizer.post_processor = processor
            return tokenizer
        if not isinstance(tokenizer, PreTrainedTokenizerFast):
            raise ValueError(
                "An existing tokenizer must be a fast one, with a tokenizer.json, but "
                f"{tokenizer.name_or_path or 'this one'} is a {type(tokenizer).__name__}; convert it, or train one."
            )
        special = existing_special_tokens(tokenizer)
        tags = [tag for tag in tokenizer.extra_special_tokens if tag not in special.values()]
        backend = with_tags_read_in_text(tokenizer.backend_tokenizer, tags)
        backend.add_special_tokens(list(special.values()))
        end_token_id = backend.token_to_id(special["eos_token"])
        assert end_token_id is not None  # it was added above
        backend.post_processor = append_token_processor(special["eos_token"], end_token_id)
        return cls(tokenizer_object=backend, split_special_tokens=True, extra_special_tokens=tags, **special)

    def with_normalization(self, source: Sequence[str] = (), target: Sequence[str] = ()) -> "PosEncTokenizer":
        """A copy whose texts go through these steps first, of "lowercase" and "no_punctuation", and through no others.

        The steps are saved with the tokenizer. They change no vocabulary, even where the two sides have different ones.
        Raises a ValueError for an unknown step.
        """
        for steps in (source, target):
            validate_steps(steps)
        tokenizer = copy.deepcopy(self)
        tokenizer._tokenizer = with_steps(self._tokenizer, source)
        if self._target is not None or list(source) != list(target):
            tokenizer._target = with_steps(self._target or self._tokenizer, target)
        return tokenizer

    def as_reader(self) -> "PosEncTokenizer":
        """A copy that reads the special tokens in a text, for a decoder-only model."""
        return self._reading(special_tokens=True)

    def for_prompts(self) -> "PosEncTokenizer":
        """A copy with `<s>` before a text and nothing after it: the beginning of a document, for a language model. It
        reads the special tokens in a text, such as the `</s>` that trainers of transformers append."""
        tokenizer, start = self.as_reader(), self.bos_token
        tokenizer._tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{start} $A", pair=f"{start} $A $B", special_tokens=[(start, self.bos_token_id)]
        )
        return tokenizer

    def _reading(self, *, special_tokens: bool) -> "PosEncTokenizer":
        tokenizer = copy.deepcopy(self)
        tokenizer.split_special_tokens = tokenizer.init_kwargs["split_special_tokens"] = not special_tokens
        for backend in filter(None, (tokenizer._tokenizer, tokenizer._target)):
            backend.encode_special_tokens = not special_tokens
        return tokenizer

    @property
    def normalization(self) -> dict[str, list[str]]:
        """The steps of each side that has any, such as `{"source": ["lowercase"]}`."""
        sides = {"source": self._tokenizer, "target": self._target or self._tokenizer}
        steps = {side: split_normalizer(backend)[0] for side, backend in sides.items()}
        return {side: names for side, names in steps.items() if names}

    def to_str(self) -> str:
        """A JSON string of all that encoding and decoding depend on, for hashes."""
        return self._tokenizer.to_str() + (self._target.to_str() if self._target else "")

    @property
    def target(self) -> "PosEncTokenizer":
        """The target's side as a tokenizer; the tokenizer itself where both sides share a vocabulary.

        Its `get_vocab`, `convert_tokens_to_ids` and `len` are the target's. Each access makes a new object.
        """
        if self._target is None:
            return self
        side = copy.copy(self)
        side._tokenizer, side._target, side._is_target_view = self._target, None, True
        return side

    @property
    def target_vocab_size(self) -> int:
        """The number of tokens of the target's side."""
        return (self._target or self._tokenizer).get_vocab_size()

    @property
    def shares_vocabulary(self) -> bool:
        """Whether source and target share one vocabulary; their normalization may differ."""
        return self._target is None or self._target.get_vocab() == self._tokenizer.get_vocab()

    def __call__(
        self,
        text: TextInput = None,
        text_pair: TextInput = None,
        text_target: TextInput = None,
        text_pair_target: TextInput = None,
        *,
        max_target_length: int | None = None,
        **options: object,
    ) -> BatchEncoding:
        """transformers' encoding, each side with its own vocabulary; targets are returned as `labels`."""
        require(
            text is not None or text_target is not None,
            "Either `text` or `text_target` must be given, but both are None; give one, or both.",
        )
        source = None if text is None else super().__call__(text, text_pair, **options)
        if text_target is None:
            return source
        if max_target_length is not None:
            options["max_length"] = max_target_length
        labels = super(PosEncTokenizer, self.target).__call__(text_target, text_pair_target, **options)
        if source is None:
            return labels
        source["labels"] = labels["input_ids"]
        return source

    def _encode_plus(self, *args: object, **options: object) -> BatchEncoding:
        backend = self._tokenizer
        with ENCODING_LOCK:
            try:
                return super()._encode_plus(*args, **options)
            finally:
                backend.no_padding()
                backend.no_truncation()
                backend.encode_special_tokens = self.split_special_tokens

    def _decode(
        self,
        token_ids: int | Sequence[int],
        skip_special_tokens: bool = False,
        *,
        use_source_tokenizer: bool = False,
        **options: object,
    ) -> str:
        side = self if use_source_tokenizer else self.target
        if skip_special_tokens and side._extra_special_tokens and isinstance(token_ids, Sequence):
            tags = set(side.extra_special_tokens_ids)
            token_ids = [token for token in token_ids if token not in tags]
        return super(PosEncTokenizer, side)._decode(token_ids, skip_special_tokens, **options)

    def add_special_tokens(self, special_tokens_dict: dict[str, Any], replace_extra_special_tokens: bool = True) -> int:
        """Add special tokens to both vocabularies; returns the number of new ones.

        Tokens without a name are tags: they are recognized in a text, with the spaces around them, and remain special
        when others are added.
        """
        new_special_tokens = dict(special_tokens_dict)
        for key in {"extra_special_tokens", "additional_special_tokens"} & new_special_tokens.keys():
            tags = new_special_tokens[key]
            new_special_tokens[key] = [
                AddedToken(tag, lstrip=True, rstrip=True) if isinstance(tag, str) else tag for tag in tags
            ]
        previous_tags = self._extra_special_tokens
        added = super().add_special_tokens(new_special_tokens, replace_extra_special_tokens)
        tags_by_name = {str(tag): tag for tag in (*previous_tags, *self._extra_special_tokens)}
        self._extra_special_tokens = list(tags_by_name.values())
        return added

    def _add_tokens(self, new_tokens: list[str | AddedToken], special_tokens: bool = False) -> int:
        # Tags are not special in the backend, which skips special tokens in texts.
        require(
            not self._is_target_view,
            "Tokens must be added to both vocabularies at once, but this is the target's side alone; call the method "
            "of the whole tokenizer.",
        )
        named = {str(token) for token in self._special_tokens_map.values() if token is not None}
        tokens = [to_added_token(token, special_tokens, str(token) in named) for token in new_tokens]
        added = self._tokenizer.add_tokens(tokens)
        if self._target is not None:
            self._target.add_tokens(tokens)
            self._validate_special_ids()
        return added

    def _validate_special_ids(self) -> None:
        """Raise a ValueError if a special token of a model's config has different ids on the two sides."""
        if self._target is None:
            return
        for name in SPECIAL_TOKENS:
            token = getattr(self, name)
            ids = [None if token is None else side.token_to_id(token) for side in (self._tokenizer, self._target)]
            require(
                ids[0] == ids[1],
                f"A model's config has one id for the {name} of both sides, but {token!r} is {ids[0]} in the source's "
                f"vocabulary and {ids[1]} in the target's; give both the same special tokens first.",
            )

    def train_new_from_iterator(self, *args: object, **options: object) -> "PosEncTokenizer":
        """transformers' training of a new tokenizer; a ValueError for two vocabularies."""
        require(
            self._target is None,
            "One iterator of texts trains one vocabulary, but this tokenizer has two; call "
            "PosEncTokenizer.train(texts, vocab_size, target_texts=...).",
        )
        return super().train_new_from_iterator(*args, **options)

    def _save_pretrained(
        self,
        save_directory: str | os.PathLike,
        file_names: tuple[str, ...],
        legacy_format: bool | None = None,
        filename_prefix: str | None = None,
    ) -> tuple[str, ...]:
        file_names = super()._save_pretrained(save_directory, file_names, legacy_format, filename_prefix)
        write_code = type(self).write_code
        if write_code is not None:
            write_code(Path(save_directory))
        if self._target is None:
            return file_names
        prefix = f"{filename_prefix}-" if filename_prefix else ""
        target = os.path.join(save_directory, prefix + self.vocab_files_names["target_tokenizer_file"])
        self._target.save(target)
        return (*file_names, target)
