# SPDX-License-Identifier: Apache-2.0
"""Plans: how an attention is computed, chosen once for each stack and call.

    distance   biases depend on head and distance alone: a vector for each head (distance_attention.py)
    linear     biases are constant beyond a distance: a band and two tails (linear_attention.py)
    blocked    other biases: blocks of queries, computed again in the backward pass (blocked_attention.py)
    window     a cross-attention with a window: blocks of queries with the few keys around them (local_attention.py)
    None       all scores at once: short inputs, cached steps, weights that are wanted, positions with gaps

Results do not depend on the plan.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from transformers.utils.generic import maybe_autocast

from ...encodings.positions import AttentionContext, at_least_float32, has_contiguous_positions
from ...encodings.sum import PositionEncodingSum
from .blocked_attention import blocked_attention_forward
from .distance_attention import distance_attention
from .linear_attention import linear_attention_forward
from .local_attention import AttendBlock, make_window_blocks

# In tokens. At half of them, computing all scores at once is as fast.
MIN_LENGTHS = {"distance": 256, "linear": 512, "blocked": 512}

# From `attend`, queries, keys and values, unrotated queries, encodings and their contexts in a layer: the attended
# values (B, L, H, K). `attend` computes them for some queries and keys, all scores at once.
RunPlan = Callable[
    [AttendBlock, tuple[Tensor, Tensor, Tensor], Tensor, PositionEncodingSum, list[AttentionContext]], Tensor
]


@dataclass(frozen=True)
class AttentionPlan:
    """How one attention is computed.

    `prepared`: the encodings, as indices, whose `prepare` the plan calls itself or does not need.
    """

    name: str
    run: RunPlan
    prepared: Collection[int]


def choose_plan(
    positions: PositionEncodingSum, x_BTD: Tensor, ctx: AttentionContext, dropout: float
) -> AttentionPlan | None:
    """The plan for a self-attention without a cache whose weights are not wanted; `dropout` is that of its weights.

    `x_BTD` are the embedded tokens.
    """
    length = x_BTD.shape[1]
    if length < min(MIN_LENGTHS.values()) or x_BTD.device.type != "cpu" or torch.compiler.is_compiling():
        return None
    name = plan_name(positions, length, dropout)
    if name not in PLANS or (isinstance(ctx.mask, Tensor) and ctx.mask.ndim != 2):
        return None
    if not has_contiguous_positions(ctx.query_pos_BQ, ctx.valid_mask_BT):
        return None
    return PLANS[name](positions, x_BTD, ctx, dropout)


def plan_name(positions: PositionEncodingSum, length: int, dropout: float = 0.0) -> str | None:
    """The plan for tokens that follow each other without a gap, `length` of them."""
    # torch's kernel needs keys as wide as values.
    takes_kernel = all(encoding.preserves_head_dim for encoding in positions.encodings)
    if positions.has_distance_bias and takes_kernel and length >= MIN_LENGTHS["distance"]:
        return "distance"
    clip = positions.max_distance
    if clip is not None and takes_kernel and not dropout and length >= max(MIN_LENGTHS["linear"], 4 * clip):
        return "linear"
    biases = [positions.encodings[index] for index in positions.bias_indices]
    if biases and not any(encoding.is_stateful for encoding in biases) and length >= MIN_LENGTHS["blocked"]:
        return "blocked"
    return None


def linear_plan(positions: PositionEncodingSum, x_BTD: Tensor, ctx: AttentionContext, dropout: float) -> AttentionPlan:
    """Linear attention, which prepares the encodings that have a `max_distance`."""
    indices = [index for index, encoding in enumerate(positions.encodings) if encoding.max_distance is not None]
    return AttentionPlan("linear", linear_attention_forward, indices)


def blocked_plan(positions: PositionEncodingSum, x_BTD: Tensor, ctx: AttentionContext, dropout: float) -> AttentionPlan:
    """Blocked attention, which prepares all encodings except rotations."""
    indices = [index for index in range(len(positions.encodings)) if index not in positions.rotation_indices]
    return AttentionPlan("blocked", partial(blocked_attention_forward, embedded_BTD=x_BTD), indices)


def distance_plan(
    positions: PositionEncodingSum, x_BTD: Tensor, ctx: AttentionContext, dropout: float
) -> AttentionPlan:
    """Attention with a bias for each distance. A bias that has no gradients is computed once for all layers.

    Each layer computes one with gradients, because gradient checkpointing replays a layer, but nothing before it.
    """
    key_ranges = None
    if ctx.valid_mask_BT is not None:
        starts, sizes = ctx.valid_mask_BT.long().argmax(1).tolist(), ctx.valid_mask_BT.sum(1).tolist()
        key_ranges = [(start, start + size) for start, size in zip(starts, sizes, strict=True)]
    has_gradient = torch.is_grad_enabled() and positions.bias_requires_grad()
    shared_bias_HD = None if has_gradient else distance_biases(positions, x_BTD)
    is_causal = ctx.is_causal

    def run(
        attend: AttendBlock,
        qkv: tuple[Tensor, Tensor, Tensor],
        unrotated_q_BHLK: Tensor,
        positions: PositionEncodingSum,
        contexts: list[AttentionContext],
    ) -> Tensor:
        bias_HD = distance_biases(positions, qkv[2].transpose(1, 2)) if shared_bias_HD is None else shared_bias_HD
        out_BHLK = distance_attention(*qkv, bias_HD, is_causal=is_causal, key_ranges=key_ranges, dropout=dropout)
        return out_BHLK.transpose(1, 2)

    indices = [index for index, encoding in enumerate(positions.encodings) if encoding.distance_bias is not None]
    return AttentionPlan("distance", run, indices)


# What makes the plan of each name. A checkpoint has those that its encodings can take; the others are never chosen.
PLANS: dict[str, Callable[[PositionEncodingSum, Tensor, AttentionContext, float], AttentionPlan]] = {
    "distance": distance_plan,
    "linear": linear_plan,
    "blocked": blocked_plan,
}


def distance_biases(positions: PositionEncodingSum, x_BLD: Tensor) -> Tensor:
    """The sum of the biases of each distance from -(L - 1) to L - 1 (H or 1, D), -inf where a window hides it.

    Length, device and dtype are those of `x_BLD`.
    """
    length = x_BLD.shape[1]
    distance_D = torch.arange(1 - length, length, device=x_BLD.device, dtype=at_least_float32(x_BLD))
    with maybe_autocast(x_BLD.device.type, enabled=False):  # of numbers of tokens
        bias_HD = positions.distance_bias(distance_D)
    before, after = positions.hiding_distance, positions.hiding_lookahead
    if before is None or after is None:
        return bias_HD
    is_hidden_D = (distance_D <= -before) | (distance_D >= after)
    return bias_HD.masked_fill(is_hidden_D, -math.inf)


def choose_cross_plan(positions: PositionEncodingSum, x_BTD: Tensor, ctx: AttentionContext) -> AttentionPlan | None:
    """The plan for a cross-attention whose weights are not wanted: blocks, if it has a window and no cache."""
    if positions.sliding_window is None or ctx.state is not None or torch.compiler.is_compiling():
        return None
    blocks = make_window_blocks(positions, x_BTD, ctx)
    if blocks is None:
        return None
    indices = [index for index, encoding in enumerate(positions.encodings) if encoding.max_distance is not None]
    return AttentionPlan("window", blocks.run, indices)
