"""Paired tests of documents that two systems have translated, from the saved translations of news-small.

    python docs/paired_tests.py FOLDER      writes paired-tests.csv and table-paired.md into docs/results/news-small

FOLDER has the documents: `python corpora/check.py OTHER --lowercase FOLDER`. Each seed is compared by itself. The
interval is that of the difference, by the paired bootstrap of 1000 samples of documents. p is of approximate
randomization. Two systems are alike if the interval of every seed lies within MARGIN, and different if every seed has
p < 0.05 in one direction. A pair can be both.
"""

import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
from saved_documents import RUN, TestSet, read_test_sets, read_translations
from saved_results import METRICS as NAMES
from saved_results import markdown_table

from hf_posenc.lab.results.significance import difference_interval, metric_p_values
from hf_posenc.metrics.length_buckets.scorers import PRECOMPUTED_SCORERS, corpus_score
from hf_posenc.metrics.loading import load_length_buckets
from hf_posenc.utils.atomic_io import atomic_write

PAIRS = (
    ("aligned-100", "aligned-100-split"),  # one model: documents as a whole, and sentence by sentence
    ("aligned-50", "relative-50-split"),
    ("aligned-100", "relative-100"),
)
TEST_SETS = tuple(f"parliament-{words}" for words in (50, 100, 200, 400))
METRICS = ("bleu", "chrf")
SEEDS = (1, 2, 3)
SAMPLES = 1000
MARGIN = 1.0  # points of BLEU or chrF


@dataclass(frozen=True)
class PairedTest:
    """One seed of two systems on one test set. `low` and `high` bound the difference, system - other."""

    system: str
    other: str
    test_set: str
    n: int
    metric: str
    seed: int
    score: float
    other_score: float
    low: float
    high: float
    p_randomisation: float
    p_bootstrap: float

    @property
    def difference(self) -> float:
        return self.score - self.other_score


def sentence_statistics(texts: Sequence[str], test_set: TestSet) -> dict[str, np.ndarray]:
    """The additive counts of each document, by metric."""
    metric = load_length_buckets()
    metric.compute(
        predictions=list(texts),
        references=test_set.reference_texts,
        source_lengths=test_set.source_lengths,
        metrics=list(METRICS),
    )
    return metric.statistics


def compare(
    system: str, other: str, test: str, statistics: Mapping[tuple[str, str], Mapping[str, np.ndarray]]
) -> Iterator[PairedTest]:
    """Two systems on a test set: each metric of each seed."""
    for metric in METRICS:
        for seed in SEEDS:
            ours, theirs = (statistics[f"{name}-seed{seed}", test][metric] for name in (system, other))
            scorer = PRECOMPUTED_SCORERS[metric]()
            tested = metric_p_values(scorer, [ours], [theirs], SAMPLES)
            p_values = {"p_randomisation": tested.randomisation, "p_bootstrap": tested.bootstrap}
            low, high = difference_interval(metric, [ours], [theirs], samples=SAMPLES)
            scores = [float(corpus_score(scorer, counts).score) for counts in (ours, theirs)]
            yield PairedTest(system, other, test, len(ours), metric, seed, *scores, low, high, **p_values)


def run_tests(folder: Path) -> list[PairedTest]:
    names = dict.fromkeys(f"{name}-seed{seed}" for pair in PAIRS for name in pair for seed in SEEDS)
    test_sets = read_test_sets(TEST_SETS, folder)
    translations = read_translations(names, TEST_SETS)
    statistics = {key: sentence_statistics(texts, test_sets[key[1]]) for key, texts in translations.items()}
    return [test for pair in PAIRS for name in TEST_SETS for test in compare(*pair, name, statistics)]


def verdict(seeds: Sequence[PairedTest]) -> str:
    """What the seeds show together."""
    alike = all(test.low > -MARGIN and test.high < MARGIN for test in seeds)
    directions = {test.difference > 0 for test in seeds}
    different = len(directions) == 1 and all(test.p_randomisation < 0.05 for test in seeds)
    found = [f"within {MARGIN:g}"] * alike + ["different"] * different
    return ", ".join(found) or "neither"


def table(tests: Sequence[PairedTest]) -> str:
    """A row for each pair, test set and metric."""
    lines = [
        ["systems", "documents", "metric", *(f"difference, seed {seed}" for seed in SEEDS), "largest p", "verdict"]
    ]
    for key, group in groupby(tests, key=lambda test: (test.system, test.other, test.test_set, test.n, test.metric)):
        seeds = list(group)
        differences = [f"{test.difference:+.2f} ({test.low:+.2f} to {test.high:+.2f})" for test in seeds]
        largest = max(test.p_randomisation for test in seeds)
        system, other, test_set, n, metric = key
        names = [f"`{system}` - `{other}`", f"{test_set}, n={n}", NAMES[metric][1]]
        lines.append([*names, *differences, f"{largest:.4f}", verdict(seeds)])
    return markdown_table(lines)


def read_tests() -> list[PairedTest]:
    """The saved tests."""
    numbers = {"n": int, "seed": int} | dict.fromkeys(
        ("score", "other_score", "low", "high", "p_randomisation", "p_bootstrap"), float
    )
    with (RUN / "paired-tests.csv").open(encoding="utf-8", newline="") as file:
        rows = [{key: numbers.get(key, str)(value) for key, value in row.items()} for row in csv.DictReader(file)]
    return [PairedTest(**row) for row in rows]


def write_tests(tests: Sequence[PairedTest]) -> None:
    rows = [asdict(test) for test in tests]
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    atomic_write(RUN / "paired-tests.csv", "\n".join([*lines, ""]))
    note = (
        f"\nDifference (95 % interval by the paired bootstrap over documents, {SAMPLES} samples). p: approximate "
        f"randomization. Verdict: `within {MARGIN:g}` if the intervals of all seeds lie inside ±{MARGIN:g}, "
        "`different` if all seeds have p < 0.05 in one direction. No p-value is corrected for the number of rows. "
        "Command: `python docs/paired_tests.py FOLDER`.\n"
    )
    atomic_write(RUN / "table-paired.md", table(tests) + note)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("The folder of the documents must be given: python docs/paired_tests.py FOLDER")
    write_tests(run_tests(Path(sys.argv[1])))
