"""Viterbi decoding of the hidden Markov model of alignment.py, for batches of documents.

The observations are the words of a translation; a state is a segment, or "no counterpart" after a segment. Shapes: T
tokens, B documents, A of them with a token at the current step, N segments.
"""

from collections.abc import Sequence
from dataclasses import dataclass
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
    scores = np.full((sum(len(document.words) for document in documents), num_segments), LOWEST, dtype=np.float32)
    rows = np.zeros((num_steps, len(documents)), dtype=np.int64)
    starts = np.zeros((num_steps, len(documents)), dtype=np.int64)
    centres = np.zeros((len(documents), num_segments))
    offset = 0
    for number, document in enumerate(documents):
        assert document.scores is not None
        num_words, width = document.scores.shape
        scores[offset : offset + num_words, :width] = document.scores
        rows[: lengths[number], number] = offset + document.rows
        starts[: lengths[number], number] = document.tokens.starts
        offset += num_words
        sizes = np.array([max(len(segment), 1) for segment in document.segments], dtype=float)
        centres[number, :width] = lengths[number] * (np.cumsum(sizes) - sizes / 2) / sizes.sum()
    scales = lengths * POSITION_STD / np.array([len(document.segments) for document in documents])
    active = (lengths[None] > np.arange(num_steps)[:, None]).sum(1)
    return Batch(documents, scores, rows, starts, active, centres if use_positions else None, scales)


class Trellis:
    """Scores of the best paths to each state, for the documents of a batch; and steps through it."""

    def __init__(self, batch: Batch, costs: Costs) -> None:
        self.batch = batch
        self.prices = {
            "stay": np.array(costs.stay),
            "advance": np.array(costs.advance),
            "jump": np.array(costs.jump),
            "none": np.array(costs.none),
            "leave": np.array(costs.leave),
        }
        shape = (len(batch.documents), batch.scores.shape[1])
        jump, advance, none = (self.prices[name][LINE] for name in ("jump", "advance", "none"))
        self.segment_BN = np.full(shape, -jump)
        self.segment_BN[:, 0] = -advance
        self.none_BN = np.full(shape, LOWEST)
        self.none_BN[:, 0] = -none

    def add_words(self, step: int) -> None:
        active = self.batch.active_T[step]
        self.segment_BN[:active] += self.batch.scores[self.batch.rows_TB[step, :active]]
        if self.batch.centres_BN is not None:
            # A normal distribution around the relative position, cut off.
            deviations = (step + 0.5 - self.batch.centres_BN[:active]) / self.batch.scales_B[:active, None]
            self.segment_BN[:active] -= np.minimum(0.5 * deviations**2, MAX_POSITION_COST)

    def advance(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Take one step. Returns back pointers (A, N), and the states from which a jump comes (A,).

        A state of "no counterpart" has N added to its index.
        """
        active = self.batch.active_T[step]
        segment, none = self.segment_BN[:active], self.none_BN[:active]
        at_start = self.batch.starts_TB[step, :active]
        stay, forward, jump, enter, leave = (self.prices[name][at_start][:, None] for name in self.prices)
        best, codes = segment - stay, np.zeros(segment.shape, dtype=np.uint8)
        shifted = np.full_like(segment, LOWEST)
        for code, source, price in ((NEXT, segment, forward), (NEXT_OF_NONE, none, leave)):
            shifted[:, 1:] = source[:, :-1]
            replace_better(best, codes, shifted - price, code)
        replace_better(best, codes, none - leave, SAME_OF_NONE)
        everything = np.concatenate([segment, none], axis=1)
        origins = everything.argmax(1)
        replace_better(best, codes, everything.max(1, keepdims=True) - jump, JUMP)
        entering = segment - enter
        codes += NONE_FROM_SEGMENT * (entering > none).astype(np.uint8)
        self.none_BN[:active] = np.maximum(none, entering)
        self.segment_BN[:active] = best
        self.add_words(step)
        return codes, origins


def replace_better(best: np.ndarray, codes: np.ndarray, scores: np.ndarray, code: int) -> None:
    """Where the scores are higher, write them and their back pointer."""
    better = scores > best
    np.copyto(best, scores, where=better)
    codes[better] = code


def decode(batch: Batch, costs: Costs) -> None:
    """Viterbi decoding of the documents of a batch.

    Back pointers are kept for a block of steps. With several blocks, each is computed again from the scores at its
    start.
    """
    trellis = Trellis(batch, costs)
    num_steps = len(batch.rows_TB)
    block_steps = max(1, MAX_STORED_STEPS // trellis.segment_BN.size)
    starts = list(range(1, num_steps, block_steps))
    trellis.add_words(0)
    saved, block = [], []
    for start in starts:
        saved.append((trellis.segment_BN.copy(), trellis.none_BN.copy()))
        block = [trellis.advance(step) for step in range(start, min(start + block_steps, num_steps))]
    num_segments = trellis.segment_BN.shape[1]
    state = np.concatenate([trellis.segment_BN, trellis.none_BN], axis=1).argmax(1)
    for start in reversed(starts):
        if start != starts[-1]:
            trellis.segment_BN, trellis.none_BN = saved[starts.index(start)]
            block = [trellis.advance(step) for step in range(start, start + block_steps)]
        for step in range(start + len(block) - 1, start - 1, -1):
            set_states(batch, step, state, num_segments)
            codes, origins = block[step - start]
            active = len(codes)
            state[:active] = previous_states(state[:active], codes, origins)
    set_states(batch, 0, state, num_segments)


def set_states(batch: Batch, step: int, state: np.ndarray, num_segments: int) -> None:
    for document, of_document in zip(batch.documents[: batch.active_T[step]], state.tolist(), strict=False):
        document.path[step] = of_document % num_segments  # type: ignore[index]
        document.is_none[step] = of_document >= num_segments  # type: ignore[index]


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
