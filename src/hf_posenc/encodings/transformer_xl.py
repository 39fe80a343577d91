# SPDX-License-Identifier: Apache-2.0
"""Transformer-XL: queries score a key's content and the sinusoid of its distance, with two trained biases.

By the addition theorem the sinusoid of i - j is that of -j, rotated by i. Therefore queries are rotated and multiplied
by one sinusoid for each key, at any positions, without a table of distances.

Departures from Dai et al.: u and v belong to a layer, as in XLNet; theirs are shared by all layers. u, v and W are
initialised like the biases and matrices of the model. Sines and cosines are interleaved, which permutes the columns of
W. There is no dropout on the sinusoids.
"""

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .base import EncodingConfig, PositionEncoding, Reference, StackSpec
from .positions import AttentionContext, at_least_float32
from .relative_shift import distance_range, layer_distances, select_keys
from .rotary import apply_rotary, repeat_for_pairs
from .sinusoidal import sinusoids


class TransformerXL(PositionEncoding):
    """layers x D x (D + 2) parameters. Shift-invariant; defined at every length."""

    summary = "Queries score a trained map of the distance's sinusoid, with two trained biases for each head."
    aliases = ("xl",)
    shift_invariant = True
    zero_init_is_identity = True
    formula = """
        score(i, j) = ((q_i + u) . k_j + (q_i + v) . W r[i - j]) / sqrt(K)
        r[d] = PE[d] of `sinusoidal`, of width D
    """
    references = (
        Reference(
            "Dai et al.",
            "Transformer-XL: Attentive Language Models beyond a Fixed-Length Context",
            "ACL",
            2019,
            "https://arxiv.org/abs/1901.02860",
            full_authors=(
                "Zihang Dai and Zhilin Yang and Yiming Yang and Jaime Carbonell and Quoc V. Le and Ruslan Salakhutdinov"
            ),
        ),
    )

    def __init__(self, config: EncodingConfig, side: StackSpec) -> None:
        super().__init__(config, side)
        self.u = nn.Parameter(torch.empty(side.layers, side.heads, side.head_dim))
        self.v = nn.Parameter(torch.empty(side.layers, side.heads, side.head_dim))
        self.weight = nn.Parameter(torch.empty(side.layers, side.heads, side.head_dim, config.d_model))

    @classmethod
    def validate(cls, config: EncodingConfig, side: StackSpec) -> None:
        """Raise a ValueError for an odd width, or in a sum with rotated keys."""
        if config.d_model % 2:
            raise ValueError(
                "`transformer_xl` maps sines and cosines in pairs, so the model's width must be even, but it is "
                f"{config.d_model}; choose an even one."
            )
        cls.require_unrotated_keys(side, "reads the keys' content")

    def prepare(self, x_BTD: Tensor, ctx: AttentionContext) -> tuple[Tensor, ...]:
        """Cosines and sines of queries (B, 1, Q, D), as `apply_rotary` takes them, and the sinusoids of negative key
        positions (B, S, D)."""
        if ctx.is_contiguous:
            return ()
        width, dtype = x_BTD.shape[-1], at_least_float32(x_BTD)
        queries_B1QD = sinusoids(ctx.query_pos_BQ, width, dtype)[:, None].to(x_BTD.dtype)
        # The source's sinusoids are computed at each step, because only the first step reads the source.
        key_pos_BS = ctx.key_pos_BS if ctx.is_cross else ctx.new_key_pos_BT
        keys_BTD = sinusoids(-key_pos_BS, width, dtype).to(x_BTD.dtype)
        if ctx.state is not None and not ctx.is_cross:
            keys_BTD = ctx.state.append("sinusoids", keys_BTD.expand(x_BTD.shape[0], -1, -1))
        return *repeat_for_pairs(queries_B1QD[..., 1::2], queries_B1QD[..., ::2]), keys_BTD

    def prepare_layer(self, ctx: AttentionContext) -> tuple[Tensor, int]:
        """The map of the sinusoid of each distance (H, K, R), in ascending order of key minus query; the lowest one."""
        weight_HKD, distances = self.weight[ctx.layer], layer_distances(ctx)
        distance_R = torch.arange(distances.start, distances.stop, device=weight_HKD.device)
        rows_RD = sinusoids(-distance_R, weight_HKD.shape[-1], at_least_float32(weight_HKD)).to(weight_HKD.dtype)
        return weight_HKD @ rows_RD.T, distances.start

    def score_bias(self, q_BHQK: Tensor, k_BHSK: Tensor, ctx: AttentionContext) -> Tensor:
        """The distance term and both trained biases (B, H, Q, S)."""
        u_H1K, v_H1K = self.u[ctx.layer, :, None], self.v[ctx.layer, :, None]
        if ctx.is_contiguous:
            return self.score_bias_of_block(q_BHQK + v_H1K, (u_H1K @ k_BHSK.transpose(2, 3)), ctx)
        cos_B1QD, sin_B1QD, keys_BSD = ctx.prepared
        rotated_BHQD = apply_rotary((q_BHQK + v_H1K) @ self.weight[ctx.layer], cos_B1QD, sin_B1QD)
        content_BH1S = u_H1K @ k_BHSK.transpose(2, 3)
        # One matrix of all heads' queries; otherwise the keys' sinusoids would be copied for each head.
        position_BNS = rotated_BHQD.flatten(1, 2) @ keys_BSD.transpose(1, 2)
        return (content_BH1S + position_BNS.unflatten(1, rotated_BHQD.shape[1:3])) * self.scaling

    def score_bias_of_block(self, q_BHQK: Tensor, content_BH1S: Tensor, ctx: AttentionContext) -> Tensor:
        """The same for a block of queries, by the map of each distance (B, H, Q, S)."""
        (maps_HKR, lowest), (first, last) = ctx.prepared_layer, distance_range(ctx)
        maps_HKR = maps_HKR[..., first - lowest : last - lowest + 1]
        return select_keys((q_BHQK * self.scaling) @ maps_HKR) + content_BH1S * self.scaling

    def init_weights(self) -> None:
        """Xavier's bound for one layer's map; zero biases."""
        width = self.config.d_model
        bound = (width if self.config.initializer == "torch" else width / 3) ** -0.5
        init.uniform_(self.weight, -bound, bound)
        init.zeros_(self.u)
        init.zeros_(self.v)
