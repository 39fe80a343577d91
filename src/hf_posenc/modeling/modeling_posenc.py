"""The encoder-decoder Transformer. It asks its position encodings and never knows which they are.

Vaswani et al., "Attention Is All You Need" (NeurIPS 2017), https://arxiv.org/abs/1706.03762; parameter names are
BART's. The shape letters are those of position.py.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    Cache,
    DynamicCache,
    EncoderDecoderCache,
    GenerationMixin,
    GradientCheckpointingLayer,
    PreTrainedModel,
)
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.utils import can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention import Attention
from .cache import remembering_layer
from .configuration_posenc import PosEncConfig
from .position import PositionEncoding, PositionEncodings, positions_of
from .positions import build_position_encodings
from .translation import Translation


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


class PosEncPreTrainedModel(PreTrainedModel):
    """Weight initialisation, loading and saving, and the choice of an attention back end that can be right."""

    config: PosEncConfig
    config_class = PosEncConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["PosEncEncoderLayer", "PosEncDecoderLayer"]
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_flash_attn = True
    _can_compile_fullgraph = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=module.embedding_dim**-0.5)
            if module.padding_idx is not None and not getattr(module.weight, "_is_hf_initialized", False):
                init.zeros_(module.weight[module.padding_idx])
        elif isinstance(module, nn.RNNBase):
            for parameter in module.parameters():
                if parameter.ndim == 1:
                    init.zeros_(parameter)
                else:  # Xavier's bound, of one gate's matrix
                    bound = (6 / (parameter.shape[1] + module.hidden_size)) ** 0.5
                    init.uniform_(parameter, -bound, bound)
        elif isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
            init.zeros_(module.bias)
        elif isinstance(module, PositionEncoding):
            module.init_weights()
        elif isinstance(module, PosEncForConditionalGeneration) and module.final_logits_bias is not None:
            init.zeros_(module.final_logits_bias)

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """What this instance ties. (The base class ties nothing unless the output projection is tied as well.)"""
        if all_submodels:
            return super().get_expanded_tied_weights_keys(all_submodels=True)
        return dict(self._tied_weights_keys or {})

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


class PosEncStack(PosEncPreTrainedModel):
    """What encoder and decoder share: embedded tokens, position encodings, layers."""

    def __init__(self, config: PosEncConfig, *, causal: bool) -> None:
        super().__init__(config)
        side = "decoder" if causal else "encoder"
        self.position_encoding_type = config.decoder_position_encoding_type if causal else config.position_encoding_type
        vocab_size = config.decoder_vocab_size if causal else config.vocab_size
        num_layers = getattr(config, f"{side}_layers")
        layer_class = PosEncDecoderLayer if causal else PosEncEncoderLayer
        self.embed_scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.embed_tokens = nn.Embedding(vocab_size, config.d_model, config.pad_token_id)
        self.dropout = nn.Dropout(config.dropout)
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

    def embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        """Dropout of the scaled token embeddings (B, T, D): what all position encodings start from."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError(
                "Exactly one of input_ids and inputs_embeds must be given to each stack; give one of them."
            )
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        return self.dropout(inputs_embeds * self.embed_scale)

    def new_tokens(self, attention_mask: Any, num_new: int, num_cached: int | Tensor = 0) -> Tensor | None:
        """Which of the new tokens are no padding (B, T); in a 4-D mask, those that may attend to themselves."""
        if not isinstance(attention_mask, Tensor):
            return None
        if attention_mask.ndim == 2:
            return attention_mask[:, -num_new:] != 0
        new = torch.arange(num_new, device=attention_mask.device)
        itself_BT = attention_mask[:, 0, new, new + num_cached]
        return itself_BT if itself_BT.dtype == torch.bool else itself_BT == 0

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
        mask_BT = self.new_tokens(attention_mask, num_tokens)
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
        mask_BT = self.new_tokens(attention_mask, num_new, num_cached)
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
        if (width := self.positions.state_width) is not None and (state_BM := memory.last("states")) is None:
            state_BM = x_BTD.new_zeros(len(x_BTD), width)
        x_BTD, states_BTM = self.positions.embed(x_BTD, position_ids, mask_BT, state_BM)
        if states_BTM is not None:
            memory.remember("states", states_BTM)
        return x_BTD, memory.remember("positions", position_ids.expand(len(x_BTD), -1))


class PosEncModel(PosEncPreTrainedModel):
    """The Transformer without an output projection."""

    def __init__(self, config: PosEncConfig) -> None:
        super().__init__(config)
        if config.share_encoder_decoder_embeddings:
            self.shared = nn.Embedding(config.vocab_size, config.d_model, config.pad_token_id)
            sides = ("encoder", "decoder")
            self._tied_weights_keys = {f"{side}.embed_tokens.weight": "shared.weight" for side in sides}
        self.encoder = PosEncEncoder(config)
        self.decoder = PosEncDecoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.shared if self.config.share_encoder_decoder_embeddings else self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        if self.config.share_encoder_decoder_embeddings:
            self.shared = self.decoder.embed_tokens = value
        self.encoder.embed_tokens = value

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        decoder_position_ids: Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: EncoderDecoderCache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> Seq2SeqModelOutput:
        """Source (B, S) and target (B, T) to hidden states (B, T, D).

        Given `position_ids` (B, S) and `decoder_position_ids` (B, T) win; else a token's position is the number of
        unmasked tokens before it. A `decoder_attention_mask` covers the cached tokens as well as the new ones.
        """
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids=input_ids,
                attention_mask=attention_mask,
                position_ids=position_ids,
                inputs_embeds=inputs_embeds,
                **kwargs,
            )
        elif not isinstance(encoder_outputs, BaseModelOutput):
            encoder_outputs = BaseModelOutput(*encoder_outputs)
        decoder_outputs = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            position_ids=decoder_position_ids,
            encoder_hidden_states=encoder_outputs.last_hidden_state,
            encoder_attention_mask=attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            past_key_values=decoder_outputs.past_key_values,
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
        )


class PosEncForConditionalGeneration(PosEncPreTrainedModel, GenerationMixin, Translation):
    """The translation model: a PosEncModel and the projection on the target vocabulary."""

    def __init__(self, config: PosEncConfig) -> None:
        super().__init__(config)
        self.model = PosEncModel(config)
        self.lm_head = nn.Linear(config.d_model, config.decoder_vocab_size, bias=False)
        self.final_logits_bias = nn.Parameter(torch.empty(1, config.decoder_vocab_size)) if config.output_bias else None
        self._tied_weights_keys = {f"model.{k}": f"model.{v}" for k, v in (self.model._tied_weights_keys or {}).items()}
        if config.tie_word_embeddings:
            table = "shared" if config.share_encoder_decoder_embeddings else "decoder.embed_tokens"
            self._tied_weights_keys["lm_head.weight"] = f"model.{table}.weight"
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        decoder_position_ids: Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: EncoderDecoderCache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """As PosEncModel, to logits (B, T, V); with `labels` (B, T), -100 where none, also their cross-entropy in nats.

        The loss is a mean over label tokens, or their sum over `num_items_in_batch` where the Trainer gives it.
        """
        if labels is not None:
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            position_ids=position_ids,
            decoder_position_ids=decoder_position_ids,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        logits = self.lm_head(outputs.last_hidden_state)
        if self.final_logits_bias is not None:
            logits = logits + self.final_logits_bias
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits, labels=None, shift_labels=labels, vocab_size=self.config.decoder_vocab_size, **kwargs
            )
        rest = {name: value for name, value in outputs.items() if name != "last_hidden_state"}
        return Seq2SeqLMOutput(loss=loss, logits=logits, **rest)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """The labels, one place later, behind the start token (B, T)."""
        start = labels.new_full((len(labels), 1), self.config.decoder_start_token_id)
        shifted = torch.cat((start, labels[:, :-1]), dim=1)
        return shifted.masked_fill(shifted == -100, self.config.pad_token_id)

    def prepare_inputs_for_generation(self, input_ids: Tensor, **kwargs: Any) -> dict[str, Any]:
        """transformers' inputs for a step; positions are read off the mask here, before a static cache makes it 4-D."""
        mask = kwargs.get("decoder_attention_mask")
        if kwargs.get("decoder_position_ids") is None and mask is not None and mask.ndim == 2:
            kwargs["decoder_position_ids"] = positions_of(mask)
        return super().prepare_inputs_for_generation(input_ids, **kwargs)


__all__ = ["PosEncForConditionalGeneration", "PosEncModel", "PosEncPreTrainedModel"]
