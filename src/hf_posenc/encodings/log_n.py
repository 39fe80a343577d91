# SPDX-License-Identifier: Apache-2.0
"""Log n: queries scaled by the logarithm of the number of keys, so that attention stays sharp with many keys.

A softmax over n keys spreads as n grows; scaling by log n counteracts this. The scaling has no information on order.
Therefore it is the last one in a sum with another encoding: `relative+log_n`.

Departures: Chiang & Cholak scale by log n itself, which changes the sharpness of attention in training. Here the factor
is 1 for `log_n_length` keys, which should be the mean length of the training data, as in Zhang et al. In
`log_n_learned`, Nakanishi's scalable softmax, each head and layer trains its rate; the initial rate is that of `log_n`.
"""

import math

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .base import EncodingConfig, EncodingParameter, PositionEncoding, Reference, StackSpec
from .positions import AttentionContext, at_least_float32

CHIANG = Reference(
    "Chiang & Cholak",
    "Overcoming a Theoretical Limitation of Self-Attention",
    "ACL",
    2022,
    "https://arxiv.org/abs/2202.12172",
    full_authors="David Chiang and Peter Cholak",
)
NAKANISHI = Reference(
    "Nakanishi",
    "Scalable-Softmax Is Superior for Attention",
    "",
    2025,
    "https://arxiv.org/abs/2501.19399",
    full_authors="Ken M. Nakanishi",
)


class LogN(PositionEncoding):
    """No parameters, or layers x heads of them. Shift-invariant; defined at every length."""

    summary = "Queries are scaled by the logarithm of the number of keys that they attend to."
    LEARNED = {
        "trained": True,
        "summary": "Queries are scaled by the logarithm of the number of keys that they attend to, at a trained rate.",
        "formula": "score(i, j) = s_h log(n_i) q_i . k_j / sqrt(K), for n_i attendable keys of query i",
        "references": (CHIANG, NAKANISHI),
        "aliases": ("ssmax", "scalable_softmax"),
    }
    shift_invariant = True
    permutation_equivariant = True
    reversal_equivariant = True
    is_modifier = True
    left_context = lookahead = None  # all keys are counted
    config_parameters = (
        EncodingParameter(
            "log_n_length",
            64,
            "a whole number of tokens, 2 or more",
            lambda value: value >= 2,
            meaning="Number of keys for which queries are not scaled.",
        ),
    )
    formula = "score(i, j) = log(n_i) / log(`log_n_length`) q_i . k_j / sqrt(K), n_i attendable keys of query i"
    references = (CHIANG,)

    def __init__(self, config: EncodingConfig, side: StackSpec, *, trained: bool = False) -> None:
        super().__init__(config, side)
        self.rate = nn.Parameter(torch.empty(side.layers, side.heads)) if trained else None

    @classmethod
    def validate(cls, config: EncodingConfig, side: StackSpec) -> None:
        """Raise a ValueError in a sum with a window."""
        cls.require_global(
            side, "counts the keys that the mask allows, and in a window this number does not grow with the length"
        )

    def prepare(self, x_BTD: Tensor, ctx: AttentionContext) -> Tensor:
        """log n for each query (B or 1, 1, Q or 1, 1)."""
        return ctx.num_attendable_BQ.clamp(min=1).to(at_least_float32(x_BTD)).log()[:, None, :, None].to(x_BTD.dtype)

    def rotate_queries(self, q_BHQK: Tensor, ctx: AttentionContext) -> Tensor:
        """The queries times log n, relative to `log_n_length` or at the trained rate."""
        fixed_rate = 1 / math.log(self.config.log_n_length)
        rate: float | Tensor = fixed_rate if self.rate is None else self.rate[ctx.layer, :, None, None]
        return (q_BHQK * (ctx.prepared * rate)).to(q_BHQK.dtype)

    def init_weights(self) -> None:
        """The rate of `log_n`."""
        if self.rate is not None:
            init.constant_(self.rate, 1 / math.log(self.config.log_n_length))
