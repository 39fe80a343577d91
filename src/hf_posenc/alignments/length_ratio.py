# SPDX-License-Identifier: Apache-2.0
"""Length ratio: even steps through the source in training, a source position that tracks the attention in decoding.

The source positions of a whole target of T tokens are spread evenly over the S tokens of the source. In training they
have noise, and therefore heads learn to find a token by its content, near a position that is only approximate:

    g_t = t (S - 1) / (T - 1) + U(-offset, offset) for the sentence + N(0, jitter^2) for each token

In decoding T is unknown. Each step adds the corpus's mean step r and a fraction a of the way to c_t. This is the
centroid of the step's attention over all layers and heads (attention_centroid in alignments/tracking.py):

    g_0 = 0,    g_(t+1) = g_t + max(r + a (c_t - g_t), l r)

The minimum step l r is for a decoder whose attention is r / a tokens before its source position. Without it the
position would not move, and the decoder would repeat its tokens. With it every source position reaches the end.

Source positions are clamped to the source.

The even spread is that of You, Sun & Iyyer's hard-coded cross-attention. Positions that the attention moves are known
from location-based attention, which Ray Chowdhury & Caragea combine with content. Noise in training and the weighting
by variance are ours.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ..encodings.base import EncodingConfig, EncodingParameter, Reference, StackSpec
from ..encodings.cache import EncodingState
from ..encodings.positions import AttentionContext, at_least_float32
from .base import Alignment, source_bounds
from .tracking import mean_length_ratio, target_indices, track_attention, tracking_parameters, with_noise


class LengthRatio(Alignment):
    """No parameters; defined at every length. Its state is the next token's source position (B, 1)."""

    summary = "Even steps through the source, with noise in training; in decoding it tracks the attention's centroid."
    uses_target_length = True
    config_parameters = (
        EncodingParameter(
            "length_ratio_step",
            1.0,
            "source tokens for a target token, above 0",
            lambda value: value > 0,
            meaning="Mean source tokens for each target token; the decoder's step before it tracks the attention.",
        ),
        *tracking_parameters("length_ratio", 0.15, "the mean step"),
    )
    formula = """
        a whole target: g_t = t (S - 1) / (T - 1), in training + U(-offset, offset) + N(0, jitter^2)
        decoding: g_(t+1) = g_t + max(step + gain (c_t - g_t), min_step step), g_0 = 0, c_t the attention's centroid
    """
    references = (
        Reference(
            "You, Sun & Iyyer",
            "Hard-Coded Gaussian Attention for Neural Machine Translation",
            "ACL",
            2020,
            "https://arxiv.org/abs/2005.00742",
            full_authors="Weiqiu You and Simeng Sun and Mohit Iyyer",
        ),
        Reference(
            "Ray Chowdhury & Caragea",
            "Monotonic Location Attention for Length Generalization",
            "ICML",
            2023,
            "https://arxiv.org/abs/2305.20019",
            full_authors="Jishnu Ray Chowdhury and Cornelia Caragea",
        ),
    )

    def __init__(self, config: EncodingConfig, side: StackSpec) -> None:
        super().__init__(config, side)
        self.is_monotonic = config.length_ratio_min_step >= 0

    @classmethod
    def estimate(cls, source_lengths: Iterable[int], target_lengths: Iterable[int]) -> dict[str, float]:
        """The mean step `length_ratio_step`: source tokens for each target token."""
        return {"length_ratio_step": mean_length_ratio(source_lengths, target_lengths)}

    def source_positions(self, x_BTD: Tensor, encoder_states_BSD: Tensor, ctx: AttentionContext) -> Tensor:
        """Positions within the source (B, T): cached when decoding, else evenly spaced."""
        first_B1, last_B1 = (end.to(at_least_float32(x_BTD)) for end in source_bounds(ctx))
        if ctx.state is None:
            position_BT: Tensor | None = self.evenly_spaced_positions(x_BTD, ctx, first_B1, last_B1)
        else:
            position_BT = self.next_source_position(ctx.state)
        if position_BT is None:
            position_BT = torch.zeros_like(x_BTD[:, 0, :1], dtype=first_B1.dtype)
        return torch.clamp(position_BT, first_B1, last_B1)

    def next_source_position(self, state: EncodingState) -> Tensor | None:
        """The cached source position of the next token (B, 1), None before the first."""
        return state.last("source_position", 1)

    def shift_source_positions(self, state: EncodingState, distance: int) -> None:
        """Subtract `distance` from all cached source positions."""
        state.subtract("source_position", distance)

    def evenly_spaced_positions(
        self, x_BTD: Tensor, ctx: AttentionContext, first_B1: Tensor, last_B1: Tensor
    ) -> Tensor:
        """Source positions of a whole target (B, T), from those of the source's first and last token (B, 1).

        Padding counts for no length. In training an offset for each sentence and a jitter for each token are added.
        """
        index_BT = target_indices(x_BTD, ctx.valid_mask_BT).to(first_B1.dtype)
        source_positions_BT = first_B1 + index_BT * (last_B1 - first_B1) / index_BT.amax(1, keepdim=True).clamp(min=1)
        if not self.training:
            return source_positions_BT
        return with_noise(source_positions_BT, self.config.length_ratio_offset, self.config.length_ratio_jitter)

    def update(self, weights: Sequence[Tensor], encoder_states_BSD: Tensor, ctx: AttentionContext) -> None:
        """Cache the next token's source position, from the attention's centroid."""
        assert ctx.state is not None  # the decoder calls this hook with a cache only
        gain, min_step = self.config.length_ratio_gain, self.config.length_ratio_min_step
        position_BQ = track_attention(weights, ctx, self.config.length_ratio_step, gain=gain, min_step=min_step)
        ctx.state.append("source_position", position_BQ[..., None])
