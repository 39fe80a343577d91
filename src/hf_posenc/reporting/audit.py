"""The command `audit`: files of documents -> translation_audit -> a table, a JSON file and a figure."""

import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from ..metrics.loading import load_translation_audit
from ..utils.atomic_io import atomic_write
from ..utils.run_folder import ReportPaths
from ..utils.text_io import read_lines

ARGUMENTS: dict[str, dict[str, Any]] = {  # of the command; all are paths
    "sources": {"help": "one segment a line"},
    "translations": {"help": "a line for each segment, or for each document"},
    "--references": {"help": "a reference for each segment"},
    "--document-ids": {
        "help": "the document of each segment, one name a line (default: blank lines separate documents)"
    },
    "--translation-ids": {"help": "the document of each line of the translations, if they have other lines"},
    "--pairs": {"nargs": 2, "help": "two files of parallel text, to find counterparts without references"},
    "--output": {"help": "the folder for audit.json, audit.md and coverage.png"},
}
COUNTS = ("dropped", "repeated", "moved", "invented")
NUM_EXAMPLES = 10  # documents with most findings, in the table


def read_documents(path: Path, ids: Path | None) -> list[list[str]]:
    """The documents of a file with one segment a line.

    `ids` is a file with the name of the document on each line. Without it, blank lines separate documents.
    """
    lines = list(read_lines(path))
    if ids is None:
        groups = groupby(lines, key=lambda line: bool(line.strip()))
        return [list(group) for has_text, group in groups if has_text]
    names = list(read_lines(ids))
    if len(names) != len(lines):
        raise ValueError(
            f"A file of document ids must have one line for each line of the text, but {ids} has {len(names)} lines "
            f"and {path} has {len(lines)}; give the ids of this file."
        )
    rows = groupby(zip(names, lines, strict=True), key=lambda row: row[0])
    documents = [(name, [line for _, line in group]) for name, group in rows]
    return [segments for _, segments in documents]


def read_translations(
    path: Path, sources: Sequence[Sequence[str]], ids: Path | None, own_ids: Path | None
) -> list[list[str]]:
    """The translation of each document: grouped by its own ids, line by line as the source, or one document a line."""
    if own_ids is not None:
        return read_documents(path, own_ids)
    if ids is None:
        documents = read_documents(path, None)
        if len(documents) == len(sources):
            return documents
    lines = list(read_lines(path))
    if len(lines) == sum(map(len, sources)) and len(lines) != len(sources):
        rows = iter(lines)
        return [[next(rows) for _ in source] for source in sources]
    if len(lines) == len(sources):
        return [[line] for line in lines]
    raise ValueError(
        f"Translations must have a line for each source segment ({sum(map(len, sources))}) or for each document "
        f"({len(sources)}), but {path} has {len(lines)} lines; give the document of each line by --translation-ids."
    )


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
    """Audit a file of translations; write audit.json, audit.md and coverage.png into `output`; return the table."""
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
        sources=documents,
        references=read_documents(references, document_ids) if references else None,
        pairs=list(zip(*sides, strict=True)) if sides else None,
    )
    assert result is not None
    text = audit_table(result)
    if output:
        save_audit(result, text, output)
    return text


def save_audit(result: dict[str, Any], table: str, folder: Path) -> None:
    from ..plotting.audit_plots import coverage_figure
    from ..plotting.style import save_figure

    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(ReportPaths(folder).audit, json.dumps(result, ensure_ascii=False, indent=1) + "\n")
    atomic_write(folder / "audit.md", table)
    save_figure(coverage_figure({"translation": result["profile"]}, len(result["documents"])), folder / "coverage.png")


def audit_table(result: dict[str, Any]) -> str:
    """Tables in Markdown: all documents and their fifths, documents by length, and the documents with most findings."""
    fifths = [{"label": f"fifth {row['fifth']}", **row} for row in result["positions"]]
    by_length = [{"label": f"{row['tokens']} tokens", **row} for row in result["lengths"]]
    lines = count_rows([{"label": "all", **result["all"]}, *fifths, *by_length])
    worst = sorted(result["documents"], key=lambda record: -sum(len(record[name]) for name in COUNTS))[:NUM_EXAMPLES]
    worst = [record for record in worst if any(record[name] for name in COUNTS)]
    if worst:
        lines += ["", "Documents with most findings; segments are counted from 0:", ""]
        lines += [
            "| document | length ratio | dropped | repeated | moved | invented |",
            "| ---: | ---: | --- | --- | --- | --- |",
        ]
        lines += [document_row(record) for record in worst]
    note = f"\n\nEvidence: {result['evidence']}. Length ratio: translation over its expected length.\n"
    return "\n".join(lines) + note


def count_rows(rows: Sequence[dict[str, Any]]) -> list[str]:
    has_scores = any("bleu" in row for row in rows)
    heads = ["part", "segments", *COUNTS, "coverage", "length ratio", *(["BLEU", "chrF"] if has_scores else [])]
    lines = ["| " + " | ".join(heads) + " |", "| --- |" + " ---: |" * (len(heads) - 1)]
    for row in rows:
        cells = [row["label"], str(row["segments"]), *(str(row[name]) for name in COUNTS)]
        coverage, ratio = row.get("coverage"), row.get("length_ratio")
        cells += ["" if coverage is None else f"{100 * coverage:.1f} %", "" if ratio is None else f"{ratio:.2f}"]
        if has_scores:
            cells += [f"{row[name]:.1f}" if row.get(name) is not None else "" for name in ("bleu", "chrf")]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def document_row(record: dict[str, Any]) -> str:
    segments = {name: ", ".join(str(finding["segment"]) for finding in record[name]) for name in COUNTS[:3]}
    ratio = "" if record["length_ratio"] is None else f"{record['length_ratio']:.2f}"
    return "| " + " | ".join([str(record["document"]), ratio, *segments.values(), str(len(record["invented"]))]) + " |"
