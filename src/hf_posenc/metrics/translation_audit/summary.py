"""From the findings of all documents to numbers: totals, by position in the document, by length; and BLEU and chrF."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from .decoding import Document
from .findings import Findings
from .resegmentation import resegment

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


def bucket_labels() -> list[str]:
    lows = [0, *(edge + 1 for edge in LENGTH_EDGES[:-1])]
    return [*(f"[{low},{high}]" for low, high in zip(lows, LENGTH_EDGES, strict=True)), f">{LENGTH_EDGES[-1]}"]


def length_buckets(source_tokens: Sequence[int]) -> list[tuple[str, list[int]]]:
    """The label and the documents of each bucket of source tokens, without empty buckets."""
    buckets = [bisect_left(LENGTH_EDGES, tokens) for tokens in source_tokens]
    documents = [[index for index, other in enumerate(buckets) if other == bucket] for bucket in sorted(set(buckets))]
    labels = bucket_labels()
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
