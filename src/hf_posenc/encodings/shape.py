# SPDX-License-Identifier: Apache-2.0
"""SHAPE: sinusoids at positions that are shifted in training, by a random number for each sentence.

A model then learns to depend on distances only.

Departure from Kiyono et al.: evaluation has no shift. Their code adds the largest one, which training never samples.
"""

import torch
from torch import Tensor

from .base import EncodingParameter, PositionEncoding, Reference
from .positions import AttentionContext
from .sinusoidal import add_sinusoids


class Shape(PositionEncoding):
    """No parameters. Not shift-invariant by itself; a trained model is approximately so. Defined at every length."""

    summary = "Sinusoids of positions that are shifted in training, by one random number for each sentence."
    shift_invariant = False
    config_parameters = (
        EncodingParameter(
            "shape_shifts",
            500,
            "a whole number of shifts, 1 (no shift) or more",
            lambda value: value >= 1,
            meaning="Each training sentence is shifted by a random number of tokens below this one.",
        ),
    )
    formula = """
        x[p] <- x[p] + PE[p + k], PE of `sinusoidal`
        k for each sentence and side from 0..`shape_shifts`-1 in training, and 0 elsewhere
    """
    references = (
        Reference(
            "Kiyono et al.",
            "SHAPE: Shifted Absolute Position Embedding for Transformers",
            "EMNLP",
            2021,
            "https://arxiv.org/abs/2109.05644",
            full_authors="Shun Kiyono and Sosuke Kobayashi and Jun Suzuki and Kentaro Inui",
        ),
    )

    def augment_positions(self, pos_BT: Tensor, ctx: AttentionContext) -> Tensor:
        """Each sentence's positions plus a random shift (B, T)."""
        return pos_BT + torch.randint(self.config.shape_shifts, (len(pos_BT), 1), device=pos_BT.device)

    def embed(self, x_BTD: Tensor, ctx: AttentionContext) -> Tensor:
        """Embeddings plus sinusoids (B, T, D)."""
        return add_sinusoids(x_BTD, ctx.query_pos_BQ)
