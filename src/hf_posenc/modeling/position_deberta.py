# SPDX-License-Identifier: Apache-2.0
"""DeBERTa: content asks for distance and distance asks for content, each by a map of its own.

There is one vector for each clipped distance, shared by all layers; every layer maps it to a key for its queries to
find and to a query for its keys to answer. Content and both of these terms share the scores evenly.

Departures from He et al.: the last term reads the vector at the distance of the key from the query, as the first does
and as their code has it (their paper writes the opposite distance); the clip is 64 tokens by default and not 512; there
is no dropout on the vectors; the decoder's form is ours, its queries see the past alone. Between two tokens, both
distances share by nearness.
"""

from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .place import Place, between, times
from .position import Knob, PositionEncoding
from .references import Reference


class Deberta(PositionEncoding):
    """2 `deberta_clip` x D + layers x D x (2 D + 1) parameters. Shift-invariant; defined at every length, and beyond
    `deberta_clip` tokens it tells only before from after."""

    summary = "Content asks for a trained vector of the clipped distance, and that vector for content."
    shift_invariant = True
    knobs = (Knob("deberta_clip", 64, "a whole number of tokens, 1 or more", lambda value: value >= 1),)
    formula = """
        score(i, j) = (q_i . k_j + q_i . WK P[d] + k_j . (WQ P[d] + bQ)) / sqrt(3 K)
        d = clip(i - j, -tau, tau - 1)
    """
    references = (
        Reference(
            "He et al.",
            "DeBERTa: Decoding-enhanced BERT with Disentangled Attention",
            "ICLR",
            2021,
            "https://arxiv.org/abs/2006.03654",
        ),
    )

    def __init__(self, config: Any, side: Any) -> None:
        super().__init__(config, side)
        self.clip, width = config.deberta_clip, config.d_model
        self.first = self.clip if side.is_causal else 0  # Of what is behind a query nobody there asks.
        self.vectors = nn.Parameter(torch.empty(2 * self.clip, width))
        self.key_weight, self.query_weight = (nn.Parameter(torch.empty(side.layers, width, width)) for _ in "kq")
        self.query_bias = nn.Parameter(torch.empty(side.layers, width))

    @classmethod
    def check(cls, config: Any, side: Any) -> None:
        cls.refuse_turned_keys(side, "asks for the keys' content")

    def prepare(self, x_BTD: Tensor, at: Place) -> list[tuple[Tensor, Tensor | None]]:
        """The row of the vectors for every query and key, and its share (B, 1, Q, S)."""
        shares = between(at.distance_BQS[:, None], x_BTD.dtype)
        last = 2 * self.clip - 1 - self.first
        return [((self.clip - self.first - distance).clamp(0, last), share) for distance, share in shares]

    def rotate_queries(self, q_BHQK: Tensor, at: Place) -> Tensor:
        return q_BHQK * 3**-0.5

    def score_bias(self, q_BHQK: Tensor, k_BHSK: Tensor, at: Place) -> Tensor:
        vectors_RD = self.vectors[self.first :]
        keys_RD = vectors_RD @ self.key_weight[at.layer].T
        queries_RD = vectors_RD @ self.query_weight[at.layer].T + self.query_bias[at.layer]
        c2p_BHQR = q_BHQK @ self.by_head(keys_RD).transpose(1, 2)
        p2c = self.p2c_of_one if q_BHQK.shape[2] == 1 else self.p2c

        def looked_up(rows_B1QS: Tensor) -> Tensor:
            c2p_BHQS = c2p_BHQR.gather(-1, rows_B1QS.expand(*c2p_BHQR.shape[:3], -1))
            return c2p_BHQS + p2c(k_BHSK, queries_RD, rows_B1QS)

        both_BHQS = reduce(torch.add, [times(looked_up(rows_B1QS), share) for rows_B1QS, share in at.prepared])
        return both_BHQS * (self.scaling * 3**-0.5)

    def by_head(self, rows_RD: Tensor) -> Tensor:
        """(..., H, R, K)"""
        return rows_RD.unflatten(-1, (self.side.heads, -1)).transpose(-3, -2)

    def p2c(self, k_BHSK: Tensor, queries_RD: Tensor, rows_B1QS: Tensor) -> Tensor:
        """Every key's product with every row, looked up by distance (B, H, Q, S)."""
        p2c_BHSR = k_BHSK @ self.by_head(queries_RD).transpose(1, 2)
        return p2c_BHSR.gather(-1, rows_B1QS.transpose(2, 3).expand(*p2c_BHSR.shape[:3], -1)).transpose(2, 3)

    def p2c_of_one(self, k_BHSK: Tensor, queries_RD: Tensor, rows_B11S: Tensor) -> Tensor:
        """The same of a single query, to which each key has one distance, and its product with that row alone."""
        queries_BHSK = self.by_head(nn.functional.embedding(rows_B11S[:, 0, 0], queries_RD))
        return (k_BHSK * queries_BHSK).sum(-1)[:, :, None]

    def init_weights(self) -> None:
        init.normal_(self.vectors, std=1.0 if self.config.initializer == "torch" else self.config.d_model**-0.5)
        bound = (self.config.d_model if self.config.initializer == "torch" else self.config.d_model / 3) ** -0.5
        init.uniform_(self.key_weight, -bound, bound)
        init.uniform_(self.query_weight, -bound, bound)
        init.zeros_(self.query_bias)
