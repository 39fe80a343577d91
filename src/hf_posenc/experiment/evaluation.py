"""Translate test sets and score them by source length."""

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
from ..data.pair_dataset import hash_test_set
from ..metrics.loading import load_length_buckets
from ..modeling.tokenization_posenc import PosEncTokenizer
from ..results.aggregation import read_translations
from ..utils.manifest import explain_read_errors, is_in_manifest, save_file, verify_file, write_file
from ..utils.run_folder import translation_time
from ..utils.text_io import json_line


def translate_test_set(
    model: Callable[[], Any],
    tokenizer: PosEncTokenizer,
    sources: Sequence[Sequence[str]],
    system: System,
    path: Path,
    target_tag: str | None = None,
    **progress_options: Any,
) -> dict[str, Any]:
    """Translate by beam search into `path`, JSON lines in the sources' order, unless it is there; returns its rows.
    `model` is called where there is something to translate. Each translation begins with the `target_tag`, if any.

    A source is one text or the segments of one, whose translations are joined by spaces. A row has the translation,
    `text`, and whether it, or a segment of it, was cut at its maximum length, `truncated`. All processes must call
    this. `time` is what translating took: the seconds of the slowest process, those of all processors, and how many
    processes there were; None if an earlier version has translated.
    """
    time_path = translation_time(path)
    if not path.exists() or (is_in_manifest(time_path) and not time_path.exists()):
        write_translations(model(), tokenizer, sources, system, path, target_tag, **progress_options)
    rows, saved_timing = read_translations(path, len(sources)), None
    if time_path.exists():
        verify_file(time_path)
        with explain_read_errors(time_path):
            saved_timing = json.loads(time_path.read_text(encoding="utf-8"))
    return {
        "text": [row["text"] for row in rows],
        "truncated": [row["truncated"] for row in rows],
        "time": saved_timing,
    }


def write_translations(
    model: Any,
    tokenizer: PosEncTokenizer,
    sources: Sequence[Sequence[str]],
    system: System,
    path: Path,
    target_tag: str | None,
    **progress_options: Any,
) -> None:
    """Translate in all processes, each every n-th source, and write translations and time in the first one."""
    distributed_state = PartialState()
    own_rows = range(distributed_state.process_index, len(sources), distributed_state.num_processes)
    segments = [text for i in own_rows for text in sources[i]]
    options = {"batch_size": system.score.batch_size, "num_beams": system.score.num_beams}
    if target_tag is not None:
        options["forced_bos_token_id"] = tokenizer.target.convert_tokens_to_ids(target_tag)
    start, cpu_start = time.perf_counter(), time.process_time()
    outputs = model.translations(segments, tokenizer, **options, **progress_options)
    timings = gather_object([(time.perf_counter() - start, time.process_time() - cpu_start)])
    segment_outputs = zip(outputs.texts, outputs.truncated, strict=True)
    rows = gather_object([(i, list(islice(segment_outputs, len(sources[i])))) for i in own_rows])
    if distributed_state.is_main_process:
        seconds, processor_seconds = zip(*timings, strict=True)
        timing = {"seconds": max(seconds), "processor_seconds": sum(processor_seconds), "processes": len(timings)}
        write_file(translation_time(path), json.dumps(timing))
        write_file(path, "".join(translation_line(row_segments) for _, row_segments in sorted(rows)))
    distributed_state.wait_for_everyone()


def translation_line(segments: Sequence[tuple[str, bool]]) -> str:
    """The saved line of one source, of the translations of its pieces."""
    joined_text = " ".join(filter(None, (text for text, _ in segments)))
    return json_line({"text": joined_text, "truncated": any(is_truncated for _, is_truncated in segments)})


def score_test_set(
    translations: dict[str, Any],
    test: Dataset,
    target_language: str,
    settings: ScoreSettings,
    statistics_path: Path,
    num_proc: int = 1,
    progress: Callable[[int], Any] | None = None,
) -> dict[str, Any]:
    """The length_buckets result of one test set, with the number of truncated translations, the time of translating and
    the test set's hash.

    `statistics_path` is written: the sentence statistics, from which comparisons are made, and the pairs' `lengths`.
    `progress` is told of pairs that have been read.
    """
    metric = load_length_buckets()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "a confidence interval needs two pairs")  # the table shows none
        result: Any = metric.compute(
            predictions=translations["text"],
            references=[row[target_language] for row in test["translation"]],
            source_lengths=list(test["source_length"]),
            edges=settings.bucket_edges,
            metrics=settings.metrics,
            bootstrap=settings.bootstrap_samples,
            bleu_tokenize=settings.bleu_tokenize,
            bertscore_model=settings.bertscore_name_or_path,
            bertscore_layers=settings.bertscore_num_layers,
            num_proc=num_proc,
            progress=progress,
        )
    arrays: dict[str, Any] = {"lengths": metric.lengths, **metric.statistics}

    def save(temp_path: Path) -> None:
        with temp_path.open("wb") as file:  # to a name, numpy would add its own ending
            np.savez_compressed(file, **arrays)

    save_file(statistics_path, save)
    extra = {"truncated": sum(translations["truncated"]), "time": translations["time"]}
    return {**result, **extra, "test_set_sha256": hash_test_set(test)}
