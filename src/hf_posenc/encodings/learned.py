# SPDX-License-Identifier: Apache-2.0
"""Learned: a trained vector for each position, up to the end of a table.

Departure from Vaswani et al. (section 3.5): dropout comes before the sum, as for every encoding here.
"""

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .base import VASWANI, EncodingConfig, EncodingParameter, PositionEncoding, StackSpec
from .positions import AttentionContext


class Learned(PositionEncoding):
    """`learned_max_positions` x D parameters. Not shift-invariant; longest length: `learned_max_positions`."""

    summary = "A trained vector for each position, added to the embeddings."
    aliases = ("absolute", "embedding")
    shift_invariant = False
    zero_init_is_identity = True
    max_length_field = "learned_max_positions"
    config_parameters = (
        EncodingParameter(
            "learned_max_positions",
            1024,
            "a whole number of tokens, 1 or more",
            lambda value: value >= 1,
            meaning="Rows of the table; a token at or beyond this position is a ValueError.",
        ),
    )
    formula = "x[p] <- x[p] + w[p]"
    references = (VASWANI,)

    def __init__(self, config: EncodingConfig, side: StackSpec) -> None:
        super().__init__(config, side)
        self.table = nn.Parameter(torch.empty(config.learned_max_positions, config.d_model))

    def embed(self, x_BTD: Tensor, ctx: AttentionContext) -> Tensor:
        """Embeddings plus the positions' vectors (B, T, D); a ValueError past the end of the table."""
        self.check_positions(ctx.query_pos_BQ)
        return x_BTD + nn.functional.embedding(ctx.query_pos_BQ, self.table)

    def check_positions(self, pos_BT: Tensor) -> None:
        """Raise a ValueError for a position without a row; compiled code asserts it on the device."""
        num_positions = len(self.table)
        if torch.compiler.is_compiling():
            torch._assert_async(
                ((pos_BT >= 0) & (pos_BT < num_positions)).all(), "a position lies past learned_max_positions"
            )
        elif (position := int(pos_BT.max())) >= num_positions or (position := int(pos_BT.min())) < 0:
            raise ValueError(
                f"`learned` has the positions 0 to {num_positions - 1} (learned_max_positions={num_positions}), but "
                f"a token is at position {position}; shorten the input, train with a larger learned_max_positions, "
                "or choose an encoding that is defined at every length, such as `sinusoidal` or `relative`."
            )

    def init_weights(self) -> None:
        """Like the token embeddings."""
        init.normal_(self.table, std=1.0 if self.config.initializer == "torch" else self.table.shape[-1] ** -0.5)
