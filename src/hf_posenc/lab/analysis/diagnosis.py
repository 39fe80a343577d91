"""Diagnosis of a trained system: loss by position, attention, and greedy decodings of a few pairs.

`diagnose` returns a `Diagnosis`, whose fields results/records.py describes.

At most `pairs_per_group` pairs of a bucket are sampled, and sums over buckets are those of sampled pairs. Lengths are
in subwords without special tokens, positions count from 0. A pair's bucket is by its source. Loss is teacher-forced and
never smoothed; </s> is a token, after the last subword.

The entropy of attention is averaged by head, over all queries of a bucket. In nats it is -sum_j p_j ln p_j over the
keys j of a query: 0 where one key has all the weight, ln n where n keys have equal weights. A key is visible if it has
any weight; padding and keys hidden by a window are not.

Decodings are greedy. The centroid is the one that alignments track, attention_centroid of alignments/tracking.py. A
step in which it moves by more than JUMP_THRESHOLD tokens is a jump; its final value is divided by the position of the
source's last token. Decodings with </s> forbidden before the reference's length distinguish early termination from a
lost source position: a system that still tracks the source continues the translation, and its BLEU rises.
"""

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ...alignments.tracking import attention_centroid
from ...generation.model_inputs import get_cache
from ...generation.translate import evaluation_view, validate_tokenizer
from ...metrics.length_buckets.scorers import bucket_bounds
from ...metrics.loading import load_length_buckets
from ..data.corpus import hash_test_set
from ..data.lengths import stratified_sample
from ..results.records import (
    AttentionEntropy,
    CentroidMovement,
    DecodingBucket,
    DecodingDiagnosis,
    DecodingExample,
    DecodingScore,
    Diagnosis,
    EntropyBucket,
    LossSums,
)
from ..training.trainer import uses_target_length


def sum_entropies(attentions: Sequence[Tensor] | None, mask_BQ: Tensor) -> Sequence[np.ndarray | None]:
    """For each sentence, entropies and logarithms of the numbers of visible keys, summed over its queries (2, L, H).

    None for each sentence without attention.
    """
    if not attentions or attentions[0] is None:
        return [None] * len(mask_BQ)
    layer_sums = []
    for p_BHQS in attentions:
        p_BHQS = p_BHQS.to(torch.promote_types(p_BHQS.dtype, torch.float32))
        visible_BHQ = (p_BHQS > 0).sum(-1).to(p_BHQS.dtype)
        sums_2BHQ = torch.stack((torch.special.entr(p_BHQS).sum(-1), visible_BHQ.log())) * mask_BQ[:, None]
        layer_sums.append(sums_2BHQ)
    # Summed on the CPU: not every device has float64.
    return list(torch.stack(layer_sums, dim=2).transpose(0, 1).cpu().double().sum(-1).numpy())


def entropy_by_bucket(
    sums: Sequence[np.ndarray | None], queries: np.ndarray, lengths: Sequence[int], edges: Sequence[int]
) -> tuple[EntropyBucket, ...] | None:
    """The mean entropy of each head in each length bucket; sentences have `queries` (N) queries and these `lengths`."""
    measured = [sum_2LH for sum_2LH in sums if sum_2LH is not None]
    if not measured:
        return None
    sums_N2LH, bucket_ids = np.stack(measured), np.searchsorted(edges, lengths)
    buckets = []
    for bucket, bounds in enumerate(bucket_bounds(edges)):
        rows = bucket_ids == bucket
        num_queries = int(queries[rows].sum())
        mean_LH, uniform_LH = sums_N2LH[rows].sum(0) / max(num_queries, 1)
        mean = tuple(map(tuple, mean_LH.tolist())) if num_queries else None
        uniform = float(uniform_LH.mean()) if num_queries else None
        buckets.append(EntropyBucket(**bounds, n=int(rows.sum()), queries=num_queries, mean=mean, uniform=uniform))
    return tuple(buckets)


# Attention weights of all heads in a batch: 150 MB in float32.
MAX_WEIGHTS_PER_BATCH = 150_000_000 // 4


class SentenceMeasures(NamedTuple):
    """Measures of one pair: the nats of each target token (P); entropies of attention and their upper bounds, summed
    over queries (2, L, H), None without attention."""

    nll: np.ndarray
    encoder_entropy: np.ndarray | None
    cross_entropy: np.ndarray | None


def diagnose(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    test: Dataset,
    *,
    source_language: str,
    target_language: str,
    edges: Sequence[int],
    pairs_per_group: int | None = 200,
    decoded_per_group: int = 20,
    max_new_tokens: int | None = None,
    use_target_length: bool = False,
    batch_size: int = 32,
    progress: bool = False,
    description: str = "diagnosing",
) -> Diagnosis:
    """The diagnosis of one system on one test set; the module's docstring describes its fields.

    `edges` are the buckets' upper bounds in source tokens, inclusive. `decoded_per_group` pairs of each bucket are also
    decoded, to at most `max_new_tokens`; without it, to the limits of `generate`. A model whose alignment uses the
    target's length reads targets token by token, as in decoding; with `use_target_length` at once, as in training.
    Batches of long sentences have fewer than `batch_size`. With `progress`, there is a progress bar with this
    `description`. Raises a ValueError without pairs, and for lengths from another tokenizer.
    """
    validate_tokenizer(model.config, tokenizer)
    if not len(test):
        raise ValueError("A diagnosis needs at least one pair, but this test set has 0; give it another one.")
    pairs = test if pairs_per_group is None else stratified_sample(test, edges, pairs_per_group)
    languages = (source_language, target_language)
    sources, targets = pair_token_ids(pairs, tokenizer, *languages)
    max_target = model.config.max_target_length
    truncated_targets = [ids[:max_target] for ids in targets]
    bar_options = {"desc": description, "disable": not progress}
    length_aware = uses_target_length(model.config)
    sentences = measure_pairs(
        model, sources, truncated_targets, batch_size, bar_options, use_cache=length_aware and not use_target_length
    )
    decoded_pairs = stratified_sample(pairs, edges, decoded_per_group)
    bar_options |= {"desc": f"{description}, decoding"}
    by_source = (pairs["source_length"], edges)
    return Diagnosis(
        test_set_sha256=hash_test_set(test),
        n=len(pairs),
        pairs_per_group=pairs_per_group,
        targets_cut=int((row_lengths(targets) > row_lengths(truncated_targets)).sum()),
        lengths_known=length_aware and use_target_length,
        loss_by_position=loss_sums_by_position([measures.nll for measures in sentences]),
        attention_entropy=AttentionEntropy(
            encoder=entropy_by_bucket(
                [measures.encoder_entropy for measures in sentences], row_lengths(sources), *by_source
            ),
            cross=entropy_by_bucket(
                [measures.cross_entropy for measures in sentences], row_lengths(truncated_targets), *by_source
            ),
        ),
        decoding=decode_by_length(
            model,
            tokenizer,
            decoded_pairs,
            *languages,
            edges=edges,
            pairs_per_group=decoded_per_group,
            max_new_tokens=max_new_tokens,
            bar_options=bar_options,
        ),
    )


def measure_pairs(
    model: PreTrainedModel,
    sources: list[list[int]],
    targets: list[list[int]],
    batch_size: int,
    bar_options: Mapping[str, object],
    *,
    use_cache: bool,
    max_weights: int = MAX_WEIGHTS_PER_BATCH,
) -> list[SentenceMeasures]:
    """Measures of all pairs of token ids, in order. Computes the longest first: a memory error then comes at once.

    A batch has at most `batch_size` pairs and, with padding, at most `max_weights` attention weights; at least one
    pair. `bar_options` are options of the progress bar.
    """
    lengths_N, heads = np.maximum(row_lengths(sources), row_lengths(targets)), num_attention_heads(model.config)
    by_row: dict[int, SentenceMeasures] = {}
    model = evaluation_view(model, "eager")
    with torch.no_grad(), tqdm(total=len(sources), unit="pair", leave=False, **bar_options) as progress:
        for rows in batches_by_length(lengths_N, lambda length: min(batch_size, max_weights // (heads * length**2))):
            batch = [sources[row] for row in rows], [targets[row] for row in rows]
            by_row |= zip(rows, measure_batch(model, *batch, use_cache=use_cache), strict=True)
            progress.update(len(rows))
    return [by_row[row] for row in range(len(sources))]


def batches_by_length(lengths_N: np.ndarray, max_rows: Callable[[int], int]) -> Iterator[list[int]]:
    """Row numbers in batches, the longest row first. A batch has at most `max_rows(its longest length)` rows, or
    one."""
    order = np.argsort(-lengths_N, kind="stable").tolist()
    start = 0
    while start < len(order):
        end = start + max(1, max_rows(int(lengths_N[order[start]])))
        yield order[start:end]
        start = end


def num_attention_heads(config: PreTrainedConfig) -> int:
    """The number of heads in all attentions of all layers; RNN-NMT has one attention of one head."""
    encoder, decoder = (
        getattr(config, f"{side}_layers") * getattr(config, f"{side}_attention_heads", 0)
        for side in ("encoder", "decoder")
    )
    return max(1, encoder + 2 * decoder)


def measure_batch(
    model: PreTrainedModel, sources: list[list[int]], targets: list[list[int]], *, use_cache: bool
) -> list[SentenceMeasures]:
    """Measures of the pairs of one batch, padded on the right."""

    def padded(rows: list[list[int]], padding: int) -> Tensor:
        """Rows of ids as one tensor on the model's device."""
        return pad_sequence([torch.tensor(ids) for ids in rows], True, padding).to(model.device)

    labels, mask = padded(targets, -100), padded([[1] * len(ids) for ids in sources], 0)
    ids, decoder_ids = padded(sources, model.config.pad_token_id), model.prepare_decoder_input_ids_from_labels(labels)
    outputs = model(ids, mask, decoder_ids, use_cache=use_cache, output_attentions=True)
    dtype = torch.promote_types(outputs.logits.dtype, torch.float32)
    nll_BP = nn.functional.cross_entropy(outputs.logits.transpose(1, 2).to(dtype), labels, reduction="none")
    sums = (
        sum_entropies(outputs.encoder_attentions, mask != 0),
        sum_entropies(outputs.cross_attentions, labels != -100),
    )
    rows = zip(nll_BP.cpu().double().numpy(), targets, *sums, strict=True)
    return [SentenceMeasures(nll_P[: len(target)], *sums_of_pair) for nll_P, target, *sums_of_pair in rows]


def loss_sums_by_position(nll: list[np.ndarray]) -> LossSums:
    """Nats of all sentences, summed at each target position, and the number of tokens there (P)."""
    sums, tokens = np.zeros((2, max(map(len, nll), default=0)))
    for nll_P in nll:
        sums[: len(nll_P)] += nll_P
        tokens[: len(nll_P)] += 1
    return LossSums(nll=tuple(sums.tolist()), tokens=tuple(tokens.astype(int).tolist()))


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
    by_row: dict[int, Decoding] = {}
    for rows in batches_by_length(row_lengths(sources), lambda length: max_tokens // length):
        batch = decode_batch(model, [sources[row] for row in rows], [limits[row] for row in rows], may_end=may_end)
        by_row |= zip(rows, batch, strict=True)
        progress.update(len(rows))
    return [by_row[row] for row in range(len(sources))]


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
