# SPDX-License-Identifier: Apache-2.0
"""Window: no query sees a key that is more than `window_size` tokens away.

The idea is the local attention of Luong et al., without their Gaussian and the centre that they predict: here a window
lies around the query's own position, in cross-attention around its place in the source. In a sum with another encoding
it bounds what that one sees, and so how many keys share the attention, whatever the length of the input.
"""

import torch
from torch import Tensor

from .attention_context import AttentionContext
from .citations import Reference
from .position_base import MASK_VALUE, EncodingConfig, EncodingParameter, PositionEncoding, StackSpec


class Window(PositionEncoding):
    """No parameters. Shift-invariant; defined at every length."""

    summary = "Local attention: no token sees another that is more than `window_size` tokens away."
    shift_invariant = True
    reversal_equivariant = True
    is_global = False
    config_parameters = (
        EncodingParameter(
            "window_size", 16, "a whole number of tokens on either side, 1 or more", lambda value: value >= 1
        ),
    )
    formula = "score(i, j) = q_i . k_j / sqrt(K) where |j - i| <= window_size, and none elsewhere"
    references = (
        Reference(
            "Luong, Pham & Manning",
            "Effective Approaches to Attention-based Neural Machine Translation",
            "EMNLP",
            2015,
            "https://arxiv.org/abs/1508.04025",
        ),
    )

    def __init__(self, config: EncodingConfig, side: StackSpec) -> None:
        super().__init__(config, side)
        self.size = config.window_size
        self.max_distance = self.size + 1

    def prepare(self, x_BTD: Tensor, ctx: AttentionContext) -> Tensor:
        """Nothing inside the window, MASK_VALUE outside (B, 1, Q, S)."""
        outside_BQS = ctx.distance_BQS.abs() > self.size
        return torch.where(outside_BQS, MASK_VALUE, 0.0).to(x_BTD.dtype)[:, None]

    def score_bias(self, q_BHQK: Tensor, k_BHSK: Tensor, ctx: AttentionContext) -> Tensor:
        return ctx.prepared
