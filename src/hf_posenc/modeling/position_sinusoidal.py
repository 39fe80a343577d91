# SPDX-License-Identifier: Apache-2.0
"""Sinusoidal: a fixed vector of sinusoids for each position, with one wavelength for each pair of channels.

Departures from Vaswani et al.: dropout comes before the sum, not after it, because all encodings then have the same
input (Neishi & Yoshinaga 2019 do the same). Positions and channels are counted from 0.
"""

import torch
from torch import Tensor

from .attention_context import AttentionContext, at_least_float32
from .citations import VASWANI
from .position_base import PositionEncoding


class Sinusoidal(PositionEncoding):
    """No parameters. Not shift-invariant; defined at every length."""

    summary = "A fixed vector of sinusoids for each position, added to the embeddings."
    aliases = ("sincos", "fixed")
    shift_invariant = False
    formula = """
        x[p] <- x[p] + PE[p]
        PE[p, 2c] = sin(p / 10000^(2c/D))
        PE[p, 2c+1] = cos(p / 10000^(2c/D))
    """
    references = (VASWANI,)

    def embed(self, x_BTD: Tensor, ctx: AttentionContext) -> Tensor:
        """Embeddings plus sinusoids (B, T, D)."""
        return add_sinusoids(x_BTD, ctx.query_pos_BQ)


def add_sinusoids(x_BTD: Tensor, pos_BT: Tensor) -> Tensor:
    """Embeddings plus the sinusoids of their positions (B, T, D), in the dtype of x."""
    return x_BTD + sinusoids(pos_BT, x_BTD.shape[-1], at_least_float32(x_BTD)).to(x_BTD.dtype)


def sinusoids(pos: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """PE of the positions `pos` of any shape and sign, sine and cosine interleaved (*pos.shape, width)."""
    even_channels = torch.arange(0, width, 2, device=pos.device, dtype=dtype)
    angles = pos[..., None].to(dtype) / 10000.0 ** (even_channels / width)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)[..., :width]
