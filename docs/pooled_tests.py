"""Tests pooled over the seeds, by debate and by longest sentence, from the saved translations of documents.

    python docs/pooled_tests.py FOLDER                  writes table-pooled.md into the folder of each run in PAIRS
    python docs/pooled_tests.py FOLDER news-small       into that of one run

FOLDER has the documents: `python corpora/check.py OTHER --lowercase FOLDER`. All documents of a debate are swapped and
resampled together, in all seeds at once. A document whose longest sentence exceeds the training length gives the
segmented row inputs beyond that length, too.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from paired_tests import METRICS, NAMES, SAMPLES, SEEDS, TEST_SETS, sentence_statistics
from saved_documents import TestSet, read_test_sets, read_translations
from saved_results import RESULTS, markdown_table

from hf_posenc.lab.results.significance import difference_interval, paired_randomization
from hf_posenc.metrics.length_buckets.scorers import PRECOMPUTED_SCORERS, corpus_score
from hf_posenc.utils.atomic_io import atomic_write

PAIRS = {  # of each run: two systems, and the training length
    "news-small": (
        ("aligned-100", "aligned-100-split", 100),
        ("aligned-50", "relative-50-split", 50),
        ("aligned-100", "aligned-50", 50),
    ),
    "news-recurrent-small": (("recurrent", "aligned", 50),),
}
NOTE = (
    "\nMean difference over three seeds, with its 95 % interval by the paired bootstrap over debates, "
    f"{SAMPLES} samples. "
    "p: approximate randomization; a debate is swapped in all seeds at once. No p-value is corrected for the number of "
    "rows. Command: `python docs/pooled_tests.py FOLDER`.\n"
)


def strata(test_set: TestSet, max_length: int) -> dict[str, np.ndarray]:
    """The indices of all documents, and of those without and with a sentence beyond the training length."""
    longest = np.array(test_set.longest_sentences)
    return {
        "all": np.arange(len(longest)),
        f"sentences up to {max_length}": np.flatnonzero(longest <= max_length),
        f"a longer sentence than {max_length}": np.flatnonzero(longest > max_length),
    }


def lines(run: str, test_sets: Mapping[str, TestSet]) -> Iterator[list[str]]:
    """A row for each pair of systems, test set, stratum of two debates or more, and metric."""
    names = [f"{name}-seed{seed}" for *pair, _ in PAIRS[run] for name in pair for seed in SEEDS]
    translations = read_translations(names, TEST_SETS, RESULTS / run / "systems.tar.xz")
    counts = {key: sentence_statistics(texts, test_sets[key[1]]) for key, texts in translations.items()}
    for system, other, max_length in PAIRS[run]:
        for test_name, test_set in test_sets.items():
            for stratum, documents in strata(test_set, max_length).items():
                debates = [test_set.debates[document] for document in documents]
                if len(set(debates)) < 2:
                    continue
                size = f"{len(debates)} of {len(set(debates))} debates"
                for metric in METRICS:
                    ours, theirs = (
                        [counts[f"{name}-seed{seed}", test_name][metric][documents] for seed in SEEDS]
                        for name in (system, other)
                    )
                    scorer = PRECOMPUTED_SCORERS[metric]()
                    scores = [np.mean([corpus_score(scorer, seed).score for seed in row]) for row in (ours, theirs)]
                    low, high = difference_interval(metric, ours, theirs, units=debates, samples=SAMPLES)
                    p_value = paired_randomization(metric, ours, theirs, units=debates)
                    difference = f"{scores[0] - scores[1]:+.2f} ({low:+.2f} to {high:+.2f})"
                    names_of_row = [f"`{system}` - `{other}`", test_name, stratum, size, NAMES[metric][1]]
                    yield [*names_of_row, difference, f"{p_value:.4f}"]


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("The folder of the documents must be given: python docs/pooled_tests.py FOLDER")
    head = ["systems", "test set", "longest sentence, subwords", "documents", "metric", "mean difference", "p"]
    documents = read_test_sets(TEST_SETS, Path(sys.argv[1]))
    for run in sys.argv[2:] or PAIRS:
        atomic_write(RESULTS / run / "table-pooled.md", markdown_table([head, *lines(run, documents)]) + NOTE)
