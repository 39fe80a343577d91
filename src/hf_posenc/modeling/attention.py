# SPDX-License-Identifier: Apache-2.0
"""One attention, for encoder, decoder and cross-attention: the one place where the position encodings' hooks are asked.

    output(i) = sum_j p_ij v_j + value_bias,    p = softmax(q k^T / sqrt(K) + score_bias + mask)

Vaswani et al., "Attention Is All You Need" (NeurIPS 2017), https://arxiv.org/abs/1706.03762. The shape letters are
those of position.py.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, EncoderDecoderCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .position import PositionEncodings


class Attention(nn.Module):
    """Self-attention, told the order by `positions`; or cross-attention, over the `memory_BSD` of an encoder."""

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
        memory_BSD: Tensor | None = None,
        positions: PositionEncodings | None = None,
        pos_BQ: Tensor | None = None,
        pos_BS: Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """The attended tokens (B, T, D) and, where they were computed, the attention weights (B, H, Q, S)."""
        q_BHQK = self.heads(self.q_proj(x_BTD))
        attend = self.back_end(kwargs)
        biases: dict[str, Any] = {}
        if memory_BSD is not None:
            k_BHSK, v_BHSK = self.memory(memory_BSD, past_key_values)
        else:
            k_BHSK, v_BHSK = self.heads(self.k_proj(x_BTD)), self.heads(self.v_proj(x_BTD))
            plain_q_BHQK = q_BHQK
            if positions.rotates:
                q_BHQK, k_BHSK = positions.rotate(q_BHQK, k_BHSK, pos_BQ, self.layer_idx)
            if past_key_values is not None:
                k_BHSK, v_BHSK = past_key_values.self_attention_cache.update(k_BHSK, v_BHSK, self.layer_idx)
            if positions.scores:
                biases["position_bias"] = positions.score_bias(plain_q_BHQK, pos_BQ, pos_BS, self.layer_idx)
            if positions.values:
                attend = attend_by_weights
                biases["value_bias"] = lambda p_BHQS: positions.value_bias(p_BHQS, pos_BQ, pos_BS, self.layer_idx)
        out_BQHK, p_BHQS = attend(
            self, q_BHQK, k_BHSK, v_BHSK, attention_mask,
            dropout=self.dropout if self.training else 0.0, scaling=self.scaling, **biases, **kwargs,
        )  # fmt: skip
        return self.out_proj(out_BQHK.flatten(2)), p_BHQS

    def heads(self, x_BTD: Tensor) -> Tensor:
        """Split the width among the heads (B, H, T, K)."""
        return x_BTD.unflatten(-1, (-1, self.head_width)).transpose(1, 2)

    def memory(self, memory_BSD: Tensor, past_key_values: EncoderDecoderCache | None) -> tuple[Tensor, Tensor]:
        """Keys and values of the encoder's output (B, H, S, K), computed at a cached decoding's first step only."""
        if past_key_values is not None and past_key_values.is_updated.get(self.layer_idx):
            layer = past_key_values.cross_attention_cache.layers[self.layer_idx]
            return layer.keys, layer.values
        k_BHSK, v_BHSK = self.heads(self.k_proj(memory_BSD)), self.heads(self.v_proj(memory_BSD))
        if past_key_values is not None:
            k_BHSK, v_BHSK = past_key_values.cross_attention_cache.update(k_BHSK, v_BHSK, self.layer_idx)
            past_key_values.is_updated[self.layer_idx] = True
        return k_BHSK, v_BHSK

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
    p_BHQS = nn.functional.dropout(p_BHQS, p=dropout, training=module.training)
    out_BHQK = p_BHQS @ v_BHSK
    if value_bias is not None:
        out_BHQK = out_BHQK + value_bias(p_BHQS)
    return out_BHQK.transpose(1, 2).contiguous(), p_BHQS
