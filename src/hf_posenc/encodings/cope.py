# SPDX-License-Identifier: Apache-2.0
"""CoPE: the position of a key is the sum of gates from the key to the query, which the query computes from the keys.

A query can so count what it attends to, such as the ends of sentences, in place of tokens.

Departures from Golovneva et al., whose attention is causal: in bidirectional attention keys after the query have a
second table of vectors. Gates are computed from the scaled scores. Cross-attention is refused, because its queries are
no tokens of the source.
"""

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .base import EncodingConfig, EncodingParameter, PositionEncoding, Reference, StackSpec
from .positions import AttentionContext, at_least_float32


class Cope(PositionEncoding):
    """layers x directions x `cope_positions` x K parameters. Depends on the order of the tokens and not on their
    positions; defined at every length."""

    summary = "A key's position is the sum of gates from it to the query, which looks its vector up in a trained table."
    aliases = ("contextual", "contextual_position_encoding")
    shift_invariant = True
    zero_init_is_identity = True
    config_parameters = (
        EncodingParameter(
            "cope_positions",
            64,
            "a whole number, 2 or more",
            lambda value: value >= 2,
            meaning="Number of vectors; keys whose gates sum to more share the last one.",
        ),
    )
    formula = """
        score(i, j) = (q_i . k_j + q_i . e[p_ij]) / sqrt(K)
        p_ij = min(sum_l g_il, N - 1), l = j..i, g_il = sigmoid(q_i . k_l / sqrt(K)), N = `cope_positions`
        e interpolated between whole positions; for j > i l = i..j, and another e
    """
    references = (
        Reference(
            "Golovneva et al.",
            "Contextual Position Encoding: Learning to Count What's Important",
            "",
            2024,
            "https://arxiv.org/abs/2405.18719",
            full_authors="Olga Golovneva and Tianlu Wang and Jason Weston and Sainbayar Sukhbaatar",
        ),
    )

    def __init__(self, config: EncodingConfig, side: StackSpec) -> None:
        super().__init__(config, side)
        directions = 1 if side.is_causal else 2  # past, future
        self.vectors = nn.Parameter(torch.empty(side.layers, directions, config.cope_positions, side.head_dim))

    @classmethod
    def validate(cls, config: EncodingConfig, side: StackSpec) -> None:
        """Raise a ValueError in cross-attention, and in a sum with rotated keys."""
        if side.name == "cross":
            raise ValueError(
                f"cross_position_encoding_type={side.encoding!r}: `cope` sums the gates of the tokens between a query "
                "and a key of one text, but cross-attention has two texts; leave it out there."
            )
        cls.require_unrotated_keys(side, "computes gates from the keys")

    def prepare(self, x_BTD: Tensor, ctx: AttentionContext) -> tuple[Tensor, Tensor]:
        """Which keys are not after the query (Q, S); which count before and after it (directions, B or 1, 1, Q, S)."""
        num_queries, num_keys = ctx.query_pos_BQ.shape[1], ctx.key_pos_BS.shape[1]
        # The keys before the new ones are fewer than the cached tokens if a cache has dropped some, and a static cache
        # has room behind the new ones.
        new_Q1 = torch.arange(num_queries, device=x_BTD.device)[:, None]
        query_Q1 = torch.minimum(new_Q1 + ctx.num_cached, new_Q1 + num_keys - num_queries)
        key_S = torch.arange(num_keys, device=x_BTD.device)
        is_past_QS = key_S <= query_Q1
        counts = torch.stack([is_past_QS] if self.side.is_causal else [is_past_QS, key_S >= query_Q1])[:, None, None]
        valid_BQS = ctx.valid_keys_BQS
        return is_past_QS, counts if valid_BQS is None else counts & valid_BQS[:, None]

    def score_bias(self, q_BHQK: Tensor, k_BHSK: Tensor, ctx: AttentionContext) -> Tensor:
        """Products of each query with the vector at each key's position (B, H, Q, S)."""
        is_past_QS, counts = ctx.prepared
        dtype = at_least_float32(q_BHQK)
        gates_BHQS = (q_BHQK @ k_BHSK.transpose(2, 3) * self.scaling).to(dtype).sigmoid()
        # In a block only its own keys, from `start` to `end`, are before some of its queries and after others.
        num_queries, num_keys = gates_BHQS.shape[2:]
        start, end = (ctx.num_cached, ctx.num_cached + num_queries) if ctx.is_contiguous else (0, num_keys)
        past_BHQS = (gates_BHQS[..., :end] * counts[0, ..., :end]).flip(-1).cumsum(-1).flip(-1)
        past_bias_BHQS = self.products(q_BHQK, past_BHQS, ctx, direction=0)
        if self.side.is_causal:
            return past_bias_BHQS
        future_BHQS = (gates_BHQS[..., start:] * counts[1, ..., start:]).cumsum(-1)
        future_bias_BHQS = self.products(q_BHQK, future_BHQS, ctx, direction=1)
        own_BHQS = torch.where(
            is_past_QS[:, start:end], past_bias_BHQS[..., start:], future_bias_BHQS[..., : end - start]
        )
        return torch.cat((past_bias_BHQS[..., :start], own_BHQS, future_bias_BHQS[..., end - start :]), dim=-1)

    def products(self, q_BHQK: Tensor, position_BHQS: Tensor, ctx: AttentionContext, direction: int) -> Tensor:
        """The products of queries with the vectors at fractional positions (B, H, Q, S), linear between whole ones."""
        products_BHQN = q_BHQK @ self.vectors[ctx.layer, direction].T * self.scaling
        slopes_BHQN = nn.functional.pad(products_BHQN.diff(dim=-1), (0, 1))
        position_BHQS = position_BHQS.clamp(max=products_BHQN.shape[-1] - 1)
        lower_BHQS = position_BHQS.detach().long()
        weight_BHQS = (position_BHQS - lower_BHQS).to(products_BHQN.dtype)
        return products_BHQN.gather(-1, lower_BHQS) + weight_BHQS * slopes_BHQN.gather(-1, lower_BHQS)

    def init_weights(self) -> None:
        """Zeros, as in the paper's code: at first all positions are alike."""
        init.zeros_(self.vectors)
