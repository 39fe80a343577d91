# SPDX-License-Identifier: Apache-2.0
"""Window: local (sliding-window) attention; keys more than `window_size` tokens away are hidden.

The idea is Luong et al.'s local attention, without their Gaussian and their predicted centre. The window is centred on
the query's own position, in cross-attention on its source position. In a sum it bounds the other encoding's distances
and the number of attended keys, at any input length.

`window_lookahead` gives the side after the query a size of its own. A model that translates a text while it is being
read waits for the keys on this side (streaming.py). Therefore a smaller one has less latency. An encoder with it is
not reversal-equivariant: the registry's property is that of the default.

`window_sinks` keeps the first tokens visible at every distance, as in StreamingLLM. Many pretrained language models
attend to them where nothing else matters. The bias then depends on the key's position as well as on the distance, so
that attention takes all keys into its products.
"""

import torch
from torch import Tensor

from .base import LUONG, MASK_VALUE, EncodingConfig, EncodingParameter, PositionEncoding, Reference, StackSpec
from .positions import AttentionContext

XIAO = Reference(
    "Xiao et al.",
    "Efficient Streaming Language Models with Attention Sinks",
    "ICLR",
    2024,
    "https://arxiv.org/abs/2309.17453",
    full_authors="Guangxuan Xiao and Yuandong Tian and Beidi Chen and Song Han and Mike Lewis",
)


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
        EncodingParameter(
            "window_sinks",
            0,
            "a whole number of tokens, 0 or more",
            lambda value: value >= 0,
            meaning="A query attends to this many tokens at the beginning too, however far away they are.",
        ),
    )
    formula = """
        score(i, j) = q_i . k_j / sqrt(K) where -window_size <= j - i <= window_lookahead, or j < window_sinks;
        hidden elsewhere
    """
    references = (LUONG, XIAO)

    def __init__(self, config: EncodingConfig, side: StackSpec) -> None:
        super().__init__(config, side)
        self.size = config.window_size
        self.lookahead_size = self.size if config.window_lookahead is None else config.window_lookahead
        self.max_distance, self.lookahead_distance = self.size + 1, self.lookahead_size + 1
        if config.window_sinks:  # no distance decides alone which keys are hidden
            self.max_distance = self.lookahead_distance = None
            self.prepare, self.score_bias = self.prepare_with_sinks, self.prepared_bias
            self.distance_bias = None  # type: ignore[method-assign, assignment]

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
        return torch.where(self.is_outside(distance_N), MASK_VALUE, 0.0)[None]

    def is_outside(self, distance: Tensor) -> Tensor:
        """Whether a window hides each distance, of any shape."""
        return (distance < -self.size) | (distance > self.lookahead_size)

    def prepare_with_sinks(self, x_BTD: Tensor, ctx: AttentionContext) -> Tensor:
        """The bias of each query and key (B, 1, Q, S): 0 inside the window and for the first `window_sinks` tokens."""
        is_sink_BS = ctx.key_pos_BS < self.config.window_sinks
        is_hidden_BQS = self.is_outside(ctx.distance_BQS) & ~is_sink_BS[:, None]
        return torch.where(is_hidden_BQS, MASK_VALUE, 0.0)[:, None].to(x_BTD.dtype)

    def prepared_bias(self, q_BHQK: Tensor, k_BHSK: Tensor, ctx: AttentionContext) -> Tensor:
        """`score_bias` with sinks (B, 1, Q, S)."""
        return ctx.prepared
