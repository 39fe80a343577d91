"""The command `audit`: files of documents -> translation_audit -> a table, a JSON file, a figure and a report.

The report is that of `translate`: each source segment and its counterpart side by side, the findings as its doubts.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import groupby, repeat
from pathlib import Path
from typing import Any, NamedTuple

from ...hub.errors import is_blank
from ...metrics.loading import load_translation_audit
from ...translator.checks import Doubt, SegmentTranslation
from ...translator.documents import form_of, read_document
from ...translator.report import validate_report_path, write_report
from ...translator.segments import split_sentences
from ...utils.atomic_io import atomic_write
from ...utils.run_folder import ReportPaths
from ...utils.text_io import read_lines

COUNTS = ("dropped", "repeated", "moved", "invented")
MAX_LISTED, MAX_TEXT = 20, 100  # findings below the table, and characters of each


class Document(NamedTuple):
    """Consecutive segments of a file and the place of each, such as "line 3"."""

    name: str | None  # None where blank lines separate documents
    first_line: int  # from 1; 0 in files with markup
    lines: list[str]
    places: list[str]


def read_documents(path: Path, ids: Path | None) -> list[Document]:
    """The documents of a file with one segment a line.

    `ids` is a file with the name of the document on each line. Without it, blank lines separate documents. Raises a
    ValueError for another number of ids than of lines, and for a document whose lines are not consecutive.
    """
    lines = list(read_lines(path))
    names: list[str] | None = None if ids is None else list(read_lines(ids))
    if names is not None and len(names) != len(lines):
        raise ValueError(
            f"A file of document ids must have one line for each line of the text, but {ids} has {len(names)} lines "
            f"and {path} has {len(lines)}; give the ids of this file."
        )
    labels: Sequence[str | None] = names or [None if is_blank(line) else "" for line in lines]
    documents: list[Document] = []
    for label, numbers in groupby(range(len(lines)), key=labels.__getitem__):
        first, *_ = rows = list(numbers)
        if label is not None:
            places = [f"line {row + 1}" for row in rows]
            documents.append(Document(label if names else None, first + 1, [lines[row] for row in rows], places))
    first_lines: dict[str | None, int] = {}
    for document in documents if names else ():
        other = first_lines.setdefault(document.name, document.first_line)
        if other != document.first_line:
            raise ValueError(
                f"The lines of a document must be consecutive, but {document.name!r} is in line {other} and again from "
                f"line {document.first_line} on in {ids}; sort the lines of both files, or give each document a name "
                "of its own."
            )
    return documents


def read_translations(
    path: Path, sources: Sequence[Document], ids: Path | None, own_ids: Path | None
) -> list[list[str]]:
    """The translation of each document: by its name, line by line as the source, or one document a line.

    `ids` are those of the sources. Without them, names of translations cannot be compared, and documents are in order.
    """
    if own_ids is not None:
        documents = read_documents(path, own_ids)
        return in_order_of(sources, documents, own_ids) if ids else [document.lines for document in documents]
    lines = list(read_lines(path))
    num_segments = sum(len(source.lines) for source in sources)
    if aligned := lines_in_place_of(sources, lines):
        return aligned
    if len(lines) == num_segments and len(lines) != len(sources):
        rows = iter(lines)
        return [[next(rows) for _ in source.lines] for source in sources]
    if ids is None:
        documents = read_documents(path, None)
        if len(documents) == len(sources):
            return [document.lines for document in documents]
    if len(lines) == len(sources):
        return [[line] for line in lines]
    separators = "" if ids else ", or have its blank lines"
    raise ValueError(
        f"Translations must have a line for each source segment ({num_segments}) or for each document "
        f"({len(sources)}){separators}, but {path} has {len(lines)} lines; give the document of each line by "
        "--translation-ids."
    )


def in_order_of(sources: Sequence[Document], documents: Sequence[Document], ids: Path) -> list[list[str]]:
    """The lines of the documents in the order of the sources. A ValueError names documents that only one side has."""
    by_name = {document.name: document.lines for document in documents}
    missing = [source.name for source in sources if source.name not in by_name]
    unknown = sorted(by_name.keys() - {source.name for source in sources}, key=str)
    if missing or unknown:
        lacks = [f"{ids} lacks {shown(missing)}"] if missing else []
        lacks += [f"the sources lack {shown(unknown)}"] if unknown else []
        raise ValueError(
            f"Sources and translations must have the same documents, but {' and '.join(lacks)}; give a document "
            "without translation an empty line with its name."
        )
    return [by_name[source.name] for source in sources]


def shown(names: Sequence[str | None]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(map(repr, names[:5])) + more


def lines_in_place_of(sources: Sequence[Document], lines: Sequence[str]) -> list[list[str]]:
    """The lines at the places of the sources' lines; empty if other lines have text, so that they are not aligned."""
    documents: list[list[str]] = []
    outside: list[str] = []
    end = 0
    for source in sources:
        start = source.first_line - 1
        outside += lines[end:start]
        end = start + len(source.lines)
        documents.append(list(lines[start:end]))
    is_aligned = 0 < end <= len(lines) and all(map(is_blank, [*outside, *lines[end:]]))
    return documents if is_aligned else []


def read_marked_up(path: Path, form: str, field: str) -> list[Document]:
    """The documents of a file with markup: chapters of a book, rows of JSON lines, else the file."""

    def name_of(place: str) -> str | None:
        return {"epub": place.rpartition(", ")[0], "jsonl": place}.get(form)

    documents = []
    texts = [(part.place or "", part.text) for part in read_document(path, form, field).texts]
    for name, rows in groupby(texts, key=lambda row: name_of(row[0])):
        places, lines = zip(*rows, strict=True)
        documents.append(Document(name, 0, list(lines), [place.rpartition(", ")[2] for place in places]))
    return documents


def read_like_sources(path: Path, sources: Sequence[Document], form: str, field: str) -> list[list[str]]:
    """The texts of each document of a file with markup. A ValueError for another number than the sources have."""
    documents = read_marked_up(path, form, field)
    if len(documents) != len(sources):
        raise ValueError(
            f"A translation must have the documents of its source, but {path} has {len(documents)} and the source "
            f"{len(sources)} chapters or rows; give those of one book at a time."
        )
    return [document.lines for document in documents]


def in_sentences(
    document: Document, references: Sequence[str] | None, language: str | None
) -> tuple[Document, list[str] | None]:
    """The document with its sentences as segments, and their references.

    A text with another number of sentences than its reference stays whole.
    """
    segments: list[str] = []
    places: list[str] = []
    divided: list[str] = []
    for text, place, reference in zip(document.lines, document.places, references or document.lines, strict=True):
        sentences = split_sentences(text, language)
        translated = split_sentences(reference, None) if references else sentences
        if len(sentences) != len(translated):
            sentences, translated = [text], [reference]
        segments += map(str.strip, sentences)
        divided += map(str.strip, translated)
        places += [place] * len(sentences)
    return document._replace(lines=segments, places=places), divided if references else None


def audit_files(
    sources: Path,
    translations: Path,
    *,
    references: Path | None = None,
    document_ids: Path | None = None,
    translation_ids: Path | None = None,
    pairs: Sequence[Path] | None = None,
    form: str | None = None,
    field: str = "text",
    source_language: str | None = None,
    report: Path | None = None,
    output: Path | None = None,
) -> str:
    """Audit a file of translations; write the report, and audit.json, audit.md and coverage.png into `output`.

    Returns the table and the first findings.
    """
    if report:
        validate_report_path(report, sources, translations, references)
    form = form or form_of(sources)
    reference_texts: list[list[str]] | None = None
    if form == "lines":
        documents = read_documents(sources, document_ids)
        texts = read_translations(translations, documents, document_ids, translation_ids)
        if references:
            aligned = lines_in_place_of(documents, list(read_lines(references)))
            reference_texts = aligned or [document.lines for document in read_documents(references, document_ids)]
    else:
        documents = read_marked_up(sources, form, field)
        texts = read_like_sources(translations, documents, form, field)
        if references:
            reference_texts = read_like_sources(references, documents, form, field)
    if form != "lines" or all(len(document.lines) == 1 for document in documents):
        divided = [
            in_sentences(document, reference, source_language)
            for document, reference in zip(documents, reference_texts or repeat(None), strict=False)
        ]
        documents = [document for document, _ in divided]
        reference_texts = reference_texts and [reference or [] for _, reference in divided]
    sides = [list(read_lines(path)) for path in pairs or ()]
    if sides and len(sides[0]) != len(sides[1]):
        raise ValueError(
            f"Parallel texts must have the same number of lines, but they have {len(sides[0])} and {len(sides[1])}; "
            "give two files that are aligned line by line."
        )
    result = load_translation_audit().compute(
        predictions=texts,
        sources=[document.lines for document in documents],
        references=reference_texts,
        pairs=list(zip(*sides, strict=True)) if sides else None,
    )
    assert result is not None
    records: Any = result["documents"]
    rows: list[SegmentTranslation] = []
    for record, document, lines in zip(records, documents, texts, strict=True):
        record |= {"name": document.name, "places": document.places}
        rows += report_rows(record, document, "\n".join(lines))
    if report:
        write_report(report, rows, f"Audit of {translations}")
    table = audit_table(result)
    if output:
        save_audit(result, table, output)
    return table + listed_findings(rows)


def report_rows(record: dict[str, Any], document: Document, text: str) -> Iterator[SegmentTranslation]:
    """The segments of a document with their counterparts in its translation, and invented texts between them."""
    doubts: dict[int, list[Doubt]] = {}
    for kind, found in (("dropped", "no counterpart"), ("repeated", "{copies} copies"), ("moved", "in another place")):
        for finding in record[kind]:
            doubts.setdefault(finding["segment"], []).append(Doubt(kind, found.format_map(finding)))
    label = f"{document.name}, " if document.name else ""
    invented: dict[int | None, list[SegmentTranslation]] = {}
    for finding in record["invented"]:
        place = "start" if finding["after"] is None else f"after {document.places[finding['after']]}"
        row = SegmentTranslation(label + place, "", finding["text"], [Doubt("invented", "not in the source")])
        invented.setdefault(finding["after"], []).append(row)
    yield from invented.get(None, [])
    for number, (source, place) in enumerate(zip(document.lines, document.places, strict=True)):
        translation = "\n".join(text[start:end] for start, end in record["aligned"][number])
        yield SegmentTranslation(label + place, source, translation, doubts.get(number, []))
        yield from invented.get(number, [])


def listed_findings(rows: Sequence[SegmentTranslation]) -> str:
    """A line for each of the first findings."""
    doubtful = [row for row in rows if row.doubts]
    lines = []
    for row in doubtful[:MAX_LISTED]:
        kinds = ", ".join(doubt.check for doubt in row.doubts)
        lines.append(f"{row.place}: {kinds}: {(row.source or row.translation)[:MAX_TEXT]}")
    if len(doubtful) > MAX_LISTED:
        lines.append(f"... and {len(doubtful) - MAX_LISTED} more; --report FILE.html shows all.")
    return "".join(f"{line}\n" for line in ["", *lines]) if lines else ""


def save_audit(result: dict[str, Any], table: str, folder: Path) -> None:
    from ..figures.diagnostics_plots import coverage_figure
    from ..figures.style import save_figure

    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(ReportPaths(folder).audit, json.dumps(result, ensure_ascii=False, indent=1) + "\n")
    atomic_write(folder / "audit.md", table)
    save_figure(coverage_figure({"translation": result["profile"]}, len(result["documents"])), folder / "coverage.png")


def audit_table(result: dict[str, Any]) -> str:
    """A table in Markdown: all documents, their fifths, and documents by length."""
    fifths = [{"label": f"fifth {row['fifth']}", **row} for row in result["positions"]]
    by_length = [{"label": f"{row['tokens']} tokens", **row} for row in result["lengths"]]
    lines = count_rows([{"label": "all", **result["all"]}, *fifths, *by_length])
    note = f"\n\nEvidence: {result['evidence']}. Length ratio: translation over its expected length.\n"
    return "\n".join(lines) + note


def count_rows(rows: Sequence[dict[str, Any]]) -> list[str]:
    has_scores = any("bleu" in row for row in rows)
    heads = ["part", "segments", *COUNTS, "coverage", "length ratio", *(["BLEU", "chrF"] if has_scores else [])]
    lines = ["| " + " | ".join(heads) + " |", "| --- |" + " ---: |" * (len(heads) - 1)]
    for row in rows:
        cells = [row["label"], *(str(row[name]) for name in ("segments", *COUNTS))]
        coverage = formatted(row.get("coverage"), "{:.1%}").replace("%", " %")
        cells += [coverage, formatted(row.get("length_ratio"), "{:.2f}")]
        if has_scores:
            cells += [formatted(row.get("bleu"), "{:.1f}"), formatted(row.get("chrf"), "{:.1f}")]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def formatted(value: float | None, style: str) -> str:
    """The value, or an empty cell for None."""
    return "" if value is None else style.format(value)
