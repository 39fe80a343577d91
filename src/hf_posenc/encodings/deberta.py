# SPDX-License-Identifier: Apache-2.0
"""DeBERTa: disentangled attention, with content-to-position and position-to-content scores by trained maps.

All layers share one vector for each clipped distance. Every layer maps it to a key, for the tokens' queries, and to a
query, for the tokens' keys. The three terms of a score have equal weight.

Departures from He et al.: both position terms read the vector at the same distance, as in their code; their paper
writes the opposite distance for the last term. The clip is 64 tokens by default instead of 512. The vectors have no
dropout. The causal form for the decoder is ours. For a query between two tokens the terms are interpolated between both
distances.
"""

from functools import reduce

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .base import EncodingConfig, EncodingParameter, PositionEncoding, StackSpec
from .citations import Reference
from .positions import AttentionContext, interpolation_weights, scale_by


class Deberta(PositionEncoding):
    """2 `deberta_clip` x D + layers x D x (2 D + 1) parameters. Shift-invariant; defined at every length. Beyond
    `deberta_clip` tokens scores depend on the direction only."""

    summary = "Content-to-position and position-to-content scores, from a trained vector for each clipped distance."
    shift_invariant = True
    config_parameters = (
        EncodingParameter(
            "deberta_clip",
            64,
            "a whole number of tokens, 1 or more",
            lambda value: value >= 1,
            meaning="Distances of more tokens share the vector of this distance.",
        ),
    )
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
            full_authors="Pengcheng He and Xiaodong Liu and Jianfeng Gao and Weizhu Chen",
        ),
    )

    def __init__(self, config: EncodingConfig, side: StackSpec) -> None:
        super().__init__(config, side)
        self.clip, width = config.deberta_clip, config.d_model
        self.first_row = self.clip if side.is_causal else 0  # A causal query never uses rows for future keys.
        self.vectors = nn.Parameter(torch.empty(2 * self.clip, width))
        self.key_weight = nn.Parameter(torch.empty(side.layers, width, width))
        self.query_weight = nn.Parameter(torch.empty(side.layers, width, width))
        self.query_bias = nn.Parameter(torch.empty(side.layers, width))

    @classmethod
    def validate(cls, config: EncodingConfig, side: StackSpec) -> None:
        """Raise a ValueError in a sum with rotated keys."""
        cls.require_unrotated_keys(side, "reads the keys' content")

    def prepare(self, x_BTD: Tensor, ctx: AttentionContext) -> list[tuple[Tensor, Tensor | None]]:
        """The row of the vectors for each query and key, with its interpolation weight (B, 1, Q, S)."""
        weighted_distances = interpolation_weights(ctx.distance_BQS[:, None], x_BTD.dtype)
        last_row = 2 * self.clip - 1 - self.first_row
        return [
            ((self.clip - self.first_row - distance).clamp(0, last_row), weight)
            for distance, weight in weighted_distances
        ]

    def rotate_queries(self, q_BHQK: Tensor, ctx: AttentionContext) -> Tensor:
        """Queries (B, H, Q, K), scaled by 1/sqrt(3) because three terms are added."""
        return q_BHQK * 3**-0.5

    def score_bias(self, q_BHQK: Tensor, k_BHSK: Tensor, ctx: AttentionContext) -> Tensor:
        """Content-to-position and position-to-content terms (B, H, Q, S)."""
        vectors_RD = self.vectors[self.first_row :]
        keys_RD = vectors_RD @ self.key_weight[ctx.layer].T
        queries_RD = vectors_RD @ self.query_weight[ctx.layer].T + self.query_bias[ctx.layer]
        c2p_BHQR = q_BHQK @ self.split_heads(keys_RD).transpose(1, 2)
        p2c = self.p2c_single_query if q_BHQK.shape[2] == 1 else self.p2c

        def gather_scores(rows_B1QS: Tensor) -> Tensor:
            c2p_BHQS = c2p_BHQR.gather(-1, rows_B1QS.expand(*c2p_BHQR.shape[:3], -1))
            return c2p_BHQS + p2c(k_BHSK, queries_RD, rows_B1QS)

        both_BHQS = reduce(
            torch.add, [scale_by(gather_scores(rows_B1QS), weight) for rows_B1QS, weight in ctx.prepared]
        )
        return both_BHQS * (self.scaling * 3**-0.5)

    def split_heads(self, rows_RD: Tensor) -> Tensor:
        """Rows (..., R, D), split among the heads (..., H, R, K)."""
        return rows_RD.unflatten(-1, (self.side.heads, -1)).transpose(-3, -2)

    def p2c(self, k_BHSK: Tensor, queries_RD: Tensor, rows_B1QS: Tensor) -> Tensor:
        """Position-to-content scores (B, H, Q, S): every key's product with every row, gathered by distance."""
        p2c_BHSR = k_BHSK @ self.split_heads(queries_RD).transpose(1, 2)
        return p2c_BHSR.gather(-1, rows_B1QS.transpose(2, 3).expand(*p2c_BHSR.shape[:3], -1)).transpose(2, 3)

    def p2c_single_query(self, k_BHSK: Tensor, queries_RD: Tensor, rows_B11S: Tensor) -> Tensor:
        """Position-to-content scores of one query (B, H, 1, S): each key's product with the row of its distance."""
        queries_BHSK = self.split_heads(nn.functional.embedding(rows_B11S[:, 0, 0], queries_RD))
        return (k_BHSK * queries_BHSK).sum(-1)[:, :, None]

    def init_weights(self) -> None:
        """The vectors like token embeddings, the maps like the model's matrices."""
        init.normal_(self.vectors, std=1.0 if self.config.initializer == "torch" else self.config.d_model**-0.5)
        bound = (self.config.d_model if self.config.initializer == "torch" else self.config.d_model / 3) ** -0.5
        init.uniform_(self.key_weight, -bound, bound)
        init.uniform_(self.query_weight, -bound, bound)
        init.zeros_(self.query_bias)
