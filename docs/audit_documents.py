"""The audit of the saved translations of news-small: what each system drops, repeats and invents, and where.

    python docs/audit_documents.py FOLDER      audits, and writes audit.json, table-audit.md and audit.png
    python docs/audit_documents.py             draws the saved audit

The files are in docs/results/news-small. FOLDER has the documents: `python corpora/check.py OTHER --lowercase FOLDER`.
The translations are those of seed 1 of the documents of 400 words or more, audited with their references.
"""

import json
import sys
from pathlib import Path
from typing import Any

from coverage_figure import LABELS, SEED, TEST_SET
from saved_documents import RUN, read_test_sets, read_translations
from saved_results import markdown_table

from hf_posenc.lab.figures.diagnostics_plots import coverage_figure
from hf_posenc.lab.figures.style import save_figure, with_title
from hf_posenc.metrics.loading import load_translation_audit
from hf_posenc.utils.atomic_io import atomic_write

NOTE = "\nSeed 1, 50 documents of 400 words or more. Command: `python docs/audit_documents.py FOLDER`.\n"
TITLE = "aligned drops little anywhere in a document; relative and sinusoidal drop most"
COUNTS = ("dropped", "repeated", "moved", "invented")


def measure(folder: Path) -> dict[str, Any]:
    """The audit of each system, without the findings of single documents."""
    test_set = read_test_sets([TEST_SET], folder)[TEST_SET]
    saved = read_translations([f"{system}-seed{SEED}" for system in LABELS], [TEST_SET])
    audits = {}
    for system, label in LABELS.items():
        result: Any = load_translation_audit().compute(
            predictions=saved[f"{system}-seed{SEED}", TEST_SET],
            sources=test_set.sources,
            references=test_set.references,
        )
        audits[label] = {name: value for name, value in result.items() if name != "documents"}
    return audits


def table(audits: dict[str, Any]) -> str:
    """A row for each system: counts over all documents, and dropped segments and BLEU of each fifth."""
    fifths = [f"fifth {row['fifth']}: dropped, BLEU" for row in next(iter(audits.values()))["positions"]]
    lines = [["system", "segments", *COUNTS, "coverage", *fifths]]
    for label, audit in audits.items():
        total = audit["all"]
        cells = [
            label,
            str(total["segments"]),
            *(str(total[name]) for name in COUNTS),
            f"{100 * total['coverage']:.1f} %",
        ]
        lines.append(
            cells + [f"{row['dropped']} of {row['segments']}, {row['bleu']:.1f}" for row in audit["positions"]]
        )
    return markdown_table(lines)


def main() -> None:
    path = RUN / "audit.json"
    if len(sys.argv) > 1:
        audits = measure(Path(sys.argv[1]))
        atomic_write(path, json.dumps(audits, indent=1) + "\n")
        atomic_write(RUN / "table-audit.md", table(audits) + NOTE)
    audits = json.loads(path.read_text(encoding="utf-8"))
    figure = coverage_figure({label.replace(", ", "-"): audit["profile"] for label, audit in audits.items()}, 50)
    save_figure(with_title(figure, TITLE), RUN / "audit.png")


if __name__ == "__main__":
    main()
