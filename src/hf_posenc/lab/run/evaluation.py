"""Translate test sets and score them by source length."""

import time
import warnings
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from accelerate import PartialState
from accelerate.utils import gather_object
from datasets import Dataset

from ...generation.translate import TranslationOutput
from ...metrics.loading import load_length_buckets
from ..config.section_settings import ScoreSettings
from ..data.corpus import hash_test_set
from ..data.segmentation import join_translations
from ..data.tokenization import ExperimentTokenizer
from ..results.json_records import parse
from ..results.records import LengthScores, ScoredTestSet, TestSetTranslations, TranslationTime
from ..results.saved_files import has_translations, read_translations, write_statistics, write_translations


class Translator(Protocol):
    """A model that translates texts: the method `translations` of this family's models."""

    def translations(self, texts: list[str], tokenizer: ExperimentTokenizer, **options: Any) -> TranslationOutput: ...


def translate_test_set(
    model: Callable[[], Translator],
    tokenizer: ExperimentTokenizer,
    sources: Sequence[Sequence[str]],
    score: ScoreSettings,
    path: Path,
    target_tag: str | None = None,
    overlap_words: int = 0,
    **progress_options: object,
) -> TestSetTranslations:
    """The translations of a test set by beam search, in the order of the sources. They are saved in `path`.

    Saved translations are read. Otherwise `model()` loads the model. A source is one text, or its segments, whose
    translations are joined; a segment may begin with `overlap_words` of the one before. Each translation begins with
    `target_tag`, if it is given. All processes must call this function.
    """
    if has_translations(path):
        return read_translations(path, len(sources))
    translations = translate(model(), tokenizer, sources, score, target_tag, overlap_words, **progress_options)
    if PartialState().is_main_process:
        write_translations(path, translations)
    PartialState().wait_for_everyone()
    return translations


def translate(
    model: Translator,
    tokenizer: ExperimentTokenizer,
    sources: Sequence[Sequence[str]],
    score: ScoreSettings,
    target_tag: str | None,
    overlap_words: int,
    **progress_options: object,
) -> TestSetTranslations:
    """Translate every n-th source in each of n processes. Every process returns all translations."""
    state = PartialState()
    own_rows = range(state.process_index, len(sources), state.num_processes)
    segments = [text for i in own_rows for text in sources[i]]
    options = {"batch_size": score.batch_size, "num_beams": score.num_beams}
    if score.max_new_tokens is not None:
        options["max_new_tokens"] = score.max_new_tokens
    if target_tag is not None:
        options["forced_bos_token_id"] = tokenizer.target.convert_tokens_to_ids(target_tag)
    start, cpu_start = time.perf_counter(), time.process_time()
    outputs = model.translations(segments, tokenizer, **options, **progress_options)
    timings = gather_object([(time.perf_counter() - start, time.process_time() - cpu_start)])
    segment_outputs = zip(outputs.texts, outputs.truncated, strict=True)
    rows = gather_object(
        [(i, join_segments(list(islice(segment_outputs, len(sources[i]))), overlap_words)) for i in own_rows]
    )
    ordered = [translation for _, translation in sorted(rows)]
    seconds, processor_seconds = zip(*timings, strict=True)
    return TestSetTranslations(
        texts=tuple(text for text, _ in ordered),
        truncated=tuple(truncated for _, truncated in ordered),
        time=TranslationTime(max(seconds), sum(processor_seconds), len(timings)),
    )


def join_segments(segments: Sequence[tuple[str, bool]], overlap_words: int) -> tuple[str, bool]:
    """The translation of one source from those of its segments, and whether any of them is truncated."""
    joined_text = join_translations((text for text, _ in segments), overlap_words)
    return joined_text, any(is_truncated for _, is_truncated in segments)


def score_test_set(
    translations: TestSetTranslations,
    test: Dataset,
    target_language: str,
    settings: ScoreSettings,
    statistics_path: Path,
    num_proc: int = 1,
    progress: Callable[[int], object] | None = None,
) -> ScoredTestSet:
    """The scores of one test set by the metric length_buckets.

    Writes the sentence statistics, which comparisons are computed from, and the pairs' `lengths` to `statistics_path`.
    `progress` is called with the number of pairs that have been read.
    """
    metric = load_length_buckets()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "a confidence interval needs two pairs")  # not shown
        result: Any = metric.compute(
            predictions=list(translations.texts),
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
    write_statistics(statistics_path, {"lengths": np.array(metric.lengths), **metric.statistics})
    by_length = {key: result[key] for key in ("all", "groups")}
    scores = parse(LengthScores, by_length, "length_buckets")
    return ScoredTestSet(
        overall=scores.overall,
        buckets=scores.buckets,
        signatures=result["signatures"],
        by=result["by"],
        truncated=sum(translations.truncated),
        time=translations.time,
        test_set_sha256=hash_test_set(test),
    )
