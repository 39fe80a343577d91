"""Streaming translation: text in, text out, in constant memory, exactly as if the whole text had been there.

Invariant: translation of a stream, cut anywhere, greedily or by beam search, is token for token that of the whole text.
It holds because a model whose reach is finite (`SourceReach`) writes each token from a bounded part of its
source:

    - The encoder reads the source in pieces, with a margin of its reach on both sides.
    - The decoder takes a step only when every key that its hypotheses can attend to has been read.
    - Tokens are written when all hypotheses share them (stream_decoder.py).
    - The end token is allowed only where the end of the source is in the window (generation/limits.py).

Encoder states and cached keys are dropped when no later token can attend to them.

Source reach is how far around its source position a decoding step reads the source. The encoder's state of token i
depends on the tokens i - left .. i + right. A layer adds its window to both, and an
encoding what it reads besides (`left_context` and `lookahead` in encodings/base.py):

    left = layers x window + left_context,    right = layers x window_lookahead + lookahead

A step at source position g attends to the keys less than `cross_window` before it and less than `cross_lookahead` after
it, and the alignment to no others. Where all of these are finite, a translation can be computed while its source is
still being read, and is exactly the translation of the whole source.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
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
from ..transformer.configuration_posenc import PosEncConfig
from ..transformer.modeling_posenc import PosEncForConditionalGeneration
from .onnx_engine import PosEncOnnxModel
from .stream_decoder import BeamSearch, GreedySearch, OnnxStreamDecoder, StreamDecoder, TorchStreamDecoder
from .subword_stream import SubwordReader, SubwordWriter, validate_piece


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
    if alignment.next_source_position is None or alignment.shift_source_positions is None:
        raise ValueError(
            f"Streaming must have an alignment that reads no more of the source than the window, but alignment_type="
            f"{name!r} is not local; choose 'length_ratio' or 'fertility', and train the model with it."
        )
    if not alignment.is_monotonic:
        raise ValueError(
            f"Streaming must have source positions that never move backwards, but alignment_type={name!r} with these "
            f"parameters can; set {name}_min_step to 0 or more."
        )
    layers = encoder.layers
    encoder_left, encoder_right = layers * (window - 1) + left, layers * (window_lookahead - 1) + right
    return SourceReach(encoder_left, encoder_right, cross_window, cross_lookahead)


def local_window(positions: PositionEncodingSum, side: StackSpec) -> tuple[int, int]:
    """The distances from which keys before and after a query are hidden.

    A ValueError where none are hidden, or where positions are absolute.
    """
    for name, entry in side_entries(side).items():
        if not entry.shift_invariant:
            raise ValueError(
                f"Streaming must not depend on how many tokens came before, but `{name}` in the {stack_name(side)} "
                "uses absolute positions; choose a shift-invariant encoding, such as 'relative+window'."
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


# Options of a generation config that change the search and that streaming does not read.
UNSUPPORTED_OPTIONS = (
    "repetition_penalty", "no_repeat_ngram_size", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens",
    "forced_bos_token_id", "min_length", "min_new_tokens", "sequence_bias", "renormalize_logits", "guidance_scale",
    "encoder_repetition_penalty", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "stop_strings",
    "max_time", EXPECTED_LENGTH_OPTION,
)  # fmt: skip

# A model whose reach is known, in torch or as ONNX graphs.
StreamingModel = PosEncForConditionalGeneration | PosEncOnnxModel


class StreamingTranslator:
    """Translates a text of any length while it is being read.

        translator = StreamingTranslator(model, tokenizer)
        for text in source:
            print(translator.feed(text), end="", flush=True)
        print(translator.finish())

    All that `feed` and `finish` return, put together, is `model.translate([whole_text], tokenizer, num_beams=num_beams,
    eos_requires_source_end=True)[0]`. `reach.lookahead` is the number of source tokens that must be read beyond the
    source position of a token before its step. `num_source_tokens` and `num_target_tokens` count what was read and
    written. `truncated` is True if the translation ended at a length limit. One by source position,
    `max_tokens_per_source_position` of the generation config, can end it within the text.

    Beam search writes what all hypotheses share, and therefore later than greedy search. If they share none of
    4096 tokens, those that disagree with the best one are given up. Only then `is_exact` is False.

    A ValueError for a model that reads all of its source, with the reason; for a tokenizer that is not the model's; for
    an option of its generation config that streaming does not read; and for less than one beam.
    """

    def __init__(self, model: StreamingModel, tokenizer: PreTrainedTokenizerBase, num_beams: int = 1) -> None:
        validate_streams(model, num_beams)
        validate_tokenizer(model.config, tokenizer)
        self.model = evaluation_view(model)
        self.reach = compute_source_reach(model.config)
        self.reader, self.writer = SubwordReader(tokenizer), SubwordWriter(tokenizer)
        self.decoder: StreamDecoder = (
            OnnxStreamDecoder(self.model) if isinstance(self.model, PosEncOnnxModel) else TorchStreamDecoder(self.model)
        )
        self.source = EncodedSource(self.model, self.reach)
        (end_token_ids, _), start_token = model.end_tokens(), model.start_token()
        self.search: GreedySearch | BeamSearch = (
            GreedySearch(start_token, end_token_ids)
            if num_beams == 1
            else BeamSearch(num_beams, start_token, end_token_ids, model.generation_config)
        )
        # The source position of each hypothesis' next token. It may lie beyond the end of the source, where the model
        # stops.
        self.source_positions = [0.0] * num_beams
        self.max_tokens_per_position = explicit_option(POSITION_LIMIT_OPTION, {}, model.generation_config)
        self.visit: SourceVisit | None = None
        self.num_target_tokens = 0
        self.is_finished = False
        self.failure: BaseException | None = None

    @property
    def num_source_tokens(self) -> int:
        """How many source tokens were read, held-back ones not included."""
        return self.source.num_read

    @property
    def source_position(self) -> float:
        """The source position of the next token, in beam search that of the best hypothesis."""
        return self.source_positions[0]

    @property
    def has_ended(self) -> bool:
        """Whether the translation has its end token, or has reached its length limit."""
        return self.search.has_ended

    @property
    def truncated(self) -> bool:
        """Whether the translation ended at its length limit."""
        return self.search.truncated

    @property
    def is_exact(self) -> bool:
        """Whether the search has been that of the whole text so far."""
        return self.search.is_exact

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
        if self.is_finished:
            raise ValueError(
                "A stream that has been finished must not be fed, but `feed` was called after `finish`; make a new "
                "StreamingTranslator for the next text."
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
        if self.search.num_tokens >= self.max_target_length():
            if self.source.is_whole:
                self.search.end_at_limit()
            return self.source.is_whole
        first_key = self.reach.first_key(min(self.source_positions))
        # The first step finds its source position itself.
        is_first = self.search.num_tokens == 0
        last_key = self.reach.last_key(
            without_adapters(self.decoder.alignment).max_first_position if is_first else max(self.source_positions)
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
        """Take a step, unless the search has ended; returns the text that is fixed by it, often none."""
        if not self.has_ended:
            self.step()
        tokens = self.search.take_fixed()
        self.num_target_tokens += len(tokens)
        return "".join(map(self.writer.write, tokens))

    def step(self) -> None:
        """One decoding step of all hypotheses."""
        last_tokens_N1 = torch.tensor(self.search.last_tokens, device=self.model.device)[:, None]
        states_NSD = self.source.states(len(last_tokens_N1))
        logits_NV, positions_N = self.decoder.step(last_tokens_N1, states_NSD, self.source.start - self.source.origin)
        positions_N = self.source.origin + positions_N
        sees_end = [
            self.source.is_whole and self.reach.sees(self.source.num_read - 1, position)
            for position in positions_N.tolist()
        ]
        if not bool(logits_NV.isfinite().all()):
            raise ValueError(
                f"Streaming must have finite scores, but after {self.search.num_tokens} target tokens some are "
                "infinite or no numbers. An encoding whose keys grow with the position overflows, such as `xpos`; "
                "stream with the model in float64, or train another encoding."
            )
        self.search.step(logits_NV, sees_end, self.must_end(positions_N), self.max_target_length())
        if self.search.parents is not None:  # all hypotheses have the same source
            self.decoder.reorder(self.search.parents)
            self.visit = self.visit.select(self.search.parents) if self.visit is not None else None
        self.source_positions = [self.source.origin + position for position in self.decoder.next_source_positions()]

    def must_end(self, positions_N: Tensor) -> list[bool]:
        """Whether each hypothesis is at its limit of tokens at one source position, in a step at these positions."""
        if self.max_tokens_per_position is None:
            return [False] * len(positions_N)
        self.visit = SourceVisit.after(self.visit, positions_N[:, None], torch.tensor([[self.source.num_read - 1]]))
        return (self.visit.num_steps_N > self.max_tokens_per_position).tolist()


class EncodedSource:
    """The encoder states of the part of the source that the decoder can still attend to.

    `num_read`: the source tokens that were read. `start`, `end`: the source positions of the first encoder state and
    after the last one. `ids`: the tokens from `first_id` on, which have no state yet or are the left margin of the next
    piece. `is_whole`: the end token has been read. `origin`: the source token from which the decoder counts positions.
    """

    # The most source tokens that are encoded at once. It bounds the memory, and outputs do not depend on it.
    tokens_per_piece = 256

    def __init__(self, model: StreamingModel, reach: SourceReach) -> None:
        self.model, self.reach = model, reach
        self.ids: list[int] = []
        self.num_read = self.first_id = self.start = self.end = self.origin = 0
        self.is_whole = False
        self.states_BSD: Tensor | None = None

    def append(self, ids: list[int]) -> None:
        """Read more of the source."""
        self.ids += ids
        self.num_read += len(ids)

    def encode_piece(self, first_key: int) -> bool:
        """Encode up to `tokens_per_piece` more tokens, and drop the states before `first_key`. False if none are fixed.

        The encoder counts each piece's positions from 0, which changes nothing: its encodings are shift-invariant.
        """
        num_fixed = self.num_read - (0 if self.is_whole else self.reach.encoder_right)
        end = min(num_fixed, self.end + self.tokens_per_piece)
        if end <= self.end:
            return False
        piece = self.ids[: end + self.reach.encoder_right - self.first_id]
        ids_BS = torch.tensor([piece], device=self.model.device)
        piece_BSD = self.model.get_encoder()(ids_BS).last_hidden_state
        new_BSD = piece_BSD[:, self.end - self.first_id : end - self.first_id]
        if self.states_BSD is not None:
            first_key = min(first_key, self.end)
            new_BSD = torch.cat((self.states_BSD[:, first_key - self.start :], new_BSD), dim=1)
            self.start = first_key
        self.states_BSD, self.end = new_BSD, end
        next_id = max(self.first_id, end - self.reach.encoder_left)
        self.ids, self.first_id = self.ids[next_id - self.first_id :], next_id
        return True

    def states(self, num_hypotheses: int) -> Tensor:
        """The encoder states of a decoding step (N, S, D), the same for all hypotheses."""
        assert self.states_BSD is not None  # a step follows the first piece
        return self.states_BSD.expand(num_hypotheses, -1, -1)


def validate_streams(model: object, num_beams: int) -> None:
    """Raise a ValueError for a search or a kind of model that streaming does not support."""
    if not isinstance(model, StreamingModel):
        raise ValueError(
            "Streaming must have an encoder-decoder Transformer of this family, whose reach is known, but the model is "
            f"a {type(model).__name__}; train a PosEncForConditionalGeneration with windows and an alignment."
        )
    if num_beams < 1:
        raise ValueError(f"A beam must be 1 or more wide, but num_beams={num_beams!r}; 1 is greedy search.")
    max_tokens = explicit_option(POSITION_LIMIT_OPTION, {}, model.generation_config)
    if max_tokens is not None:
        validate_position_limit(max_tokens)
    for name in UNSUPPORTED_OPTIONS:
        value = explicit_option(name, {}, model.generation_config)
        if value:
            raise ValueError(
                f"Streaming must search by the model's scores alone, but the model's generation_config has {name}="
                f"{value!r}, which changes them; set it to None."
            )
