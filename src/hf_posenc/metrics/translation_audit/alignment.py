"""Alignment of a translated document to its segments: a hidden Markov model whose states are the segments.

The observations are the words of the translation, from first to last. A state is a segment, or "no counterpart" after
a segment. A word w in segment i scores the log of its likelihood ratio to the unigram distribution b of translations:

    log(UNALIGNED + (1 - UNALIGNED) p_i(w) / b(w)),    p_i(w) = mean over the words f of segment i of t(w | f),

and 0 in "no counterpart". Transitions cost a fixed price: to stay, to the next segment, to any other segment, and to
"no counterpart". Inside a sentence of the translation they cost more than at its start. The path of the lowest cost
(Viterbi) therefore finds segments that are left out, repeated, moved or invented, without sentence boundaries in the
translation. A hidden Markov model for words is that of Vogel et al. (https://aclanthology.org/C96-2141).

Time is linear in words times segments of a document. Documents are decoded in batches.
"""

from collections.abc import Sequence

import numpy as np

from .decoding import COSTS, MONOTONE_COSTS, Document, find_paths
from .lexical_model import NUM_FOLDS, TranslationTable, Vocabulary, train_tables
from .lexicon import tokenize

UNALIGNED = 0.45  # weight of the unigram distribution in a segment
MIN_UNIGRAM_TOKENS = 1000
MAX_WORD_SCORE = 4.0  # a single rare word is not enough to jump to its segment
NUM_ROUNDS = 3  # of training and alignment, without references
MIN_DOCUMENTS = 2 * NUM_FOLDS  # fewer are divided into folds by blocks of their segments
BLOCK_SEGMENTS = 5
MAX_CELLS = 4_000_000_000  # tokens times segments of a document: some minutes
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
        ids = [vocabulary.ids(tokenize(text).keys) for text in texts]
        documents.append(Document(ids, tokens, words, rows, segment_folds(number, len(ids), len(translations))))
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
        assert document.path is not None and document.is_none is not None
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
