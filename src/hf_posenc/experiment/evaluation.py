"""Translate test sets and score them by source length."""

import hashlib
import json
import time
import warnings
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import PartialState
from accelerate.utils import gather_object
from datasets import Dataset

from ..config.settings import ScoreSettings, System
from ..manifest import check_file, is_listed, readable, save_file, write_file
from ..metrics import load_length_buckets
from ..modeling.tokenization_posenc import PosEncTokenizer
from ..results.collecting import read_translations
from ..text_io import json_line


def translate_test_set(
    model: Callable[[], Any],
    tokenizer: PosEncTokenizer,
    sources: Sequence[Sequence[str]],
    system: System,
    path: Path,
    target_tag: str | None = None,
    **bar: Any,
) -> dict[str, Any]:
    """Translate by beam search into `path`, JSON lines in the sources' order, unless it is there; returns its rows.
    `model` is called where there is something to translate. Each translation begins with the `target_tag`, if any.

    A source is one text or the pieces of one, whose translations are joined by spaces. A row has the translation,
    `text`, and whether it, or a piece of it, ran into its length limit, `truncated`. Each process translates its share;
    all of them must call this. `time` is what that took: the seconds of the slowest process, those of all processors,
    and how many processes there were; None if an older version has translated.
    """
    processes, time_path = PartialState(), path.with_suffix(".time.json")
    if not path.exists() or (is_listed(time_path) and not time_path.exists()):
        mine = range(processes.process_index, len(sources), processes.num_processes)
        pieces = [text for i in mine for text in sources[i]]
        translator = model()
        how = {"batch_size": system.score.batch_size, "num_beams": system.score.num_beams}
        if target_tag is not None:
            how["forced_bos_token_id"] = tokenizer.target.convert_tokens_to_ids(target_tag)
        began, busy = time.perf_counter(), time.process_time()
        made = translator.translations(pieces, tokenizer, **how, **bar)
        spent = gather_object([(time.perf_counter() - began, time.process_time() - busy)])
        found = zip(made.texts, made.truncated, strict=True)
        rows = gather_object([(i, list(islice(found, len(sources[i])))) for i in mine])
        if processes.is_main_process:
            seconds, processor_seconds = zip(*spent, strict=True)
            all_of_it = {"seconds": max(seconds), "processor_seconds": sum(processor_seconds), "processes": len(spent)}
            write_file(time_path, json.dumps(all_of_it))
            write_file(path, "".join(row_of(parts) for _, parts in sorted(rows)))
        processes.wait_for_everyone()
    rows, took = read_translations(path, len(sources)), None
    if time_path.exists():
        check_file(time_path)
        with readable(time_path):
            took = json.loads(time_path.read_text(encoding="utf-8"))
    return {"text": [row["text"] for row in rows], "truncated": [row["truncated"] for row in rows], "time": took}


def row_of(pieces: Sequence[tuple[str, bool]]) -> str:
    """The saved line of one source, of the translations of its pieces."""
    joined = " ".join(filter(None, (text for text, _ in pieces)))
    return json_line({"text": joined, "truncated": any(cut for _, cut in pieces)})


def score_test_set(
    translations: dict[str, Any],
    test: Dataset,
    target_language: str,
    settings: ScoreSettings,
    statistics: Path,
    num_proc: int = 1,
    progress: Callable[[int], Any] | None = None,
) -> dict[str, Any]:
    """The length_buckets result of one test set, with the number of truncated translations, the time of translating and
    the test set's hash.

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
            bleu_tokenize=settings.bleu_tokenize,
            bertscore_model=settings.bertscore_place,
            bertscore_layers=settings.bertscore_layers,
            num_proc=num_proc,
            progress=progress,
        )
    arrays: dict[str, Any] = {"lengths": metric.lengths, **metric.statistics}

    def save(unfinished: Path) -> None:
        with unfinished.open("wb") as file:  # to a name, numpy would add its own ending
            np.savez_compressed(file, **arrays)

    save_file(statistics, save)
    told = {"truncated": sum(translations["truncated"]), "time": translations["time"]}
    return {**result, **told, "test_set_sha256": test_set_hash(test)}


def test_set_hash(test: Dataset) -> str:
    """SHA-256 of a test set's texts and lengths: what must be equal for two scores to be comparable."""
    digest = hashlib.sha256()
    for row in test:
        digest.update(json.dumps(row, sort_keys=True, ensure_ascii=False).encode())
    return digest.hexdigest()
