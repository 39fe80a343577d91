# SPDX-License-Identifier: Apache-2.0
"""Relative: every query knows how far each key stands from it, up to a clip distance.

    score(i, j) = q_i . (k_j + aK[d]) / sqrt(K),    output(i) = sum_j p_ij (v_j + aV[d]),    d = clip(j - i, -tau, tau)

Shaw, Uszkoreit & Vaswani, "Self-Attention with Relative Position Representations" (NAACL 2018),
https://arxiv.org/abs/1803.02155; Rosendahl et al., "Analysis of Positional Encodings for Neural Machine Translation"
(IWSLT 2019), eq. 3-9, https://aclanthology.org/2019.iwslt-1.20. The tables of 2 tau + 1 vectors belong to a layer and
are shared by its heads; cross-attention has none. Three presets: keys and values; keys alone; and fixed vectors in
place of trained ones, the sinusoids PE(d) of width K.

Departures from Rosendahl et al.: the distance is key minus query, where they write query minus key (for trained tables
only the rows change their names); positions are counted from 0; and the fixed vectors are PE of width K at the signed
distance, where they write the first K channels of the PE of width D (their toolkit, too, has width K and key minus
query, but takes PE(d + tau)).

No (L, L, K) tensor is ever built: the key term is q against the 2 tau + 1 vectors, gathered by distance; the value term
is the weights summed by distance, against the 2 tau + 1 vectors.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .position import PositionEncoding, angle_dtype, distance
from .position_sinusoidal import sinusoids


class Relative(PositionEncoding):
    """2 x layers x (2 `relative_clip` + 1) x K parameters, half of them without values, none when fixed.

    Shift-invariant; defined at every length, and beyond `relative_clip` tokens it tells only before from after.
    """

    def __init__(
        self,
        config: Any,
        *,
        causal: bool,
        num_layers: int,
        num_heads: int,
        head_width: int,
        values: bool = True,
        trained: bool = True,
    ) -> None:
        super().__init__(config, causal=causal, num_layers=num_layers, num_heads=num_heads, head_width=head_width)
        self.initializer = config.initializer
        self.clip = config.relative_clip
        self.head_width = head_width
        shape = (num_layers, 2 * self.clip + 1, head_width)
        self.keys = nn.Parameter(torch.empty(shape)) if trained else None
        self.values = nn.Parameter(torch.empty(shape)) if trained and values else None
        if not values:
            self.value_bias = None  # type: ignore[method-assign]

    def score_bias(self, q_BHQK: Tensor, pos_BQ: Tensor, pos_BS: Tensor, layer: int) -> Tensor:
        vectors_RK = self.vectors(self.keys, layer, q_BHQK)
        scores_BHQR = (q_BHQK * self.head_width**-0.5) @ vectors_RK.T
        return scores_BHQR.gather(-1, self.rows(pos_BQ, pos_BS, (*q_BHQK.shape[:3], pos_BS.shape[-1])))

    def value_bias(self, p_BHQS: Tensor, pos_BQ: Tensor, pos_BS: Tensor, layer: int) -> Tensor:
        vectors_RK = self.vectors(self.values, layer, p_BHQS)
        weight_BHQR = p_BHQS.new_zeros(*p_BHQS.shape[:3], len(vectors_RK))
        return weight_BHQR.scatter_add(-1, self.rows(pos_BQ, pos_BS, p_BHQS.shape), p_BHQS) @ vectors_RK

    def rows(self, pos_BQ: Tensor, pos_BS: Tensor, shape_BHQS: tuple[int, ...]) -> Tensor:
        """The row of the tables for every query and key (B, H, Q, S)."""
        return (distance(pos_BQ, pos_BS).clamp(-self.clip, self.clip) + self.clip)[:, None].expand(shape_BHQS)

    def vectors(self, table: Tensor | None, layer: int, like: Tensor) -> Tensor:
        """The vectors of the distances -tau to tau, R = 2 tau + 1 of them (R, K)."""
        if table is not None:
            return table[layer]
        distances = torch.arange(-self.clip, self.clip + 1, device=like.device)
        return sinusoids(distances, self.head_width, angle_dtype(like)).to(like.dtype)

    def init_weights(self) -> None:
        for table in (self.keys, self.values):
            if table is not None:
                bound = (6 / (table.shape[1] + table.shape[2])) ** 0.5  # Xavier's, of one layer's table
                init.normal_(table) if self.initializer == "torch" else init.uniform_(table, -bound, bound)
