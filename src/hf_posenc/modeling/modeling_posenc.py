# SPDX-License-Identifier: Apache-2.0
"""The encoder-decoder Transformer. It asks its position encodings and never knows which they are.

It is that of Vaswani et al. (references.py); parameter names are BART's, the shape letters those of position.py. From
top to bottom: layers, stacks, the model, the model with an output projection.
"""

from typing import Any, Unpack

import torch
from torch import Tensor, nn
from transformers import DynamicCache, EncoderDecoderCache, GenerationMixin, GradientCheckpointingLayer
from transformers.activations import ACT2FN
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.utils import TransformersKwargs, can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .alignment import Alignment, places_of, refuse_places
from .alignments import build_alignment
from .attention import Attention, check_back_end
from .attention_by_distance import goes_by_distance
from .cache import Memory, cached_tokens, drop_hidden, memory_of, source_positions
from .configuration_posenc import PosEncConfig, Side
from .masks import new_tokens, positions_of, tokens_of
from .model_inputs import CACHE_NAME, CACHE_NAMES, reads_model_inputs
from .modeling_shared import ConditionalGeneration, EncoderDecoder, SharedPreTrainedModel, Stack, outputs_of_both
from .near_keys import near_keys
from .one_by_one import read_one_by_one
from .place import Place
from .position import PositionEncoding, PositionEncodings
from .positions import build_position_encodings
from .references import VASWANI


class PosEncLayer(GradientCheckpointingLayer):
    """What encoder and decoder layers share: the feed-forward sub-layer, and residuals with LayerNorm around them."""

    def __init__(self, config: PosEncConfig, side: Side) -> None:
        super().__init__()
        self.norm_first = config.norm_first
        self.dropout = nn.Dropout(config.dropout)
        self.activation = ACT2FN[config.activation_function]
        self.activation_dropout = nn.Dropout(config.activation_dropout)
        self.fc1 = nn.Linear(config.d_model, side.ffn_dim)
        self.fc2 = nn.Linear(side.ffn_dim, config.d_model)
        self.final_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)

    def residual(self, x_BTD: Tensor, sublayer: Any, norm: nn.LayerNorm) -> tuple[Tensor, Tensor | None]:
        """The tokens behind a sub-layer (B, T, D), and its attention weights, if there are any (B, H, T, S)."""
        made_BTD, p_BHQS = sublayer(norm(x_BTD) if self.norm_first else x_BTD)
        x_BTD = x_BTD + self.dropout(made_BTD)
        return x_BTD if self.norm_first else norm(x_BTD), p_BHQS

    def feed_forward(self, x_BTD: Tensor) -> tuple[Tensor, None]:
        return self.fc2(self.activation_dropout(self.activation(self.fc1(x_BTD)))), None


class PosEncEncoderLayer(PosEncLayer):
    def __init__(self, config: PosEncConfig, side: Side, layer: int) -> None:
        super().__init__(config, side)
        self.self_attn = Attention(config, num_heads=side.heads, is_causal=False, layer=layer)
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)

    def forward(self, x_BTD: Tensor, attention_mask: Any, **kwargs: Any) -> Tensor:
        x_BTD, _ = self.residual(
            x_BTD, lambda x: self.self_attn(x, attention_mask, **kwargs), self.self_attn_layer_norm
        )
        return self.residual(x_BTD, self.feed_forward, self.final_layer_norm)[0]


class PosEncDecoderLayer(PosEncLayer):
    def __init__(self, config: PosEncConfig, side: Side, layer: int) -> None:
        super().__init__(config, side)
        self.self_attn = Attention(config, num_heads=side.heads, is_causal=True, layer=layer)
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.encoder_attn = Attention(config, num_heads=side.heads, is_causal=False, layer=layer)
        self.encoder_attn_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)

    def forward(
        self,
        x_BTD: Tensor,
        attention_mask: Any,
        memory_BSD: Tensor,
        memory_mask: Any,
        *,
        positions: PositionEncodings,
        at: Place,
        cross_positions: PositionEncodings,
        cross_at: Place,
        cache: EncoderDecoderCache | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """The tokens (B, T, D) and, where they were computed, the weights of the cross-attention (B, H, T, S)."""
        own = {"positions": positions, "at": at, "cache": cache}
        x_BTD, _ = self.residual(
            x_BTD, lambda x: self.self_attn(x, attention_mask, **own, **kwargs), self.self_attn_layer_norm
        )
        cross = {"positions": cross_positions, "at": cross_at, "cache": cache, "memory_BSD": memory_BSD}
        x_BTD, p_BHTS = self.residual(
            x_BTD, lambda x: self.encoder_attn(x, memory_mask, **cross, **kwargs), self.encoder_attn_layer_norm
        )
        return self.residual(x_BTD, self.feed_forward, self.final_layer_norm)[0], p_BHTS


class PosEncPreTrainedModel(SharedPreTrainedModel):
    """Weight initialisation, loading and saving, and the choice of an attention back end that can be right."""

    config: PosEncConfig
    config_class = PosEncConfig
    supports_gradient_checkpointing = True
    _no_split_modules = ["PosEncEncoderLayer", "PosEncDecoderLayer"]
    _skip_keys_device_placement = [*CACHE_NAMES, "positions", "cross_positions"]
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_flash_attn = True
    _can_compile_fullgraph = True

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, PositionEncoding | Alignment):
            module.init_weights()
        else:
            super()._init_weights(module)

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


# Its subclasses call post_init when they are whole. trf-ignore: TRF013
class PosEncStack(PosEncPreTrainedModel, Stack):
    """What encoder and decoder share: position encodings and layers."""

    layer_class: type[PosEncEncoderLayer] | type[PosEncDecoderLayer]

    def __init__(self, config: PosEncConfig, side: Side) -> None:
        super().__init__(config, vocab_size=side.vocab_size)
        self.side = side
        self.positions = build_position_encodings(config, side)
        self.layers = nn.ModuleList(self.layer_class(config, side, layer) for layer in range(side.layers))
        self.layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps) if config.norm_first else None
        self.gradient_checkpointing = False

    def check_back_end(self) -> None:
        """Refuse a back end that would leave an encoding out; transformers' own choice is always right."""
        check_back_end(self.config, self.side, self.positions)

    def place(
        self,
        x_BTD: Tensor,
        mask: Any,
        position_ids: Tensor,
        memory: Memory | None = None,
        start: int | Tensor = 0,
        *,
        output_attentions: bool | None = False,
        **kwargs: Any,
    ) -> tuple[Tensor, Place]:
        """The tokens as the encodings change them (B, T, D), and where this stack attends.

        What a later step needs of this one, positions and states, goes into the `memory`.
        """
        tokens_BT, back_end = new_tokens(mask, x_BTD.shape[1], start), self.config._attn_implementation
        all_keys = bool(output_attentions) or back_end == "flex_attention"
        at = Place(position_ids, position_ids, tokens_BT, mask, start, self.side.is_causal, all_keys=all_keys)
        if self.training and self.positions.answered("training_positions"):
            pos_BT = self.positions.training_positions(position_ids.expand(x_BTD.shape[0], -1), at)
            at = at.but(queries_BQ=pos_BT, keys_BS=pos_BT)
        if memory is not None:
            keys_BS = memory.keep("positions", at.queries_BQ.expand(x_BTD.shape[0], -1))
            at = at.but(keys_BS=keys_BS, memory=memory)
        drops = self.training and self.config.attention_dropout
        if memory is None and back_end == "sdpa" and not (at.all_keys or drops):
            at = at.but(by_distance=goes_by_distance(self.positions, at))
        x_BTD = self.positions.embed(x_BTD, at)
        return x_BTD, self.positions.prepare(x_BTD, at, near_keys(at, self.positions.hidden_from))


class PosEncEncoder(PosEncStack):
    """Source tokens to memory."""

    layer_class = PosEncEncoderLayer
    _can_record_outputs = {"hidden_states": PosEncEncoderLayer, "attentions": Attention}

    def __init__(self, config: PosEncConfig) -> None:
        super().__init__(config, config.side("encoder"))
        self.check_back_end()
        self.post_init()

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
        if position_ids is None:
            position_ids = positions_of(attention_mask, x_BTD.shape[1], device=x_BTD.device)
        x_BTD, at = self.place(x_BTD, attention_mask, position_ids, **kwargs)
        attention_mask = None if at.by_distance else create_bidirectional_mask(self.config, x_BTD, attention_mask)
        for layer in self.layers:
            x_BTD = layer(x_BTD, attention_mask, positions=self.positions, at=at, **kwargs)
        return BaseModelOutput(last_hidden_state=x_BTD if self.layer_norm is None else self.layer_norm(x_BTD))


class PosEncDecoder(PosEncStack):
    """Target tokens and memory to what the output projection reads."""

    layer_class = PosEncDecoderLayer
    _can_record_outputs = {
        "hidden_states": PosEncDecoderLayer,
        "attentions": OutputRecorder(Attention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(Attention, index=1, layer_name="encoder_attn"),
    }

    def __init__(self, config: PosEncConfig) -> None:
        super().__init__(config, config.side("decoder"))
        self.cross_positions = build_position_encodings(config, config.side("cross"))
        self.alignment = build_alignment(config)
        self.remembers = config.decoder_remembers
        self.check_back_end()
        self.post_init()

    def check_back_end(self) -> None:
        super().check_back_end()
        follows = self.alignment.follow is not None
        check_back_end(self.config, self.config.side("cross"), self.cross_positions, follows)

    @reads_model_inputs
    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        encoder_position_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        cross_position_ids: Tensor | None = None,
        cache: EncoderDecoderCache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        if encoder_hidden_states is None:
            raise ValueError("The decoder attends to an encoder's output; give it as encoder_hidden_states (B, S, D).")
        if cache is not None and self.gradient_checkpointing and self.training and torch.is_grad_enabled():
            raise ValueError(
                "Gradient checkpointing computes each layer again in the backward pass, so a layer must not write into "
                "a cache, but one was given; leave the cache out, or turn gradient checkpointing off."
            )
        x_BTD = self.embed(input_ids, inputs_embeds)
        if use_cache and cache is None:
            cache = EncoderDecoderCache(DynamicCache(config=self.config), DynamicCache(config=self.config))
        own_cache = None if cache is None else cache.self_attention_cache
        memory = None
        if own_cache is not None and self.remembers:
            drop_hidden(own_cache, None if kwargs.get("output_attentions") else self.positions.hidden_from)
            memory = memory_of(own_cache)
        start = cached_tokens(own_cache)
        if position_ids is None:
            position_ids = positions_of(attention_mask, x_BTD.shape[1], start, x_BTD.device)
        x_BTD, at = self.place(x_BTD, attention_mask, position_ids, memory, start, **kwargs)
        given = {"mask": encoder_attention_mask, "source_ids": encoder_position_ids, "places_BT": cross_position_ids}
        cross_at = at.but(queries_BQ=position_ids, tokens_BT=tokens_of(at.tokens_BT, input_ids, self.config))
        cross_at = self.cross_place(x_BTD, cross_at, encoder_hidden_states, cache, **given)
        attention_mask = None if at.by_distance else create_causal_mask(self.config, x_BTD, attention_mask, own_cache)
        encoder_attention_mask = create_bidirectional_mask(
            self.config, x_BTD, encoder_attention_mask, encoder_hidden_states=encoder_hidden_states
        )
        weights = []
        for layer in self.layers:
            x_BTD, p_BHTS = layer(
                x_BTD,
                attention_mask,
                encoder_hidden_states,
                encoder_attention_mask,
                positions=self.positions,
                at=at,
                cross_positions=self.cross_positions,
                cross_at=cross_at,
                cache=cache,
                **kwargs,
            )
            if cross_at.watched:
                weights.append(p_BHTS)
        if cross_at.watched:
            self.alignment("follow", weights, cross_at)
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=x_BTD if self.layer_norm is None else self.layer_norm(x_BTD),
            **{CACHE_NAME: cache},
        )

    def cross_place(
        self,
        x_BTD: Tensor,
        at: Place,
        memory_BSD: Tensor,
        cache: EncoderDecoderCache | None,
        *,
        mask: Any,
        source_ids: Tensor | None,
        places_BT: Tensor | None,
    ) -> Place:
        """Where cross-attention happens: at the positions of the source, the queries at their places among them.

        `at` is the decoder's own place; given places, `places_BT`, stand for the alignment's.
        """
        memory = at.memory and at.memory.of("cross")
        at = at.but(is_cross=True, is_causal=False, by_distance=False, slots_BN=None, prepared=None, memory=memory)
        if not self.cross_positions.act_in_attention:
            refuse_places(places_BT)
            return at
        at = at.but(keys_BS=source_positions(source_ids, mask, memory_BSD, cache), mask=mask)
        places_BT = places_of(self.alignment, x_BTD, memory_BSD, at, given_BT=places_BT)
        watched = self.alignment.follow is not None and at.memory is not None
        at = at.but(queries_BQ=places_BT, watched=watched)
        return self.cross_positions.prepare(x_BTD, at, near_keys(at, self.cross_positions.hidden_from))


class PosEncModel(PosEncPreTrainedModel, EncoderDecoder):
    """The Transformer without an output projection."""

    encoder_class = PosEncEncoder
    decoder_class = PosEncDecoder

    @reads_model_inputs
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        decoder_position_ids: Tensor | None = None,
        cross_position_ids: Tensor | None = None,
        encoder_outputs: Any = None,
        cache: EncoderDecoderCache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        follow_alignment: bool = False,
        **kwargs: Unpack[TransformersKwargs],  # type: ignore[misc]
    ) -> Seq2SeqModelOutput:
        """Source (B, S) and target (B, T) to hidden states (B, T, D).

        Given `position_ids` (B, S) and `decoder_position_ids` (B, T) win; else a token's position is the number of
        unmasked tokens before it. A `decoder_attention_mask` covers the cached tokens as well as the new ones. Given
        `cross_position_ids` (B, T), the places in the source of the target's tokens, stand for those of the alignment.
        Where that follows the attention, it does so with a cache or with `follow_alignment`, and is told how long the
        target is without them. No cache is made in training unless `use_cache` asks for one.
        """
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training
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
        inputs = {
            "input_ids": decoder_input_ids,
            "attention_mask": decoder_attention_mask,
            "encoder_hidden_states": encoder_outputs.last_hidden_state,
            "encoder_attention_mask": attention_mask,
            "encoder_position_ids": position_ids,
            "position_ids": decoder_position_ids,
            "cross_position_ids": cross_position_ids,
            "cache": cache,
            "inputs_embeds": decoder_inputs_embeds,
            "use_cache": use_cache,
        }
        follows = self.decoder.alignment.follow is not None and cross_position_ids is None
        if follows and (follow_alignment or use_cache or cache is not None):
            decoder_outputs = read_one_by_one(self.decoder, **inputs, **kwargs)
        else:
            decoder_outputs = self.decoder(**inputs, **kwargs)
        return outputs_of_both(encoder_outputs, decoder_outputs)


class PosEncForConditionalGeneration(PosEncPreTrainedModel, ConditionalGeneration, GenerationMixin):
    """The translation model: a PosEncModel and the projection on the target vocabulary."""

    body = PosEncModel
    summary = "The encoder-decoder Transformer."
    references = (VASWANI,)

    @reads_model_inputs
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        decoder_position_ids: Tensor | None = None,
        cross_position_ids: Tensor | None = None,
        encoder_outputs: Any = None,
        cache: EncoderDecoderCache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        follow_alignment: bool = False,
        **kwargs: Unpack[TransformersKwargs],  # type: ignore[misc]
    ) -> Seq2SeqLMOutput:
        """As PosEncModel's, to logits (B, T, V); with `labels` (B, T), -100 where there is none, also to their loss."""
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
            cross_position_ids=cross_position_ids,
            encoder_outputs=encoder_outputs,
            cache=cache,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            follow_alignment=follow_alignment,
            **kwargs,
        )
        return self.predicted(outputs, labels, kwargs)

    def prepare_inputs_for_generation(self, input_ids: Tensor, **kwargs: Any) -> dict[str, Any]:
        """transformers' inputs for a step, and that nobody knows how long the sentence will be."""
        return super().prepare_inputs_for_generation(input_ids, **kwargs) | {"follow_alignment": True}


__all__ = ["PosEncForConditionalGeneration", "PosEncModel", "PosEncPreTrainedModel"]
