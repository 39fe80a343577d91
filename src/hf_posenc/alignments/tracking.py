# SPDX-License-Identifier: Apache-2.0
"""What alignments share: noise in training, steps that follow the attention in decoding, estimates from a corpus."""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ..encodings.base import EncodingParameter
from ..encodings.positions import AttentionContext


def attention_centroid(weights: Sequence[Tensor], key_pos_BS: Tensor) -> Tensor:
    """Attention centroid over all heads of all layers (B, Q), in positions, from each layer's `weights` (B, H, Q, S):

        c = sum_lh m_lh / (v_lh + 1/4) / sum_lh 1 / (v_lh + 1/4)

    m_lh and v_lh are mean and variance of the keys' positions under a head's weights. A narrow head has a large weight;
    1/4, the variance of an even split between two neighbours, bounds it.
    """
    p_BNQS = torch.cat(list(weights), dim=1)
    p_BNQS = p_BNQS.to(torch.promote_types(p_BNQS.dtype, torch.float32))
    keys_B11S = key_pos_BS[:, None, None].to(p_BNQS.dtype)
    mean_BNQ = (p_BNQS * keys_B11S).sum(-1)
    precision_BNQ = 1 / ((p_BNQS * (keys_B11S - mean_BNQ[..., None]) ** 2).sum(-1) + 0.25)
    return (mean_BNQ * precision_BNQ).sum(1) / precision_BNQ.sum(1)


def tracking_parameters(prefix: str, gain: float, step: str) -> tuple[EncodingParameter, ...]:
    """The parameters of an alignment with noise in training that tracks the attention in decoding.

    They are `<prefix>_gain`, by default `gain`, and `_min_step`, `_offset`, `_jitter`. `step` names the corrected step.
    """
    return (
        EncodingParameter(
            f"{prefix}_gain",
            gain,
            "a fraction of the way, 0 to 1",
            lambda value: 0 <= value <= 1,
            meaning="Fraction of the way from the source position to the attention's centroid, added to each step.",
        ),
        EncodingParameter(
            f"{prefix}_min_step",
            0.2,
            "a fraction of the step, below 1; -100 for no minimum",
            lambda value: value < 1,
            meaning=f"Minimum step in decoding, as a fraction of {step}.",
        ),
        EncodingParameter(
            f"{prefix}_offset",
            3.0,
            "a number of source tokens, 0 or more",
            lambda value: value >= 0,
            meaning="In training a sentence's source positions are shifted by at most this many tokens.",
        ),
        EncodingParameter(
            f"{prefix}_jitter",
            1.0,
            "a number of source tokens, 0 or more",
            lambda value: value >= 0,
            meaning="In training each source position has Gaussian noise of this standard deviation, in tokens.",
        ),
    )


def with_noise(source_positions_BT: Tensor, offset: float, jitter: float) -> Tensor:
    """The source positions with the noise of training: uniform for each sentence, Gaussian for each token."""
    shift_B1 = (torch.rand_like(source_positions_BT[:, :1]) * 2 - 1) * offset
    return source_positions_BT + shift_B1 + torch.randn_like(source_positions_BT) * jitter


def target_indices(x_BTD: Tensor, valid_mask_BT: Tensor | None) -> Tensor:
    """The number of tokens before each token of a whole target (B, T), without padding."""
    if valid_mask_BT is None:
        valid_mask_BT = torch.ones_like(x_BTD[..., 0], dtype=torch.bool)
    return (valid_mask_BT.long().cumsum(1) - 1).clamp(min=0)


def track_attention(
    weights: Sequence[Tensor], ctx: AttentionContext, step: Tensor | float, *, gain: float, min_step: float
) -> Tensor:
    """The source position of the next token (B, Q), after max(step + gain (c - g), min_step step).

    c is the centroid of the attention `weights`, g the source position of the present token.
    """
    position_BQ = ctx.query_pos_BQ
    step_BQ = step + gain * (attention_centroid(weights, ctx.key_pos_BS).to(position_BQ.dtype) - position_BQ)
    minimum = min_step * step
    step_BQ = torch.maximum(step_BQ, minimum) if isinstance(minimum, Tensor) else step_BQ.clamp(min=minimum)
    if ctx.valid_mask_BT is not None:
        step_BQ = step_BQ * ctx.valid_mask_BT  # padding is no step
    return position_BQ + step_BQ


def mean_length_ratio(source_lengths: Iterable[int], target_lengths: Iterable[int]) -> float:
    """Source tokens for each target token of a corpus, without each sentence's first token; 1.0 for an empty corpus."""
    source = sum(length - 1 for length in source_lengths)
    target = sum(length - 1 for length in target_lengths)
    return round(source / target, 4) if source > 0 and target > 0 else 1.0


def inverse_softplus(value: float) -> float:
    """The number whose softplus is `value`, above 0; log(exp(value) - 1) where exp(value) is not finite, too."""
    return value + math.log(-math.expm1(-value))
