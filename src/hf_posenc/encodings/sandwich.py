# SPDX-License-Identifier: Apache-2.0
"""Sandwich: a score bias that is the inner product of both positions' sinusoids, times a fixed rate for each head.

Departures from Chi et al.: `sandwich_width` / 2 is subtracted, and the bias at distance 0 is then zero; a softmax does
not depend on it. Channels are counted from 0, as in `sinusoidal`; the paper's first channel could not be verified.
"""

import torch
from torch import Tensor

from .base import EncodingParameter, PositionEncoding, Reference

CHUNK_SIZE = 2**16  # distances whose cosines are in memory at once


class Sandwich(PositionEncoding):
    """No parameters. Shift-invariant; defined at every length."""

    summary = "The inner product of both positions' sinusoids, times a fixed rate for each head, is added to scores."
    shift_invariant = True
    reversal_equivariant = True
    config_parameters = (
        EncodingParameter(
            "sandwich_width",
            128,
            "an even number of channels, 2 or more",
            lambda value: value >= 2 and value % 2 == 0,
            meaning="Channels of the sinusoids whose inner product is the bias.",
        ),
    )
    formula = """
        score(i, j) = q_i . k_j / sqrt(K) + (PE[i] . PE[j] - W/2) H / (8h), h = 1..H
        PE as in `sinusoidal`, of width W
    """
    references = (
        Reference(
            "Chi et al.",
            "Dissecting Transformer Length Extrapolation via the Lens of Receptive Field Analysis",
            "ACL",
            2023,
            "https://arxiv.org/abs/2212.10356",
            full_authors="Ta-Chung Chi and Ting-Han Fan and Alexander I. Rudnicky and Peter J. Ramadge",
        ),
    )

    def distance_bias(self, distance_N: Tensor) -> Tensor:
        """The sum of the sinusoids' cosines at a distance, times the rate of each head (H, N)."""
        width, heads = self.config.sandwich_width, self.side.heads
        channels = torch.arange(0, width, 2, device=distance_N.device, dtype=distance_N.dtype)
        frequencies = 10000.0 ** -(channels / width)
        products = [(chunk[:, None] * frequencies).cos().sum(1) for chunk in distance_N.split(CHUNK_SIZE)]
        rates_H1 = distance_N.new_tensor([heads / (8 * h) for h in range(1, heads + 1)])[:, None]
        return (torch.cat(products) - width / 2) * rates_H1
