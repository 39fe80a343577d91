# SPDX-License-Identifier: Apache-2.0
"""Sinusoidal: a fixed vector of sinusoids for each position, with one wavelength for each pair of channels.

Departures from Vaswani et al.: dropout comes before the sum, not after it, because all encodings then have the same
input (Neishi & Yoshinaga 2019 do the same). Positions and channels are counted from 0. M2M-100 and NLLB have their own
`sinusoidal_offset` and `sinusoidal_base`, because fairseq counts from behind the padding token, and has D/2 - 1 steps
from the shortest to the longest wavelength.
"""

import math

import torch
from torch import Tensor

from .base import VASWANI, EncodingConfig, EncodingParameter, PositionEncoding, StackSpec
from .positions import AttentionContext, at_least_float32


class Sinusoidal(PositionEncoding):
    """No parameters. Not shift-invariant; defined at every length."""

    summary = "A fixed vector of sinusoids for each position, added to the embeddings."
    aliases = ("sincos", "fixed")
    shift_invariant = False
    config_parameters = (
        EncodingParameter(
            "sinusoidal_offset",
            0,
            "a whole number of tokens, 0 or more",
            lambda value: value >= 0,
            meaning="Is added to every position.",
        ),
        EncodingParameter(
            "sinusoidal_base",
            10000.0,
            "a number above 1",
            lambda value: 1 < value < math.inf,
            meaning="The wavelengths grow from 2 pi tokens towards this number times 2 pi.",
        ),
    )
    formula = """
        x[p] <- x[p] + PE[p + o]
        PE[p, 2c] = sin(p / b^(2c/D))
        PE[p, 2c+1] = cos(p / b^(2c/D)),    o = `sinusoidal_offset`, b = `sinusoidal_base`
    """
    references = (VASWANI,)

    def __init__(self, config: EncodingConfig, side: StackSpec) -> None:
        super().__init__(config, side)
        self.offset, self.base = config.sinusoidal_offset, config.sinusoidal_base

    def embed(self, x_BTD: Tensor, ctx: AttentionContext) -> Tensor:
        """Embeddings plus sinusoids (B, T, D)."""
        return add_sinusoids(x_BTD, ctx.query_pos_BQ + self.offset, self.base)


def add_sinusoids(x_BTD: Tensor, pos_BT: Tensor, base: float = 10000.0) -> Tensor:
    """Embeddings plus the sinusoids of their positions (B, T, D), in the dtype of x."""
    return x_BTD + sinusoids(pos_BT, x_BTD.shape[-1], at_least_float32(x_BTD), base).to(x_BTD.dtype)


def sinusoids(pos: Tensor, width: int, dtype: torch.dtype, base: float = 10000.0) -> Tensor:
    """PE of the positions `pos` of any shape and sign, sine and cosine interleaved (*pos.shape, width)."""
    even_channels = torch.arange(0, width, 2, device=pos.device, dtype=dtype)
    angles = pos[..., None].to(dtype) / base ** (even_channels / width)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)[..., :width]
