# SPDX-License-Identifier: Apache-2.0
"""SHAPE: sinusoids at positions that are shifted in training, by a random number for each sentence.

Only distances can then be of use.

Departure from Kiyono et al.: evaluation has no shift, where their code adds the greatest one, which is never drawn.
"""

import torch
from torch import Tensor

from .attention_context import AttentionContext
from .citations import Reference
from .position_base import EncodingParameter, PositionEncoding
from .position_sinusoidal import add_sinusoids


class Shape(PositionEncoding):
    """No parameters. Shift-invariant as far as training makes it so, and by itself not; defined at every length."""

    summary = "The wave pattern of each position, all of a sentence's shifted by a random number in training."
    shift_invariant = False
    config_parameters = (
        EncodingParameter(
            "shape_shifts",
            500,
            "a whole number of shifts, 1 (which is none) or more",
            lambda many: many >= 1,
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
        ),
    )

    def augment_positions(self, pos_BT: Tensor, ctx: AttentionContext) -> Tensor:
        """Each sentence's positions plus a random shift (B, T)."""
        return pos_BT + torch.randint(self.config.shape_shifts, (len(pos_BT), 1), device=pos_BT.device)

    def embed(self, x_BTD: Tensor, ctx: AttentionContext) -> Tensor:
        """Embeddings plus sinusoids (B, T, D)."""
        return add_sinusoids(x_BTD, ctx.query_pos_BQ)
