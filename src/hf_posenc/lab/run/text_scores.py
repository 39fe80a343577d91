"""Scores of language models on plain text: perplexity by position and by context length.

A test text is cut into windows of the longest context M. Each window of M tokens consists of windows of every shorter
context length C. All lengths therefore predict the same tokens. The context of a prediction is the window's tokens so
far. Three scores are made of each text:

- position: windows of M tokens, read at once; each token counts in the bucket of its position.
- whole: windows of C tokens, read at once, for each C.
- sliding: windows of C tokens, read by windows of the training length that move by `stride` tokens, for each C. Each
  read predicts the tokens that the one before did not. With C up to the training length this is `whole`.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...metrics.length_buckets.validation import BucketBounds
from ..config.settings import TEXT_SCORES
from ..results.aggregation import bucket_scores, scores_by_length
from ..results.records import ScoredTestSet
from ..results.saved_files import read_statistics, write_statistics
from .prepared_run import PreparedSystem

Statistics = dict[str, np.ndarray]  # the `lengths` (N) of windows or positions, and nats and tokens (N, 2)
ALL: BucketBounds = {"label": "all", "low": 0, "high": None}


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
                at_least_float32(logits).transpose(1, 2), labels[:, predicted:end].long(), reduction="none"
            )
            nll_NC[rows, predicted:end] = nll.cpu().double()
    return nll_NC


def at_least_float32(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


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
    score, lengths = system.settings.score, statistics["lengths"]
    every_row = np.ones(len(lengths), dtype=bool)
    return ScoredTestSet(
        overall=bucket_scores(ALL, statistics, every_row, score.bootstrap_samples),
        buckets=scores_by_length(statistics, lengths.tolist(), score.bucket_edges, score.bootstrap_samples),
        by="context",
        truncated=0,
        test_set_sha256=text_hash,
    )
