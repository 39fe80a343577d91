"""Probing of encodings through their hooks: arrays by position, by distance and by pair of tokens.

`positions` is a stack's `PositionEncodingSum`, in float64 and evaluation mode, and is called as in the Transformer.
Nothing here depends on which encoding it is: the hooks' outputs for zeros, unit vectors and random vectors show what
it does. Further shape letters, in addition to those of base.py: P positions, N samples of a query, S distances
(key minus query).
"""

import numpy as np
import torch
from torch import Tensor

from ...encodings.positions import AttentionContext
from ...encodings.sum import PositionEncodingSum

SEED = 0
# Outputs of a hook that differ by less are equal, in float64.
TOLERANCE = 1e-8
NUM_PROBED_POSITIONS = 12
# The maximum number of values in the keys of all queries that are probed at once.
MAX_ELEMENTS = 2**22


def standard_normal(*shape: int) -> Tensor:
    """Standard normal numbers, the same in every call."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(SEED), dtype=torch.float64)


def embed_at(positions: PositionEncodingSum, x_BTD: Tensor, pos_BT: Tensor) -> Tensor:
    """The tokens after `embed` at these positions (B, T, D)."""
    return positions.embed(x_BTD, AttentionContext(pos_BT, pos_BT))


def prepared_contexts(
    positions: PositionEncodingSum, pos_BQ: Tensor, pos_BS: Tensor, layer: int
) -> list[AttentionContext]:
    """The contexts in which a layer's hooks are probed with random tokens, after `prepare`."""
    (first, *_) = positions
    x_1QD = standard_normal(1, pos_BQ.shape[1], first.config.d_model)
    ctx = AttentionContext(pos_BQ, pos_BS, layer=layer, inputs_BTD=x_1QD, is_causal=first.side.is_causal)
    return positions.prepare(x_1QD, ctx)


@torch.no_grad()
def is_additive(positions: PositionEncodingSum, width: int, longest: int | None) -> bool:
    """Whether `embed` adds a vector that depends on the position alone, not on the token or its neighbours."""
    if not positions.has_hook("embed"):
        return False
    num_positions = min(NUM_PROBED_POSITIONS, longest or NUM_PROBED_POSITIONS)
    pos_1P, x_1PD = torch.arange(num_positions)[None], standard_normal(1, num_positions, width)
    added = embed_at(positions, torch.zeros_like(x_1PD), pos_1P)[0]
    added_in_context = embed_at(positions, x_1PD, pos_1P)[0] - x_1PD[0]
    alone = (embed_at(positions, x_1PD.transpose(0, 1), pos_1P.T) - x_1PD.transpose(0, 1))[:, 0]
    return is_close(added, added_in_context) and is_close(added, alone)


@torch.no_grad()
def added_vectors(positions: PositionEncodingSum, width: int, number: int) -> np.ndarray:
    """The vectors that `embed` adds at the first positions (P, D); for additive encodings."""
    zeros_1PD = torch.zeros(1, number, width, dtype=torch.float64)
    return embed_at(positions, zeros_1PD, torch.arange(number)[None])[0].numpy()


@torch.no_grad()
def score_biases_by_distance(
    positions: PositionEncodingSum, q_NHK: Tensor, distances: np.ndarray, layer: int, max_elements: int = MAX_ELEMENTS
) -> np.ndarray:
    """The score bias, in score units, of each query at each distance (N, H, S).

    The query's position is as far from the start as its most distant left key requires. `max_elements` bounds the
    values in the keys of all queries that are probed at once.
    """
    _, heads, width = q_NHK.shape
    chunk_size = max(1, max_elements // (heads * width * len(distances)))
    outputs = []
    for chunk_NHK in q_NHK.split(chunk_size):
        output = score_biases_at(positions, chunk_NHK, *query_and_keys(distances), layer)
        outputs.append(output.expand(len(chunk_NHK), heads, 1, len(distances))[:, :, 0])
    return torch.cat(outputs).numpy()


def score_biases_at(
    positions: PositionEncodingSum, q_NHK: Tensor, pos_1Q: Tensor, pos_1S: Tensor, layer: int
) -> Tensor:
    """The score bias of queries at one position, for keys of zeros (broadcasts to N, H, 1, S).

    If the bias depends on the tokens between query and key, it is computed for a query at every position, and that of
    the position is returned.
    """
    zeros_NHSK = q_NHK.new_zeros(*q_NHK.shape[:2], pos_1S.shape[1], q_NHK.shape[2])
    if not bias_depends_on_tokens(positions):
        return positions.score_bias(q_NHK[:, :, None], zeros_NHSK, prepared_contexts(positions, pos_1Q, pos_1S, layer))
    q_NHSK = q_NHK[:, :, None].expand_as(zeros_NHSK)
    bias = positions.score_bias(q_NHSK, zeros_NHSK, prepared_contexts(positions, pos_1S, pos_1S, layer))
    return bias[:, :, (pos_1S == pos_1Q)[0]]


def bias_depends_on_tokens(positions: PositionEncodingSum) -> bool:
    """Whether what is added to a score depends on the tokens between query and key."""
    return any(encoding.is_stateful and encoding.score_bias is not None for encoding in positions)


@torch.no_grad()
def rotated_products(positions: PositionEncodingSum, q_NHK: Tensor, distances: np.ndarray, layer: int) -> np.ndarray:
    """q . k after both are rotated, of a query and an equal key at each distance (N, H, S)."""
    pos_1Q, pos_1S = query_and_keys(distances)
    k_NHSK = q_NHK[:, :, None].expand(-1, -1, len(distances), -1).contiguous()
    rotated_q = positions.rotate_queries(k_NHSK[:, :, :1], prepared_contexts(positions, pos_1Q, pos_1Q, layer))
    rotated_k = positions.rotate_keys(k_NHSK, prepared_contexts(positions, pos_1S, pos_1S, layer))
    return (rotated_q * rotated_k).sum(-1).numpy()


@torch.no_grad()
def key_vectors(
    positions: PositionEncodingSum, heads: int, width: int, distances: np.ndarray, layer: int
) -> np.ndarray | None:
    """The vector v at each distance that acts like an addition to the key (H, S, K); None without such a vector.

    Then the bias of any query q is q . v / sqrt(K), plus the bias of a query of zeros. v is measured with unit queries
    and verified with a random one.
    """
    zero_and_units = torch.eye(width + 1, width, dtype=torch.float64).roll(1, 0)
    probes_NHK = torch.cat((zero_and_units, standard_normal(1, width)))[:, None].expand(-1, heads, -1)
    bias = torch.from_numpy(score_biases_by_distance(positions, probes_NHK, distances, layer))
    plain_HS, random_HS = bias[0], bias[-1]
    scaled_HSK = (bias[1:-1] - plain_HS).permute(1, 2, 0)
    linear = is_close(plain_HS + scaled_HSK @ standard_normal(1, width)[0], random_HS)
    return (scaled_HSK * width**0.5).numpy() if linear and bool(scaled_HSK.any()) else None


@torch.no_grad()
def value_vectors(
    positions: PositionEncodingSum, heads: int, width: int, distances: np.ndarray, layer: int
) -> np.ndarray:
    """What `value_bias` adds to the output of a query that attends to one key alone, at each distance (H, S, K)."""
    pos_1Q, pos_1S = query_and_keys(distances)
    alone_SHQS = torch.eye(len(distances), dtype=torch.float64)[:, None, None].expand(-1, heads, -1, -1)
    output = positions.value_bias(alone_SHQS, prepared_contexts(positions, pos_1Q, pos_1S, layer))
    return output.expand(len(distances), heads, 1, width)[:, :, 0].transpose(0, 1).numpy()


@torch.enable_grad()
def embed_influence(positions: PositionEncodingSum, x_NTD: Tensor) -> np.ndarray:
    """The influence of token j on the output of `embed` at token i (i, j).

    It is the root mean square over N sentences of the norm of the Jacobian d out_i / d x_j, divided by sqrt(D). An
    `embed` that changes nothing has 1 on the diagonal.

    Each sentence is copied D times, so that one backward pass gives the gradient of every channel of out_i.
    """
    squares_TT = np.zeros((x_NTD.shape[1],) * 2)
    for x_TD in x_NTD:
        x_CTD = x_TD.expand(x_TD.shape[1], -1, -1).clone().requires_grad_()
        out_CTD = embed_at(positions, x_CTD, torch.arange(len(x_TD))[None])
        own_CT = out_CTD.diagonal(dim1=0, dim2=2).T
        for i in range(len(x_TD)):
            (grad_CTD,) = torch.autograd.grad(own_CT[:, i].sum(), x_CTD, retain_graph=True)
            squares_TT[i] += grad_CTD.square().sum((0, 2)).numpy()
    return np.sqrt(squares_TT / (len(x_NTD) * x_NTD.shape[2]))


def wavelengths(values_PD: np.ndarray, min_explained: float = 0.999) -> np.ndarray:
    """The wavelength of each channel in positions (D).

    It is NaN for a channel that is not one sinusoid, and infinite for a constant channel. A sinusoid of frequency w,
    sampled at each position, satisfies v[p-1] + v[p+1] = 2 cos(w) v[p], and no other sequence does. Least squares gives
    w exactly, even if the positions contain only a fraction of a period. `min_explained` is the share of the variation
    that this equation must explain.
    """
    middle, around = values_PD[1:-1], values_PD[:-2] + values_PD[2:]
    power = np.maximum((middle**2).sum(0), np.finfo(float).tiny)
    twice_cos = (middle * around).sum(0) / power
    unexplained = ((around - twice_cos * middle) ** 2).sum(0) / np.maximum((around**2).sum(0), np.finfo(float).tiny)
    # 2 - 2 cos(w) = 4 sin(w/2)^2 keeps the digits that cos loses at long wavelengths.
    curvature = ((around - 2 * middle) * middle).sum(0) / power
    frequency = 2 * np.arcsin(np.sqrt(np.abs(np.clip(-curvature / 4, 0.0, 1.0))))
    with np.errstate(divide="ignore"):
        lengths = 2 * np.pi / frequency
    return np.where((unexplained < 1 - min_explained) & ((values_PD != 0).any(0)), lengths, np.nan)


def query_and_keys(distances: np.ndarray) -> tuple[Tensor, Tensor]:
    """Positions of one query (1, 1) and of the keys at those distances (1, S), none below 0."""
    pos_1S = torch.from_numpy(distances)[None]
    query = max(0, -int(distances.min()))
    return torch.tensor([[query]]), pos_1S + query


def is_close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a.double(), b.double(), rtol=TOLERANCE, atol=TOLERANCE)
