"""Decoding analysis: greedy decodings of a few pairs, and their attention's position in the source.

`decode_by_length` returns a `DecodingDiagnosis`. Its values, by their keys in the JSON (T generated
tokens, </s> included):

    pairs_per_group         the maximum number of decoded pairs in a length bucket
    tokens_per_group        the maximum number of their source and target tokens; at least one pair is decoded
    far                     tokens: a longer step of the centroid is a jump
    groups                  by source length; each has low, high, label, n; an empty one has nothing else
        greedy              plain decodings: bleu, bleu_ci (95 %), length_ratio
        end_forbidden       the same for decodings with exactly as many tokens as the reference
        ended               fraction of plain decodings that ended before their length limit
        centre              the centroid in plain decodings; None for a model without cross-attention weights
            steps           number of steps from one token to the next
            jumps           fraction of steps in which the centroid moves by more than `far` tokens, in any direction
            backwards       fraction of steps in which it moves back by more than `far` tokens
            final           mean of the centroid at </s>, divided by the position of the source's last token
        examples            the first pairs of the bucket
            source, target  number of tokens of source and reference, </s> included
            ended           as above
            centre          the centroid at each generated token (T), or None
            place           the source position of each token in the cross-attention's encodings (T), or None

The centroid is the one that alignments track,
attention_centroid of alignments/tracking.py. Decodings with </s> forbidden distinguish early termination from a lost
source position: a system that still tracks the source continues the translation, and its BLEU rises.
"""

import sys
import warnings
from collections.abc import Mapping, Sequence, Sized
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...alignments.tracking import attention_centroid
from ...generation.model_inputs import get_cache
from ...generation.translate import evaluation_view
from ...metrics.length_buckets.scorers import bucket_bounds
from ...metrics.loading import load_length_buckets
from ..results.records import (
    CentroidMovement,
    DecodingBucket,
    DecodingDiagnosis,
    DecodingExample,
    DecodingScore,
)

# Source tokens of a batch, with padding; the cache of 6 layers of width 512 then takes 600 MB.
MAX_TOKENS_PER_BATCH = 2**13


class Decoding(NamedTuple):
    """One decoding.

    `ids`: tokens without the end token. `ended`: whether it ended before its limit. `centroid`, `source_position`: at
    each token and at the end (T), or None. `end_ids`: the end token, which is text if it is not a special token.
    """

    ids: list[int]
    ended: bool
    centroid: np.ndarray | None
    source_position: np.ndarray | None
    end_ids: tuple[int, ...] = ()


def decode(
    model: PreTrainedModel,
    sources: list[list[int]],
    limits: list[int],
    progress: tqdm,
    *,
    may_end: bool,
    max_tokens: int = MAX_TOKENS_PER_BATCH,
) -> list[Decoding]:
    """Greedy decodings of the sources, in order. Sources of similar length share a batch, of at most `max_tokens`."""
    order, by_row = np.argsort([-len(ids) for ids in sources], kind="stable"), dict[int, Decoding]()
    while (num_done := len(by_row)) < len(order):
        max_rows = max(1, max_tokens // len(sources[order[num_done]]))
        rows = order[num_done : num_done + max_rows].tolist()
        batch = decode_batch(model, [sources[row] for row in rows], [limits[row] for row in rows], may_end=may_end)
        by_row |= zip(rows, batch, strict=True)
        progress.update(len(rows))
    return [by_row[row] for row in range(len(order))]


@torch.no_grad()
def decode_batch(
    model: PreTrainedModel, sources: list[list[int]], limits: list[int], *, may_end: bool
) -> list[Decoding]:
    """Greedy decodings of at most `limits` tokens each, or of exactly as many unless they `may_end`.

    Equal to `generate`, but each step's attention weights are dropped after their centroid is computed. The weights of
    all steps would take memory in proportion to the target's length.
    """
    source_ids = [torch.tensor(ids, device=model.device) for ids in sources]
    mask_BS = pad_sequence([torch.ones_like(ids) for ids in source_ids], True, 0)
    encoder_outputs = model.model.encoder(pad_sequence(source_ids, True, model.config.pad_token_id), mask_BS)
    keys_1S = torch.arange(mask_BS.shape[1], device=model.device)[None]
    limits_B, (ends, pad) = torch.tensor(limits, device=model.device), model.end_tokens()
    new_B, cache = torch.full_like(limits_B, model.start_token()), None
    generated, centroids, source_positions = list[Tensor](), list[Tensor](), list[Tensor]()
    ended_B = torch.zeros_like(limits_B, dtype=torch.bool)
    while not ended_B.all():
        step = {"decoder_input_ids": new_B[:, None], "cache": cache, "use_cache": True}
        outputs = model(encoder_outputs=encoder_outputs, attention_mask=mask_BS, output_attentions=True, **step)
        scores_BV, cache = outputs.logits[:, -1].clone(), get_cache(outputs)
        if not may_end:
            scores_BV[:, ends] = -torch.inf
        at_limit_B = limits_B <= len(generated)
        new_B = torch.where(at_limit_B, ends[0] if ends else pad, scores_BV.argmax(-1))
        ended_B = ended_B | at_limit_B | torch.isin(new_B, new_B.new_tensor(ends))
        generated.append(new_B)
        if outputs.cross_attentions:
            centroids.append(attention_centroid(outputs.cross_attentions, keys_1S)[:, 0])
        if outputs.source_positions is not None:
            source_positions.append(outputs.source_positions[:, 0])
    tokens_BT = torch.stack(generated, 1).cpu().numpy()
    centroid_BT = stack_steps(centroids, len(sources))
    position_BT = stack_steps(source_positions, len(sources))
    decodings = []
    for row, (tokens_T, limit) in enumerate(zip(tokens_BT, limits, strict=True)):
        length = int(np.append(np.isin(tokens_T[:limit], ends), True).argmax())  # up to the end token or the limit
        centroid = None if centroid_BT is None else centroid_BT[row, : length + 1]
        position = None if position_BT is None else position_BT[row, : length + 1]
        end = tuple(tokens_T[:limit][length : length + 1].tolist())
        decodings.append(Decoding(tokens_T[:length].tolist(), length < limit, centroid, position, end))
    return decodings


def stack_steps(steps: list[Tensor], batch: int) -> np.ndarray | None:
    """The values of all steps, (B) or (1) each, as curves (B, T); None without steps."""
    return torch.stack([step.expand(batch) for step in steps], 1).cpu().double().numpy() if steps else None


JUMP_THRESHOLD = 5
NUM_EXAMPLES = 3
TOKENS_PER_GROUP = 20_000


def decode_by_length(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Dataset,
    source_language: str,
    target_language: str,
    *,
    edges: Sequence[int],
    pairs_per_group: int,
    max_new_tokens: int | None,
    bar_options: Mapping[str, object],
) -> DecodingDiagnosis | None:
    """Decode the sampled `pairs`, to `max_new_tokens` each, or without it to the limits of `model.generate`; None
    without any. `bar_options` are options of the progress bar."""
    if not len(pairs):
        return None
    languages = (source_language, target_language)
    pairs = cap_tokens(pairs, *pair_token_ids(pairs, tokenizer, *languages), edges)
    sources, targets = pair_token_ids(pairs, tokenizer, *languages)
    most = model.config.max_target_length or sys.maxsize
    target_lengths = [min(len(ids), most) - 1 for ids in targets]
    limits = model.max_target_lengths(map(len, sources))
    if max_new_tokens is not None:
        limits = [min(max_new_tokens, most - 1)] * len(sources)
    model = evaluation_view(model, "eager")
    with tqdm(total=2 * len(pairs), unit="pair", leave=False, **bar_options) as progress:
        greedy = decode(model, sources, limits, progress, may_end=True)
        end_forbidden = decode(model, sources, target_lengths, progress, may_end=False)
    greedy_scores = score_decodings(tokenizer, greedy, pairs, target_language, edges)
    forbidden_scores = score_decodings(tokenizer, end_forbidden, pairs, target_language, edges)
    bucket_ids, buckets = np.searchsorted(edges, pairs["source_length"]), []
    for number, bounds in enumerate(bucket_bounds(edges)):
        rows = np.flatnonzero(bucket_ids == number).tolist()
        bucket = DecodingBucket(**bounds, n=len(rows))
        if rows:
            decodings = [(greedy[row], len(sources[row]), len(targets[row])) for row in rows]
            bucket = replace(
                bucket,
                greedy=greedy_scores[number],
                end_forbidden=forbidden_scores[number],
                ended=sum(decoding.ended for decoding, _, _ in decodings) / len(rows),
                movement=centroid_movement([(decoding.centroid, length) for decoding, length, _ in decodings]),
                examples=tuple(decoding_example(*decoding) for decoding in decodings[:NUM_EXAMPLES]),
            )
        buckets.append(bucket)
    return DecodingDiagnosis(
        pairs_per_group=pairs_per_group,
        tokens_per_group=TOKENS_PER_GROUP,
        far=JUMP_THRESHOLD,
        buckets=tuple(buckets),
    )


def cap_tokens(
    pairs: Dataset,
    sources: list[list[int]],
    targets: list[list[int]],
    edges: Sequence[int],
    max_tokens: int = TOKENS_PER_GROUP,
) -> Dataset:
    """The first pairs of each bucket with at most `max_tokens` tokens together; at least one pair."""
    tokens_used, rows = dict[int, int](), []
    tokens_N = row_lengths(sources) + row_lengths(targets)
    for row, bucket in enumerate(np.searchsorted(edges, pairs["source_length"]).tolist()):
        if bucket not in tokens_used or tokens_used[bucket] + tokens_N[row] <= max_tokens:
            rows.append(row)
            tokens_used[bucket] = tokens_used.get(bucket, 0) + tokens_N[row]
    return pairs.select(rows)


def pair_token_ids(
    pairs: Dataset, tokenizer: PreTrainedTokenizerBase, source_language: str, target_language: str
) -> tuple[list[list[int]], list[list[int]]]:
    """Token ids of sources and targets; a ValueError if `source_length` is from another tokenizer."""
    translations = list(pairs["translation"])
    sources = tokenizer([row[source_language] for row in translations], truncation=False)["input_ids"]
    targets = tokenizer(text_target=[row[target_language] for row in translations], truncation=False)["input_ids"]
    special = tokenizer.num_special_tokens_to_add()
    source_lengths = np.asarray(pairs["source_length"])
    for row in np.flatnonzero(source_lengths != row_lengths(sources) - special)[:1]:
        raise ValueError(
            f"A test set's source_length must be in subwords of the system's tokenizer, but pair {row} has "
            f"{source_lengths[row]} and this tokenizer gives {len(sources[row]) - special}; measure it with this one."
        )
    return sources, targets


def row_lengths(rows: Sequence[Sized]) -> np.ndarray:
    """The length of each row (N)."""
    return np.array([len(row) for row in rows], dtype=int)


def score_decodings(
    tokenizer: PreTrainedTokenizerBase,
    decodings: list[Decoding],
    pairs: Dataset,
    target_language: str,
    edges: Sequence[int],
) -> list[DecodingScore]:
    """BLEU with its interval, and the length ratio, for each length bucket of the decoded pairs."""
    texts = tokenizer.batch_decode(
        [[*decoding.ids, *decoding.end_ids] for decoding in decodings], skip_special_tokens=True
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "a confidence interval needs two pairs")  # one pair's is None
        result: Any = load_length_buckets().compute(
            predictions=texts,
            references=[row[target_language] for row in pairs["translation"]],
            source_lengths=list(pairs["source_length"]),
            edges=edges,
            metrics=["bleu"],
            bootstrap=1000,
        )
    return [
        DecodingScore(bleu=group["bleu"], half_width=group.get("bleu_ci"), length_ratio=group["length_ratio"])
        for group in result["groups"]
    ]


def decoding_example(decoding: Decoding, num_source_tokens: int, num_target_tokens: int) -> DecodingExample:
    """One decoding as it is saved, with its curves rounded."""
    return DecodingExample(
        source=num_source_tokens,
        target=num_target_tokens,
        ended=decoding.ended,
        centroid=rounded_curve(decoding.centroid),
        source_position=rounded_curve(decoding.source_position),
    )


def centroid_movement(decodings: Sequence[tuple[np.ndarray | None, int]]) -> CentroidMovement | None:
    """How the centre of cross-attention moves, given each decoding's curve (T) and its number of source tokens; None
    for a model without one."""
    curves = [(curve_T, num_tokens) for curve_T, num_tokens in decodings if curve_T is not None]
    if not curves:
        return None
    steps = np.concatenate([np.diff(curve_T) for curve_T, _ in curves])
    final = [curve_T[-1] / max(num_tokens - 1, 1) for curve_T, num_tokens in curves]
    return CentroidMovement(
        steps=len(steps),
        jumps=float((abs(steps) > JUMP_THRESHOLD).mean()) if len(steps) else 0.0,
        backwards=float((steps < -JUMP_THRESHOLD).mean()) if len(steps) else 0.0,
        final=float(np.mean(final)),
    )


def rounded_curve(curve_T: np.ndarray | None) -> tuple[float, ...] | None:
    return None if curve_T is None else tuple(np.round(curve_T, 2).tolist())
