# SPDX-License-Identifier: Apache-2.0
"""Window: local (sliding-window) attention; keys more than `window_size` tokens away are hidden.

The idea is Luong et al.'s local attention, without their Gaussian and their predicted centre. The window is centred on
the query's own position, in cross-attention on its source position. In a sum it bounds the other encoding's distances
and the number of attended keys, at any input length.
"""

import torch
from torch import Tensor

from .attention_context import AttentionContext
from .citations import LUONG
from .position_base import MASK_VALUE, EncodingConfig, EncodingParameter, PositionEncoding, StackSpec


class Window(PositionEncoding):
    """No parameters. Shift-invariant; defined at every length."""

    summary = "Local attention: keys more than `window_size` tokens from the query are hidden."
    shift_invariant = True
    reversal_equivariant = True
    is_global = False
    config_parameters = (
        EncodingParameter(
            "window_size",
            16,
            "a whole number of tokens on either side, 1 or more",
            lambda value: value >= 1,
            meaning="A query attends to keys at most this many tokens away, on either side.",
        ),
    )
    formula = "score(i, j) = q_i . k_j / sqrt(K) where |j - i| <= window_size, hidden elsewhere"
    references = (LUONG,)

    def __init__(self, config: EncodingConfig, side: StackSpec) -> None:
        super().__init__(config, side)
        self.size = config.window_size
        self.max_distance = self.size + 1

    def prepare(self, x_BTD: Tensor, ctx: AttentionContext) -> Tensor:
        """The score bias (B, 1, Q, S): 0 inside the window, MASK_VALUE outside."""
        outside_BQS = ctx.distance_BQS.abs() > self.size
        return torch.where(outside_BQS, MASK_VALUE, 0.0).to(x_BTD.dtype)[:, None]

    def score_bias(self, q_BHQK: Tensor, k_BHSK: Tensor, ctx: AttentionContext) -> Tensor:
        """What `prepare` computed (B, 1, Q, S)."""
        return ctx.prepared
