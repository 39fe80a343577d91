"""Segment scores of a finished run's concatenated test sets, after minimum word error rate resegmentation.

    python benchmarks/segment_scores.py configs/unbroken/multi30k.yaml data.data_dir=FOLDER --save unbroken-segments

Takes a config file and the overrides with which `train.py` made the run. A translation of k concatenated pairs is cut
into k segments by mweralign. The table has the corpus scores of all segments: the mean over seeds, and of BLEU the
lowest and the highest seed too.
"""

import argparse
from collections.abc import Iterator, Sequence
from statistics import mean
from typing import Any

import common

from hf_posenc.lab.config.loading import load_experiment
from hf_posenc.lab.results.saved_files import read_translations
from hf_posenc.lab.run.prepared_run import PreparedRun, PreparedSystem, PreparedTestSet
from hf_posenc.metrics.length_buckets.scorers import SCORERS, corpus_score, sentence_statistics
from hf_posenc.metrics.translation_audit.decoding import resegment

METRICS = ("bleu", "chrf", "ter")
NAMES = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER"}


def reference_segments(test_set: PreparedTestSet) -> list[list[str]]:
    """The target texts that each pair of a test set was concatenated from."""
    if test_set.settings.score.max_per_bucket:
        raise ValueError(
            f"Segment scores must be of all pairs, but score.max_per_bucket is "
            f"{test_set.settings.score.max_per_bucket}; use a run without it."
        )
    _, targets = test_set.corpora.gold_segments(test_set.name, test_set.corpus_spec, test_set.num_concatenated)
    return [list(filter(None, texts)) or [""] for texts in targets]


def segment_scores(translations: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """Corpus scores over the segments of all references, case-sensitive."""
    segments = [
        segment
        for translation, texts in zip(translations, references, strict=True)
        for segment in resegment(translation, texts)
    ]
    scorers = {name: SCORERS[name]() for name in METRICS}
    statistics = sentence_statistics(scorers, segments, [[text] for texts in references for text in texts])
    return {name: float(corpus_score(scorer, statistics[name]).score) for name, scorer in scorers.items()}


def system_scores(system: PreparedSystem) -> Iterator[dict[str, Any]]:
    """A record for each test set of one system."""
    for name, test_set in system.test_sets.items():
        references = reference_segments(test_set)
        translations = read_translations(system.paths.translation(name), len(test_set.pairs)).texts
        scores = segment_scores(translations, references)
        record = {"row": system.settings.base_name, "system": system.name, "test_set": name}
        yield record | {"segments": sum(map(len, references)), **scores}


def table(records: Sequence[dict[str, Any]]) -> str:
    """A row for each system of the table, a column for each test set: means over seeds."""
    test_sets = {record["test_set"]: record["segments"] for record in records}
    heads = [f"{name} n={number}" for name, number in test_sets.items()]
    lines = ["| " + " | ".join([" / ".join(NAMES[name] for name in METRICS), *heads]) + " |"]
    lines.append("| --- |" + " ---: |" * len(heads))
    for row in dict.fromkeys(record["row"] for record in records):
        cells = []
        for test_set in test_sets:
            seeds = [record for record in records if (record["row"], record["test_set"]) == (row, test_set)]
            bleu, chrf, ter = ([seed[name] for seed in seeds] for name in METRICS)
            cells.append(f"{mean(bleu):.1f} ({min(bleu):.1f}-{max(bleu):.1f}) / {mean(chrf):.1f} / {mean(ter):.1f}")
        number = len({record["system"] for record in records if record["row"] == row})
        lines.append("| " + " | ".join([f"{row}, {number} seed{'s' if number > 1 else ''}", *cells]) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="the config file of a finished run")
    parser.add_argument("overrides", nargs="*", metavar="dotted.key=value", help="as train.py was given them")
    parser.add_argument("--save", metavar="NAME", help="as benchmarks/results/NAME.json and NAME.md")
    options = parser.parse_intermixed_args(arguments)
    run = PreparedRun(load_experiment(options.config, options.overrides))
    records = [record for system in run for record in system_scores(system)]
    text = table(records)
    if options.save:
        note = (
            "\n\nMeans over seeds, of BLEU the lowest and the highest seed in parentheses; n is the number of segments."
        )
        common.save({"metrics": METRICS, "records": records}, text + note, options.save)
    print(text)


if __name__ == "__main__":
    main()
