# SPDX-License-Identifier: Apache-2.0
"""Plans: how a self-attention is computed, chosen once for each stack and call.

    distance   biases depend on head and distance alone: a vector for each head (distance_attention.py)
    linear     biases are constant beyond a distance: a band and two tails (linear_attention.py)
    blocked    other biases: blocks of queries, computed again in the backward pass (blocked_attention.py)
    None       all scores at once: short inputs, cached steps, weights that are wanted, positions with gaps

A cross-attention with a window has a plan of its own (local_attention.py). Results do not depend on the plan.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from transformers.utils.generic import maybe_autocast

from ...encodings.positions import AttentionContext, at_least_float32, has_contiguous_positions
from ...encodings.sum import PositionEncodingSum
from .blocked_attention import AttendBlock, blocked_attention_forward, supports_blocked_attention
from .distance_attention import KeyRanges, distance_attention
from .linear_attention import linear_attention_forward, supports_linear_attention

MIN_DISTANCE_LENGTH = 256  # in tokens; below it, a materialised bias is as fast


class AttentionPlan(Protocol):
    """How one attention is computed.

    `is_contiguous`: whether hooks see blocks of queries that follow each other without a gap.
    """

    is_contiguous: bool

    def prepares(self, positions: PositionEncodingSum, index: int) -> bool:
        """Whether the plan itself calls the `prepare` of an encoding, or never needs it."""

    def run(
        self,
        attend: AttendBlock,
        qkv: tuple[Tensor, Tensor, Tensor],
        unrotated_q_BHLK: Tensor,
        positions: PositionEncodingSum,
        ctx: AttentionContext,
    ) -> Tensor:
        """The attended values (B, L, H, K). `attend` computes them for some queries and keys, all scores at once."""


def choose_plan(
    positions: PositionEncodingSum, x_BTD: Tensor, ctx: AttentionContext, dropout: float
) -> AttentionPlan | None:
    """The plan for a self-attention without a cache whose weights are not wanted; `dropout` is that of its weights."""
    if supports_distance_attention(positions, ctx):
        return DistancePlan.make(positions, x_BTD, ctx, dropout)
    if not dropout and supports_linear_attention(positions, ctx):
        return LinearPlan()
    if supports_blocked_attention(positions, ctx):
        return BlockedPlan()
    return None


def supports_distance_attention(positions: PositionEncodingSum, ctx: AttentionContext) -> bool:
    """True on CPU for long inputs with contiguous positions, if every bias depends on head and distance alone."""
    length, device = ctx.query_pos_BQ.shape[1], ctx.query_pos_BQ.device
    if length < MIN_DISTANCE_LENGTH or device.type != "cpu" or torch.compiler.is_compiling():
        return False
    if not positions.has_distance_bias or (isinstance(ctx.mask, Tensor) and ctx.mask.ndim != 2):
        return False
    if not all(encoding.preserves_head_dim for encoding in positions.encodings):
        return False  # torch's kernel needs keys as wide as values
    return has_contiguous_positions(ctx.query_pos_BQ, ctx.valid_mask_BT)


@dataclass(frozen=True)
class DistancePlan:
    """`bias_HD`: the bias of each distance from -(L - 1) to L - 1, None if it has gradients: each layer computes it."""

    bias_HD: Tensor | None
    key_ranges: KeyRanges | None
    dropout: float
    is_contiguous = False

    @classmethod
    def make(
        cls, positions: PositionEncodingSum, x_BTD: Tensor, ctx: AttentionContext, dropout: float
    ) -> "DistancePlan":
        """The plan for these tokens, with the range of each sentence's tokens in a padded batch."""
        key_ranges = None
        if ctx.valid_mask_BT is not None:
            starts, sizes = ctx.valid_mask_BT.long().argmax(1).tolist(), ctx.valid_mask_BT.sum(1).tolist()
            key_ranges = [(start, start + size) for start, size in zip(starts, sizes, strict=True)]
        has_gradient = torch.is_grad_enabled() and positions.bias_requires_grad
        return cls(None if has_gradient else distance_biases(positions, x_BTD), key_ranges, dropout)

    def prepares(self, positions: PositionEncodingSum, index: int) -> bool:
        return positions.encodings[index].distance_bias is not None

    def run(
        self,
        attend: AttendBlock,
        qkv: tuple[Tensor, Tensor, Tensor],
        unrotated_q_BHLK: Tensor,
        positions: PositionEncodingSum,
        ctx: AttentionContext,
    ) -> Tensor:
        q_BHLK, k_BHLK, v_BHLK = qkv
        bias_HD = distance_biases(positions, v_BHLK.transpose(1, 2)) if self.bias_HD is None else self.bias_HD
        out_BHLK = distance_attention(
            q_BHLK, k_BHLK, v_BHLK, bias_HD,
            is_causal=ctx.is_causal, key_ranges=self.key_ranges, dropout=self.dropout,
        )  # fmt: skip
        return out_BHLK.transpose(1, 2)


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


class LinearPlan:
    """linear_attention.py: it prepares encodings that have a `max_distance` for the positions of its blocks."""

    is_contiguous = False

    def prepares(self, positions: PositionEncodingSum, index: int) -> bool:
        return positions.encodings[index].max_distance is not None

    def run(
        self,
        attend: AttendBlock,
        qkv: tuple[Tensor, Tensor, Tensor],
        unrotated_q_BHLK: Tensor,
        positions: PositionEncodingSum,
        ctx: AttentionContext,
    ) -> Tensor:
        return linear_attention_forward(*qkv, unrotated_q_BHLK, positions, ctx)


class BlockedPlan:
    """blocked_attention.py: it prepares all encodings for each block, except rotations."""

    is_contiguous = True

    def prepares(self, positions: PositionEncodingSum, index: int) -> bool:
        return not positions.rotates(index)

    def run(
        self,
        attend: AttendBlock,
        qkv: tuple[Tensor, Tensor, Tensor],
        unrotated_q_BHLK: Tensor,
        positions: PositionEncodingSum,
        ctx: AttentionContext,
    ) -> Tensor:
        return blocked_attention_forward(attend, qkv, unrotated_q_BHLK, positions, ctx)
