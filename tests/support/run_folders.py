"""Run folders as saved, for cards and reports."""

import json
from pathlib import Path
from typing import Any

import yaml

from support.models import tiny_config
from support.saved_runs import saved_bucket

TRAINING = {"steps": 6, "seconds": 1234.5, "loss": 6.5, "processes": 2, "parameters": 39168, "pairs": 2060}


SETTINGS: dict[str, Any] = {
    "data": {
        "source_language": "de",
        "target_language": "en",
        "train": {"generator": {"seed": 1, "pairs": 2500, "min_words": 6, "max_words": 12}},
        "test": {"news": {"files": ["news.de", "news.en"]}},
        "vocab_size": 29,
        "max_length": 40,
    },
    "model": {"d_model": 16},
    "train": {"max_steps": 6, "learning_rate": 3e-4, "label_smoothing_factor": 0.1, "seed": 7},
    "score": {"bucket_edges": [40], "num_beams": 4},
}


SCORED = {"bleu": 31.456, "ter": 57.944, "brevity_penalty": 1.0, "length_ratio": 1.02}


RESULT: dict[str, Any] = {
    "overall": saved_bucket({"low": 0, "high": None, "label": "all", "n": 3, **SCORED}),
    "buckets": [
        saved_bucket({"low": 0, "high": 40, "label": "[0,40]", "n": 3, **SCORED}),
        saved_bucket({"low": 41, "high": None, "label": ">40", "n": 0, **dict.fromkeys(SCORED)}),
    ],
    "signatures": {"bleu": "nrefs:1|case:mixed", "ter": None},
    "truncated": 2,
    "test_set_sha256": "1736879ea46bd4788db3a0f2ec5e79f23cc25334fbce04c4716bdc2d4f5d29ed",
}


def run_folder(folder: Path, sides: str = "relative", *, tests: dict[str, Any] | None = None, **data: Any) -> Path:
    """The folder of a run whose one system, `tiny`, is trained and scored; `data` changes its settings."""
    system = folder / "tiny"
    (system / "model").mkdir(parents=True)
    settings = SETTINGS | {"data": SETTINGS["data"] | data}
    (system / "settings.yaml").write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    scores = {"tokenizer": "3a15", "max_length": 40, "training": TRAINING, "tests": tests or {"news": RESULT}}
    (system / "scores.json").write_text(json.dumps(scores), encoding="utf-8")
    (system / "model" / "training.json").write_text(json.dumps(TRAINING), encoding="utf-8")
    tiny_config(sides).to_json_file(str(system / "model" / "config.json"), use_diff=False)
    return folder


def change(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | fields), encoding="utf-8")
