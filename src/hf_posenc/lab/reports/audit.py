"""The command `audit`: files of documents -> translation_audit -> a table, a JSON file and a figure."""

import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from ...metrics.loading import load_translation_audit
from ...metrics.translation_audit.lexicon import BLANK
from ...utils.atomic_io import atomic_write
from ...utils.run_folder import ReportPaths
from ...utils.text_io import read_lines
from ..results.rendering import markdown_text

COUNTS = ("dropped", "repeated", "moved", "invented")
NUM_EXAMPLES = 10  # documents with most findings, in the report
MAX_TEXT, MAX_CONTEXT = 300, 60  # characters of a segment in the report, and of the translation around an invented text


class Document(NamedTuple):
    """Consecutive lines of a file, without the blank lines that separate documents."""

    name: str | None  # None where blank lines separate documents
    first_line: int  # from 1
    lines: list[str]


def is_blank(line: str) -> bool:
    return BLANK.sub("", line) == ""


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
            documents.append(Document(label if names else None, first + 1, [lines[row] for row in rows]))
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


def read_references(path: Path, sources: Sequence[Document], ids: Path | None) -> list[list[str]]:
    """The references of each document, line by line as the source."""
    if aligned := lines_in_place_of(sources, list(read_lines(path))):
        return aligned
    return [document.lines for document in read_documents(path, ids)]


def audit_files(
    sources: Path,
    translations: Path,
    *,
    references: Path | None = None,
    document_ids: Path | None = None,
    translation_ids: Path | None = None,
    pairs: Sequence[Path] | None = None,
    output: Path | None = None,
) -> str:
    """Audit a file of translations; write audit.json, audit.md and coverage.png into `output`; return the report."""
    documents = read_documents(sources, document_ids)
    texts = read_translations(translations, documents, document_ids, translation_ids)
    sides = [list(read_lines(path)) for path in pairs or ()]
    if sides and len(sides[0]) != len(sides[1]):
        raise ValueError(
            f"Parallel texts must have the same number of lines, but they have {len(sides[0])} and {len(sides[1])}; "
            "give two files that are aligned line by line."
        )
    result = load_translation_audit().compute(
        predictions=texts,
        sources=[document.lines for document in documents],
        references=read_references(references, documents, document_ids) if references else None,
        pairs=list(zip(*sides, strict=True)) if sides else None,
    )
    assert result is not None
    records: Any = result["documents"]
    for record, document in zip(records, documents, strict=True):
        record |= {"name": document.name, "line": document.first_line}
        for kind in COUNTS[:3]:
            for finding in record[kind]:
                segment = finding["segment"]
                finding |= {"line": document.first_line + segment, "source": document.lines[segment]}
    text = audit_table(result) + findings_report(result, documents, texts)
    if output:
        save_audit(result, text, output)
    return text


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


def findings_report(result: dict[str, Any], documents: Sequence[Document], texts: Sequence[Sequence[str]]) -> str:
    """The documents with most findings: a table of them, and one for each with the text of its findings."""
    worst = sorted(result["documents"], key=lambda record: -sum(len(record[name]) for name in COUNTS))[:NUM_EXAMPLES]
    worst = [record for record in worst if any(record[name] for name in COUNTS)]
    if not worst:
        return ""
    lines = ["", "Documents with most findings, counted from 0 if they have no names; lines of the source, from 1:", ""]
    lines += ["| document | lines | length ratio | " + " | ".join(COUNTS) + " |", "| --- |" + " ---: |" * 6]
    for record in worst:
        first, last = record["line"], record["line"] + record["segments"] - 1
        ratio = formatted(record["length_ratio"], "{:.2f}")
        counts = " | ".join(str(len(record[name])) for name in COUNTS)
        lines.append(f"| {document_label(record)} | {first} to {last} | {ratio} | {counts} |")
    for record in worst:
        number = record["document"]
        lines += ["", f"Findings in document {document_label(record)}, with the lines around them:", ""]
        lines += ["| line | finding | text |", "| ---: | --- | --- |"]
        lines += finding_rows(record, documents[number], "\n".join(texts[number]))
    return "\n".join(lines) + "\n"


def document_label(record: dict[str, Any]) -> str:
    return str(record["document"]) if record["name"] is None else markdown_text(record["name"])


def finding_rows(record: dict[str, Any], document: Document, translation: str) -> list[str]:
    """A row for each segment with a finding and for its neighbours, in order, and for each invented text."""
    kinds: dict[int, list[str]] = {}
    for kind in COUNTS[:3]:
        for finding in record[kind]:
            copies = f" ({finding['copies']} copies)" if "copies" in finding else ""
            kinds.setdefault(finding["segment"], []).append(kind + copies)
    invented: dict[int, list[str]] = {}
    for finding in record["invented"]:
        before = -1 if finding["after"] is None else finding["after"]
        invented.setdefault(before, []).append(text_in_context(translation, finding["start"], finding["end"]))
    places = {place + step for place in kinds for step in (-1, 0, 1)} | {p + step for p in invented for step in (0, 1)}
    rows, last = [], None
    for place in sorted(places & set(range(-1, len(document.lines)))):
        if last is not None and place > last + 1:
            rows.append("| | | ... |")
        last = place
        if place >= 0:
            text = markdown_text(shortened(document.lines[place], MAX_TEXT))
            rows.append(f"| {document.first_line + place} | {', '.join(kinds.get(place, []))} | {text} |")
        rows += [f"| | invented | {text} |" for text in invented.get(place, [])]
    return rows


def text_in_context(text: str, start: int, end: int) -> str:
    """A stretch of a translation in bold, between the characters around it."""
    before, after = text[max(start - MAX_CONTEXT, 0) : start], text[end : end + MAX_CONTEXT]
    parts = [f"**{markdown_text(shortened(text[start:end], MAX_TEXT))}**"]
    if before:
        parts.insert(0, f"... {markdown_text(before).strip()}")
    if after:
        parts.append(f"{markdown_text(after).strip()} ...")
    return " ".join(parts)


def shortened(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[:length]} ..."
