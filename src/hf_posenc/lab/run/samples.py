"""Samples of a run: the worst and the median pair of each length bucket, with the translation of each system.

They are chosen by sentence chrF, averaged over the systems, and written to `samples.md` and `samples.html`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from sacrebleu import sentence_chrf

from ...utils.atomic_io import atomic_write
from ...utils.run_folder import RunPaths
from ..results.records import RunResults
from ..results.rendering import markdown_text, one_line
from ..results.saved_files import read_translations
from .saved_test_sets import read_test_set

MAX_CANDIDATES = 100  # pairs of a bucket among which the samples are chosen: the first ones
CONSOLE_WIDTH = 100  # characters
# A run in which no system reaches this score on a test set has most likely failed. The first metric that was scored is
# the one that counts.
NEAR_ZERO = {"bleu": 1.0, "chrf": 10.0, "exact_match": 1.0}
EXPLANATION = (
    "Of each length bucket there are two pairs of source and reference: the one with the lowest sentence chrF, "
    f"averaged over the systems, and the median one. They are chosen among the first {MAX_CANDIDATES} pairs of a "
    "bucket. Of a row with several seeds, the first seed is shown."
)
STYLE = (
    "body { font: 16px/1.45 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }"
    "table { border-collapse: collapse; width: 100% } td, th { border-bottom: 1px solid #bbb; padding: .3rem .6rem;"
    "text-align: left; vertical-align: top; overflow-wrap: anywhere }"
    "td:last-child, th:last-child { text-align: right }"
)


@dataclass(frozen=True)
class Sample:
    """A pair of a test set, and the translation of each system with its sentence chrF."""

    bucket: str
    kind: str  # worst or median
    number: int  # of the pair in the test set, from 1
    length: int  # of the source, in subwords
    source: str
    reference: str
    outputs: Mapping[str, tuple[str, float]]

    @property
    def title(self) -> str:
        return f"{self.bucket}, {self.kind}: pair {self.number}, {self.length} subwords"

    @property
    def rows(self) -> list[tuple[str, str, str]]:
        """Name, text and chrF of each line of its table."""
        outputs = [(name, text, f"{chrf:.1f}") for name, (text, chrf) in self.outputs.items()]
        return [("source", self.source, ""), ("reference", self.reference, ""), *outputs]


@dataclass(frozen=True)
class Bucket:
    """A length bucket with its pairs, by their rows in the test set."""

    label: str
    rows: Sequence[int]


def write_samples(folder: Path, results: RunResults, target: Path) -> str:
    """Write the samples of the run in `folder` to `target`.

    Returns three lines for the console: the median pair of the largest bucket, with the best translation. Further lines
    warn of test sets on which all systems score near zero.
    """
    samples = {test: samples_of(folder, results, test) for test in results.test_sets}
    atomic_write(target / "samples.md", render_markdown(samples))
    atomic_write(target / "samples.html", render_html(samples))
    first = next(iter(samples.values()))
    medians = [sample for sample in first if sample.kind == "median"]
    lines = console_lines(medians[len(medians) // 2]) if medians else []
    return "\n".join([*lines, *near_zero_warnings(results)])


def samples_of(folder: Path, results: RunResults, test: str) -> list[Sample]:
    """The samples of a test set, shortest bucket first."""
    systems: dict[str, str] = {}  # the first seed of each row
    for system, row in results.row_by_system.items():
        systems.setdefault(row, system)
    first = next(iter(systems.values()))
    scored = results.systems[first].tests[test]
    pairs = read_test_set(RunPaths(folder), results, first, test)
    data = pairs.settings.data
    texts = list(pairs.pairs["translation"])
    sources = [row[data.source_language] for row in texts]
    references = [row[data.target_language] for row in texts]
    lengths = list(pairs.pairs["source_length"])
    outputs = {
        row: read_translations(RunPaths(folder).system(system).translation(test), len(texts)).texts
        for row, system in systems.items()
        if results.systems[system].tests[test].test_set_sha256 == scored.test_set_sha256
    }
    buckets = []
    for bucket in scored.buckets:
        high = max(lengths) if bucket.high is None else bucket.high
        buckets.append(Bucket(bucket.label, [i for i, length in enumerate(lengths) if bucket.low <= length <= high]))
    return choose_samples(sources, references, outputs, lengths, buckets)


def choose_samples(
    sources: Sequence[str],
    references: Sequence[str],
    outputs: Mapping[str, Sequence[str]],
    lengths: Sequence[int],
    buckets: Sequence[Bucket],
) -> list[Sample]:
    """The worst and the median pair of each bucket by the mean chrF of the systems' `outputs`."""
    samples = []
    for bucket in buckets:
        scores = {
            i: {name: sentence_chrf(texts[i], [references[i]]).score for name, texts in outputs.items()}
            for i in bucket.rows[:MAX_CANDIDATES]
        }
        ranked = sorted(scores, key=lambda i: sum(scores[i].values()))
        for kind, rank in (("worst", 0), ("median", len(ranked) // 2)):
            if rank >= len(ranked) or (kind == "median" and rank == 0):  # of a single pair, one sample
                continue
            i = ranked[rank]
            translations = {name: (texts[i], scores[i][name]) for name, texts in outputs.items()}
            samples.append(Sample(bucket.label, kind, i + 1, lengths[i], sources[i], references[i], translations))
    return samples


def near_zero_warnings(results: RunResults) -> list[str]:
    """A line for each test set on which every system scores near zero."""
    warnings = []
    for test in results.test_sets:
        overall = [system.tests[test].overall for system in results.systems.values()]
        metric = next((name for name in NEAR_ZERO if overall[0].score(name) is not None), None)
        if metric is None:
            continue
        best = max(bucket.score(metric) or 0.0 for bucket in overall)
        if best < NEAR_ZERO[metric]:
            warnings.append(
                f"Warning: on {one_line(test)} every system scores below {NEAR_ZERO[metric]:g} {metric} (the best "
                f"{best:.2f}); train for more steps, or look for the reason in samples.html."
            )
    return warnings


def console_lines(sample: Sample) -> list[str]:
    """Source, reference and best translation of a sample, a line each."""
    best = max(sample.outputs, key=lambda name: sample.outputs[name][1])
    rows = [row for row in sample.rows if row[0] in ("source", "reference", best)]
    width = max(len(name) for name, *_ in rows)
    lines = []
    for name, text, chrf in rows:
        line = one_line(text)
        line = line if len(line) <= CONSOLE_WIDTH else f"{line[:CONSOLE_WIDTH]}..."
        lines.append(f"{one_line(name).ljust(width)}  {line}{f'  (chrF {chrf})' if chrf else ''}")
    return lines


def render_markdown(samples: Mapping[str, Sequence[Sample]]) -> str:
    """The samples of each test set as a page of Markdown."""
    lines = ["# Samples", "", EXPLANATION, ""]
    for test, of_test in samples.items():
        lines += [f"## {markdown_text(test)}", ""]
        for sample in of_test:
            lines += [f"### {markdown_text(sample.title)}", "", "| | text | chrF |", "| --- | --- | ---: |"]
            for row in sample.rows:
                lines.append(f"| {' | '.join(map(markdown_text, row))} |")
            lines.append("")
    return "\n".join(lines)


def render_html(samples: Mapping[str, Sequence[Sample]]) -> str:
    """The samples as one page without scripts."""
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Samples</title><style>{STYLE}</style>',
        f"</head><body><h1>Samples</h1><p>{escape(EXPLANATION)}</p>",
    ]
    for test, of_test in samples.items():
        parts.append(f"<h2>{escape(test)}</h2>")
        for sample in of_test:
            parts.append(f"<h3>{escape(sample.title)}</h3><table><tr><th></th><th>text</th><th>chrF</th></tr>")
            for name, text, chrf in sample.rows:
                # Each text has its own direction, such as right to left.
                cell = f'<td dir="auto">{escape(one_line(text))}</td>'
                parts.append(f"<tr><th>{escape(name)}</th>{cell}<td>{chrf}</td></tr>")
            parts.append("</table>")
    return "\n".join([*parts, "</body></html>", ""])
