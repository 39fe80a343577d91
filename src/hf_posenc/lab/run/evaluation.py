"""Scores of systems: of translated test sets by source length, and of language models on plain text.

The score of plain text is perplexity, by position and by context length. A test text is cut into windows of the longest
context M. Each window of M tokens consists of windows of every shorter context length C. All lengths therefore predict
the same tokens. The context of a prediction is the window's tokens so far. Three scores are made of each text:

- position: windows of M tokens, read at once; each token counts in the bucket of its position.
- whole: windows of C tokens, read at once, for each C.
- sliding: windows of C tokens, read by windows of the training length that move by `stride` tokens, for each C. Each
  read predicts the tokens that the one before did not. With C up to the training length this is `whole`.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from datasets import Dataset
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...encodings.positions import at_least_float32
from ...generation.translate import TranslationOutput
from ...metrics.length_buckets.scorers import token_counts
from ...metrics.loading import load_length_buckets
from ..config.settings import TEXT_SCORES, ScoreSettings
from ..data.corpus import hash_test_set
from ..data.segmentation import join_translations
from ..data.tokenization import ExperimentTokenizer
from ..results.aggregation import scores_by_length
from ..results.records import ScoredTestSet, TestSetTranslations, TranslationTime
from ..results.saved_files import (
    has_translations,
    read_statistics,
    read_translations,
    write_statistics,
    write_translations,
)
from .prepared_run import PreparedSystem

# For each metric the counts (N, C) that it sums, and the `lengths` (N): of pairs; of plain text, the nats and tokens of
# windows or positions.
Statistics = dict[str, np.ndarray]


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
    system: PreparedSystem,
    name: str,
    translations: TestSetTranslations,
    num_proc: int = 1,
    progress: Callable[[int], object] | None = None,
) -> ScoredTestSet:
    """The scores of a system on one test set by the metric length_buckets.

    Writes the sentence statistics, which comparisons are computed from, with the pairs' `lengths`. `progress` is called
    with the number of pairs that have been read.
    """
    pairs, score = system.test_sets[name].pairs, system.settings.score
    language = system.settings.data.target_language
    statistics, signatures = compute_statistics(
        translations, pairs, language, score, score.metrics, num_proc=num_proc, progress=progress
    )
    statistics = {"lengths": np.array(pairs["source_length"]), **statistics}
    write_statistics(system.paths.statistic(name), statistics)
    return ScoredTestSet(
        **scores_by_source_and_prediction(statistics, translations, system.tokenizer, score),
        signatures=signatures,
        truncated=sum(translations.truncated),
        time=translations.time,
        test_set_sha256=hash_test_set(pairs),
    )


def scores_by_source_and_prediction(
    statistics: Statistics, translations: TestSetTranslations, tokenizer: ExperimentTokenizer, score: ScoreSettings
) -> dict[str, Any]:
    """All scores of a translated test set, for a ScoredTestSet, from its sentence statistics."""
    edges, samples = score.bucket_edges, score.bootstrap_samples
    prediction_lengths = token_counts("predictions", list(translations.texts), tokenizer)
    by_prediction = scores_by_length(statistics, prediction_lengths, edges, samples).buckets
    by_source = scores_by_length(statistics, statistics["lengths"].tolist(), edges, samples)
    return {"overall": by_source.overall, "buckets": by_source.buckets, "by_prediction": by_prediction}


def compute_statistics(
    translations: TestSetTranslations,
    test: Dataset,
    target_language: str,
    settings: ScoreSettings,
    metrics: Sequence[str],
    **options: Any,
) -> tuple[Statistics, dict[str, str | None]]:
    """The sentence statistics of each metric, and the signatures of the scorers, by the metric length_buckets.

    `options` are further arguments of the metric.
    """
    metric: Any = load_length_buckets()
    result = metric.compute(
        predictions=list(translations.texts),
        references=[row[target_language] for row in test["translation"]],
        source_lengths=list(test["source_length"]),
        edges=settings.bucket_edges,
        metrics=list(metrics),
        bootstrap=0,  # intervals are computed with the scores, from the statistics
        bleu_tokenize=settings.bleu_tokenize,
        bertscore_model=settings.bertscore_name_or_path,
        bertscore_layers=settings.bertscore_num_layers,
        **options,
    )
    return metric.statistics, result["signatures"]


def score_texts(model: PreTrainedModel, system: PreparedSystem) -> dict[str, ScoredTestSet]:
    """The scores of all test sets of a system on plain text. Saved statistics are read."""
    scores = {}
    for test in system.settings.data.test:
        windows = system.test_windows(test).with_format("numpy")
        inputs_NM, labels_NM = windows["input_ids"][:], windows["labels"][:]
        text_hash = hashlib.sha256(inputs_NM.tobytes() + labels_NM.tobytes()).hexdigest()
        paths = {score: system.paths.statistic(f"{test}-{score}") for score in TEXT_SCORES}
        if not all(path.exists() for path in paths.values()):
            save_statistics(paths, model.eval(), system, torch.tensor(inputs_NM), torch.tensor(labels_NM))
        for score, path in paths.items():
            scores[f"{test}-{score}"] = scored_test_set(read_statistics(path), system, text_hash)
    return scores


def save_statistics(
    paths: dict[str, Path], model: PreTrainedModel, system: PreparedSystem, inputs_NM: Tensor, labels_NM: Tensor
) -> None:
    """Compute and save the statistics of each score, from the windows' inputs and labels (N, M)."""
    settings = system.settings
    training_length, contexts = settings.data.max_length, settings.score.context_lengths
    assert training_length is not None  # validated for plain text
    stride = settings.score.stride or max(1, training_length // 2)
    batch_tokens = settings.score.batch_size * training_length
    whole, sliding = {}, {}
    for context in contexts:
        rows = inputs_NM.reshape(-1, context), labels_NM.reshape(-1, context)
        whole[context] = window_nll(model, *rows, context, context, batch_tokens)
        sliding[context] = whole[context]
        if context > training_length:
            sliding[context] = window_nll(model, *rows, training_length, stride, batch_tokens)
    write_statistics(paths["position"], statistics_by_position(whole[contexts[-1]], contexts))
    write_statistics(paths["whole"], row_statistics(whole))
    write_statistics(paths["sliding"], row_statistics(sliding))


@torch.no_grad()
def window_nll(
    model: PreTrainedModel, inputs_NC: Tensor, labels_NC: Tensor, window: int, stride: int, batch_tokens: int
) -> np.ndarray:
    """The negative log-likelihood in nats (N, C) of each label, by reads of at most `window` tokens."""
    nll_NC = np.empty(inputs_NC.shape)
    batch_size = max(1, batch_tokens // min(window, inputs_NC.shape[1]))
    for rows in torch.arange(inputs_NC.shape[0]).split(batch_size):
        ids, labels = inputs_NC[rows].to(model.device), labels_NC[rows].to(model.device)
        for start, predicted, end in reads(inputs_NC.shape[1], window, stride):
            logits = model(input_ids=ids[:, start:end], use_cache=False).logits[:, predicted - start :]
            nll = nn.functional.cross_entropy(
                logits.to(at_least_float32(logits)).transpose(1, 2), labels[:, predicted:end].long(), reduction="none"
            )
            nll_NC[rows, predicted:end] = nll.cpu().double()
    return nll_NC


def reads(length: int, window: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """The reads of a text of that length: the first token of each, the first one that it predicts, and its end.

    The first read predicts all of its tokens. Each later one has `window` tokens and predicts the last `stride` of
    them, or the fewer that are left. The predicted tokens follow each other without gap or overlap.
    """
    end = min(window, length)
    yield 0, 0, end
    while end < length:
        predicted, end = end, min(end + stride, length)
        yield max(0, end - window), predicted, end


def statistics_by_position(nll_NM: np.ndarray, contexts: list[int]) -> Statistics:
    """A row for each window and each range of positions, which end at the context lengths."""
    starts = [0, *contexts[:-1]]
    parts = [nll_NM[:, start:end] for start, end in zip(starts, contexts, strict=True)]
    return row_statistics(dict(zip(contexts, parts, strict=True)))


def row_statistics(nll: dict[int, np.ndarray]) -> Statistics:
    """A row for each row of each array (N, T): its nats, its number of tokens T, and the array's key as its length."""
    rows = [np.stack([values.sum(1), np.full(len(values), values.shape[1])], axis=1) for values in nll.values()]
    lengths = [np.full(len(values), length) for length, values in nll.items()]
    return {"lengths": np.concatenate(lengths), "perplexity": np.concatenate(rows)}


def scored_test_set(statistics: Statistics, system: PreparedSystem, text_hash: str) -> ScoredTestSet:
    """The perplexity of all rows and of each bucket of context lengths."""
    score, lengths = system.settings.score, statistics["lengths"].tolist()
    by_length = scores_by_length(statistics, lengths, score.bucket_edges, score.bootstrap_samples)
    return ScoredTestSet(
        overall=by_length.overall, buckets=by_length.buckets, by="context", truncated=0, test_set_sha256=text_hash
    )
