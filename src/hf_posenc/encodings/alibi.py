# SPDX-License-Identifier: Apache-2.0
"""ALiBi: a score penalty in proportion to the distance, with one slope for each head.

The slopes are the paper's: 2^(-8h/H) for head h of H = 2^n. For other numbers of heads they are those of the next
lower power of two, then every second one of the next higher.

The paper's models are causal. In bidirectional attention `alibi` has a slope for each direction, and therefore the
encoder depends on the order. The slopes for the future are those for the past, assigned to the heads in reverse: a head
that attends far to the left attends near to the right. The preset `alibi_symmetric` has one slope for both directions,
as the author proposes for encoders. An encoder then cannot distinguish a sentence from its reversal.

Departure from Press et al.: slopes multiply distances, not positions, in float32 or wider.
"""

import math

import torch
from torch import Tensor

from .base import EncodingConfig, PositionEncoding, Reference, StackSpec


class Alibi(PositionEncoding):
    """No parameters. Shift-invariant; defined at every length."""

    summary = "Each head subtracts a penalty in proportion to the distance, with a slope for each direction."
    SYMMETRIC = {
        "shared_slope": True,
        "reversal_equivariant": True,
        "summary": "Each head subtracts a penalty in proportion to the absolute distance.",
        "formula": "score(i, j) = q_i . k_j / sqrt(K) - m_h |j - i|",
    }
    shift_invariant = True
    formula = """
        score(i, j) = q_i . k_j / sqrt(K) - m_h |j - i|, with m_(H+1-h) for j > i
        m_h = 2^(-8h/H), h = 1..H
    """
    references = (
        Reference(
            "Press, Smith & Lewis",
            "Train Short, Test Long: Attention with Linear Biases Enables Input Length Extrapolation",
            "ICLR",
            2022,
            "https://arxiv.org/abs/2108.12409",
            full_authors="Ofir Press and Noah A. Smith and Mike Lewis",
        ),
    )

    def __init__(self, config: EncodingConfig, side: StackSpec, *, shared_slope: bool = False) -> None:
        super().__init__(config, side)
        self.past_slopes = slopes(side.heads)
        self.future_slopes = self.past_slopes if shared_slope else self.past_slopes[::-1]

    def distance_bias(self, distance_N: Tensor) -> Tensor:
        """Minus the slope of each head and direction times the distance (H, N)."""
        past_H1, future_H1 = (distance_N.new_tensor(m)[:, None] for m in (self.past_slopes, self.future_slopes))
        return torch.where(distance_N < 0, past_H1, -future_H1) * distance_N


def slopes(heads: int) -> list[float]:
    """The slope m_h of each head, h = 1..H."""
    power_of_two = 2 ** int(math.log2(heads))
    if power_of_two == heads:
        return [2.0 ** (-8 * h / heads) for h in range(1, heads + 1)]
    return slopes(power_of_two) + slopes(2 * power_of_two)[::2][: heads - power_of_two]
