# SPDX-License-Identifier: Apache-2.0
"""PoPE (polar): each channel of queries and keys has its content as a magnitude and its position as an angle.

Departures from Gopalakrishnan et al.: the offsets delta belong to a layer (what their code does could not be verified)
and start at 0.
"""

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .base import EncodingConfig, EncodingParameter, PositionEncoding, Reference, StackSpec
from .positions import AttentionContext, at_least_float32
from .rotary import cos_sin


class Pope(PositionEncoding):
    """layers x D parameters. Queries, keys and cached keys are twice as wide. Shift-invariant;
    defined at every length."""

    summary = "Each channel of queries and keys is a magnitude at an angle proportional to the position."
    shift_invariant = True
    preserves_head_dim = False
    config_parameters = (
        EncodingParameter(
            "pope_theta",
            10000.0,
            "a number above 1",
            lambda value: value > 1,
            meaning="Base of the angular frequencies; a larger base gives longer wavelengths.",
        ),
    )
    formula = """
        score(i, j) = sum_c softplus(q_ic) softplus(k_jc) cos((j - i) w_c + delta_hc) / sqrt(K)
        w_c = theta^(-c/K), delta_hc = min(max(delta'_hc, -2 pi), 0)
    """
    references = (
        Reference(
            "Gopalakrishnan et al.",
            "Decoupling the 'What' and 'Where' With Polar Coordinate Positional Embeddings",
            "",
            2025,
            "https://arxiv.org/abs/2509.10534",
            full_authors="Anand Gopalakrishnan and Róbert Csordás and Jürgen Schmidhuber and Michael C. Mozer",
        ),
    )

    def __init__(self, config: EncodingConfig, side: StackSpec) -> None:
        super().__init__(config, side)
        self.delta = nn.Parameter(torch.empty(side.layers, side.heads, 1, side.head_dim))

    @classmethod
    def validate(cls, config: EncodingConfig, side: StackSpec) -> None:
        """Raise a ValueError in a sum with another encoding that changes keys."""
        cls.require_unrotated_keys(side, "gives each channel its own angle")

    def prepare(self, x_BTD: Tensor, ctx: AttentionContext) -> tuple[Tensor, ...]:
        """The cosines and sines of queries, then of new keys (B, 1, T, K)."""
        width = self.side.head_dim
        channels_K = torch.arange(width, device=x_BTD.device, dtype=at_least_float32(x_BTD))
        frequencies_K = self.config.pope_theta ** -(channels_K / width)
        queries = cos_sin(ctx.query_pos_BQ, frequencies_K, 1.0)
        return (*queries, *(cos_sin(ctx.new_key_pos_BT, frequencies_K, 1.0) if ctx.is_cross else queries))

    def rotate_queries(self, q_BHQK: Tensor, ctx: AttentionContext) -> Tensor:
        """Queries in polar form (B, H, Q, 2K)."""
        return polar(q_BHQK, *ctx.prepared[:2])

    def rotate_keys(self, k_BHTK: Tensor, ctx: AttentionContext) -> Tensor:
        """Keys in polar form, with the trained offset (B, H, T, 2K)."""
        cos_B1TK, sin_B1TK = ctx.prepared[2:]
        delta_H1K = self.delta[ctx.layer].clamp(-2 * torch.pi, 0.0).to(cos_B1TK.dtype)
        cos_H1K, sin_H1K = delta_H1K.cos(), delta_H1K.sin()
        return polar(k_BHTK, cos_B1TK * cos_H1K - sin_B1TK * sin_H1K, sin_B1TK * cos_H1K + cos_B1TK * sin_H1K)

    def init_weights(self) -> None:
        """Zero offsets."""
        init.zeros_(self.delta)


def polar(x_BHTK: Tensor, cos_BHTK: Tensor, sin_BHTK: Tensor) -> Tensor:
    """Magnitudes softplus(x) at the given angles as Cartesian coordinates (B, H, T, 2K): all x, then all y."""
    length_BHTK = -nn.functional.logsigmoid(-x_BHTK)  # softplus, whose gradient torch compiles with wrong strides
    return torch.cat((length_BHTK * cos_BHTK.to(x_BHTK.dtype), length_BHTK * sin_BHTK.to(x_BHTK.dtype)), dim=-1)
