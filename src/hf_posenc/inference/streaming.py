"""Streaming translation: text in, text out, in constant memory, exactly as if the whole text had been there.

Invariant: greedy translation of a stream, cut anywhere, is token for token that of the whole text. It holds because a
model whose reach is finite (`SourceReach`) writes each token from a bounded part of its source:

    - The encoder reads the source in pieces, with a margin of its reach on both sides.
    - The decoder takes a step only when every key that it can attend to has been read.
    - The end token is allowed only where the end of the source is in the window (generation/limits.py).

Encoder states and cached keys are dropped when no later token can attend to them. Subwords of the source are read as
soon as no later text can change them, and the characters of a translation are those of the whole translation.

Source reach is how far around its source position a decoding step reads the source. The encoder's state of token i
depends on the tokens i - left .. i + right. A layer adds its window to both, and an
encoding what it reads besides (`left_context` and `lookahead` in encodings/base.py):

    left = layers x window + left_context,    right = layers x window_lookahead + lookahead

A step at source position g attends to the keys less than `cross_window` before it and less than `cross_lookahead` after
it, and the alignment to no others. Where all of these are finite, a translation can be computed while its source is
still being read, and is exactly the translation of the whole source.
"""

import json
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer, normalizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerBase

from ..alignments.base import without_adapters
from ..alignments.registry import build_alignment
from ..encodings.base import StackSpec
from ..encodings.registry import build_position_encodings, side_entries
from ..encodings.sum import PositionEncodingSum
from ..generation.limits import (
    EXPECTED_LENGTH_OPTION,
    POSITION_LIMIT_OPTION,
    SourceVisit,
    explicit_option,
    validate_position_limit,
)
from ..generation.translate import evaluation_view, validate_tokenizer
from ..hub.errors import is_blank, require, validate_utf8
from ..tokenizer.tokenization_posenc import (
    BYTE_TOKENS,
    PosEncTokenizer,
    build_normalizer,
    pretokenizer,
    split_normalizer,
)
from ..transformer.configuration_posenc import PosEncConfig
from ..transformer.modeling_posenc import PosEncForConditionalGeneration
from .stream_decoder import EncodedSource, StreamDecoder


@dataclass(frozen=True)
class SourceReach:
    """Numbers of source tokens that one decoding step reads.

    `encoder_left`, `encoder_right`: the tokens before and after a token on which its encoder state depends.
    `cross_window`, `cross_lookahead`: the distances from which keys before and after the source position are hidden.
    """

    encoder_left: int
    encoder_right: int
    cross_window: int
    cross_lookahead: int

    @property
    def left_context(self) -> int:
        """The source tokens before the source position of a target token on which that token can depend."""
        return self.encoder_left + self.cross_window

    @property
    def lookahead(self) -> int:
        """The source tokens after the source position of a target token that must be read before it is written."""
        return self.encoder_right + self.cross_lookahead

    def last_key(self, source_position: float) -> int:
        """The last key that a step at this source position can attend to, in an endless source."""
        return math.ceil(source_position + self.cross_lookahead) - 1

    def first_key(self, source_position: float) -> int:
        """The first key that a step at this source position can attend to."""
        return max(0, math.floor(source_position - self.cross_window) + 1)

    def sees(self, key: int, source_position: float) -> bool:
        """Whether a step at this source position can attend to this key, or is beyond it."""
        return key - source_position < self.cross_lookahead


def compute_source_reach(config: PosEncConfig) -> SourceReach:
    """The reach of a model with this config; a ValueError (rule, value, remedy) if it is not finite."""
    encoder, decoder, cross = map(config.side, ("encoder", "decoder", "cross"))
    with torch.device("meta"):  # their properties alone are read
        encoder_positions, decoder_positions, cross_positions = (
            build_position_encodings(config, side) for side in (encoder, decoder, cross)
        )
        alignment = build_alignment(config)
    window, window_lookahead = local_window(encoder_positions, encoder)
    left, right = encoding_reach(encoder_positions, encoder)
    local_window(decoder_positions, decoder)
    cross_window, cross_lookahead = local_window(cross_positions, cross)
    # Source positions must follow from a cached state, and never move backwards.
    name = config.alignment_type
    require(
        alignment.next_source_position is not None and alignment.shift_source_positions is not None,
        f"Streaming must have an alignment that reads no more of the source than the window, but alignment_type="
        f"{name!r} is not local; choose 'length_ratio' or 'fertility', and train the model with it.",
    )
    require(
        alignment.is_monotonic,
        f"Streaming must have source positions that never move backwards, but alignment_type={name!r} with these "
        f"parameters can; set {name}_min_step to 0 or more.",
    )
    layers = encoder.layers
    encoder_left, encoder_right = layers * (window - 1) + left, layers * (window_lookahead - 1) + right
    return SourceReach(encoder_left, encoder_right, cross_window, cross_lookahead)


def local_window(positions: PositionEncodingSum, side: StackSpec) -> tuple[int, int]:
    """The distances from which keys before and after a query are hidden.

    A ValueError where none are hidden, or where positions are absolute.
    """
    for name, entry in side_entries(side).items():
        require(
            entry.shift_invariant,
            f"Streaming must not depend on how many tokens came before, but `{name}` in the {stack_name(side)} uses "
            "absolute positions; choose a shift-invariant encoding, such as 'relative+window'.",
        )
    before, after = positions.hiding_distance, positions.hiding_lookahead
    if before is None or after is None:
        raise ValueError(
            f"Streaming must have a window in every attention, but {side.encoding!r} in the {stack_name(side)} attends "
            f"to all keys; add the encoding `window`, as in 'relative+window', and train the model with it."
        )
    return before, after


def encoding_reach(positions: PositionEncodingSum, side: StackSpec) -> tuple[int, int]:
    """The tokens before and after a token that encodings read for it; a ValueError if these are all tokens."""
    left = right = 0
    for name, encoding in zip(positions.names, positions, strict=True):
        if encoding.left_context is None or encoding.lookahead is None:
            direction = "after" if encoding.lookahead is None else "before"
            raise ValueError(
                f"Streaming must have a finite reach, but `{name}` in the {stack_name(side)} reads all tokens "
                f"{direction} a token; leave it out, as in 'relative+window'."
            )
        left, right = max(left, encoding.left_context), max(right, encoding.lookahead)
    return left, right


def stack_name(side: StackSpec) -> str:
    """What messages call the attention of a side."""
    return "cross-attention" if side.name == "cross" else side.name


# A pretoken of more characters is refused, because its subwords are known only at its end.
MAX_PRETOKEN_LENGTH = 2**20


class StreamNormalizer:
    """The normalized text of a text that is still being read, each character as soon as no later text can change it.

    Every step normalizes the characters of a word one by one, and may remove whitespace and punctuation at the ends of
    a text or merge them into one space. Therefore all is fixed but such characters at the end.
    """

    def __init__(self, steps: list[str]) -> None:
        self.normalizer = build_normalizer(steps)
        self.held = ""
        self.anchor = ""  # stands for the text before, as soon as there is any

    def feed(self, text: str) -> str:
        """The normalized text that is fixed when this text has been read."""
        text = self.held + text
        num_fixed = len(text)
        while num_fixed and self.vanishes(text[num_fixed - 1]):
            num_fixed -= 1
        self.held = text[num_fixed:][:1]  # as many such characters in sequence are normalized as one of them
        return self.normalize(text[:num_fixed])

    def finish(self) -> str:
        """The normalized text of what was held back."""
        held, self.held = self.held, ""
        return self.normalize(held)

    def normalize(self, text: str) -> str:
        """The normalized text after the text before."""
        anchor = self.anchor
        normalized = self.normalizer.normalize_str(anchor + text)[len(anchor) :]
        self.anchor = anchor or ("a" if normalized else "")
        return normalized

    def vanishes(self, character: str) -> bool:
        """Whether a character is removed at the end of a text."""
        return self.normalizer.normalize_str("a" + character) == "a"


class SubwordReader:
    """The source's subwords, each as soon as no later text can change it.

    Subwords never cross the border of a pretoken: one punctuation mark, or a run of other characters, with the
    whitespace before it. Whether two characters have a border between them depends on these two alone.
    Therefore all pretokens are fixed but the last, and the last is fixed as well if it ends in a punctuation mark.
    """

    def __init__(self, tokenizer: PosEncTokenizer, max_pretoken_length: int = MAX_PRETOKEN_LENGTH) -> None:
        validate_tokenizer_streams(tokenizer)
        self.max_pretoken_length = max_pretoken_length
        self.backend: Tokenizer = tokenizer.backend_tokenizer
        self.normalizer = StreamNormalizer(split_normalizer(self.backend)[0])
        self.end_token_ids: list[int] = tokenizer("")["input_ids"]
        # The last pretoken, in pieces, and the last character. The tokenizer puts a space before a text.
        self.held, self.num_held, self.last = [" "], 0, " "
        self.is_blank = True

    def feed(self, text: str) -> list[int]:
        """The subwords that are fixed when this text has been read."""
        return self.feed_normalized(self.normalizer.feed(text))

    def feed_normalized(self, text: str) -> list[int]:
        """The same of a normalized text."""
        if not text:
            return []
        self.is_blank = self.is_blank and is_blank(text)
        borders = [end for _, (_, end) in self.backend.pre_tokenizer.pre_tokenize_str(self.last + text)]
        if not self.ends_pretoken(text[-1]):
            borders.pop()
        self.last = text[-1]
        if not borders:
            self.hold(text)
            return []
        num_fixed = borders[-1] - 1  # without the character before the text
        fixed = "".join(self.held) + text[:num_fixed]
        self.held, self.num_held = [], 0
        self.hold(text[num_fixed:])
        return self.subwords(fixed)

    def finish(self) -> list[int]:
        """The subwords of what was held back, and the end token."""
        fixed = self.feed_normalized(self.normalizer.finish())
        held, self.held, self.num_held = "".join(self.held), [], 0
        return fixed + self.subwords(held) + self.end_token_ids

    def hold(self, text: str) -> None:
        """Keep text back whose subwords are not fixed; a ValueError for too much of it."""
        self.held.append(text)
        self.num_held += len(text)
        require(
            self.num_held <= self.max_pretoken_length,
            f"A text must have whitespace or punctuation within {self.max_pretoken_length} characters, but "
            f"{self.num_held} characters without either were read; put spaces between the words first.",
        )

    def ends_pretoken(self, character: str) -> bool:
        """Whether a pretoken that ends in this character is fixed: whether another character begins a new one."""
        return len(self.backend.pre_tokenizer.pre_tokenize_str(character + "a")) == 2

    def subwords(self, text: str) -> list[int]:
        """The ids of whole pretokens."""
        pretokens = self.backend.pre_tokenizer.pre_tokenize_str(text) if text else []
        return [token.id for pretoken, _ in pretokens for token in self.backend.model.tokenize(pretoken)]


class SubwordWriter:
    """The text of target subwords, each character as soon as no later subword can change it.

    Only bytes are held back: several of them are one character.
    """

    def __init__(self, tokenizer: PosEncTokenizer) -> None:
        self.tokenizer = tokenizer
        vocabulary = tokenizer.target.get_vocab()
        self.byte_ids = {vocabulary[token] for token in BYTE_TOKENS if token in vocabulary}
        self.special_ids = {*tokenizer.all_special_ids, *tokenizer.extra_special_tokens_ids}
        self.held: list[int] = []
        self.last: list[int] = []

    def write(self, token: int) -> str:
        """The text that is fixed with this subword."""
        if token in self.special_ids:
            return ""
        self.held.append(token)
        return "" if token in self.byte_ids else self.finish()

    def finish(self) -> str:
        """The text of what was held back."""
        # After the token before, because a decoder takes away the space at the beginning of a text.
        before, text = (self.tokenizer.decode(ids) if ids else "" for ids in (self.last, self.last + self.held))
        self.last, self.held = self.held[-1:] or self.last, []
        return text[len(before) :]


def validate_piece(text: object) -> None:
    """Raise a TypeError for anything but text, and a ValueError for half a character."""
    if not isinstance(text, str):
        raise TypeError(
            f"`feed` takes text, but it was given {type(text).__name__}; give it a str. Bytes are decoded by "
            "codecs.getincrementaldecoder('utf-8')(), which keeps half characters for the next piece."
        )
    validate_utf8(text, "the text of `feed`")


def validate_tokenizer_streams(tokenizer: Any) -> None:
    """Raise a ValueError for a tokenizer of which it is not known where subwords are fixed."""
    require(
        isinstance(tokenizer, PosEncTokenizer) and reads_pretokens(tokenizer.backend_tokenizer),
        "Streaming must know where the subwords of a text are fixed, which it does for tokenizers of "
        f"PosEncTokenizer.train, but this one is a {type(tokenizer).__name__} with another way to split a text; train "
        "a tokenizer, and the model with it.",
    )
    named = set(map(str, tokenizer.special_tokens_map.values()))
    added = sorted(set(map(str, tokenizer.added_tokens_decoder.values())) - named)
    require(
        not added,
        f"Streaming must read a text as subwords alone, but this tokenizer also has the added tokens or tags "
        f"{', '.join(map(repr, added[:5]))}; use a tokenizer without them, or translate the text as a whole.",
    )


def reads_pretokens(backend: Tokenizer) -> bool:
    """Whether a tokenizer splits texts as that of `train_subwords`: a space first, then `pretokenizer`.

    Normalization steps before that make no difference.
    """
    ours = Tokenizer(BPE())
    ours.normalizer, ours.pre_tokenizer = normalizers.Prepend(" "), pretokenizer()
    theirs, reference = (json.loads(tokenizer.to_str())["pre_tokenizer"] for tokenizer in (backend, ours))
    return theirs == reference and split_normalizer(backend)[1] == split_normalizer(ours)[1]


# Options of a generation config that change the search and that streaming does not read.
UNSUPPORTED_OPTIONS = (
    "repetition_penalty", "no_repeat_ngram_size", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens",
    "forced_bos_token_id", "min_length", "min_new_tokens", "sequence_bias", "renormalize_logits", "guidance_scale",
    "encoder_repetition_penalty", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "stop_strings",
    "max_time", EXPECTED_LENGTH_OPTION,
)  # fmt: skip


class StreamingTranslator:
    """Translates a text of any length while it is being read.

        translator = StreamingTranslator(model, tokenizer)
        for text in source:
            print(translator.feed(text), end="", flush=True)
        print(translator.finish())

    All that `feed` and `finish` return, put together, is `model.translate([whole_text], tokenizer, num_beams=1,
    eos_requires_source_end=True)[0]`. `reach.lookahead` is the number of source tokens that must be read beyond the
    source position of a token before its step. `num_source_tokens` and `num_target_tokens` count what was read and
    written, `source_position` is that of the next token. `has_ended` is True after the end token or a length limit,
    `truncated` after a limit. One by source position, `max_tokens_per_source_position` of the generation config, can
    end a translation within the text.

    A ValueError for a model that reads all of its source, with the reason; for a tokenizer that is not the model's; and
    for an option of its generation config that streaming does not read.
    """

    def __init__(self, model: PosEncForConditionalGeneration, tokenizer: PreTrainedTokenizerBase) -> None:
        validate_streams(model)
        validate_tokenizer(model.config, tokenizer)
        self.model = evaluation_view(model)
        self.reach = compute_source_reach(model.config)
        self.reader, self.writer = SubwordReader(tokenizer), SubwordWriter(tokenizer)
        self.decoder = StreamDecoder(self.model)
        self.source = EncodedSource(self.model, (self.reach.encoder_left, self.reach.encoder_right))
        self.end_token_ids, _ = model.end_tokens()
        self.last_token = model.start_token()
        self.source_position = 0.0  # may lie beyond the end of the source, where the model stops
        self.max_tokens_per_position = explicit_option(POSITION_LIMIT_OPTION, {}, model.generation_config)
        self.visit: SourceVisit | None = None
        self.num_target_tokens = 0
        self.is_finished = self.has_ended = self.truncated = False
        self.failure: BaseException | None = None

    @property
    def num_source_tokens(self) -> int:
        """How many source tokens were read, held-back ones not included."""
        return self.source.num_read

    def feed(self, text: str) -> str:
        """Read a piece of text; returns the text of the translation that is fixed by it, often none.

        A TypeError for anything but text. A ValueError after `finish`, for half a character, and for 2^20 characters
        without whitespace or punctuation.
        After a step that failed, this and every later call raises the error of that step.
        """
        return "".join(self.feed_tokens(text))

    def feed_tokens(self, text: str) -> Iterator[str]:
        """As `feed`, the text of one token at a time. The piece is read before the first of them."""
        self.refuse_failed()
        require(
            not self.is_finished,
            "A stream that has been finished must not be fed, but `feed` was called after `finish`; make a new "
            "StreamingTranslator for the next text.",
        )
        validate_piece(text)
        with self.keep_failure():
            self.read(self.reader.feed(text))
        return self.write_fixed()

    def finish(self) -> str:
        """End the text; returns the rest of the translation. A second call returns an empty text."""
        return "".join(self.finish_tokens())

    def finish_tokens(self) -> Iterator[str]:
        """As `finish`, the text of one token at a time."""
        self.refuse_failed()
        if not self.is_finished:
            self.is_finished = True
            with self.keep_failure():
                self.read(self.reader.finish())
                self.source.is_whole = True
        yield from self.write_fixed()
        yield self.writer.finish()

    def read(self, ids: list[int]) -> None:
        """Read more source tokens, unless the translation ended within the text, at a limit by source position."""
        if not self.has_ended:
            self.source.append(ids)

    def translate(self, texts: Iterable[str]) -> Iterator[str]:
        """The translation of a text that comes in pieces, each token's text as soon as it is fixed."""
        for text in texts:
            yield from filter(None, self.feed_tokens(text))
        yield from filter(None, self.finish_tokens())

    @contextmanager
    def keep_failure(self) -> Iterator[None]:
        """Keep an error that stops a step halfway, because after it the stream would write another text."""
        try:
            yield
        except BaseException as error:
            error.add_note("The stream ends at this error; translate the text with a new StreamingTranslator.")
            self.failure = error
            raise

    def refuse_failed(self) -> None:
        """Raise the error of the step that failed, if one has."""
        if self.failure is not None:
            raise self.failure.with_traceback(None)

    def write_fixed(self) -> Iterator[str]:
        """Write all tokens for which enough of the source has been read; a blank text has an empty translation."""
        while not (self.has_ended or self.reader.is_blank):
            self.refuse_failed()
            with self.keep_failure(), torch.no_grad():
                text = self.write_token() if self.can_write() else None
            if text is None:
                return
            yield text

    def can_write(self) -> bool:
        """Whether the next step is fixed: all keys that it can attend to are there, and its number is allowed.

        The length limit is that of `translate`, 2 x source + 50 tokens, of the source that has been read so far. Where
        it is reached within a text, the next token waits for more source. Therefore the limit never depends on source
        tokens that are still to come.
        """
        if self.num_target_tokens >= self.max_target_length():
            if self.source.is_whole:
                self.has_ended = self.truncated = True
            return False
        first_key = self.reach.first_key(self.source_position)
        # The first step finds its source position itself.
        is_first = self.num_target_tokens == 0
        last_key = self.reach.last_key(
            without_adapters(self.decoder.alignment).max_first_position if is_first else self.source_position
        )
        while self.source.end <= last_key:
            if not self.source.encode_piece(first_key):
                return self.source.is_whole
            # The new piece's keys are projected in the next step, into a new cache, at positions from the new origin.
            self.decoder.forget_source()
            if (distance := self.source.start - self.source.origin) >= self.decoder.max_origin_distance:
                self.decoder.shift_source_positions(distance)
                self.source.origin = self.source.start
        return True

    def max_target_length(self) -> int:
        """The most tokens of the translation so far, the end token not included."""
        num_source_tokens = self.source.num_read + (0 if self.source.is_whole else len(self.reader.end_token_ids))
        return self.model.max_target_lengths([num_source_tokens])[0]

    def write_token(self) -> str:
        """Take a decoding step; returns the text that is fixed by it, often none."""
        logits_V, position = self.decoder.step(
            self.last_token, self.source.states_1SD, self.source.start - self.source.origin
        )
        require(
            logits_V.isfinite().all(),
            f"Streaming must have finite scores, but after {self.num_target_tokens} target tokens some are infinite or "
            "no numbers. An encoding whose keys grow with the position overflows, such as `xpos`; stream with the "
            "model in float64, or train another encoding.",
        )
        position += self.source.origin
        if self.must_end(position):
            self.has_ended = self.truncated = True
            return ""
        sees_end = self.source.is_whole and self.reach.sees(self.source.num_read - 1, position)
        if not sees_end:
            logits_V[self.end_token_ids] = float("-inf")
        self.last_token = int(logits_V.argmax())
        self.source_position = self.source.origin + self.decoder.next_source_position()
        if self.last_token in self.end_token_ids:
            self.has_ended = True
            return ""
        self.num_target_tokens += 1
        return self.writer.write(self.last_token)

    def must_end(self, position: float) -> bool:
        """Whether the translation is at its limit of tokens at one source position, in a step at this position."""
        if self.max_tokens_per_position is None:
            return False
        last_11 = torch.tensor([[self.source.num_read - 1]])
        self.visit = SourceVisit.after(self.visit, torch.tensor([[position]], dtype=torch.float64), last_11)
        return int(self.visit.num_steps_N) > self.max_tokens_per_position


def validate_streams(model: Any) -> None:
    """Raise a ValueError for a kind of model or an option of its search that streaming does not support."""
    require(
        isinstance(model, PosEncForConditionalGeneration),
        "Streaming must have an encoder-decoder Transformer of this family, whose reach is known, but the model is a "
        f"{type(model).__name__}; train a PosEncForConditionalGeneration with windows and an alignment.",
    )
    max_tokens = explicit_option(POSITION_LIMIT_OPTION, {}, model.generation_config)
    if max_tokens is not None:
        validate_position_limit(max_tokens)
    for name in UNSUPPORTED_OPTIONS:
        value = explicit_option(name, {}, model.generation_config)
        require(
            not value,
            f"Streaming must search by the model's scores alone, but the model's generation_config has {name}="
            f"{value!r}, which changes them; set it to None.",
        )
