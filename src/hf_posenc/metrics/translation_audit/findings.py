"""From an aligned document to findings: dropped, repeated, moved and invented segments.

A run is a stretch of consecutive words of the translation with one state. A run with evidence and a plausible length is
a visit of its segment. A segment is dropped if it has no visit, and repeated if it has several, or one that splits into
two copies. It is moved if its visit is not in the order of most of the document. A run without evidence for any segment
is invented.

From the findings of all documents follow totals, by position in the document and by length, and BLEU and chrF.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from .decoding import Document, resegment
from .lexicon import INSIDE, is_word

MIN_EVIDENCE = 2.0  # nats that the words of a visit score together
MIN_VISIT, MIN_COPY = 0.3, 0.4  # shares of the expected length: of a visit, and of each copy of a repeated segment
PLAUSIBLE_LENGTHS = (0.5, 2.0)  # bounds of the length over the expected one, for a visit without evidence
PARAPHRASE_SCORE = -0.35  # nats for each word of a paraphrase, at least; a word without a match has log(UNALIGNED)
MAX_PARAPHRASES = 2  # consecutive visits without evidence
MIN_INVENTED = 5  # tokens of whole sentences
MIN_REPETITION = 1.3  # times the expected length, in which two copies are searched
MATCH = 1.0  # nats: the score of a word that matches a segment
MIN_OVERLAP = 0.4  # of the evidence of two copies


@dataclass
class Run:
    """Tokens `start` to `end` of the translation, aligned to `segment`, or to nothing after it (`is_none`)."""

    segment: int
    start: int
    end: int
    is_none: bool
    score: float

    @property
    def length(self) -> int:
        return self.end - self.start


@dataclass
class Findings:
    """Indices of segments, and what is invented: spans of characters, and the translated segment before each."""

    dropped: list[int] = field(default_factory=list)
    repeated: dict[int, int] = field(default_factory=dict)  # segment: number of copies
    moved: list[int] = field(default_factory=list)
    invented: list[tuple[int, int, int | None]] = field(default_factory=list)
    lengths: list[float] = field(default_factory=list)  # of each segment's visits over the expected length
    visits: dict[int, list[Run]] = field(default_factory=dict)


def segment_runs(document: Document) -> list[Run]:
    """The runs of the path, from first to last word."""
    if not len(document.path):
        return []
    states = document.path * 2 + document.is_none
    bounds = [0, *(np.flatnonzero(np.diff(states)) + 1).tolist(), len(states)]
    runs = []
    for start, end in pairwise(bounds):
        segment, is_none = int(document.path[start]), bool(document.is_none[start])
        score = 0.0 if is_none else run_score(document, segment, start, end)
        runs.append(Run(segment, start, end, is_none, score))
    return runs


def run_score(document: Document, segment: int, start: int, end: int) -> float:
    return float(document.scores[document.rows[start:end], segment].sum())


def length_ratio(documents: Sequence[Document]) -> float:
    """Tokens of the translation for each token of a segment: the median over runs with evidence."""
    ratios = [
        run.length / len(document.segments[run.segment])
        for document in documents
        for run in segment_runs(document)
        if run.score >= MIN_EVIDENCE and len(document.segments[run.segment]) > 3
    ]
    return float(np.median(ratios)) if ratios else 1.0


def find(document: Document, ratio: float) -> Findings:
    """The findings of one document; `ratio` is that of `length_ratio`.

    A translation with all words of its segments in order has none, even if they are too frequent to be evidence.
    """
    if document.segments and np.array_equal(document.words[document.rows], np.concatenate(document.segments)):
        ends = np.cumsum([len(segment) for segment in document.segments]).tolist()
        as_source = {
            segment: [Run(segment, start, end, is_none=False, score=0.0)]
            for segment, (start, end) in enumerate(pairwise([0, *ends]))
        }
        return Findings(lengths=[1.0 / ratio] * len(document.segments), visits=as_source)
    expected = [max(len(segment) * ratio, 1.0) for segment in document.segments]
    runs = segment_runs(document)
    is_visit = visits_of(document, runs, expected)
    findings = Findings()
    last_visited = None
    for run, visited in zip(runs, is_visit, strict=True):
        if visited:
            visits = findings.visits.setdefault(run.segment, [])
            if last_visited == run.segment:  # interrupted, but by no other segment
                visits[-1] = replace(visits[-1], end=run.end, score=visits[-1].score + run.score)
            else:
                visits.append(run)
            last_visited = run.segment
        elif run.length >= MIN_INVENTED and run.score < MIN_EVIDENCE and is_whole(document, run):
            spans = document.tokens.spans
            findings.invented.append((spans[run.start][0], spans[run.end - 1][1], last_visited))
    for segment, target in enumerate(expected):
        visits = findings.visits.get(segment, [])
        findings.lengths.append(sum(run.length for run in visits) / target)
        if not visits:
            findings.dropped.append(segment)
            continue
        copies = copies_of(document, visits, target)
        if copies > 1:
            findings.repeated[segment] = copies
    in_order = monotone_runs([run for run, visited in zip(runs, is_visit, strict=True) if visited])
    for segment, visits in findings.visits.items():
        if segment not in findings.repeated:
            long_visits = [run for run in visits if run.length >= MIN_COPY * expected[segment]]
            if long_visits and not any(run.start in in_order for run in long_visits):
                findings.moved.append(segment)
    return findings


def with_empty_segments(document: Document, findings: Findings, numbers: Sequence[int], num_segments: int) -> Findings:
    """Number the segments of a document and its findings as the text does, with segments that have no tokens.

    `numbers` are those of the aligned segments. A segment without tokens is never dropped.
    """
    aligned, document.segments = document.segments, [np.zeros(0, dtype=np.int64)] * num_segments
    lengths = [1.0] * num_segments
    for number, segment, length in zip(numbers, aligned, findings.lengths, strict=True):
        document.segments[number], lengths[number] = segment, length
    return Findings(
        dropped=[numbers[segment] for segment in findings.dropped],
        repeated={numbers[segment]: copies for segment, copies in findings.repeated.items()},
        moved=[numbers[segment] for segment in findings.moved],
        invented=[
            (start, end, None if before is None else numbers[before]) for start, end, before in findings.invented
        ],
        lengths=lengths,
        visits={numbers[segment]: visits for segment, visits in findings.visits.items()},
    )


def is_whole(document: Document, run: Run) -> bool:
    """Whether a run starts and ends with a sentence or a line; closing punctuation may be missing."""
    keys, starts = document.tokens.keys, document.tokens.starts
    end = run.end
    while end < len(keys) and starts[end] == INSIDE and not is_word(keys[end]):
        end += 1
    return starts[run.start] != INSIDE and (end == len(keys) or starts[end] != INSIDE)


def visits_of(document: Document, runs: list[Run], expected: Sequence[float]) -> list[bool]:
    """Whether each run is a visit of its segment.

    Up to MAX_PARAPHRASES runs without evidence are visits if they stand, in order, in the place of segments without a
    visit: free translations share few words with a reference.
    """
    is_visit = [
        not run.is_none and run.score >= MIN_EVIDENCE and run.length >= MIN_VISIT * expected[run.segment]
        for run in runs
    ]
    strong = [index for index, visited in enumerate(is_visit) if visited]
    seen = {runs[index].segment for index in strong}
    for before, after in zip([-1, *strong], [*strong, len(runs)], strict=True):
        first = runs[before].segment + 1 if before >= 0 else 0
        last = runs[after].segment if after < len(runs) else len(expected)
        between = range(before + 1, after)
        if not strong or len(between) > MAX_PARAPHRASES or len(between) != last - first:
            continue
        for index, segment in zip(between, range(first, last), strict=True):
            if segment not in seen and is_paraphrase(document, runs[index], segment, expected[segment]):
                runs[index] = replace(runs[index], segment=segment, is_none=False)
                is_visit[index] = True
    return is_visit


def is_paraphrase(document: Document, run: Run, segment: int, expected: float) -> bool:
    """Whether a run may be a free translation of a segment: a sentence of plausible length, not without any match."""
    low, high = PLAUSIBLE_LENGTHS
    is_plausible = low * expected <= run.length <= high * expected + 2
    score = run_score(document, segment, run.start, run.end) / run.length
    return is_plausible and document.tokens.starts[run.start] != INSIDE and score >= PARAPHRASE_SCORE


def copies_of(document: Document, visits: Sequence[Run], expected: float) -> int:
    """How often the visits translate their segment: as often as they are similar, and long enough."""
    copies: list[tuple[int, int]] = []
    for run in visits:
        if run.length < MIN_COPY * expected:
            continue
        parts = split_copies(document, run, expected)
        if not copies or any(overlap(document, run.segment, copies[0], part) >= MIN_OVERLAP for part in parts):
            copies += parts
    return len(copies)


def split_copies(document: Document, run: Run, expected: float) -> list[tuple[int, int]]:
    """The copies (start, end) in a run: one of double length is cut into two similar parts, and these again."""
    copies, pending = [], [run]
    while pending:
        run = pending.pop()
        cuts = run.start + np.flatnonzero(document.tokens.starts[run.start : run.end])
        cuts = cuts[np.minimum(cuts - run.start, run.end - cuts) >= MIN_COPY * expected]
        overlaps = cut_overlaps(document, run, cuts)
        if run.length < MIN_REPETITION * expected or not len(cuts) or overlaps.max() < MIN_OVERLAP:
            copies.append((run.start, run.end))
            continue
        best = cuts[overlaps >= overlaps.max() - 1e-6]
        cut = int(best[np.abs(best - (run.start + run.end) / 2).argmin()])  # of many copies: half of them
        pending += [replace(run, start=cut), replace(run, end=cut)]
    return copies


def cut_overlaps(document: Document, run: Run, cuts: np.ndarray) -> np.ndarray:
    """The `overlap` of the two parts of a run, for each cut, in time that does not grow with the number of cuts."""
    rows = document.rows[run.start : run.end]
    words, first = np.unique(rows, return_index=True)
    last = run.length - 1 - np.unique(rows[::-1], return_index=True)[1]
    scores = document.scores[words, run.segment].astype(np.float64)
    is_match = scores > MATCH
    begun, ended = (
        np.bincount(places[is_match], scores[is_match], minlength=run.length).cumsum()[cuts - run.start - 1]
        for places in (first, last)
    )
    shares: np.ndarray = (begun - ended) / np.maximum(np.maximum(begun, scores[is_match].sum() - ended), 1e-9)
    return shares


def overlap(document: Document, segment: int, first: tuple[int, int], second: tuple[int, int]) -> float:
    """The share of the evidence of two stretches of words that both have; the smaller of the two shares."""
    rows = [np.unique(document.rows[start:end]) for start, end in (first, second)]
    matched = [part[document.scores[part, segment] > MATCH] for part in rows]
    shared = document.scores[np.intersect1d(*matched), segment].sum()
    totals = [document.scores[part, segment].sum() for part in matched]
    return float(shared / max(*totals, 1e-9))


def monotone_runs(runs: Sequence[Run]) -> set[int]:
    """The starts of the runs in the heaviest sequence of runs whose segments do not decrease."""
    if not runs:
        return set()
    # Of each segment, the heaviest sequence that ends in it: its weight and its last run.
    weights = np.zeros(max(run.segment for run in runs) + 1)
    last_runs = np.full(len(weights), -1)
    previous = np.full(len(runs), -1)
    for index, run in enumerate(runs):
        before = int(weights[: run.segment + 1].argmax())
        previous[index] = last_runs[before]
        weights[run.segment], last_runs[run.segment] = weights[before] + run.length, index
    index, chosen = int(last_runs[weights.argmax()]), set()
    while index >= 0:
        chosen.add(runs[index].start)
        index = int(previous[index])
    return chosen


NUM_FIFTHS = 5
NUM_PARTS = 20  # of the profile that the figure draws
SHORT, LONG = 0.5, 1.5  # lengths over the expected ones
LENGTH_EDGES = (50, 100, 200, 400, 800)  # source tokens of a document
MAX_RESEGMENTED_WORDS = 10_000  # of a document; resegmentation takes quadratic time

Record = dict[str, Any]


def part_of(position: float, parts: int) -> int:
    """The part in which a relative position from 0 to 1 lies."""
    return min(int(position * parts), parts - 1)


def middles(document: Document) -> np.ndarray:
    """The relative position of the middle of each segment, in words."""
    lengths = np.array([max(len(segment), 1) for segment in document.segments], dtype=float)
    middle: np.ndarray = (np.cumsum(lengths) - lengths / 2) / max(lengths.sum(), 1)
    return middle


def document_record(number: int, document: Document, findings: Findings, text: str, ratio: float) -> Record:
    """The findings of one document with their fifths, from 1 to 5."""
    positions = middles(document)

    def fifth(segment: int) -> int:
        return part_of(positions[segment], NUM_FIFTHS) + 1

    spans = document.tokens.spans
    dropped = set(findings.dropped)
    words = [len(segment) for segment in document.segments]
    kept = sum(count for segment, count in enumerate(words) if segment not in dropped)
    visited = [(segment, length) for segment, length in enumerate(findings.lengths) if segment not in dropped]
    once = [(segment, length) for segment, length in visited if segment not in findings.repeated]
    return {
        "document": number,
        "segments": len(words),
        "coverage": kept / sum(words) if sum(words) else None,
        "length_ratio": len(document.rows) / (ratio * sum(words)) if sum(words) else None,
        "dropped": [{"segment": segment, "fifth": fifth(segment)} for segment in findings.dropped],
        "repeated": [
            {"segment": segment, "fifth": fifth(segment), "copies": copies}
            for segment, copies in sorted(findings.repeated.items())
        ],
        "moved": [{"segment": segment, "fifth": fifth(segment)} for segment in sorted(findings.moved)],
        "invented": [
            {
                "start": start,
                "end": end,
                "fifth": part_of(start / len(text), NUM_FIFTHS) + 1,
                "text": text[start:end],
                "after": before,
            }
            for start, end, before in findings.invented
        ],
        "aligned": [
            [[spans[run.start][0], spans[run.end - 1][1]] for run in findings.visits.get(segment, [])]
            for segment in range(len(words))
        ],
        "short": [segment for segment, length in once if length < SHORT],
        "long": [segment for segment, length in once if length > LONG],
    }


def totals(records: Iterable[Record], weights: Sequence[int]) -> Record:
    """Counts over documents. Coverage and length ratio are weighted by the documents' source words."""
    records = list(records)
    counts = {
        name: sum(len(record[name]) for record in records) for name in ("dropped", "repeated", "moved", "invented")
    }
    counts |= {name: sum(len(record[name]) for record in records) for name in ("short", "long")}
    result: Record = {"documents": len(records), "segments": sum(record["segments"] for record in records), **counts}
    for name in ("coverage", "length_ratio"):
        known = [(record[name], weight) for record, weight in zip(records, weights, strict=True) if weight]
        total = sum(weight for _, weight in known)
        result[name] = sum(value * weight for value, weight in known) / total if total else None
    return result


def positions(records: Sequence[Record], documents: Sequence[Document]) -> list[Record]:
    """The counts of each fifth of the documents, first to last."""
    fifths = [part_of(middle, NUM_FIFTHS) + 1 for document in documents for middle in middles(document)]
    rows = []
    for fifth in range(1, NUM_FIFTHS + 1):
        row: Record = {"fifth": fifth, "segments": fifths.count(fifth)}
        for name in ("dropped", "repeated", "moved", "invented"):
            row[name] = sum(finding["fifth"] == fifth for record in records for finding in record[name])
        rows.append(row)
    return rows


def profile(documents: Sequence[Document], findings: Sequence[Findings]) -> list[float | None]:
    """The covered share of the source words in each of NUM_PARTS equal parts of the documents."""
    covered, everything = np.zeros(NUM_PARTS), np.zeros(NUM_PARTS)
    for document, found in zip(documents, findings, strict=True):
        lengths = [len(segment) for segment in document.segments]
        is_covered = np.ones(len(lengths), dtype=bool)
        is_covered[found.dropped] = False
        words = np.repeat(is_covered, lengths)
        part = (np.arange(len(words)) * NUM_PARTS) // max(len(words), 1)
        everything += np.bincount(part, minlength=NUM_PARTS)
        covered += np.bincount(part, words, minlength=NUM_PARTS)
    return [float(count / total) if total else None for count, total in zip(covered, everything, strict=True)]


def length_buckets(source_tokens: Sequence[int]) -> list[tuple[str, list[int]]]:
    """The label and the documents of each bucket of source tokens, without empty buckets."""
    buckets = [bisect_left(LENGTH_EDGES, tokens) for tokens in source_tokens]
    documents = [[index for index, other in enumerate(buckets) if other == bucket] for bucket in sorted(set(buckets))]
    lows = [0, *(edge + 1 for edge in LENGTH_EDGES[:-1])]
    labels = [f"[{low},{high}]" for low, high in zip(lows, LENGTH_EDGES, strict=True)]
    labels.append(f">{LENGTH_EDGES[-1]}")
    return [(labels[buckets[inside[0]]], inside) for inside in documents]


def lengths(records: Sequence[Record], source_tokens: Sequence[int]) -> list[Record]:
    """The totals of the documents in each bucket of source tokens, without empty buckets."""
    return [
        {"tokens": label, **totals([records[index] for index in inside], [source_tokens[index] for index in inside])}
        for label, inside in length_buckets(source_tokens)
    ]


class Scores:
    """BLEU and chrF of segments and of documents, after resegmentation of each translation by its references.

    Documents of more than MAX_RESEGMENTED_WORDS words have document scores only; `num_skipped` counts them.
    """

    def __init__(
        self, texts: Sequence[str], references: Sequence[Sequence[str]], documents: Sequence[Document]
    ) -> None:
        self.texts = [" ".join(text.split()) for text in texts]
        self.references = [" ".join(document) for document in references]
        self.segments: list[tuple[int, int, str, str]] = []  # document, fifth, hypothesis, reference
        self.num_skipped = 0
        for number, (text, segments, document) in enumerate(zip(texts, references, documents, strict=True)):
            if max(len(text.split()), sum(len(segment.split()) for segment in segments)) > MAX_RESEGMENTED_WORDS:
                self.num_skipped += 1
            elif segments:
                fifths = [part_of(middle, NUM_FIFTHS) + 1 for middle in middles(document)]
                self.segments += zip([number] * len(segments), fifths, resegment(text, segments), segments, strict=True)

    def of_documents(self, indices: Iterable[int]) -> Record:
        chosen = [(self.texts[index], self.references[index]) for index in indices]
        return {f"document_{name}": score for name, score in corpus_scores(chosen).items()}

    def of_segments(self, fifth: int | None = None, documents: Iterable[int] | None = None) -> Record:
        """The scores of the segments of one fifth, of some documents, or of all."""
        chosen = None if documents is None else set(documents)
        return corpus_scores(
            [
                (text, reference)
                for document, own_fifth, text, reference in self.segments
                if fifth in (None, own_fifth) and (chosen is None or document in chosen)
            ]
        )


def corpus_scores(pairs: Sequence[tuple[str, str]]) -> Record:
    """sacrebleu's corpus BLEU and chrF, cased; None without pairs."""
    hypotheses, references = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    scorers = {"bleu": BLEU(), "chrf": CHRF()}
    return {
        name: float(scorer.corpus_score(hypotheses, [references]).score) if pairs else None
        for name, scorer in scorers.items()
    }
