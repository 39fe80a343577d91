"""Every saved score of a run against sacrebleu's own command line, on files of each group's lines; rc 1 if one differs.

python benchmarks/against_sacrebleu.py CONFIG [dotted.key=value ...]      as train.py was called
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hf_posenc.lab.config.loading import load_experiment
from hf_posenc.lab.config.settings import Experiment
from hf_posenc.lab.run.prepared_run import PreparedRun
from hf_posenc.utils.text_io import replace_line_ends

SACREBLEU_NAMES = {"bleu": "bleu", "ter": "ter", "chrf": "chrf2"}  # ours and sacrebleu's


def run_sacrebleu(
    hypotheses: list[str], references: list[str], metrics: list[str], samples: int
) -> list[dict[str, Any]]:
    """What sacrebleu prints of two files, with intervals where there are two lines or more."""
    options = ["--metrics", *metrics, "--ter-case-sensitive", "--width", "12"]
    interval = ["--confidence", "--confidence-n", str(samples)] if len(hypotheses) > 1 else []
    with TemporaryDirectory() as folder:
        for name, lines in (("hypotheses", hypotheses), ("references", references)):
            text = "".join(f"{replace_line_ends(line)}\n" for line in lines)  # a line of a file is a segment
            (Path(folder) / name).write_text(text, encoding="utf-8", newline="\n")
        command = [sys.executable, "-m", "sacrebleu", "references", "-i", "hypotheses", *options, *interval]
        completed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    scores = json.loads(completed.stdout)
    return list(scores) if isinstance(scores, list) else [scores]


def differences(group: Mapping[str, Any], theirs: list[dict[str, Any]]) -> Iterator[tuple[str, bool]]:
    """Each number that both have, and whether they are the same."""
    for score in theirs:
        metric = next(name for name, theirs in SACREBLEU_NAMES.items() if theirs == score["name"].lower())
        ours = group["scores"][metric]
        yield metric, round(ours["value"], 12) == score["score"]
        if "confidence_mean" in score:
            yield f"{metric}, middle", abs(ours["middle"] - score["confidence_mean"]) < 1e-9
            yield f"{metric}, half_width", abs(ours["half_width"] - score["confidence_var"]) < 1e-9


def compare(experiment: Experiment) -> tuple[int, int]:
    """How many numbers were compared, and how many differ."""
    num_compared, num_different = 0, 0
    run = PreparedRun(experiment)
    for name, system in experiment.systems.items():
        folder = experiment.folder / name
        metrics = [metric for metric in system.score.metrics if metric in SACREBLEU_NAMES]
        scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
        for test, result in scores["tests"].items():
            pairs = run.system(name).test_sets[test].pairs
            references = [row[system.data.target_language] for row in pairs["translation"]]
            saved = (folder / "translations" / f"{test}.jsonl").read_text(encoding="utf-8")
            hypotheses = [json.loads(line)["text"] for line in saved.split("\n")[:-1]]
            for group in (result["overall"], *result["buckets"]):
                lowest, highest = group["low"], group.get("high", float("inf"))
                rows = [row for row, length in enumerate(pairs["source_length"]) if lowest <= length <= highest]
                if len(rows) != group["n"]:
                    raise ValueError(
                        f"{name}, {test}, {group['label']}: {group['n']} pairs were scored, not {len(rows)}."
                    )
                if not rows:
                    continue
                texts = [hypotheses[row] for row in rows], [references[row] for row in rows]
                for field, same in differences(group, run_sacrebleu(*texts, metrics, system.score.bootstrap_samples)):
                    num_compared, num_different = num_compared + 1, num_different + (not same)
                    if not same:
                        print(f"{name}, {test}, {group['label']}: {field} differs", file=sys.stderr)
        print(f"{name}: {num_compared} numbers compared so far, {num_different} differ")
    return num_compared, num_different


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("overrides", nargs="*", metavar="dotted.key=value")
    options = parser.parse_args()
    _, wrong = compare(load_experiment(options.config, options.overrides))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
