"""What a translation of documents leaves out, repeats, moves and invents, and where.

The translation is aligned to the segments of its source by a hidden Markov model (decoding.py), through the references
if there are any, else through a lexical model that is trained on the documents (lexicon.py).
"""

# `evaluate` finds this file's requirements by a regular expression: one module a line, and flat imports of our own.
# Of the files here it copies only those that this one imports.
import warnings
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import TypedDict

import datasets
import evaluate

from .decoding import Document, align_documents
from .decoding import resegment as resegment
from .findings import (
    Findings,
    Scores,
    document_record,
    find,
    length_buckets,
    length_ratio,
    lengths,
    positions,
    profile,
    totals,
    with_empty_segments,
)
from .lexicon import MAX_TEXT_PAIRS as MAX_TEXT_PAIRS
from .lexicon import TOKEN, tokenize

MAX_CHARACTERS = 5_000_000  # of a document


class Columns(TypedDict):
    """Documents as the metric stores them; `references` has empty lists if there are none."""

    predictions: list[str]
    sources: list[list[str]]
    references: list[list[str]]


def validate_documents(predictions: object, sources: object, references: object) -> Columns:
    """The columns of the documents.

    Raises a ValueError for a missing column, different numbers of documents or of segments, and values that are no
    text. A prediction may be a list of lines; an empty document is allowed.
    """
    given = {"predictions": predictions, "sources": sources}
    given |= {} if references is None else {"references": references}
    columns = {name: validate_list(name, column, "document") for name, column in given.items()}
    if len({len(column) for column in columns.values()}) > 1:
        counts = ", ".join(f"{len(column)} {name}" for name, column in columns.items())
        raise ValueError(
            f"{', '.join(columns)} must have one entry for each document, but there are {counts}; give an empty text "
            "for a document without translation."
        )
    texts = [
        "\n".join(validate_segments("predictions", row, [text] if isinstance(text, str) else text))
        for row, text in enumerate(columns["predictions"])
    ]
    segments = [validate_segments("sources", row, document) for row, document in enumerate(columns["sources"])]
    translations = [
        validate_segments("references", row, document) for row, document in enumerate(columns.get("references", []))
    ]
    for row, (source, reference) in enumerate(zip(segments, translations, strict=False)):
        if len(source) != len(reference):
            raise ValueError(
                f"A reference must have one segment for each source segment, but document {row} has {len(source)} "
                f"source and {len(reference)} reference segments; align them, or leave the references out."
            )
    return {"predictions": texts, "sources": segments, "references": translations or [[] for _ in segments]}


def validate_pairs(pairs: object) -> list[tuple[str, str]]:
    """Parallel texts as tuples (source, target)."""
    rows = [] if pairs is None else validate_list("pairs", pairs, "pair")
    validated = []
    for row, pair in enumerate(rows):
        sides = validate_segments("pairs", row, pair)
        if len(sides) != 2:
            raise ValueError(
                f"pairs must be (source, target), but pairs[{row}] has {len(sides)} texts; give two texts."
            )
        validated.append((sides[0], sides[1]))
    return validated


def validate_list(name: str, column: object, entry: str) -> list[object]:
    if isinstance(column, str) or not isinstance(column, Iterable):
        kind = "missing" if column is None else f"of type {type(column).__name__}"
        raise ValueError(f"{name} must be a list with one entry for each {entry}, but it is {kind}; pass {name}=[...].")
    return list(column)


def validate_segments(name: str, row: int, segments: object) -> list[str]:
    """The segments of one document."""
    if isinstance(segments, str) or not isinstance(segments, Iterable):
        raise ValueError(
            f"{name} must be a list of segments for each document, but {name}[{row}] is of type "
            f"{type(segments).__name__}; split it into sentences, [[first, second], ...]."
        )
    texts = list(segments)
    for text in texts:
        if not isinstance(text, str):
            raise ValueError(
                f"{name} must be texts, but {name}[{row}] has an entry of type {type(text).__name__}; pass strings."
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{name} must be UTF-8, but {name}[{row}] has half a character, {text[error.start]!a}; remove it, for "
                "example by text.encode(errors='ignore').decode()."
            ) from None
    if (size := sum(map(len, texts))) > MAX_CHARACTERS:
        raise ValueError(
            f"A document must have at most {MAX_CHARACTERS} characters, but {name}[{row}] has {size}; give its "
            "chapters as documents of their own."
        )
    return texts


MIN_SEGMENTS = 500  # that the lexical model needs; fewer give a warning

DESCRIPTION = """\
Reports for each translated document the source segments without a counterpart, repeated, moved and invented segments,
where they are, over- and under-length; and BLEU and chrF by position in the document.
"""

INPUTS_DESCRIPTION = """
Inputs of translation_audit:
    predictions: list of str, or of lists of lines: the translation of each document.
    sources: list of lists of str: the segments of each document, usually sentences.
    references: list of lists of str, one reference segment for each source segment; or None.
    pairs: list of (source, target): further parallel text for the lexical model, without references.
    scores: whether to compute BLEU and chrF. By default if there are references and mweralign is installed.

Returns a dict: "all" (counts over all documents), "positions" (counts and scores of each fifth of the documents),
"lengths" (the same by source tokens of a document), "profile" (covered share of the source words in 20 parts of the
documents), "documents" (the findings of each document) and "evidence" ("references" or "sources").
"""

CITATION = """\
@inproceedings{vogel-etal-1996-hmm,
  title = {{HMM}-Based Word Alignment in Statistical Translation},
  author = {Vogel, Stephan and Ney, Hermann and Tillmann, Christoph},
  booktitle = {COLING 1996},
  year = {1996},
  url = {https://aclanthology.org/C96-2141}
}
@inproceedings{dyer-etal-2013-simple,
  title = {A Simple, Fast, and Effective Reparameterization of {IBM} Model 2},
  author = {Dyer, Chris and Chahuneau, Victor and Smith, Noah A.},
  booktitle = {Proceedings of NAACL-HLT},
  year = {2013},
  url = {https://aclanthology.org/N13-1073}
}
"""


class TranslationAudit(evaluate.Metric):
    """An `evaluate` metric; `compute` documents its inputs. Nothing is aligned before every input has been checked."""

    def _info(self) -> evaluate.MetricInfo:
        segments = datasets.Sequence(datasets.Value("string"))
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS_DESCRIPTION,
            features=datasets.Features(
                {"predictions": datasets.Value("string"), "sources": segments, "references": segments}
            ),
            reference_urls=["https://aclanthology.org/C96-2141", "https://aclanthology.org/N13-1073"],
        )

    def add(
        self, *, prediction: object = None, reference: object = None, source: object = None, **columns: object
    ) -> None:
        """Add one document."""
        references = None if reference is None else [reference]
        self.add_batch(predictions=[prediction], references=references, sources=[source], **columns)

    def add_batch(self, *, predictions: object = None, references: object = None, sources: object = None) -> None:
        """Add documents."""
        super().add_batch(**validate_documents(predictions, sources, references))

    def compute(
        self,
        *,
        predictions: object = None,
        references: object = None,
        sources: object = None,
        pairs: object = None,
        scores: bool | None = None,
    ) -> dict[str, object] | None:
        """Audit these documents and all that were added before; None on every process except the first."""
        options = {"pairs": validate_pairs(pairs), "scores": scores}
        if predictions is not None or sources is not None or references is not None:
            self.add_batch(predictions=predictions, references=references, sources=sources)
        result: dict[str, object] | None = super().compute(**options)
        return result

    def _compute(
        self,
        predictions: Sequence[str],
        sources: Sequence[Sequence[str]],
        references: Sequence[Sequence[str]],
        pairs: Sequence[tuple[str, str]],
        scores: bool | None,
    ) -> dict[str, object]:
        return audit(list(predictions), list(sources), list(references), pairs, scores)


def audit(
    predictions: Sequence[str],
    sources: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]],
    pairs: Sequence[tuple[str, str]] = (),
    scores: bool | None = None,
) -> dict[str, object]:
    """The result of the metric; `references` has an empty list for a document without."""
    has_references = [len(reference) > 0 or not source for reference, source in zip(references, sources, strict=True)]
    use_references = any(map(len, references))
    if use_references and not all(has_references):
        raise ValueError(
            f"All documents must have references or none, but document {has_references.index(False)} has none; "
            "audit these documents by themselves."
        )
    if scores and not use_references:
        raise ValueError("scores=True needs references, but there are none; leave it out.")
    num_segments = sum(map(len, sources))
    if not use_references and num_segments + len(pairs) < MIN_SEGMENTS:
        warnings.warn(
            f"Without references, the lexical model should be trained on {MIN_SEGMENTS} or more segments, but there "
            f"are {num_segments + len(pairs)}; add documents, or give parallel text as pairs.",
            stacklevel=2,
        )
    segments = references if use_references else sources
    numbers = [[number for number, text in enumerate(texts) if TOKEN.search(text)] for texts in segments]
    texts = [[document[number] for number in kept] for document, kept in zip(segments, numbers, strict=True)]
    documents = align_documents(texts, predictions, pairs, same_language=use_references)
    ratio = length_ratio(documents)
    findings = [
        with_empty_segments(document, find(document, ratio), kept, len(all_texts))
        for document, kept, all_texts in zip(documents, numbers, segments, strict=True)
    ]
    result = summarize(documents, findings, predictions, sources, ratio)
    result["evidence"] = "references" if use_references else "sources"
    if scores or (scores is None and use_references and find_spec("mweralign")):
        add_scores(result, Scores(predictions, references, documents), source_words(sources))
    return result


def summarize(
    documents: Sequence[Document],
    findings: Sequence[Findings],
    predictions: Sequence[str],
    sources: Sequence[Sequence[str]],
    ratio: float,
) -> dict[str, object]:
    records = [
        document_record(number, document, found, text, ratio)
        for number, (document, found, text) in enumerate(zip(documents, findings, predictions, strict=True))
    ]
    weights = [sum(len(segment) for segment in document.segments) for document in documents]
    return {
        "all": totals(records, weights),
        "positions": positions(records, documents),
        "lengths": lengths(records, source_words(sources)),
        "profile": profile(documents, findings),
        "documents": records,
    }


def source_words(sources: Sequence[Sequence[str]]) -> list[int]:
    """The number of words of each document."""
    return [sum(len(tokenize(segment).keys) for segment in source) for source in sources]


def add_scores(result: dict, scores: Scores, num_words: Sequence[int]) -> None:
    """Add BLEU and chrF to the totals, to each fifth, and to the documents of each length."""
    result["all"] |= scores.of_segments() | scores.of_documents(range(len(scores.texts)))
    result["all"]["not_resegmented"] = scores.num_skipped
    for row in result["positions"]:
        row |= scores.of_segments(row["fifth"])
    for row, (_, documents) in zip(result["lengths"], length_buckets(num_words), strict=True):
        row |= scores.of_segments(documents=documents) | scores.of_documents(documents)
