"""The audit of the saved translations of news-small: what each system drops, repeats and invents, and where.

    python docs/audit_documents.py FOLDER      audits, and writes audit.json, table-audit.md and audit.png
    python docs/audit_documents.py             draws the saved audit

The files are in docs/results/news-small. FOLDER has the documents: `python corpora/check.py OTHER --lowercase FOLDER`.
The translations are those of the documents of 400 words or more, audited with their references: three seeds of the
systems that have them, and one of four other encodings.
"""

import json
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from coverage_figure import LABELS, SEEDS, TEST_SET
from saved_documents import RUN, read_test_sets, read_translations
from saved_results import markdown_table

from hf_posenc.lab.figures.diagnostics_plots import coverage_figure
from hf_posenc.lab.figures.style import save_figure, with_title
from hf_posenc.metrics.loading import load_translation_audit
from hf_posenc.translator.checks import longest_loop
from hf_posenc.utils.atomic_io import atomic_write

NOTE = (
    "\n50 documents of 400 words or more. Of several seeds the mean, with the lowest and the highest one. Command: "
    "`python docs/audit_documents.py FOLDER`.\n"
)
TITLE = "aligned drops little anywhere in a document; relative and sinusoidal drop most"
# The systems with one seed, beside those of the figure.
ONE_SEED = {"lstm-100": "LSTM", "rotary-100": "RoPE", "t5-100": "T5", "kerple-100": "KERPLE"}
COUNTS = ("dropped", "repeated", "moved", "invented")
Audits = dict[str, list[dict[str, Any]]]


def measure(folder: Path) -> Audits:
    """The audit of each seed of a system, without the findings of single documents."""
    test_set = read_test_sets([TEST_SET], folder)[TEST_SET]
    names = {label: [f"{system}-seed{seed}" for seed in SEEDS] for system, label in LABELS.items()}
    names |= {label: [f"{system}-seed1"] for system, label in ONE_SEED.items()}
    saved = read_translations(chain.from_iterable(names.values()), [TEST_SET])
    audits: Audits = {}
    for label, systems in names.items():
        for system in systems:
            translations = saved[system, TEST_SET]
            result: Any = load_translation_audit().compute(
                predictions=translations, sources=test_set.sources, references=test_set.references
            )
            found = {name: value for name, value in result.items() if name != "documents"}
            loops = [repeats * len(words) for repeats, words in map(longest_loop, translations)]
            words = [sum(len(text.split()) for text in texts) for texts in (translations, test_set.reference_texts)]
            found |= {"looped": sum(loops) / words[0], "words": words[0] / words[1]}
            audits.setdefault(label, []).append(found)
    return audits


def table(audits: Audits) -> str:
    """A row for each system: shares of all segments, those dropped in each fifth, coverage, loops and length."""
    fifths = [f"dropped in fifth {fifth}" for fifth in range(1, 6)]
    lines = [
        [
            "system",
            "seeds",
            *(f"{name}, %" for name in COUNTS),
            *fifths,
            "coverage, %",
            "in the longest loop, %",
            "words, translation:reference",
        ]
    ]
    for label, seeds in audits.items():
        totals = [audit["all"] for audit in seeds]
        shares = [[100 * total[name] / total["segments"] for total in totals] for name in COUNTS]
        for fifth in range(5):
            rows = [audit["positions"][fifth] for audit in seeds]
            shares.append([100 * row["dropped"] / row["segments"] for row in rows])
        shares.append([100 * total["coverage"] for total in totals])
        shares.append([100 * audit["looped"] for audit in seeds])
        ratios = with_range([audit["words"] for audit in seeds], ".2f")
        lines.append([label, str(len(seeds)), *(with_range(values, ".1f") for values in shares), ratios])
    return markdown_table(lines)


def with_range(values: Sequence[float], form: str) -> str:
    mean = f"{sum(values) / len(values):{form}}"
    return mean if len(values) == 1 else f"{mean} ({min(values):{form}}-{max(values):{form}})"


def mean_profile(seeds: Sequence[dict[str, Any]]) -> list[float | None]:
    """The mean over the seeds of the coverage at each part of a document."""
    columns = zip(*(audit["profile"] for audit in seeds), strict=True)
    return [None if None in column else sum(column) / len(column) for column in columns]


def main() -> None:
    path = RUN / "audit.json"
    if len(sys.argv) > 1:
        audits = measure(Path(sys.argv[1]))
        atomic_write(path, json.dumps(audits, indent=1) + "\n")
        atomic_write(RUN / "table-audit.md", table(audits) + NOTE)
    audits = json.loads(path.read_text(encoding="utf-8"))
    profiles = {label.replace(", ", "-"): mean_profile(audits[label]) for label in LABELS.values()}
    figure = coverage_figure(profiles, 50)
    save_figure(with_title(figure, TITLE), RUN / "audit.png")


if __name__ == "__main__":
    main()
