# SPDX-License-Identifier: Apache-2.0
"""CAPE: sinusoids at positions that are shifted, jittered and scaled at random in training.

A model then cannot rely on a sentence's first position or on its length.

Departures from Likhomanenko et al.: source and target have independent samples of shift and stretch, which the paper
ties for translation. Positions are not centred, because the length of the output is unknown in decoding.
"""

import math

import torch
from torch import Tensor

from .base import EncodingParameter, PositionEncoding, Reference
from .positions import AttentionContext
from .sinusoidal import add_sinusoids


class Cape(PositionEncoding):
    """No parameters. Not shift-invariant; defined at every length. Its training positions are fractional."""

    summary = "Sinusoids of positions that are shifted, jittered and scaled at random in training."
    shift_invariant = False
    config_parameters = (
        EncodingParameter(
            "cape_shift",
            5.0,
            "a number of tokens, 0 or more",
            lambda value: value >= 0,
            meaning="Training positions are shifted by at most this many tokens, a sentence at a time.",
        ),
        EncodingParameter(
            "cape_jitter",
            0.5,
            "a fraction of a token, 0 to 0.5, which keeps the order of tokens",
            lambda value: 0 <= value <= 0.5,
            meaning="Each training position moves by at most this fraction of a token.",
        ),
        EncodingParameter(
            "cape_stretch",
            1.03,
            "a factor, 1 (no scaling) or more",
            lambda value: value >= 1,
            meaning="Training positions are multiplied by a random factor between its inverse and itself.",
        ),
    )
    formula = """
        x[p] <- x[p] + PE[(p + D + e_p) s], PE of `sinusoidal`; outside training D = e_p = 0 and s = 1
        D from U(-shift, shift), log s from U(-log stretch, log stretch), e_p from U(-jitter, jitter)
    """
    references = (
        Reference(
            "Likhomanenko et al.",
            "CAPE: Encoding Relative Positions with Continuous Augmented Positional Embeddings",
            "NeurIPS",
            2021,
            "https://arxiv.org/abs/2106.03143",
            full_authors=(
                "Tatiana Likhomanenko and Qiantong Xu and Gabriel Synnaeve and Ronan Collobert and Alex Rogozhnikov"
            ),
        ),
    )

    def augment_positions(self, pos_BT: Tensor, ctx: AttentionContext) -> Tensor:
        """Training positions (B, T), in tokens: D and s are sampled for each sentence, e_p for each token."""
        batch, num_new = pos_BT.shape
        shift_B1, log_B1 = torch.empty(2, batch, 1, device=pos_BT.device).uniform_(-1, 1)
        jitter_BT = torch.empty(batch, num_new, device=pos_BT.device).uniform_(-1, 1)
        stretch_B1 = (log_B1 * math.log(self.config.cape_stretch)).exp()
        return (pos_BT + shift_B1 * self.config.cape_shift + jitter_BT * self.config.cape_jitter) * stretch_B1

    def embed(self, x_BTD: Tensor, ctx: AttentionContext) -> Tensor:
        """Embeddings plus sinusoids (B, T, D)."""
        return add_sinusoids(x_BTD, ctx.query_pos_BQ)
