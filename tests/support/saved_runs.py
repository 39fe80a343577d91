"""Saved runs of noisy copies of references: results.json, and the sentence statistics of each system."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np

from hf_posenc.lab.results.records import VERSION
from hf_posenc.lab.results.saved_files import to_json, write_statistics
from hf_posenc.lab.results.significance import p_values
from hf_posenc.metrics.loading import load_length_buckets
from hf_posenc.utils.run_folder import RunPaths

WORDS = ["the", "a", "cat", "dog", "house", "is", "was", "in", "on", "mat", "red", "green", "old"]
EDGES, LABELS = (10, 20), ["all", "[0,10]", "[11,20]", ">20"]
SCORED = {"max_length": 20, "tokenizer": "abc", "training": {"parameters": 1}, "loss": None}


def noisy(texts: list[str], share: float, seed: int) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(w if chance.random() > share else chance.choice(WORDS) for w in t.split()) for t in texts]


def saved_bucket(fields: dict[str, Any]) -> dict[str, Any]:
    """A length bucket of the metric length_buckets as results.json has it."""
    bounds = {key: fields[key] for key in ("low", "high", "label", "n")}
    scores = {}
    for name, value in fields.items():
        metric, _, kind = name.rpartition("_")
        if name not in bounds and not (kind in ("ci", "mean") and metric in fields):
            score = {"value": value, "half_width": fields.get(f"{name}_ci"), "middle": fields.get(f"{name}_mean")}
            scores[name] = {key: number for key, number in score.items() if number is not None}
    return bounds | {"scores": scores}


def by_length(result: Any) -> dict[str, Any]:
    """The scores of the metric length_buckets as results.json has them."""
    return {"overall": saved_bucket(result["all"]), "buckets": [saved_bucket(group) for group in result["groups"]]}


def write_run(folder: Path, shares: dict[str, float], rows: dict[str, str], text_seed: int = 0) -> Path:
    """A run whose systems put a share of wrong words into 40 references, scored on a test set `news`."""
    chance = random.Random(text_seed)
    references = [" ".join(chance.choices(WORDS, k=chance.randint(4, 14))) for _ in range(40)]
    lengths = [chance.randint(1, 20) for _ in references]  # none is in the last bucket
    systems: dict[str, Any] = {}
    statistics: dict[str, list[dict[str, np.ndarray]]] = {}
    for seed, (name, share) in enumerate(shares.items()):
        metric = load_length_buckets()
        result: Any = metric.compute(
            predictions=noisy(references, share, seed), references=references, source_lengths=lengths, edges=EDGES,
            metrics=["bleu", "ter"], bootstrap=100,
        )  # fmt: skip
        counts = {"lengths": np.array(metric.lengths), **metric.statistics}
        statistics.setdefault(rows[name], []).append(counts)
        path = RunPaths(folder).system(name).statistic("news")
        path.parent.mkdir(parents=True)
        write_statistics(path, counts)
        scored = by_length(result) | {"truncated": 0, "test_set_sha256": f"text {text_seed}"}
        scored["beyond"] = scored["buckets"][-1]
        systems[name] = SCORED | {"row": rows[name], "tests": {"news": scored}}
    base, *others = statistics
    compared: dict[str, Any] = {}
    for row in others:
        found = p_values(statistics[row], statistics[base], EDGES, LABELS, 100)
        compared[row] = to_json(found)
    results = {"version": VERSION, "baseline": base, "systems": systems, "comparisons": {"news": compared}}
    (folder / "results.json").write_text(json.dumps(results | {"reference_table": None}), encoding="utf-8")
    return folder
