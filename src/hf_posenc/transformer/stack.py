# SPDX-License-Identifier: Apache-2.0
"""A stack of Transformer layers with position encodings: the base class of encoder, decoder and decoder-only model.

It calls hooks, never an encoding by name. Shape letters as in encodings/base.py.
"""

import torch
from torch import Tensor, nn
from transformers import Cache, EncoderDecoderCache, GradientCheckpointingLayer
from transformers.activations import ACT2FN
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask

from ..encodings.base import StackSpec
from ..encodings.cache import EncodingState, evict_outside_window, state_of_cache
from ..encodings.positions import AttentionContext, AttentionMask, new_valid_mask
from ..encodings.registry import build_position_encodings
from .attention import Attention, AttentionInputs, validate_attn_implementation
from .configuration_encodings import EncodingsConfig
from .plans.local_attention import MIN_KEYS, prune_to_window
from .plans.selection import choose_plan
from .pretrained import Stack


class PosEncLayer(GradientCheckpointingLayer):
    """Base class of encoder and decoder layers: the feed-forward sub-layer, and residuals with LayerNorm."""

    def __init__(self, config: EncodingsConfig, side: StackSpec) -> None:
        super().__init__()
        self.norm_first = config.norm_first
        self.dropout = nn.Dropout(config.dropout)
        self.activation = ACT2FN[config.activation_function]
        self.activation_dropout = nn.Dropout(config.activation_dropout)
        self.fc1 = nn.Linear(config.d_model, side.ffn_dim)
        self.fc2 = nn.Linear(side.ffn_dim, config.d_model)
        self.final_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)

    def residual(self, x_BTD: Tensor, output_BTD: Tensor, norm: nn.LayerNorm) -> Tensor:
        """The tokens after a sub-layer, from those before it and its output (B, T, D)."""
        x_BTD = x_BTD + self.dropout(output_BTD)
        return x_BTD if self.norm_first else norm(x_BTD)

    def feed_forward(self, x_BTD: Tensor) -> Tensor:
        """The tokens after the feed-forward sub-layer (B, T, D)."""
        norm = self.final_layer_norm
        hidden = self.activation(self.fc1(norm(x_BTD) if self.norm_first else x_BTD))
        return self.residual(x_BTD, self.fc2(self.activation_dropout(hidden)), norm)


class PosEncEncoderLayer(PosEncLayer):
    """Layer of an encoder or of a decoder-only model: self-attention and feed-forward."""

    def __init__(self, config: EncodingsConfig, side: StackSpec, layer: int) -> None:
        super().__init__(config, side)
        self.self_attn = Attention(config, num_heads=side.heads, is_causal=side.is_causal, layer=layer)
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)

    def forward(
        self, x_BTD: Tensor, inputs: AttentionInputs, *, cache: Cache | None = None, **kwargs: object
    ) -> Tensor:
        """The tokens after the layer (B, T, D)."""
        norm = self.self_attn_layer_norm
        output_BTD, _ = self.self_attn(norm(x_BTD) if self.norm_first else x_BTD, inputs, cache=cache, **kwargs)
        return self.feed_forward(self.residual(x_BTD, output_BTD, norm))


class PosEncDecoderLayer(PosEncLayer):
    """Decoder layer: causal self-attention, cross-attention and feed-forward."""

    def __init__(self, config: EncodingsConfig, side: StackSpec, layer: int) -> None:
        super().__init__(config, side)
        self.self_attn = Attention(config, num_heads=side.heads, is_causal=True, layer=layer)
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.encoder_attn = Attention(config, num_heads=side.heads, is_causal=False, layer=layer)
        self.encoder_attn_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)

    def forward(
        self,
        x_BTD: Tensor,
        inputs: AttentionInputs,
        cross_inputs: AttentionInputs,
        encoder_states_BSD: Tensor,
        *,
        cache: EncoderDecoderCache | None = None,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor | None]:
        """The tokens (B, T, D) and the weights of the cross-attention (B, H, T, S), None if they are not computed."""
        self_cache = None if cache is None else cache.self_attention_cache
        norm = self.self_attn_layer_norm
        output_BTD, _ = self.self_attn(norm(x_BTD) if self.norm_first else x_BTD, inputs, cache=self_cache, **kwargs)
        x_BTD = self.residual(x_BTD, output_BTD, norm)
        norm = self.encoder_attn_layer_norm
        output_BTD, p_BHTS = self.encoder_attn(
            norm(x_BTD) if self.norm_first else x_BTD, cross_inputs,
            key_value_states_BSD=encoder_states_BSD, cache=cache, **kwargs,
        )  # fmt: skip
        return self.feed_forward(self.residual(x_BTD, output_BTD, norm)), p_BHTS


# Its subclasses call post_init when they are whole. trf-ignore: TRF013
class PosEncStack(Stack):
    """Base class of encoder and decoder: position encodings and layers."""

    config: EncodingsConfig
    layer_class: type[PosEncEncoderLayer] | type[PosEncDecoderLayer]
    needs_state_cache = False
    # From this number of cached keys on, hidden keys are pruned. Outputs do not depend on it; the tests set it to 0.
    min_keys_to_prune = MIN_KEYS

    def __init__(self, config: EncodingsConfig, side: StackSpec) -> None:
        super().__init__(config, vocab_size=side.vocab_size)
        self.side, self.is_causal = side, side.is_causal
        self.positions = build_position_encodings(config, side)
        self.layernorm_embedding = (
            nn.LayerNorm(config.d_model, eps=config.layer_norm_eps) if config.normalize_embedding else None
        )
        self.layers = nn.ModuleList(self.layer_class(config, side, layer) for layer in range(side.layers))
        self.layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps) if config.norm_first else None
        self.gradient_checkpointing = False

    def validate_attn_implementation(self) -> None:
        """Raise a ValueError for a back end that cannot compute an encoding; transformers' default always can."""
        validate_attn_implementation(self.config, self.side, self.positions)

    def self_attention(
        self,
        x_BTD: Tensor,
        attention_mask: AttentionMask,
        position_ids: Tensor,
        output_attentions: object,
        cache: Cache | None = None,
        num_cached: int | Tensor = 0,
    ) -> tuple[Tensor, AttentionInputs]:
        """The embedded tokens with their positions (B, T, D), and the inputs of this stack's self-attention.

        `cache` is that of this self-attention, with `num_cached` tokens. The positions, and the states of encodings,
        are appended to it. Call this method before the first layer adds its keys.
        """
        state = self.read_state(cache, output_attentions) if cache is not None and self.needs_state_cache else None
        valid_mask_BT = new_valid_mask(attention_mask, x_BTD.shape[1], num_cached)
        ctx = AttentionContext(position_ids, position_ids, valid_mask_BT, attention_mask, num_cached, self.is_causal)
        if self.training and self.positions.has_hook("augment_positions"):
            pos_BT = self.positions.augment_positions(position_ids.expand(x_BTD.shape[0], -1), ctx)
            ctx = ctx.replace(query_pos_BQ=pos_BT, key_pos_BS=pos_BT)
        if state is not None:
            key_pos_BS = state.append("positions", ctx.query_pos_BQ.expand(x_BTD.shape[0], -1))
            ctx = ctx.replace(key_pos_BS=key_pos_BS, state=state)
        if self.positions.embeds:
            x_BTD = self.positions.embed(x_BTD, ctx)
        if self.layernorm_embedding is not None:
            x_BTD = self.layernorm_embedding(x_BTD)
        plan, pruned_ctx = None, None
        may_skip_keys = not self.computes_hidden_keys(output_attentions)
        if may_skip_keys and state is not None:
            pruned_ctx = prune_to_window(ctx, self.positions.sliding_window, self.min_keys_to_prune)
        elif may_skip_keys and self.config._attn_implementation == "sdpa":
            plan = choose_plan(self.positions, x_BTD, ctx, self.config.attention_dropout if self.training else 0.0)
        contexts = self.positions.prepare(x_BTD, ctx, pruned_ctx, () if plan is None else plan.prepared)
        mask = None
        if plan is None and self.is_causal:
            mask = create_causal_mask(self.config, x_BTD, attention_mask, cache)
        elif plan is None:
            mask = create_bidirectional_mask(self.config, x_BTD, attention_mask)
        if pruned_ctx is not None:
            ctx, mask = pruned_ctx, pruned_ctx.gather_mask(mask)
        return x_BTD, AttentionInputs(self.positions, ctx, contexts, mask, plan)

    def computes_hidden_keys(self, output_attentions: object) -> bool:
        """Whether every key has a weight, hidden ones too: for the caller, or for flex_attention and its own mask."""
        return bool(output_attentions) or self.config._attn_implementation == "flex_attention"

    def read_state(self, own_cache: Cache, output_attentions: object) -> EncodingState:
        """The encodings' state in the self-attention's cache.

        Tokens that are hidden by their distance are evicted first, unless the weights of all keys are wanted.
        """
        distance = self.positions.hiding_distance
        if distance is not None and not output_attentions:
            evict_outside_window(own_cache, distance)
        return state_of_cache(own_cache)

    def refuse_cache_under_checkpointing(self, cache: Cache | None) -> None:
        """Raise a ValueError for a cache in training with gradient checkpointing."""
        if cache is not None and self.gradient_checkpointing and self.training and torch.is_grad_enabled():
            raise ValueError(
                "Gradient checkpointing computes each layer twice, and therefore a layer must not write into a cache, "
                "but one was given; leave the cache out, or turn gradient checkpointing off."
            )
