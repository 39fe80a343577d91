"""Translate test sets and score them by source length."""

import hashlib
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import PartialState
from accelerate.utils import gather_object
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..config.settings import ScoreSettings, System
from ..metrics import load_length_buckets
from ..whole_files import save_whole, write_whole


def translate_test_set(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    test: Dataset,
    system: System,
    path: Path,
    **bar: Any,
) -> dict[str, Any]:
    """Translate by beam search into `path`, JSON lines in the test set's order, unless it is there; returns its rows.

    A row has the translation, `text`, and whether it ran into its length limit, `truncated`. Each process translates
    its share; all of them must call this.
    """
    processes = PartialState()
    if not path.exists():
        mine = range(processes.process_index, len(test), processes.num_processes)
        sources = [test[i]["translation"][system.data.source_language] for i in mine]
        made = model.translations(
            sources, tokenizer, batch_size=system.score.batch_size, num_beams=system.score.num_beams, **bar
        )
        rows = gather_object(list(zip(mine, made.texts, made.truncated, strict=True)))
        if processes.is_main_process:
            lines = [json.dumps({"text": text, "truncated": cut}, ensure_ascii=False) for _, text, cut in sorted(rows)]
            write_whole(path, "".join(line + "\n" for line in lines))
        processes.wait_for_everyone()
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    return {"text": [row["text"] for row in rows], "truncated": [row["truncated"] for row in rows]}


def score_test_set(
    translations: dict[str, Any],
    test: Dataset,
    target_language: str,
    settings: ScoreSettings,
    statistics: Path,
    num_proc: int = 1,
    progress: Callable[[int], Any] | None = None,
) -> dict[str, Any]:
    """The length_buckets result of one test set, with the number of truncated translations and the test set's hash.

    `statistics` is written: the sentence statistics, from which comparisons are made, and the pairs' `lengths`.
    `progress` is told of pairs that have been read.
    """
    metric = load_length_buckets()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "a confidence interval needs two pairs")  # the table shows none
        result: Any = metric.compute(
            predictions=translations["text"],
            references=[row[target_language] for row in test["translation"]],
            source_lengths=list(test["source_length"]),
            edges=settings.edges,
            metrics=settings.metrics,
            bootstrap=settings.bootstrap,
            bertscore_model=settings.bertscore_model,
            bertscore_layers=settings.bertscore_layers,
            num_proc=num_proc,
            progress=progress,
        )
    arrays: dict[str, Any] = {"lengths": metric.lengths, **metric.statistics}

    def save(unfinished: Path) -> None:
        with unfinished.open("wb") as file:  # to a name, numpy would add its own ending
            np.savez_compressed(file, **arrays)

    save_whole(statistics, save)
    return {**result, "truncated": sum(translations["truncated"]), "test_set_sha256": test_set_hash(test)}


def test_set_hash(test: Dataset) -> str:
    """SHA-256 of a test set's texts and lengths: what must be equal for two scores to be comparable."""
    digest = hashlib.sha256()
    for row in test:
        digest.update(json.dumps(row, sort_keys=True, ensure_ascii=False).encode())
    return digest.hexdigest()
