"""Distance and entropy of attention, by head: sums over the queries of a sentence, and means over sentences.

Distance is |query - key| in tokens, weighted by attention. Entropy in nats is -sum_j p_j ln p_j over the keys j of a
query: 0 where one key has all the weight, ln n where n keys have equal weights. A key is visible if it has any weight;
padding and keys hidden by a window are not.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ...metrics.length_buckets.validation import bucket_bounds
from ..results.diagnosis_records import EntropyBucket, HeadDistances, StackDistances


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
