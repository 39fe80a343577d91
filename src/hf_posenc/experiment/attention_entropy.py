"""How widely attention spreads: the entropy of its weights in nats, by source length.

Entropy is -sum_j p_j ln p_j over the keys j of a query: 0 where one key has all the weight, ln n where n keys have the
same. A key is visible if it has any weight, so padding is not, and neither is what a window hides.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..metrics.length_buckets.checks import group_bounds


def summed_entropies(attentions: Sequence[Tensor] | None, mask_BQ: Tensor) -> Sequence[np.ndarray | None]:
    """Entropies and logarithms of the numbers of visible keys, each summed over a sentence's queries (2, L, H); Nones
    without attention."""
    if not attentions or attentions[0] is None:
        return [None] * len(mask_BQ)
    sums = []
    for p_BHQS in attentions:
        p_BHQS = p_BHQS.to(torch.promote_types(p_BHQS.dtype, torch.float32))
        visible_BHQ = (p_BHQS > 0).sum(-1).to(p_BHQS.dtype)
        both_2BHQ = torch.stack((torch.special.entr(p_BHQS).sum(-1), visible_BHQ.log())) * mask_BQ[:, None]
        sums.append(both_2BHQ)
    # Summed on the CPU: not every device has float64.
    return list(torch.stack(sums, dim=2).transpose(0, 1).cpu().double().sum(-1).numpy())


def entropy_by_group(
    sums: Sequence[np.ndarray | None], queries: np.ndarray, lengths: Sequence[int], edges: Sequence[int]
) -> list[dict[str, Any]] | None:
    """The mean entropy of each head in each group of sentences, which have so many `queries` (N) and such lengths."""
    known = [sum_2LH for sum_2LH in sums if sum_2LH is not None]
    if not known:
        return None
    sums_N2LH, group_of = np.stack(known), np.searchsorted(edges, lengths)
    groups = []
    for group, bounds in enumerate(group_bounds(edges)):
        rows = group_of == group
        total = int(queries[rows].sum())
        mean_LH, uniform_LH = sums_N2LH[rows].sum(0) / max(total, 1)
        found = {"mean": mean_LH.tolist(), "uniform": float(uniform_LH.mean())}
        groups.append(bounds | {"n": int(rows.sum()), "queries": total} | (found if total else dict.fromkeys(found)))
    return groups
