# SPDX-License-Identifier: Apache-2.0
"""Rotary: queries and keys are turned by their position, so that their product sees only the distance.

    (q[2c] + i q[2c+1]) <- (q[2c] + i q[2c+1]) exp(i p w_c),    w_c = theta^(-2c/K),    and the same for k

Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding" (2021), https://arxiv.org/abs/2104.09864.
Pairs are neighbouring channels, as in the paper (Llama's code pairs channel c with c + K/2: a fixed permutation of the
projections' rows). Self-attention of both stacks turns; cross-attention does not. `rope_parameters` takes the frequency
scalings of transformers ("linear", "yarn", "llama3", "proportional") by their own code.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import ROPE_INIT_FUNCTIONS

from .position import PositionEncoding, angle_dtype


class Rotary(PositionEncoding):
    """No parameters. Shift-invariant; defined at every length."""

    def __init__(self, config: Any, *, causal: bool, num_layers: int, num_heads: int, head_width: int) -> None:
        super().__init__(config, causal=causal, num_layers=num_layers, num_heads=num_heads, head_width=head_width)
        # transformers' functions read a decoder-only config, in which the number of heads is that of this very stack.
        self.config = config.get_text_config(decoder=causal, encoder=not causal)
        self.kind = config.rope_parameters["rope_type"]
        self.theta = config.rope_parameters["rope_theta"]

    @classmethod
    def check(cls, config: Any, *, num_heads: int) -> None:
        if (width := config.d_model // num_heads) % 2:
            raise ValueError(
                f"`rotary` turns pairs of channels, so the width of a head must be even, but d_model={config.d_model} "
                f"over {num_heads} heads gives {width}; change d_model or the number of heads."
            )
        if (kind := config.rope_parameters["rope_type"]) not in ("default", "linear", "yarn", "llama3", "proportional"):
            raise ValueError(
                "`rotary` needs frequencies that do not change with the input's length, or cached decoding could not "
                f"equal a full forward, but rope_parameters has rope_type={kind!r}; choose from default, linear, yarn, "
                "llama3, proportional."
            )

    def rotate(self, q_BHTK: Tensor, k_BHTK: Tensor, pos_BT: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        frequencies, scale = self.frequencies(q_BHTK)
        angles_B1TC = pos_BT[:, None, :, None].to(frequencies.dtype) * frequencies
        cos, sin = (angles_B1TC.cos() * scale).to(q_BHTK.dtype), (angles_B1TC.sin() * scale).to(q_BHTK.dtype)
        return turn(q_BHTK, cos, sin), turn(k_BHTK, cos, sin)

    def frequencies(self, q_BHTK: Tensor) -> tuple[Tensor, float]:
        """w_c, in radians a token (K/2), and the factor on queries and keys that some scalings bring."""
        if self.kind == "default":
            width, dtype = q_BHTK.shape[-1], angle_dtype(q_BHTK)
            return self.theta ** -(torch.arange(0, width, 2, device=q_BHTK.device, dtype=dtype) / width), 1.0
        return ROPE_INIT_FUNCTIONS[self.kind](self.config, q_BHTK.device)


def turn(x_BHTK: Tensor, cos_B1TC: Tensor, sin_B1TC: Tensor) -> Tensor:
    even, odd = x_BHTK[..., 0::2], x_BHTK[..., 1::2]
    turned = (even * cos_B1TC - odd * sin_B1TC, even * sin_B1TC + odd * cos_B1TC)
    return torch.stack(turned, dim=-1).flatten(-2)
