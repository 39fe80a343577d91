# SPDX-License-Identifier: Apache-2.0
"""The encoder-decoder Transformer. It asks its position encodings and never knows which they are.

Vaswani et al., "Attention Is All You Need" (NeurIPS 2017), https://arxiv.org/abs/1706.03762; parameter names are
BART's. The shape letters are those of position.py.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, EncoderDecoderCache, GenerationMixin, GradientCheckpointingLayer
from transformers.activations import ACT2FN
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPastAndCrossAttentions
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention import Attention
from .cache import remembering_layer
from .configuration_posenc import PosEncConfig
from .masks import new_tokens, positions_of
from .modeling_shared import ConditionalGeneration, EncoderDecoder, SharedPreTrainedModel, Stack
from .position import PositionEncoding, PositionEncodings
from .positions import build_position_encodings


class PosEncLayer(GradientCheckpointingLayer):
    """What encoder and decoder layers share: the feed-forward sub-layer, and residuals with LayerNorm around them."""

    def __init__(self, config: PosEncConfig, *, ffn_dim: int) -> None:
        super().__init__()
        self.norm_first = config.norm_first
        self.dropout = nn.Dropout(config.dropout)
        self.activation = ACT2FN[config.activation_function]
        self.activation_dropout = nn.Dropout(config.activation_dropout)
        self.fc1 = nn.Linear(config.d_model, ffn_dim)
        self.fc2 = nn.Linear(ffn_dim, config.d_model)
        self.final_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)

    def residual(self, x_BTD: Tensor, sublayer: Any, norm: nn.LayerNorm) -> Tensor:
        if self.norm_first:
            return x_BTD + self.dropout(sublayer(norm(x_BTD)))
        return norm(x_BTD + self.dropout(sublayer(x_BTD)))

    def feed_forward(self, x_BTD: Tensor) -> Tensor:
        return self.fc2(self.activation_dropout(self.activation(self.fc1(x_BTD))))


class PosEncEncoderLayer(PosEncLayer):
    def __init__(self, config: PosEncConfig, layer: int) -> None:
        super().__init__(config, ffn_dim=config.encoder_ffn_dim)
        self.self_attn = Attention(config, num_heads=config.encoder_attention_heads, is_causal=False, layer=layer)
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)

    def forward(self, x_BTD: Tensor, attention_mask: Any, **kwargs: Any) -> Tensor:
        x_BTD = self.residual(
            x_BTD, lambda x: self.self_attn(x, attention_mask, **kwargs)[0], self.self_attn_layer_norm
        )
        return self.residual(x_BTD, self.feed_forward, self.final_layer_norm)


class PosEncDecoderLayer(PosEncLayer):
    def __init__(self, config: PosEncConfig, layer: int) -> None:
        super().__init__(config, ffn_dim=config.decoder_ffn_dim)
        heads = config.decoder_attention_heads
        self.self_attn = Attention(config, num_heads=heads, is_causal=True, layer=layer)
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.encoder_attn = Attention(config, num_heads=heads, is_causal=False, layer=layer)
        self.encoder_attn_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)

    def forward(
        self,
        x_BTD: Tensor,
        attention_mask: Any,
        memory_BSD: Tensor,
        memory_mask: Any,
        *,
        positions: PositionEncodings,
        pos_BQ: Tensor,
        pos_BS: Tensor,
        past_key_values: EncoderDecoderCache | None = None,
        **kwargs: Any,
    ) -> Tensor:
        order = {"positions": positions, "pos_BQ": pos_BQ, "pos_BS": pos_BS, "past_key_values": past_key_values}
        x_BTD = self.residual(
            x_BTD, lambda x: self.self_attn(x, attention_mask, **order, **kwargs)[0], self.self_attn_layer_norm
        )
        memory = {"memory_BSD": memory_BSD, "past_key_values": past_key_values}
        x_BTD = self.residual(
            x_BTD, lambda x: self.encoder_attn(x, memory_mask, **memory, **kwargs)[0], self.encoder_attn_layer_norm
        )
        return self.residual(x_BTD, self.feed_forward, self.final_layer_norm)


class PosEncPreTrainedModel(SharedPreTrainedModel):
    """Weight initialisation, loading and saving, and the choice of an attention back end that can be right."""

    config: PosEncConfig
    config_class = PosEncConfig
    supports_gradient_checkpointing = True
    _no_split_modules = ["PosEncEncoderLayer", "PosEncDecoderLayer"]
    _skip_keys_device_placement = ["past_key_values", "positions"]
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_flash_attn = True
    _can_compile_fullgraph = True

    def _init_weights(self, module: nn.Module) -> None:
        module.init_weights() if isinstance(module, PositionEncoding) else super()._init_weights(module)

    def set_attn_implementation(self, attn_implementation: str | dict, *args: Any, **kwargs: Any) -> None:
        before = self.config._attn_implementation
        super().set_attn_implementation(attn_implementation, *args, **kwargs)
        try:
            for stack in self.modules():
                if isinstance(stack, PosEncStack):
                    stack.check_back_end()
        except ValueError:
            super().set_attn_implementation(before)
            raise


class PosEncStack(PosEncPreTrainedModel, Stack):
    """What encoder and decoder share: position encodings and layers."""

    def __init__(self, config: PosEncConfig, *, causal: bool) -> None:
        vocab_size = config.decoder_vocab_size if causal else config.vocab_size
        super().__init__(config, vocab_size=vocab_size)
        side = "decoder" if causal else "encoder"
        self.position_encoding_type = config.decoder_position_encoding_type if causal else config.position_encoding_type
        num_layers = getattr(config, f"{side}_layers")
        layer_class = PosEncDecoderLayer if causal else PosEncEncoderLayer
        self.positions = build_position_encodings(
            self.position_encoding_type,
            config,
            causal=causal,
            num_layers=num_layers,
            num_heads=getattr(config, f"{side}_attention_heads"),
        )
        self.layers = nn.ModuleList(layer_class(config, layer) for layer in range(num_layers))
        self.layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps) if config.norm_first else None
        self.gradient_checkpointing = False
        self.check_back_end()
        self.post_init()

    def check_back_end(self) -> None:
        """Refuse a back end that would leave an encoding out; transformers' own choice is always right."""
        name = self.config._attn_implementation or ""
        if self.positions.values and name.startswith("flex"):
            needs, instead = "the attention weights, which it does not return", "sdpa or eager"
        elif (self.positions.values or self.positions.scores) and "flash" in name:
            needs, instead = "a bias on the attention scores, which it does not take", "sdpa, flex_attention or eager"
        else:
            return
        raise ValueError(
            f"attn_implementation={name!r} cannot compute `{self.position_encoding_type}`, which needs {needs}; "
            f"leave attn_implementation out, or choose {instead}."
        )


class PosEncEncoder(PosEncStack):
    """Source tokens to memory."""

    _can_record_outputs = {"hidden_states": PosEncEncoderLayer, "attentions": Attention}

    def __init__(self, config: PosEncConfig) -> None:
        super().__init__(config, causal=False)

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        x_BTD = self.embed(input_ids, inputs_embeds)
        num_tokens = x_BTD.shape[1]
        mask_BT = new_tokens(attention_mask, num_tokens)
        if position_ids is None and mask_BT is not None:
            position_ids = positions_of(mask_BT)
        elif position_ids is None:
            position_ids = torch.arange(num_tokens, device=x_BTD.device)[None]
        x_BTD, _ = self.positions.embed(x_BTD, position_ids, mask_BT, None)
        attention_mask = create_bidirectional_mask(self.config, x_BTD, attention_mask)
        for layer in self.layers:
            x_BTD = layer(
                x_BTD, attention_mask, positions=self.positions, pos_BQ=position_ids, pos_BS=position_ids, **kwargs
            )
        return BaseModelOutput(last_hidden_state=x_BTD if self.layer_norm is None else self.layer_norm(x_BTD))


class PosEncDecoder(PosEncStack):
    """Target tokens and memory to what the output projection reads."""

    _can_record_outputs = {
        "hidden_states": PosEncDecoderLayer,
        "attentions": OutputRecorder(Attention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(Attention, index=1, layer_name="encoder_attn"),
    }

    def __init__(self, config: PosEncConfig) -> None:
        super().__init__(config, causal=True)

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        x_BTD = self.embed(input_ids, inputs_embeds)
        if use_cache and past_key_values is None:
            past_key_values = EncoderDecoderCache(DynamicCache(config=self.config), DynamicCache(config=self.config))
        cache = None if past_key_values is None else past_key_values.self_attention_cache
        num_new, num_cached = x_BTD.shape[1], 0 if cache is None else cache.get_seq_length()
        mask_BT = new_tokens(attention_mask, num_new, num_cached)
        if position_ids is None and attention_mask is not None and attention_mask.ndim == 2:
            position_ids = positions_of(attention_mask)[:, -num_new:]
        elif position_ids is None:
            position_ids = (torch.arange(num_new, device=x_BTD.device) + num_cached)[None]
        x_BTD, key_position_ids = self.embed_positions(x_BTD, position_ids, mask_BT, cache)
        attention_mask = create_causal_mask(self.config, x_BTD, attention_mask, cache)
        encoder_attention_mask = create_bidirectional_mask(
            self.config, x_BTD, encoder_attention_mask, encoder_hidden_states=encoder_hidden_states
        )
        for layer in self.layers:
            x_BTD = layer(
                x_BTD,
                attention_mask,
                encoder_hidden_states,
                encoder_attention_mask,
                positions=self.positions,
                pos_BQ=position_ids,
                pos_BS=key_position_ids,
                past_key_values=past_key_values,
                **kwargs,
            )
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=x_BTD if self.layer_norm is None else self.layer_norm(x_BTD),
            past_key_values=past_key_values,
        )

    def embed_positions(
        self, x_BTD: Tensor, position_ids: Tensor, mask_BT: Tensor | None, cache: Cache | None
    ) -> tuple[Tensor, Tensor]:
        """The tokens as the encodings change them (B, T, D) and the positions of all keys (B, S).

        What a later step needs of this one, positions and states, goes into the cache.
        """
        if cache is None or not self.config.decoder_remembers:
            return self.positions.embed(x_BTD, position_ids, mask_BT, None)[0], position_ids
        memory, state_BM = remembering_layer(cache), None
        if (width := self.positions.state_width) is not None:
            state_BM = memory.last("states", width)
            state_BM = x_BTD.new_zeros(len(x_BTD), width) if state_BM is None else state_BM
        x_BTD, states_BTM = self.positions.embed(x_BTD, position_ids, mask_BT, state_BM)
        if states_BTM is not None:
            memory.remember("states", states_BTM)
        return x_BTD, memory.remember("positions", position_ids.expand(len(x_BTD), -1))


class PosEncModel(PosEncPreTrainedModel, EncoderDecoder):
    """The Transformer without an output projection."""

    encoder_class = PosEncEncoder
    decoder_class = PosEncDecoder


class PosEncForConditionalGeneration(PosEncPreTrainedModel, ConditionalGeneration, GenerationMixin):
    """The translation model: a PosEncModel and the projection on the target vocabulary."""

    body = PosEncModel


__all__ = ["PosEncForConditionalGeneration", "PosEncModel", "PosEncPreTrainedModel"]
