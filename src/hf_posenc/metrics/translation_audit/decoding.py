"""Alignment of a translated document to its segments: a hidden Markov model whose states are the segments.

The observations are the words of the translation, from first to last. A state is a segment, or "no counterpart" after
a segment. A word w in segment i scores the log of its likelihood ratio to the unigram distribution b of translations:

    log(UNALIGNED + (1 - UNALIGNED) p_i(w) / b(w)),    p_i(w) = mean over the words f of segment i of t(w | f),

and 0 in "no counterpart". Transitions cost a fixed price: to stay, to the next segment, to any other segment, and to
"no counterpart". Inside a sentence of the translation they cost more than at its start. The path of the lowest cost
(Viterbi) therefore finds segments that are left out, repeated, moved or invented, without sentence boundaries in the
translation. A hidden Markov model for words is that of Vogel et al. (https://aclanthology.org/C96-2141).

Documents are decoded in batches, in time linear in words times segments. One of more than MAX_SEGMENTS is divided into
parts first, by the same model on groups of segments, so that its time is linear in words.

In the decoder: T tokens, B documents, A of them with a token at the current step, N segments.

A translation of a whole document is also cut into the segments of its references, to score it segment by segment.
The cut is that with the lowest total word error rate against the references. Then every metric of sentences applies,
however a system segments its input.

Evgeny Matusov, Gregor Leusch, Oliver Bender, Hermann Ney. Evaluating Machine Translation Output with Automatic Sentence
Segmentation. IWSLT 2005. https://aclanthology.org/2005.iwslt-1.19

The alignment is computed by the package mweralign, on words, without case. Its licence is GPL-3.0-or-later: it is an
extra, "resegmentation", and is imported only when a text is cut. Departure: in about 6 % of random cases of a few
words, its cut has one word error more than the best.
"""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from threading import Lock
from typing import NamedTuple

import numpy as np

from .lexicon import INSIDE, LINE, NUM_FOLDS, UNMARKED, Tokens, TranslationTable, Vocabulary, tokenize, train_tables

POSITION_STD, MAX_POSITION_COST = 1.5, 6.0  # in segments: of the first alignment, which has no table
MAX_BATCH_CELLS = 4_000_000  # scores of the words of a batch
MAX_SEGMENTS = 500  # of a document that is decoded as a whole
# Of a longer one: groups of segments, words of a unit, segments of a part.
MAX_GROUPS, UNIT_TOKENS, PART_SEGMENTS = 250, 20, 50
LOWEST = -1e9
NEXT, NEXT_OF_NONE, SAME_OF_NONE, JUMP, NONE_FROM_SEGMENT = 1, 2, 3, 4, 8  # back pointers
Prices = tuple[float, float, float, float]  # of one transition, before each of the four kinds of word


@dataclass(frozen=True)
class Costs:
    """Costs of transitions before a word: inside a sentence, at its start, at that of a line, and without marks.

    Without marks, any word may start a segment. One of 20 does: it costs what a start of a sentence does, and log 20.
    """

    stay: Prices = (0.0, 1.0, 3.0, 0.0)
    advance: Prices = (4.0, 0.3, 0.0, 3.3)
    jump: Prices = (9.0, 5.0, 4.0, 8.0)
    none: Prices = (12.0, 2.0, 1.5, 5.0)
    leave: Prices = (8.0, 0.3, 0.0, 3.3)  # from "no counterpart"


COSTS = Costs()
# Of the first alignment without references, which has equal words as its only evidence: in order, nothing left out.
MONOTONE_COSTS = Costs(
    stay=(0.0, 1.0, 2.0, 0.0), advance=(2.0, 0.0, 0.0, 2.0), jump=(50.0,) * 4, none=(1e6,) * 4, leave=(0.0,) * 4
)


@dataclass
class Document:
    """Token ids of the segments (the references, if given) and of the translation, and their alignment."""

    segments: list[np.ndarray]
    tokens: Tokens
    words: np.ndarray  # the distinct token ids of the translation
    rows: np.ndarray  # of each token, its index in `words`
    folds: list[int]  # of each segment: its scores are from a lexical table without that fold
    # Set by `align_documents`:
    scores: np.ndarray = field(init=False)  # (words, segments)
    path: np.ndarray = field(init=False)  # (tokens,): the segment of each token
    is_none: np.ndarray = field(init=False)  # (tokens,): whether it has no counterpart


class Part(NamedTuple):
    """A part of a long document: its first token and first segment in the whole."""

    whole: Document
    start: int
    segment: int
    document: Document


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
    parts: list[Part] = []
    for document in documents:
        document.path = np.zeros(len(document.rows), dtype=np.int64)
        document.is_none = np.zeros(len(document.rows), dtype=bool)
        if not document.segments:
            document.is_none[:] = True
        elif len(document.rows) and len(document.segments) <= MAX_SEGMENTS:
            pending.append(document)
        elif len(document.rows):
            parts += parts_of(document, costs, use_positions)
    pending += [part.document for part in parts]
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
    for part in parts:
        end = part.start + len(part.document.rows)
        part.whole.path[part.start : end] = part.document.path + part.segment
        part.whole.is_none[part.start : end] = part.document.is_none
    for document in {id(part.whole): part.whole for part in parts}.values():
        align_from_far(document, costs)


def align_from_far(document: Document, costs: Costs) -> None:
    """Align words without a counterpart in their part to the best segment of the whole, if it pays for two jumps.

    A single moved or repeated segment is too short for the path of groups.
    """
    edges = np.flatnonzero(np.diff(document.is_none, prepend=False, append=False))
    for start, end in edges.reshape(-1, 2):
        totals = document.scores[document.rows[start:end]].sum(0)
        if totals.max() > 2 * costs.jump[INSIDE]:
            document.path[start:end] = totals.argmax()
            document.is_none[start:end] = False


def parts_of(document: Document, costs: Costs, use_positions: bool) -> Iterator[Part]:
    """The parts of a long document in which segments follow each other, with their neighbours.

    They are those of a path of groups of segments, whose observations are units of some words. The score of a word in a
    group is that in its best segment.
    """
    num_segments = len(document.segments)
    size = -(-num_segments // MAX_GROUPS)
    first_segments = np.arange(0, num_segments, size)
    scores = np.maximum.reduceat(document.scores, first_segments, axis=1)
    starts = np.arange(0, len(document.rows), UNIT_TOKENS)
    units = np.arange(len(starts))
    groups = [np.concatenate(document.segments[first : first + size]) for first in first_segments]
    coarse = Document(groups, Tokens([], [], [INSIDE] * len(units), False), units, units, [])
    coarse.scores = np.array([scores[document.rows[start : start + UNIT_TOKENS]].sum(0) for start in starts])
    find_paths([coarse], costs, use_positions)
    steps = np.diff(coarse.path, append=-1)
    margin = 0 if use_positions else 1  # positions are those of a translation without its neighbours
    first = 0
    for unit in range(len(units)):
        low, high = int(coarse.path[first]), int(coarse.path[unit])
        if steps[unit] in (0, 1) and (high - low) * size < PART_SEGMENTS:
            continue
        start, end = first * UNIT_TOKENS, (unit + 1) * UNIT_TOKENS
        segments = slice(max(low - margin, 0) * size, (high + 1 + margin) * size)
        kept, rows = np.unique(document.rows[start:end], return_inverse=True)
        tokens = Tokens([], [], document.tokens.starts[start:end], False)
        part = Document(document.segments[segments], tokens, document.words[kept], rows, [])
        part.scores = document.scores[kept, segments]
        yield Part(document, start, segments.start, part)
        first = unit + 1


def make_batch(documents: list[Document], use_positions: bool) -> Batch:
    lengths = np.array([len(document.rows) for document in documents])
    num_steps, num_segments = lengths[0], max(len(document.segments) for document in documents)
    shape = (sum(len(document.words) for document in documents), num_segments)
    scores = documents[0].scores if len(documents) == 1 else np.full(shape, LOWEST, dtype=np.float32)
    rows = np.zeros((num_steps, len(documents)), dtype=np.int64)
    starts = np.zeros((num_steps, len(documents)), dtype=np.int64)
    centres = np.zeros((len(documents), num_segments), dtype=np.float32)
    offset = 0
    for number, document in enumerate(documents):
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

    def advance(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Take one step. Returns back pointers (A, N), and the states from which a jump comes (A,).

        A state of "no counterpart" has N added to its index.
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
        codes += NONE_FROM_SEGMENT * np.greater(entering, none, out=is_better).view(np.uint8)
        np.maximum(none, entering, out=none)
        segment[:] = best
        self.add_words(step)
        return codes, origins


def decode(batch: Batch, costs: Costs) -> None:
    """Viterbi decoding of the documents of a batch. Back pointers take one byte for each word and segment."""
    trellis = Trellis(batch, costs)
    num_steps, num_segments = len(batch.rows_TB), trellis.segment_BN.shape[1]
    trellis.add_words(0)
    pointers = [trellis.advance(step) for step in range(1, num_steps)]
    state = np.concatenate([trellis.segment_BN, trellis.none_BN], axis=1).argmax(1)
    states_TB = np.zeros(batch.rows_TB.shape, dtype=np.int64)
    states_TB[-1] = state
    for step in range(num_steps - 2, -1, -1):
        codes, origins = pointers[step]
        active = len(codes)
        state[:active] = previous_states(state[:active], codes, origins)
        states_TB[step] = state
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


UNALIGNED = 0.45  # weight of the unigram distribution in a segment
MIN_UNIGRAM_TOKENS = 1000
MAX_WORD_SCORE = 4.0  # a single rare word is not enough to jump to its segment
NUM_ROUNDS = 3  # of training and alignment, without references
MIN_DOCUMENTS = 2 * NUM_FOLDS  # fewer are divided into folds by blocks of their segments
BLOCK_SEGMENTS = 5
MAX_CELLS = 4_000_000_000  # tokens times segments of a document: about 350,000 words
IDENTITY = {True: 0.7, False: 0.1}  # probability that a word is translated by itself, within one language or not


def align_documents(
    segments: Sequence[Sequence[str]],
    translations: Sequence[str],
    pairs: Sequence[tuple[str, str]] = (),
    *,
    same_language: bool,
) -> list[Document]:
    """The documents with their alignments. `pairs` are further parallel texts to train the lexical model on.

    With `same_language`, the segments are references: equal words are evidence, and one round is enough.
    """
    vocabulary = Vocabulary()
    documents = []
    for number, (texts, translation) in enumerate(zip(segments, translations, strict=True)):
        tokens = tokenize(translation)
        words, rows = np.unique(vocabulary.ids(tokens.keys), return_inverse=True)
        if len(rows) * len(texts) > MAX_CELLS:
            raise ValueError(
                f"A document must have at most {MAX_CELLS} tokens times segments, but document {number} has "
                f"{len(rows)} tokens and {len(texts)} segments; give its chapters as documents of their own."
            )
        units = [tokenize(text) for text in texts]
        ids = [vocabulary.ids(unit.keys) for unit in units]
        folds = segment_folds(number, len(ids), len(translations))
        documents.append(Document(ids, with_unmarked_starts(tokens, units), words, rows, folds))
    pair_ids = [
        (vocabulary.ids(tokenize(source).keys), vocabulary.ids(tokenize(target).keys)) for source, target in pairs
    ]
    unigrams = unigram_distribution(documents, vocabulary.size)
    tables: list[TranslationTable | None] = [None] * NUM_FOLDS
    if pair_ids:
        tables = train_tables(pair_ids, [-1] * len(pair_ids), vocabulary.size)
    for round_number in range((1 if same_language else NUM_ROUNDS) + 1):
        if round_number:
            aligned, folds = aligned_texts(documents)
            tables = train_tables([*pair_ids, *aligned], [-1] * len(pair_ids) + folds, vocabulary.size)
        is_first_guess = not same_language and not pair_ids and round_number == 0
        for document in documents:
            identity = 1.0 if tables[0] is None else IDENTITY[same_language]
            document.scores = word_scores(document, tables, unigrams, identity)
            if is_first_guess:
                np.maximum(document.scores, 0, out=document.scores)
        find_paths(documents, MONOTONE_COSTS if is_first_guess else COSTS, use_positions=is_first_guess)
    return documents


def with_unmarked_starts(tokens: Tokens, segments: Sequence[Tokens]) -> Tokens:
    """The tokens of a translation; if most ends of its segments are not marked, any word may start one.

    Verses, headlines and cells have no closing punctuation. Lines of the translation are marks, too.
    """
    num_unmarked = sum(not segment.is_ended for segment in segments)
    if num_unmarked <= len(segments) / 2 or tokens.starts.count(LINE) > len(segments) / 2:
        return tokens
    return tokens._replace(starts=[start or UNMARKED for start in tokens.starts])


def unigram_distribution(documents: Sequence[Document], vocabulary_size: int) -> np.ndarray:
    """The relative frequency of each word of the translations, smoothed by one; other words have no meaning.

    In a text of fewer than MIN_UNIGRAM_TOKENS tokens, a word that occurs once is as rare as in a text of so many. All
    words of one sentence would be frequent otherwise, and none of them evidence.
    """
    counts = np.ones(vocabulary_size)
    for document in documents:
        np.add.at(counts, document.words[document.rows], 1)
    total = counts.sum()
    once = 2 * total / max(total, MIN_UNIGRAM_TOKENS)
    distribution: np.ndarray = (np.maximum(counts - 2, 0) + once) / total
    return distribution


def segment_folds(number: int, num_segments: int, num_documents: int) -> list[int]:
    """The folds of a document's segments: the whole document is one, unless there are few documents."""
    if num_documents >= MIN_DOCUMENTS:
        return [number % NUM_FOLDS] * num_segments
    return [(number + segment // BLOCK_SEGMENTS) % NUM_FOLDS for segment in range(num_segments)]


def aligned_texts(documents: Sequence[Document]) -> tuple[list[tuple[np.ndarray, np.ndarray]], list[int]]:
    """Each segment with its aligned words, and its fold."""
    texts: list[tuple[np.ndarray, np.ndarray]] = []
    folds: list[int] = []
    for document in documents:
        if not document.segments:
            continue
        places = np.flatnonzero(~document.is_none)
        segments = document.path[places]
        order = np.argsort(segments, kind="stable")
        words = document.words[document.rows[places[order]]]
        bounds = np.searchsorted(segments[order], np.arange(1, len(document.segments)))
        texts += zip(document.segments, np.split(words, bounds), strict=True)
        folds += document.folds
    return texts, folds


def word_scores(
    document: Document, tables: Sequence[TranslationTable | None], unigrams: np.ndarray, identity: float
) -> np.ndarray:
    """The scores (distinct words, segments) of the module's formula; `identity` is the probability of an equal word."""
    words = document.words
    column = np.full(len(unigrams), -1)
    column[words] = np.arange(len(words))
    means = np.zeros((len(document.segments), len(words)), dtype=np.float32)
    for index, segment in enumerate(document.segments):
        if not len(segment):
            continue
        table = tables[document.folds[index]]
        if table is not None:
            entries = np.concatenate([np.arange(table.starts[word], table.starts[word + 1]) for word in segment])
            places = column[table.targets[entries]] if len(entries) else entries
            inside = places >= 0
            sums = np.bincount(places[inside], table.values[entries[inside]], minlength=len(words))
            means[index] += (1 - identity) * sums
        places = column[segment]
        means[index] += identity * np.bincount(places[places >= 0], minlength=len(words))
        means[index] /= len(segment)
    means *= ((1 - UNALIGNED) / unigrams[words]).astype(np.float32)
    means += UNALIGNED
    np.minimum(np.log(means, out=means), MAX_WORD_SCORE, out=means)
    return np.ascontiguousarray(means.T)


# Standard error belongs to the process: two threads would restore it in a wrong order.
STDERR_LOCK = Lock()


def resegment(translation: str, references: Sequence[str]) -> list[str]:
    """As many segments of `translation` as there are `references`, in order; a segment may be empty.

    That of an empty reference is, unless all references are.

    Together the segments have all words of the translation. Raises a ValueError without references, and without the
    package mweralign.
    """
    if not references:
        raise ValueError(
            "A translation must be cut into the segments of its references, but there are no references; give at least "
            "one."
        )
    align = load_aligner()
    lines = [" ".join(reference.split()) for reference in references]
    text = " ".join(translation.split())
    segments = [""] * len(lines)
    # mweralign cuts off the last empty lines, and crashes without any other.
    nonempty = [number for number, line in enumerate(lines) if line]
    if not nonempty:
        return [text, *segments[1:]]
    with without_native_messages():
        aligned = align("\n".join(lines[number] for number in nonempty), text)
    for number, line in zip(nonempty, aligned.split("\n"), strict=True):
        segments[number] = " ".join(line.split())
    return segments


@cache
def load_aligner() -> Callable[[str, str], str]:
    """mweralign's function, of references and a hypothesis."""
    # Importing mweralign would otherwise configure logging for the whole process.
    handler = logging.NullHandler()
    logging.root.addHandler(handler)
    try:
        from mweralign import align_texts
    except ModuleNotFoundError:
        raise ValueError(
            'Resegmentation needs the extra "resegmentation", but the package mweralign is not installed; run '
            "`pip install 'hf-posenc[resegmentation]'`, in a clone `pip install '.[resegmentation]'`."
        ) from None
    finally:
        logging.root.removeHandler(handler)
    return align_texts


@contextmanager
def without_native_messages() -> Iterator[None]:
    """Send what compiled code writes to standard error to nowhere: mweralign prints two lines for each text."""
    with STDERR_LOCK:
        saved = os.dup(2)
        try:
            with open(os.devnull, "wb") as null:
                os.dup2(null.fileno(), 2)
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
