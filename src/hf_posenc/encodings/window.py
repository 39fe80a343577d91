# SPDX-License-Identifier: Apache-2.0
"""Window: local (sliding-window) attention; keys more than `window_size` tokens away are hidden.

The idea is Luong et al.'s local attention, without their Gaussian and their predicted centre. The window is centred on
the query's own position, in cross-attention on its source position. In a sum it bounds the other encoding's distances
and the number of attended keys, at any input length.

`window_lookahead` gives the side after the query a size of its own. A model that translates a text while it is being
read waits for the keys on this side (streaming.py). Therefore a smaller one has less latency. An encoder with it is
not reversal-equivariant: the registry's property is that of the default.
"""

import torch
from torch import Tensor

from .base import LUONG, MASK_VALUE, EncodingConfig, EncodingParameter, PositionEncoding, StackSpec


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
        EncodingParameter(
            "window_lookahead",
            None,
            "a whole number of tokens, 0 to `window_size`, or None for as many",
            lambda value: value is None or value >= 0,
            meaning="A query attends to keys at most this many tokens after it; None: as many as before it.",
        ),
    )
    formula = "score(i, j) = q_i . k_j / sqrt(K) where -window_size <= j - i <= window_lookahead, hidden elsewhere"
    references = (LUONG,)

    def __init__(self, config: EncodingConfig, side: StackSpec) -> None:
        super().__init__(config, side)
        self.size = config.window_size
        self.lookahead_size = self.size if config.window_lookahead is None else config.window_lookahead
        self.max_distance, self.lookahead_distance = self.size + 1, self.lookahead_size + 1

    @classmethod
    def validate(cls, config: EncodingConfig, side: StackSpec) -> None:
        """Raise a ValueError for a window that is larger after the query than before it."""
        if config.window_lookahead is not None and config.window_lookahead > config.window_size:
            cross = "cross_" if side.name == "cross" else ""
            raise ValueError(
                f"`{cross}window_lookahead` must be at most the window's size, but in the {side.name} they are "
                f"{config.window_lookahead} and {config.window_size}; lower `{cross}window_lookahead`, or raise "
                f"`{cross}window_size`."
            )

    def distance_bias(self, distance_N: Tensor) -> Tensor:
        """0 inside the window, MASK_VALUE outside (1, N)."""
        is_outside_N = (distance_N < -self.size) | (distance_N > self.lookahead_size)
        return torch.where(is_outside_N, MASK_VALUE, 0.0)[None]
