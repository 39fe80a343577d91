"""Viterbi decoding of the hidden Markov model of alignment.py, for batches of documents.

The observations are the words of a translation; a state is a segment, or "no counterpart" after a segment. Shapes: T
tokens, B documents, A of them with a token at the current step, N segments.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np

from .lexicon import LINE, Tokens

POSITION_STD, MAX_POSITION_COST = 1.5, 6.0  # in segments: of the first alignment, which has no table
MAX_BATCH_CELLS = 4_000_000  # scores of the words of a batch
MAX_STORED_STEPS = 50_000_000  # back pointers in memory, one byte each; more are computed twice
LOWEST = -1e9
NEXT, NEXT_OF_NONE, SAME_OF_NONE, JUMP, NONE_FROM_SEGMENT = 1, 2, 3, 4, 8  # back pointers


@dataclass(frozen=True)
class Costs:
    """Costs of transitions before a word: inside a sentence, at its start, and at the start of a line."""

    stay: tuple[float, float, float] = (0.0, 1.0, 3.0)
    advance: tuple[float, float, float] = (4.0, 0.3, 0.0)
    jump: tuple[float, float, float] = (9.0, 5.0, 4.0)
    none: tuple[float, float, float] = (12.0, 2.0, 1.5)
    leave: tuple[float, float, float] = (8.0, 0.3, 0.0)  # from "no counterpart"


COSTS = Costs()
# Of the first alignment without references, which has equal words as its only evidence: in order, nothing left out.
MONOTONE_COSTS = Costs(
    stay=(0.0, 1.0, 2.0), advance=(2.0, 0.0, 0.0), jump=(50.0,) * 3, none=(1e6,) * 3, leave=(0.0,) * 3
)


@dataclass
class Document:
    """Token ids of the segments (the references, if given) and of the translation, and their alignment."""

    segments: list[np.ndarray]
    tokens: Tokens
    words: np.ndarray  # the distinct token ids of the translation
    rows: np.ndarray  # of each token, its index in `words`
    folds: list[int]  # of each segment: its scores are from a lexical table without that fold
    scores: np.ndarray | None = None  # (words, segments)
    path: np.ndarray | None = None  # (tokens,): the segment of each token
    is_none: np.ndarray | None = None  # (tokens,): whether it has no counterpart


class Batch(NamedTuple):
    """Documents by falling number of tokens, padded."""

    documents: list[Document]
    scores: np.ndarray  # (distinct words of all documents, N)
    rows_TB: np.ndarray
    starts_TB: np.ndarray
    active_T: np.ndarray  # documents that have a token t
    centres_BN: np.ndarray | None  # of the segments, in tokens of the translation; None without position priors
    scales_B: np.ndarray  # standard deviation of the position prior, in tokens


def find_paths(documents: Sequence[Document], costs: Costs, use_positions: bool) -> None:
    """Set `path` and `is_none` of each document."""
    pending: list[Document] = []
    for document in documents:
        document.path = np.zeros(len(document.rows), dtype=np.int64)
        document.is_none = np.zeros(len(document.rows), dtype=bool)
        if not document.segments:
            document.is_none[:] = True
        elif len(document.rows):
            pending.append(document)
    pending.sort(key=lambda document: (len(document.rows), len(document.segments)), reverse=True)
    while pending:
        size, num_segments = 0, 0
        for document in pending:
            num_segments = max(num_segments, len(document.segments))
            if size and (size + 1) * num_segments * len(pending[0].rows) > MAX_BATCH_CELLS:
                break
            size += 1
        decode(make_batch(pending[:size], use_positions), costs)
        del pending[:size]


def make_batch(documents: list[Document], use_positions: bool) -> Batch:
    lengths = np.array([len(document.rows) for document in documents])
    num_steps, num_segments = lengths[0], max(len(document.segments) for document in documents)
    shape = (sum(len(document.words) for document in documents), num_segments)
    only = documents[0].scores
    scores = only if only is not None and len(documents) == 1 else np.full(shape, LOWEST, dtype=np.float32)
    rows = np.zeros((num_steps, len(documents)), dtype=np.int64)
    starts = np.zeros((num_steps, len(documents)), dtype=np.int64)
    centres = np.zeros((len(documents), num_segments), dtype=np.float32)
    offset = 0
    for number, document in enumerate(documents):
        assert document.scores is not None
        num_words, width = document.scores.shape
        if scores is not document.scores:
            scores[offset : offset + num_words, :width] = document.scores
        rows[: lengths[number], number] = offset + document.rows
        starts[: lengths[number], number] = document.tokens.starts
        offset += num_words
        sizes = np.array([max(len(segment), 1) for segment in document.segments], dtype=float)
        centres[number, :width] = lengths[number] * (np.cumsum(sizes) - sizes / 2) / sizes.sum()
    scales = lengths * POSITION_STD / np.array([len(document.segments) for document in documents], dtype=np.float32)
    active = (lengths[None] > np.arange(num_steps)[:, None]).sum(1)
    return Batch(documents, scores, rows, starts, active, centres if use_positions else None, scales)


class Trellis:
    """Scores of the best paths to each state, for the documents of a batch; and steps through it.

    Scores are relative to the best one of the step before, so that float32 is exact enough for any number of words.
    """

    def __init__(self, batch: Batch, costs: Costs) -> None:
        self.batch = batch
        self.prices = {name: np.array(prices, dtype=np.float32) for name, prices in asdict(costs).items()}
        shape = (len(batch.documents), batch.scores.shape[1])
        jump, advance, none = (self.prices[name][LINE] for name in ("jump", "advance", "none"))
        self.segment_BN = np.full(shape, -jump)
        self.segment_BN[:, 0] = -advance
        self.none_BN = np.full(shape, LOWEST, dtype=np.float32)
        self.none_BN[:, 0] = -none
        self.leaving_BN = np.empty_like(self.none_BN)
        self.is_better_BN = np.empty(shape, dtype=bool)
        self.rows = np.arange(shape[0])

    def add_words(self, step: int) -> None:
        active = self.batch.active_T[step]
        self.segment_BN[:active] += self.batch.scores[self.batch.rows_TB[step, :active]]
        if self.batch.centres_BN is not None:
            # A normal distribution around the relative position, cut off.
            deviations = (step + 0.5 - self.batch.centres_BN[:active]) / self.batch.scales_B[:active, None]
            self.segment_BN[:active] -= np.minimum(0.5 * deviations**2, MAX_POSITION_COST)

    def advance(self, step: int, keep_pointers: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """Take one step. Returns back pointers (A, N), and the states from which a jump comes (A,).

        A state of "no counterpart" has N added to its index. Without `keep_pointers` only the scores are computed.
        """
        active = self.batch.active_T[step]
        segment, none = self.segment_BN[:active], self.none_BN[:active]
        leaving, is_better = self.leaving_BN[:active], self.is_better_BN[:active]
        rows = self.rows[:active]
        at_start = self.batch.starts_TB[step, :active]
        stay, forward, jump, enter, leave = (
            self.prices[name][at_start][:, None] for name in ("stay", "advance", "jump", "none", "leave")
        )
        top_segment, top_none = segment.argmax(1), none.argmax(1)
        top, other = segment[rows, top_segment], none[rows, top_none]
        origins = np.where(other > top, top_none + segment.shape[1], top_segment)
        top = np.maximum(top, other)[:, None]
        best, codes = segment - (stay + top), np.zeros(segment.shape, dtype=np.uint8)

        def replace_better(candidates: np.ndarray, code: int, first: int = 0) -> None:
            """Where the candidates for the states from `first` on are higher, take their scores and back pointer."""
            if keep_pointers:
                np.greater(candidates, best[:, first:], out=is_better[:, first:])
                np.copyto(codes[:, first:], code, where=is_better[:, first:])
            np.maximum(candidates, best[:, first:], out=best[:, first:])

        replace_better(segment[:, :-1] - (forward + top), NEXT, first=1)
        np.subtract(none, leave + top, out=leaving)
        replace_better(leaving[:, :-1], NEXT_OF_NONE, first=1)
        replace_better(leaving, SAME_OF_NONE)
        replace_better(-jump, JUMP)
        none -= top
        entering = segment - (enter + top)
        if keep_pointers:
            codes += NONE_FROM_SEGMENT * np.greater(entering, none, out=is_better).view(np.uint8)
        np.maximum(none, entering, out=none)
        segment[:] = best
        self.add_words(step)
        return codes, origins


def decode(batch: Batch, costs: Costs) -> None:
    """Viterbi decoding of the documents of a batch.

    Back pointers are kept for a block of steps. With several blocks, each but the last is computed again from the
    scores at its start.
    """
    trellis = Trellis(batch, costs)
    num_steps = len(batch.rows_TB)
    block_steps = max(1, MAX_STORED_STEPS // trellis.segment_BN.size)
    starts = list(range(1, num_steps, block_steps))
    trellis.add_words(0)
    saved: list[tuple[np.ndarray, np.ndarray]] = []
    block: list[tuple[np.ndarray, np.ndarray]] = []
    for start in starts:
        is_last = start == starts[-1]
        saved.append((trellis.segment_BN.copy(), trellis.none_BN.copy()))
        for step in range(start, min(start + block_steps, num_steps)):
            pointers = trellis.advance(step, keep_pointers=is_last)
            if is_last:
                block.append(pointers)
    num_segments = trellis.segment_BN.shape[1]
    state = np.concatenate([trellis.segment_BN, trellis.none_BN], axis=1).argmax(1)
    states_TB = np.zeros(batch.rows_TB.shape, dtype=np.int64)
    for start in reversed(starts):
        if start != starts[-1]:
            trellis.segment_BN, trellis.none_BN = saved[starts.index(start)]
            block = [trellis.advance(step) for step in range(start, start + block_steps)]
        for step in range(start + len(block) - 1, start - 1, -1):
            states_TB[step] = state
            codes, origins = block[step - start]
            active = len(codes)
            state[:active] = previous_states(state[:active], codes, origins)
    states_TB[0] = state
    for number, document in enumerate(batch.documents):
        states = states_TB[: len(document.rows), number]
        document.path, document.is_none = states % num_segments, states >= num_segments


def previous_states(state: np.ndarray, codes: np.ndarray, origins: np.ndarray) -> np.ndarray:
    """The states before a step (A,), from the states after it."""
    num_segments = codes.shape[1]
    index, is_none = state % num_segments, state >= num_segments
    code = codes[np.arange(len(state)), index]
    before_none = np.where(code & NONE_FROM_SEGMENT, index, index + num_segments)
    kind = code & (NONE_FROM_SEGMENT - 1)
    before_segment = np.choose(kind, [index, index - 1, index - 1 + num_segments, index + num_segments, origins])
    result: np.ndarray = np.where(is_none, before_none, before_segment)
    return result
