"""Teacher-forced analysis of a trained system: loss by position, distance and entropy of attention.

`diagnose` returns a `Diagnosis`. Its values, by their keys in the JSON (P target positions, L layers, H heads):

    test_set_sha256, n, pairs_per_group, training_limit
    targets_cut             number of targets truncated at the decoder's maximum length
    lengths_known           whether the target's length was an input of the model; see `diagnose`
    loss_by_position
        nats, tokens        sums over the sentences (P); </s> is a token, after the last subword
        groups              by source length; each has low, high, label, n, n_in_test_set, the sums nats and tokens,
            perplexity, nats_standard_error     exp(nats / tokens); standard error of nats / tokens over sentences
            by_position     nats, tokens (its own P); the groups' sums at a position add up to those of all
    attention_distance
        encoder, decoder    None for a stack without self-attention
            inside, beyond  sentences of at most training_limit subwords, and longer ones; None without any
                queries, mean   number of queries, and their mean |query - key| in tokens, weighted by attention (L, H)
                uniform         the same for uniform weights over all keys, those hidden by a window included
    attention_entropy
        encoder, cross      None for a model without it; else by source length; each has low, high, label, n
            queries, mean   number of queries, and the mean entropy of their attention in nats (L, H), or None
            uniform         the mean of ln n for n visible keys
    decoding                free decodings (decoding_analysis.py), or None

Older diagnoses lack `lengths_known`, `attention_entropy` and `decoding`.
At most `pairs_per_group` pairs of a bucket are sampled, and sums over buckets are those of sampled pairs. Lengths are
in subwords without special tokens, positions count from 0. A pair's bucket is by its source; inside or beyond is by the
sentence that attends, in the decoder the target. Loss is teacher-forced and never smoothed.

Attention is averaged by head, over the queries of a sentence and then over sentences. Distance is |query - key| in
tokens, weighted by attention. Entropy in nats is -sum_j p_j ln p_j over the keys j of a query: 0 where one key has all
the weight, ln n where n keys have equal weights. A key is visible if it has any weight; padding and keys hidden by a
window are not.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ...generation.translate import evaluation_view, validate_tokenizer
from ...metrics.length_buckets.scorers import BucketBounds, bucket_bounds
from ..data.corpus import hash_test_set
from ..data.lengths import stratified_sample
from ..results.records import (
    AttentionDistance,
    AttentionEntropy,
    Diagnosis,
    EntropyBucket,
    HeadDistances,
    LossBucket,
    LossByPosition,
    LossSums,
    StackDistances,
)
from ..training.trainer import uses_target_length
from .decoding_analysis import decode_by_length, pair_token_ids, row_lengths


def sum_distances(attentions: Sequence[Tensor] | None, mask_BQ: Tensor) -> Sequence[np.ndarray | None]:
    """For each sentence, |query - key| weighted by attention, summed over queries (L, H); None without attention."""
    if not attentions:
        return [None] * len(mask_BQ)
    dtype = torch.promote_types(attentions[0].dtype, torch.float32)
    positions = torch.arange(mask_BQ.shape[1], device=mask_BQ.device)
    distance_QS = (positions[:, None] - positions).abs().to(dtype)
    layers_BHQ = [
        torch.einsum("bhqs,qs->bhq", p_BHQS.to(dtype), distance_QS) * mask_BQ[:, None] for p_BHQS in attentions
    ]
    return list(torch.stack(layers_BHQ, dim=1).cpu().double().sum(-1).numpy())


def mean_distances(
    sums: list[np.ndarray | None], tokens: np.ndarray, inside: np.ndarray, *, causal: bool
) -> StackDistances | None:
    """The mean distance of a stack's queries, inside and beyond; sentences have `tokens` queries (N)."""
    measured = [sum_LH for sum_LH in sums if sum_LH is not None]
    if len(measured) < len(sums):
        return None
    # The sum over n queries with uniform weights over keys 0 to n - 1, or 0 to the query's position.
    uniform = tokens * (tokens - 1) / 4 if causal else (tokens**2 - 1) / 3

    def mean_over(rows_N: np.ndarray) -> HeadDistances | None:
        if not (queries := int(tokens[rows_N].sum())):
            return None
        mean_LH = np.stack(measured)[rows_N].sum(0) / queries
        mean = tuple(map(tuple, mean_LH.tolist()))
        return HeadDistances(queries=queries, mean=mean, uniform=float(uniform[rows_N].sum() / queries))

    return StackDistances(inside=mean_over(inside), beyond=mean_over(~inside))


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
    """Measures of one pair: the nats of each target token (P), and sums over queries, None without attention.

    `encoder`, `decoder`: distances of self-attention (L, H). `encoder_entropy`, `cross_entropy`: entropies and their
    upper bounds (2, L, H).
    """

    nll: np.ndarray
    encoder: np.ndarray | None
    decoder: np.ndarray | None
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
    training_limit: int | None,
    pairs_per_group: int | None = 200,
    decoded_per_group: int = 20,
    max_new_tokens: int | None = None,
    use_target_length: bool = False,
    batch_size: int = 32,
    progress: bool = False,
    description: str = "diagnosing",
    progress_position: int = 0,
) -> Diagnosis:
    """The diagnosis of one system on one test set; the module's docstring describes its fields.

    `edges` are the buckets' upper bounds in source tokens, inclusive. `decoded_per_group` pairs of each bucket are also
    decoded, to at most `max_new_tokens`; without it, to the limits of `generate`. A model whose alignment uses the
    target's length reads targets token by token, as in decoding; with `use_target_length` at once, as in training.
    Batches of long sentences have fewer than `batch_size`. With `progress`, a progress bar with this `description` is
    on line `progress_position`. Raises a ValueError without pairs, and for lengths from another tokenizer.
    """
    validate_tokenizer(model.config, tokenizer)
    if not len(test):
        raise ValueError("A diagnosis needs at least one pair, but this test set has 0; give it another one.")
    pairs = test if pairs_per_group is None else stratified_sample(test, edges, pairs_per_group)
    languages = (source_language, target_language)
    sources, targets = pair_token_ids(pairs, tokenizer, *languages)
    max_target = model.config.max_target_length
    truncated_targets = [ids[:max_target] for ids in targets]
    bar_options = {"desc": description, "position": progress_position, "disable": not progress}
    length_aware = uses_target_length(model.config)
    sentences = measure_pairs(
        model, sources, truncated_targets, batch_size, bar_options, use_cache=length_aware and not use_target_length
    )
    loss_buckets = loss_by_bucket(sentences, pairs["source_length"], test["source_length"], edges)
    decoded_pairs = stratified_sample(pairs, edges, decoded_per_group)
    bar_options |= {"desc": f"{description}, decoding"}
    by_source = (pairs["source_length"], edges)
    max_tokens = math.inf if training_limit is None else training_limit + tokenizer.num_special_tokens_to_add()
    inside, target_inside = row_lengths(sources) <= max_tokens, row_lengths(targets) <= max_tokens
    loss = loss_sums_by_position([sentence.nll for sentence in sentences])
    return Diagnosis(
        test_set_sha256=hash_test_set(test),
        n=len(pairs),
        pairs_per_group=pairs_per_group,
        training_limit=training_limit,
        targets_cut=int((row_lengths(targets) > row_lengths(truncated_targets)).sum()),
        lengths_known=length_aware and use_target_length,
        loss_by_position=LossByPosition(nll=loss.nll, tokens=loss.tokens, buckets=loss_buckets),
        attention_distance=AttentionDistance(
            encoder=mean_distances(
                [measures.encoder for measures in sentences], row_lengths(sources), inside, causal=False
            ),
            decoder=mean_distances(
                [measures.decoder for measures in sentences], row_lengths(truncated_targets), target_inside, causal=True
            ),
        ),
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


def loss_by_bucket(
    sentences: list[SentenceMeasures], lengths: Sequence[int], all_lengths: Sequence[int], edges: Sequence[int]
) -> tuple[LossBucket, ...]:
    """The loss of each length bucket, and the bucket's number of pairs in the whole test set."""
    bucket_ids, all_bucket_ids = np.searchsorted(edges, lengths), np.searchsorted(edges, all_lengths)
    buckets = []
    for bucket, bounds in enumerate(bucket_bounds(edges)):
        nll = [sentences[row].nll for row in np.flatnonzero(bucket_ids == bucket)]
        buckets.append(bucket_loss(nll, bounds, n_in_test_set=int((all_bucket_ids == bucket).sum())))
    return tuple(buckets)


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
    max_lengths, heads = np.maximum(row_lengths(sources), row_lengths(targets)), num_attention_heads(model.config)
    order, by_row = np.argsort(-max_lengths, kind="stable"), dict[int, SentenceMeasures]()
    model = evaluation_view(model, "eager")
    with torch.no_grad(), tqdm(total=len(order), unit="pair", leave=False, **bar_options) as progress:
        while (num_done := len(by_row)) < len(order):
            weights_per_pair = heads * int(max_lengths[order[num_done]]) ** 2
            max_rows = max(1, min(batch_size, max_weights // weights_per_pair))
            rows = order[num_done : num_done + max_rows].tolist()
            batch = ([side[row] for row in rows] for side in (sources, targets))
            by_row |= zip(rows, measure_batch(model, *batch, use_cache=use_cache), strict=True)
            progress.update(len(rows))
    return [by_row[row] for row in range(len(order))]


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
        sum_distances(outputs.encoder_attentions, mask != 0),
        sum_distances(outputs.decoder_attentions, labels != -100),
        sum_entropies(outputs.encoder_attentions, mask != 0),
        sum_entropies(outputs.cross_attentions, labels != -100),
    )
    rows = zip(nll_BP.cpu().double().numpy(), targets, *sums, strict=True)
    return [SentenceMeasures(nll_P[: len(target)], *sums_of_pair) for nll_P, target, *sums_of_pair in rows]


def bucket_loss(nll: list[np.ndarray], bounds: BucketBounds, n_in_test_set: int) -> LossBucket:
    """Loss statistics of a bucket, from the nats of each sentence's tokens.

    The standard error is that of a ratio of sums; its square is n / (n - 1) sum_i (nats_i - ratio tokens_i)^2 /
    tokens^2 (Cochran, Sampling Techniques, 3rd edition, Wiley 1977, chapter 6, infinite population). One sentence has
    none.
    """
    n, sums_N, tokens_N = len(nll), np.array([nll_P.sum() for nll_P in nll]), row_lengths(nll)
    total, tokens = float(sums_N.sum()), int(tokens_N.sum())
    perplexity = math.exp(min(total / tokens, 700.0)) if n else None
    residual_N = sums_N - total / max(tokens, 1) * tokens_N
    standard_error = math.sqrt(n / (n - 1) * (residual_N**2).sum()) / tokens if n > 1 else None
    return LossBucket(
        **bounds,
        n=n,
        nll=total,
        tokens=tokens,
        perplexity=perplexity,
        standard_error=standard_error,
        by_position=loss_sums_by_position(nll),
        n_in_test_set=n_in_test_set,
    )


def loss_sums_by_position(nll: list[np.ndarray]) -> LossSums:
    """Nats of all sentences, summed at each target position, and the number of tokens there (P)."""
    sums, tokens = np.zeros((2, max(map(len, nll), default=0)))
    for nll_P in nll:
        sums[: len(nll_P)] += nll_P
        tokens[: len(nll_P)] += 1
    return LossSums(nll=tuple(sums.tolist()), tokens=tuple(tokens.astype(int).tolist()))
