# SPDX-License-Identifier: Apache-2.0
"""Sandwich: a score bias that is the inner product of both positions' sinusoids, times a fixed rate for each head.

Departures from Chi et al.: `sandwich_width` / 2 is subtracted, and the bias at distance 0 is then zero; a softmax does
not depend on it. Channels are counted from 0, as in `sinusoidal`; the paper's first channel could not be verified.
"""

from torch import Tensor

from .base import EncodingParameter, PositionEncoding
from .citations import Reference
from .positions import AttentionContext, at_least_float32
from .sinusoidal import sinusoids


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

    def prepare(self, x_BTD: Tensor, ctx: AttentionContext) -> Tensor:
        """The score bias of each head, query and key (B, H, Q, S)."""
        width, dtype, heads = self.config.sandwich_width, at_least_float32(x_BTD), self.side.heads
        queries_BQW, keys_BSW = (sinusoids(pos, width, dtype) for pos in (ctx.query_pos_BQ, ctx.key_pos_BS))
        product_B1QS = (queries_BQW @ keys_BSW.transpose(1, 2) - width / 2)[:, None]
        rates_H11 = product_B1QS.new_tensor([heads / (8 * h) for h in range(1, heads + 1)])[:, None, None]
        return (product_B1QS * rates_H11).to(x_BTD.dtype)

    def score_bias(self, q_BHQK: Tensor, k_BHSK: Tensor, ctx: AttentionContext) -> Tensor:
        """What `prepare` computed (B, H, Q, S)."""
        return ctx.prepared
