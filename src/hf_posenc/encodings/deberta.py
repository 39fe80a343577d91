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

from .base import EncodingConfig, EncodingParameter, PositionEncoding, Reference, StackSpec
from .positions import AttentionContext, interpolation_weights, scale_by
from .relative_shift import distance_range, extend_distances, select_keys


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
        """The row of the vectors for each query and key, with its interpolation weight (B, 1, Q, S).

        None for blocks of queries, whose rows are found by relative_shift.py.
        """
        if ctx.is_contiguous:
            return []
        weighted_distances = interpolation_weights(ctx.distance_BQS[:, None], x_BTD.dtype)
        last_row = 2 * self.clip - 1 - self.first_row
        return [
            ((self.clip - self.first_row - distance).clamp(0, last_row), weight)
            for distance, weight in weighted_distances
        ]

    def rotate_queries(self, q_BHQK: Tensor, ctx: AttentionContext) -> Tensor:
        """Queries (B, H, Q, K), scaled by 1/sqrt(3) because three terms are added."""
        return q_BHQK * 3**-0.5

    def prepare_layer(self, ctx: AttentionContext) -> tuple[Tensor, Tensor]:
        """The key and the query of each row of the vectors (R, D)."""
        vectors_RD = self.vectors[self.first_row :]
        keys_RD = vectors_RD @ self.key_weight[ctx.layer].T
        return keys_RD, vectors_RD @ self.query_weight[ctx.layer].T + self.query_bias[ctx.layer]

    def score_bias(self, q_BHQK: Tensor, k_BHSK: Tensor, ctx: AttentionContext) -> Tensor:
        """Content-to-position and position-to-content terms (B, H, Q, S)."""
        if ctx.is_contiguous:
            return self.score_bias_of_block(q_BHQK * (self.scaling * 3**-0.5), k_BHSK, ctx)
        keys_RD, queries_RD = self.prepare_layer(ctx)
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

    def score_bias_of_block(self, q_BHQK: Tensor, k_BHSK: Tensor, ctx: AttentionContext) -> Tensor:
        """The same for a block of scaled queries, by relative shift (B, H, Q, S).

        Rows are in descending order of key minus query. From `deberta_clip` tokens on, all queries of the block have
        the same row for a key. Therefore only keys near the block are multiplied by every row.
        """
        keys_HRK, queries_HRK = (self.split_heads(rows_RD) for rows_RD in ctx.prepared_layer)
        num_queries, num_keys, start = q_BHQK.shape[2], k_BHSK.shape[2], int(ctx.num_cached)
        lowest, highest = 1 - self.clip, self.clip - self.first_row
        c2p_BHQR = q_BHQK @ keys_HRK.flip(1).transpose(1, 2)
        c2p_BHQS = select_keys(extend_distances(c2p_BHQR, lowest, distance_range(ctx)))
        k_BHSK = k_BHSK * (self.scaling * 3**-0.5)
        # Keys from `near` on and before `far` are nearer than the clip to some query.
        near, far = max(0, start - self.clip), min(num_keys, start + num_queries + self.clip)
        near_BHSR = k_BHSK[:, :, near:far] @ queries_HRK.transpose(1, 2)
        # Seen from a key, the block's queries are what keys are to a query, at distances of the opposite sign.
        wanted = start - far + 1, start + num_queries - 1 - near
        near_BHSQ = select_keys(extend_distances(near_BHSR, -highest, wanted))
        past_BH1S = queries_HRK[:, -1:] @ k_BHSK[:, :, :near].transpose(2, 3)
        future_BH1S = queries_HRK[:, :1] @ k_BHSK[:, :, far:].transpose(2, 3)
        shape = *q_BHQK.shape[:3], -1
        p2c_BHQS = torch.cat((past_BH1S.expand(shape), near_BHSQ.transpose(2, 3), future_BH1S.expand(shape)), dim=-1)
        return c2p_BHQS + p2c_BHQS

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
