# SPDX-License-Identifier: Apache-2.0
"""Layers of the Transformer: attention and feed-forward sub-layers, with residuals and LayerNorm.

Parameter names are BART's, the shape letters those of encodings/base.py.
"""

from collections.abc import Callable

from torch import Tensor, nn
from transformers import EncoderDecoderCache, GradientCheckpointingLayer
from transformers.activations import ACT2FN

from ..encodings.base import StackSpec
from ..encodings.masks import AttentionMask
from ..encodings.positions import AttentionContext
from ..encodings.sum import PositionEncodingSum
from .attention import Attention
from .configuration_posenc import PosEncConfig


class PosEncLayer(GradientCheckpointingLayer):
    """Base class of encoder and decoder layers: the feed-forward sub-layer, and residuals with LayerNorm."""

    def __init__(self, config: PosEncConfig, side: StackSpec) -> None:
        super().__init__()
        self.norm_first = config.norm_first
        self.dropout = nn.Dropout(config.dropout)
        self.activation = ACT2FN[config.activation_function]
        self.activation_dropout = nn.Dropout(config.activation_dropout)
        self.fc1 = nn.Linear(config.d_model, side.ffn_dim)
        self.fc2 = nn.Linear(side.ffn_dim, config.d_model)
        self.final_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)

    def residual(
        self, x_BTD: Tensor, sublayer: Callable[[Tensor], tuple[Tensor, Tensor | None]], norm: nn.LayerNorm
    ) -> tuple[Tensor, Tensor | None]:
        """The tokens after a sub-layer (B, T, D), and its attention weights (B, H, T, S), None without any."""
        output_BTD, p_BHQS = sublayer(norm(x_BTD) if self.norm_first else x_BTD)
        x_BTD = x_BTD + self.dropout(output_BTD)
        return x_BTD if self.norm_first else norm(x_BTD), p_BHQS

    def feed_forward(self, x_BTD: Tensor) -> tuple[Tensor, None]:
        """The feed-forward sub-layer's output (B, T, D); None for attention weights."""
        return self.fc2(self.activation_dropout(self.activation(self.fc1(x_BTD)))), None


class PosEncEncoderLayer(PosEncLayer):
    """Layer of an encoder or of a decoder-only model: self-attention and feed-forward."""

    def __init__(self, config: PosEncConfig, side: StackSpec, layer: int) -> None:
        super().__init__(config, side)
        self.self_attn = Attention(config, num_heads=side.heads, is_causal=side.is_causal, layer=layer)
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)

    def forward(self, x_BTD: Tensor, attention_mask: AttentionMask, **kwargs: object) -> Tensor:
        """The tokens after the layer (B, T, D)."""
        x_BTD, _ = self.residual(
            x_BTD, lambda x: self.self_attn(x, attention_mask, **kwargs), self.self_attn_layer_norm
        )
        return self.residual(x_BTD, self.feed_forward, self.final_layer_norm)[0]


class PosEncDecoderLayer(PosEncLayer):
    """Decoder layer: causal self-attention, cross-attention and feed-forward."""

    def __init__(self, config: PosEncConfig, side: StackSpec, layer: int) -> None:
        super().__init__(config, side)
        self.self_attn = Attention(config, num_heads=side.heads, is_causal=True, layer=layer)
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.encoder_attn = Attention(config, num_heads=side.heads, is_causal=False, layer=layer)
        self.encoder_attn_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)

    def forward(
        self,
        x_BTD: Tensor,
        attention_mask: AttentionMask,
        encoder_states_BSD: Tensor,
        encoder_attention_mask: AttentionMask,
        *,
        positions: PositionEncodingSum,
        ctx: AttentionContext,
        cross_positions: PositionEncodingSum,
        cross_ctx: AttentionContext,
        cache: EncoderDecoderCache | None = None,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor | None]:
        """The tokens (B, T, D) and the weights of the cross-attention (B, H, T, S), None if they are not computed."""
        self_cache = None if cache is None else cache.self_attention_cache
        self_inputs = {"positions": positions, "ctx": ctx, "cache": self_cache}
        x_BTD, _ = self.residual(
            x_BTD, lambda x: self.self_attn(x, attention_mask, **self_inputs, **kwargs), self.self_attn_layer_norm
        )
        cross_inputs = {
            "positions": cross_positions,
            "ctx": cross_ctx,
            "cache": cache,
            "key_value_states_BSD": encoder_states_BSD,
        }
        x_BTD, p_BHTS = self.residual(
            x_BTD,
            lambda x: self.encoder_attn(x, encoder_attention_mask, **cross_inputs, **kwargs),
            self.encoder_attn_layer_norm,
        )
        return self.residual(x_BTD, self.feed_forward, self.final_layer_norm)[0], p_BHTS
