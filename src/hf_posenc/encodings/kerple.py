# SPDX-License-Identifier: Apache-2.0
"""KERPLE: score biases with trained slopes that grow with the logarithm, or a power, of the distance.

The preset `kerple_power` has a power of the distance, at most the second, in place of the logarithm.

Departures from Chi et al.: in bidirectional attention each direction has its own a and p. The paper's kernel takes
|i - j|, and their code is causal. a and p are functions of unbounded parameters; their code clips both at 0.01, and
powers at 2.
"""

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .base import EncodingConfig, PositionEncoding, Reference, StackSpec


class Kerple(PositionEncoding):
    """2 x heads x directions parameters, read by all layers. Shift-invariant; defined at every length."""

    summary = "Each head subtracts a penalty that grows with the log of the distance, with trained slopes."
    POWER = {
        "logarithmic": False,
        "summary": "Each head subtracts a trained slope times a trained power of the distance.",
        "formula": """
            score(i, j) = q_i . k_j / sqrt(K) - a |j - i|^p
            a = softplus(a'_h), p = 2 sigmoid(p'_h), with separate a' and p' for j > i
        """,
    }
    shift_invariant = True
    formula = """
        score(i, j) = q_i . k_j / sqrt(K) - p log(1 + a |j - i|)
        a = softplus(a'_h), p = softplus(p'_h), with separate a' and p' for j > i
    """
    references = (
        Reference(
            "Chi et al.",
            "KERPLE: Kernelized Relative Positional Embedding for Length Extrapolation",
            "NeurIPS",
            2022,
            "https://arxiv.org/abs/2205.09921",
            full_authors="Ta-Chung Chi and Ting-Han Fan and Peter J. Ramadge and Alexander I. Rudnicky",
        ),
    )

    def __init__(self, config: EncodingConfig, side: StackSpec, *, logarithmic: bool = True) -> None:
        super().__init__(config, side)
        self.logarithmic = logarithmic
        shape = (1 if side.is_causal else 2, side.heads)  # past, future
        self.a, self.p = nn.Parameter(torch.empty(shape)), nn.Parameter(torch.empty(shape))

    def distance_bias(self, distance_N: Tensor) -> Tensor:
        """The negative penalty of each head (H, N)."""
        is_future_N, distance_N = distance_N > 0, distance_N.abs()

        def by_direction(numbers_RH: Tensor) -> Tensor:
            past_H1, future_H1 = numbers_RH.to(distance_N.dtype)[[0, -1], :, None]
            return torch.where(is_future_N, future_H1, past_H1)

        a_HN = by_direction(nn.functional.softplus(self.a))
        if self.logarithmic:
            return -by_direction(nn.functional.softplus(self.p)) * (a_HN * distance_N).log1p()
        # 0^p is 0, but its gradient has log 0; distance 1 replaces it and is masked again
        is_nonzero_N = distance_N > 0
        return -a_HN * distance_N.where(is_nonzero_N, 1.0).pow(by_direction(2 * self.p.sigmoid())) * is_nonzero_N

    def init_weights(self) -> None:
        """a from U(0.01, 1). p from U(0.01, 2); as a power, from the middle 90 % of the interval 0 to 2."""
        for parameter, upper in ((self.a, 1.0), (self.p, 2.0)):
            init.uniform_(parameter, 0.01, upper)
            if self.logarithmic or parameter is self.a:
                init.copy_(parameter, parameter.expm1().log())
            else:
                init.copy_(parameter, (0.05 + 0.45 * parameter).logit())
