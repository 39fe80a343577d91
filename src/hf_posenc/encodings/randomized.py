# SPDX-License-Identifier: Apache-2.0
"""Randomized: in training, ordered positions are sampled from a range much longer than the sentence.

Another encoding of the sum is then trained on far positions with short sentences.

Departures from Ruoss et al.: evaluation uses the true positions, because cached decoding could not sample those of
future tokens. One sample serves a batch, a stack and all its layers; their relative encodings sample anew in every
layer.
"""

import torch
from torch import Tensor

from .base import EncodingConfig, EncodingParameter, PositionEncoding, Reference, StackSpec
from .positions import AttentionContext


class Randomized(PositionEncoding):
    """No parameters. Sentences of more than `randomized_positions` tokens keep their true positions."""

    summary = "In training, the positions for the other encodings of the sum are sampled in order from a longer range."
    shift_invariant = True
    permutation_equivariant = True
    reversal_equivariant = True
    is_modifier = True
    zero_init_is_identity = True
    config_parameters = (
        EncodingParameter(
            "randomized_positions",
            2048,
            "a whole number of positions, 1 or more",
            lambda value: value >= 1,
            meaning="Training positions are sampled in order from this many.",
        ),
    )
    formula = (
        "p_0 < p_1 < .. < p_(T-1) in training, sampled without replacement from 0..N-1, N = `randomized_positions`"
    )
    references = (
        Reference(
            "Ruoss et al.",
            "Randomized Positional Encodings Boost Length Generalization of Transformers",
            "ACL",
            2023,
            "https://arxiv.org/abs/2305.16843",
            full_authors=(
                "Anian Ruoss and Grégoire Delétang and Tim Genewein and Jordi Grau-Moya and "
                "Róbert Csordás and Mehdi Bennani and Shane Legg and Joel Veness"
            ),
        ),
    )

    @classmethod
    def validate(cls, config: EncodingConfig, side: StackSpec) -> None:
        """Raise a ValueError in a sum with a window."""
        cls.require_global(side, "spreads positions in training, and a window then hides most neighbours")

    def augment_positions(self, pos_BT: Tensor, ctx: AttentionContext) -> Tensor:
        """A sorted sample of positions (B, T); tokens past its end keep their distance from it."""
        num_new = pos_BT.shape[1]
        num_candidates = max(self.config.randomized_positions, num_new)
        sampled_T = torch.rand(num_candidates, device=pos_BT.device).argsort()[:num_new].sort().values
        in_range_BT = pos_BT.clamp(max=num_new - 1)
        return sampled_T[in_range_BT] + (pos_BT - in_range_BT)
