# SPDX-License-Identifier: Apache-2.0
"""One attention, for encoder, decoder and cross-attention: the one place where the position encodings' hooks are asked.
It asks whatever it is handed; who hands what to whom is the stack's business.

    output(i) = sum_j p_ij v_j + value_bias,    p = softmax(q k^T / sqrt(K) + score_bias + mask)

The shape letters are those of position.py.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, EncoderDecoderCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .attention_by_distance import attend_by_distance
from .place import Place
from .position import PositionEncodings


class Attention(nn.Module):
    """Self-attention; or cross-attention, over the `memory_BSD` of an encoder."""

    def __init__(self, config: Any, *, num_heads: int, is_causal: bool, layer: int) -> None:
        super().__init__()
        self.config = config
        self.head_width = config.d_model // num_heads
        self.scaling = self.head_width**-0.5
        self.dropout = config.attention_dropout
        self.is_causal = is_causal
        self.layer_idx = layer
        self.k_proj = nn.Linear(config.d_model, config.d_model)
        self.v_proj = nn.Linear(config.d_model, config.d_model)
        self.q_proj = nn.Linear(config.d_model, config.d_model)
        self.out_proj = nn.Linear(config.d_model, config.d_model)

    def forward(
        self,
        x_BTD: Tensor,
        attention_mask: Any = None,
        *,
        positions: PositionEncodings,
        at: Place,
        memory_BSD: Tensor | None = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """The attended tokens (B, T, D) and, where they were computed, the attention weights (B, H, Q, S)."""
        if positions.act_in_attention:
            at = at.but(layer=self.layer_idx, inputs_BTD=x_BTD)
        plain_q_BHQK = self.heads(self.q_proj(x_BTD))
        k_BHSK, v_BHSK = self.keys_and_values(x_BTD, memory_BSD, positions, at, cache)
        if at.slots_BN is not None:
            k_BHSK, v_BHSK = at.near(k_BHSK), at.near(v_BHSK)
            attention_mask = None if attention_mask is None else at.near(attention_mask, axis=3)
        q_BHQK = positions.rotate_queries(plain_q_BHQK, at)
        if at.by_distance:
            out_BQHK = attend_by_distance(q_BHQK, k_BHSK, v_BHSK, plain_q_BHQK, positions, at)
            return self.out_proj(out_BQHK.flatten(2)), None
        by_weights = positions.values or at.watched
        attend = attend_by_weights if by_weights else self.back_end(kwargs)
        biases: dict[str, Any] = {}
        if positions.scores:
            bias = positions.score_bias(plain_q_BHQK, k_BHSK, at)
            # One back end indexes where the others broadcast.
            if not by_weights and self.config._attn_implementation == "flex_attention":
                bias = bias.expand(*plain_q_BHQK.shape[:3], k_BHSK.shape[2])
            biases["position_bias"] = bias
        if positions.values:
            biases["value_bias"] = lambda p_BHQS: positions.value_bias(p_BHQS, at)
        out_BQHK, p_BHQS = attend(
            self, q_BHQK, k_BHSK, v_BHSK, attention_mask,
            dropout=self.dropout if self.training else 0.0, scaling=self.scaling, **biases, **kwargs,
        )  # fmt: skip
        return self.out_proj(out_BQHK.flatten(2)), p_BHQS

    def heads(self, x_BTD: Tensor) -> Tensor:
        """Split the width among the heads (B, H, T, K)."""
        return x_BTD.unflatten(-1, (-1, self.head_width)).transpose(1, 2)

    def keys_and_values(
        self,
        x_BTD: Tensor,
        memory_BSD: Tensor | None,
        positions: PositionEncodings,
        at: Place,
        cache: EncoderDecoderCache | None,
    ) -> tuple[Tensor, Tensor]:
        """All of them (B, H, S, K); those of the memory are computed at a cached decoding's first step only."""
        is_cross, layer = memory_BSD is not None, self.layer_idx
        if is_cross and cache is not None and cache.is_updated.get(layer):
            cached = cache.cross_attention_cache.layers[layer]
            return cached.keys, cached.values
        read_BSD = memory_BSD if is_cross else x_BTD
        k_BHSK, v_BHSK = self.heads(self.k_proj(read_BSD)), self.heads(self.v_proj(read_BSD))
        k_BHSK = positions.rotate_keys(k_BHSK, at)
        if cache is None:
            return k_BHSK, v_BHSK
        if not is_cross:
            return cache.self_attention_cache.update(k_BHSK, v_BHSK, layer)
        cache.is_updated[layer] = True
        return cache.cross_attention_cache.update(k_BHSK, v_BHSK, layer)

    def back_end(self, kwargs: dict[str, Any]) -> Callable[..., tuple[Tensor, Tensor | None]]:
        """transformers' function that the config names; whoever asks for weights gets the one that has them."""
        if kwargs.get("output_attentions") and self.config._attn_implementation == "sdpa":
            return attend_by_weights
        return ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, attend_by_weights)


def attend_by_weights(
    module: nn.Module,
    q_BHQK: Tensor,
    k_BHSK: Tensor,
    v_BHSK: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    dropout: float = 0.0,
    position_bias: Tensor | None = None,
    value_bias: Callable[[Tensor], Tensor] | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Attention by explicit weights: `eager`, and what a value term needs under any back end.

    The mask may be Boolean (True where attention goes), additive, or None, which means causal for a causal module with
    several queries. Returns the output (B, Q, H, K) and the weights (B, H, Q, S).
    """
    scores_BHQS = (q_BHQK * scaling) @ k_BHSK.transpose(2, 3)
    if position_bias is not None:
        scores_BHQS = scores_BHQS + position_bias
    num_queries, num_keys = scores_BHQS.shape[2:]
    if attention_mask is None and module.is_causal and num_queries > 1:
        attention_mask = torch.ones(num_queries, num_keys, dtype=torch.bool, device=q_BHQK.device).tril()
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        scores_BHQS = scores_BHQS.masked_fill(~attention_mask, torch.finfo(scores_BHQS.dtype).min)
    elif attention_mask is not None:
        scores_BHQS = scores_BHQS + attention_mask
    wide = torch.promote_types(scores_BHQS.dtype, torch.float32)
    p_BHQS = nn.functional.softmax(scores_BHQS, dim=-1, dtype=wide).to(v_BHSK.dtype)
    if dropout:
        p_BHQS = nn.functional.dropout(p_BHQS, p=dropout, training=module.training)
    out_BHQK = p_BHQS @ v_BHSK
    if value_bias is not None:
        out_BHQK = out_BHQK + value_bias(p_BHQS)
    return out_BHQK.transpose(1, 2).contiguous(), p_BHQS


def check_back_end(config: Any, side: Any, positions: PositionEncodings, follows: bool = False) -> None:
    """A ValueError where the back end that the config names would leave an encoding of that side out, or an alignment
    that follows its weights."""
    name = config._attn_implementation or ""
    if follows and (name.startswith("flex") or "flash" in name):
        raise ValueError(
            f"attn_implementation={name!r} does not return the attention weights, which alignment_type="
            f"{config.alignment_type!r} follows; leave attn_implementation out, or choose sdpa or eager."
        )
    if positions.values and name.startswith("flex"):
        needs, instead = "the attention weights, which it does not return", "sdpa or eager"
    elif (positions.values or positions.scores) and "flash" in name:
        needs, instead = "a bias on the attention scores, which it does not take", "sdpa, flex_attention or eager"
    else:
        return
    raise ValueError(
        f"attn_implementation={name!r} cannot compute `{side.encoding}`, which needs {needs}; leave "
        f"attn_implementation out, or choose {instead}."
    )
