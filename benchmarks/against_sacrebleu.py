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

from hf_posenc.config.loading import load_experiment
from hf_posenc.config.settings import Experiment
from hf_posenc.experiment.preparation import shared_tokenizer, test_set
from hf_posenc.text_io import one_line

NAMES = {"bleu": "bleu", "ter": "ter", "chrf": "chrf2"}  # ours and sacrebleu's


def command_line(
    hypotheses: list[str], references: list[str], metrics: list[str], samples: int
) -> list[dict[str, Any]]:
    """What sacrebleu prints of two files, with intervals where there are two lines or more."""
    options = ["--metrics", *metrics, "--ter-case-sensitive", "--width", "12"]
    interval = ["--confidence", "--confidence-n", str(samples)] if len(hypotheses) > 1 else []
    with TemporaryDirectory() as folder:
        for name, lines in (("hypotheses", hypotheses), ("references", references)):
            text = "".join(f"{one_line(line)}\n" for line in lines)  # a line of a file is a segment
            (Path(folder) / name).write_text(text, encoding="utf-8", newline="\n")
        command = [sys.executable, "-m", "sacrebleu", "references", "-i", "hypotheses", *options, *interval]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    made = json.loads(done.stdout)
    return list(made) if isinstance(made, list) else [made]


def differences(group: Mapping[str, Any], theirs: list[dict[str, Any]]) -> Iterator[tuple[str, bool]]:
    """Each number that both have, and whether they are the same."""
    for one in theirs:
        ours = next(name for name, theirs in NAMES.items() if theirs == one["name"].lower())
        yield ours, round(group[ours], 12) == one["score"]
        if "confidence_mean" in one:
            yield f"{ours}_mean", abs(group[f"{ours}_mean"] - one["confidence_mean"]) < 1e-9
            yield f"{ours}_ci", abs(group[f"{ours}_ci"] - one["confidence_var"]) < 1e-9


def compare(experiment: Experiment) -> tuple[int, int]:
    """How many numbers were compared, and how many differ."""
    compared, wrong = 0, 0
    tokenizer = shared_tokenizer(experiment)
    for name, system in experiment.systems.items():
        folder = experiment.folder / name
        metrics = [metric for metric in system.score.metrics if metric in NAMES]
        scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
        for test, result in scores["tests"].items():
            pairs = test_set(experiment, system, test, tokenizer)
            references = [row[system.data.target_language] for row in pairs["translation"]]
            saved = (folder / "translations" / f"{test}.jsonl").read_text(encoding="utf-8")
            hypotheses = [json.loads(line)["text"] for line in saved.split("\n")[:-1]]
            for group in (result["all"], *result["groups"]):
                lowest, highest = group["low"], group["high"] or float("inf")
                rows = [row for row, length in enumerate(pairs["source_length"]) if lowest <= length <= highest]
                if len(rows) != group["n"]:
                    raise ValueError(
                        f"{name}, {test}, {group['label']}: {group['n']} pairs were scored, not {len(rows)}."
                    )
                if not rows:
                    continue
                texts = [hypotheses[row] for row in rows], [references[row] for row in rows]
                for field, same in differences(group, command_line(*texts, metrics, system.score.bootstrap)):
                    compared, wrong = compared + 1, wrong + (not same)
                    if not same:
                        print(f"{name}, {test}, {group['label']}: {field} differs", file=sys.stderr)
        print(f"{name}: {compared} numbers compared so far, {wrong} differ")
    return compared, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("overrides", nargs="*", metavar="dotted.key=value")
    options = parser.parse_args()
    _, wrong = compare(load_experiment(options.config, options.overrides))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
