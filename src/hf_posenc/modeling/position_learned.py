# SPDX-License-Identifier: Apache-2.0
"""Learned: every position has a vector of its own, found by training; past the end of the table there is none.

    x[p] <- x[p] + w[p]

Vaswani et al., "Attention Is All You Need" (NeurIPS 2017), section 3.5, https://arxiv.org/abs/1706.03762.
Departure: dropout comes before the sum, as for every encoding here.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .position import PositionEncoding


class Learned(PositionEncoding):
    """`learned_max_positions` x D parameters. Not shift-invariant; longest length: `learned_max_positions`."""

    def __init__(self, config: Any, *, causal: bool, num_layers: int, num_heads: int, head_width: int) -> None:
        super().__init__(config, causal=causal, num_layers=num_layers, num_heads=num_heads, head_width=head_width)
        self.initializer = config.initializer
        self.table = nn.Parameter(torch.empty(config.learned_max_positions, config.d_model))

    def embed(
        self, x_BTD: Tensor, pos_BT: Tensor, mask_BT: Tensor | None, state_BM: Tensor | None
    ) -> tuple[Tensor, None]:
        self.check_positions(pos_BT)
        return x_BTD + nn.functional.embedding(pos_BT, self.table), None

    def check_positions(self, pos_BT: Tensor) -> None:
        longest = len(self.table)
        if torch.compiler.is_compiling():
            torch._assert_async((pos_BT < longest).all(), "a position lies past learned_max_positions")
        elif (last := int(pos_BT.max())) >= longest:
            raise ValueError(
                f"`learned` knows the positions 0 to {longest - 1} (learned_max_positions={longest}), but a token "
                f"stands at position {last}; shorten the input, train with a larger learned_max_positions, or choose "
                "an encoding that is defined at every length, such as `sinusoidal` or `relative`."
            )

    def init_weights(self) -> None:
        init.normal_(self.table, std=1.0 if self.initializer == "torch" else self.table.shape[-1] ** -0.5)
