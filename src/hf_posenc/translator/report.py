"""The report of a translation: every doubtful segment with its reasons, as JSON or as a page of source and target.

The page has no script and loads nothing. Its colours are those of the browser's light or dark scheme.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from ..utils.atomic_io import atomic_write
from .checks import SegmentTranslation

SUFFIXES = (".json", ".html")
STYLE = """
:root { color-scheme: light dark; }
body { font: 1rem/1.5 system-ui, sans-serif; margin: 1rem auto; max-width: 80rem; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { border-top: 1px solid GrayText; padding: .3rem .6rem; text-align: start; vertical-align: top; }
td { overflow-wrap: anywhere; white-space: pre-wrap; }
tr.doubtful td { background: color-mix(in srgb, Canvas 80%, orange); }
tr.doubtful td:first-child { border-inline-start: .4rem solid darkorange; }
ul { margin: 0 0 1rem; padding-inline-start: 1.2rem; }
"""


def validate_report_path(path: Path, *other_files: Path | None) -> None:
    """A ValueError for a suffix that no report has, and for another file's path; call it before the translation."""
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"A report must end with {' or '.join(SUFFIXES)}, but it is {path}; choose one of them.")
    if path.resolve() in [other.resolve() for other in other_files if other]:
        raise ValueError(f"A report must be a file of its own, but {path} is read or written too; choose another name.")


def write_report(path: Path, segments: Iterable[SegmentTranslation], title: str = "Translation") -> None:
    """Write the report in the form of the path's suffix."""
    validate_report_path(path)
    rows = list(segments)
    if path.suffix.lower() == ".json":
        atomic_write(path, json.dumps(report_record(rows), ensure_ascii=False, indent=1) + "\n")
    else:
        atomic_write(path, report_page(rows, title))


def report_record(segments: Sequence[SegmentTranslation]) -> dict[str, Any]:
    """Numbers of segments, and the doubtful ones: place, source, translation, reasons."""
    doubtful = [segment for segment in segments if segment.doubts]
    checks = Counter(doubt.check for segment in doubtful for doubt in segment.doubts)
    return {
        "segments": len(segments),
        "repaired": sum(segment.repaired for segment in segments),
        "doubtful": len(doubtful),
        "checks": dict(checks),
        "doubts": [doubt_record(segment) for segment in doubtful],
    }


def doubt_record(segment: SegmentTranslation) -> dict[str, Any]:
    return {
        "place": segment.place,
        "source": segment.source,
        "translation": segment.translation,
        "repaired": segment.repaired,
        "reasons": [{"check": doubt.check, "found": doubt.found} for doubt in segment.doubts],
    }


def report_page(segments: Sequence[SegmentTranslation], title: str) -> str:
    """A page of HTML: links to the doubtful segments, then all segments, source and target side by side."""
    record = report_record(segments)
    summary = f"{record['segments']} segments, {record['doubtful']} doubtful."
    if record["repaired"]:
        summary += f" {record['repaired']} repaired."
    numbered = list(enumerate(segments, 1))
    links = "".join(
        f'<li><a href="#s{number}">{escape(segment.place)}</a>: {reasons(segment)}</li>\n'
        for number, segment in numbered
        if segment.doubts
    )
    rows = "".join(page_row(number, segment) for number, segment in numbered)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<style>{STYLE}</style></head>\n<body><h1>{escape(title)}</h1>\n<p>{summary}</p>\n<ul>\n{links}</ul>\n"
        "<table><thead><tr><th>Place</th><th>Source</th><th>Translation</th><th>Doubts</th></tr></thead>\n"
        f"<tbody>\n{rows}</tbody></table></body></html>\n"
    )


def page_row(number: int, segment: SegmentTranslation) -> str:
    mark = ' class="doubtful"' if segment.doubts else ""
    cells = f'<td>{escape(segment.place)}</td><td dir="auto">{escape(segment.source)}</td>'
    cells += f'<td dir="auto">{escape(segment.translation)}</td>'
    return f'<tr id="s{number}"{mark}>{cells}<td>{reasons(segment)}</td></tr>\n'


def reasons(segment: SegmentTranslation) -> str:
    """The doubts as HTML."""
    return "; ".join(f"<b>{escape(doubt.check)}</b>: {escape(doubt.found)}" for doubt in segment.doubts)
