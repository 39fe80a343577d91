# SPDX-License-Identifier: Apache-2.0
"""The encoder-decoder Transformer of Vaswani et al. (citations.py), with hooks for position encodings.

It calls hooks, never an encoding by name. Parameter names are BART's, the shape letters those of position_base.py. From
top to bottom: stacks, the model, the model with an output projection; layers are in transformer_layers.py.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Unpack

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, EncoderDecoderCache, GenerationMixin, LogitsProcessor
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

from .alignment_base import Alignment, validate_lookahead
from .alignment_registry import build_alignment
from .attention import Attention, validate_attn_implementation
from .attention_context import AttentionContext
from .cache import EncodingState, cached_seq_length, evict_outside_window, state_of_cache
from .citations import VASWANI
from .configuration_posenc import PosEncConfig
from .cross_attention_context import cross_attention_context, cross_attention_mask
from .linear_attention import supports_linear_attention
from .masks import AttentionMask, new_valid_mask, positions_from_mask, target_valid_mask
from .model_inputs import CACHE_NAME, CACHE_NAMES, normalize_model_inputs, require_encoder_states
from .modeling_shared import (
    ConditionalGeneration,
    EncoderDecoder,
    Stack,
    merge_outputs,
)
from .position_base import PositionEncoding, StackSpec
from .position_registry import build_position_encodings
from .pretrained_shared import SharedPreTrainedModel
from .sequential_decoding import decode_sequentially
from .source_end import SourcePositionLimit, end_only_at_source_end, has_source_end, limit_tokens_per_position
from .source_reach import SourceReach, compute_source_reach
from .transformer_layers import PosEncDecoderLayer, PosEncEncoderLayer
from .window_pruning import MIN_KEYS, prune_to_window


class PosEncPreTrainedModel(SharedPreTrainedModel):
    """Base class of the Transformer's models: initialisation, loading, saving, validation of the attention back end."""

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

    def set_attn_implementation(self, attn_implementation: str | dict, *args: object, **kwargs: object) -> None:
        """transformers' choice of a back end; a ValueError, and the old one, if it cannot compute an encoding."""
        before = self.config._attn_implementation
        super().set_attn_implementation(attn_implementation, *args, **kwargs)
        try:
            for stack in self.modules():
                if isinstance(stack, PosEncStack):
                    stack.validate_attn_implementation()
        except ValueError:
            super().set_attn_implementation(before)
            raise


# Its subclasses call post_init when they are whole. trf-ignore: TRF013
class PosEncStack(PosEncPreTrainedModel, Stack):
    """Base class of encoder and decoder: position encodings and layers."""

    layer_class: type[PosEncEncoderLayer] | type[PosEncDecoderLayer]
    needs_state_cache = False
    # From this number of cached keys on, hidden keys are pruned. Outputs do not depend on it; the tests set it to 0.
    min_keys_to_prune = MIN_KEYS

    def __init__(self, config: PosEncConfig, side: StackSpec) -> None:
        super().__init__(config, vocab_size=side.vocab_size)
        self.side = side
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

    def attention_context(
        self,
        x_BTD: Tensor,
        mask: AttentionMask,
        position_ids: Tensor,
        state: EncodingState | None = None,
        num_cached: int | Tensor = 0,
        *,
        output_attentions: object = False,
    ) -> tuple[Tensor, AttentionContext]:
        """The embedded tokens with their positions (B, T, D), and the context of this stack's self-attention.

        Appends the positions, and the states of encodings, to the cached `state`.
        """
        valid_mask_BT = new_valid_mask(mask, x_BTD.shape[1], num_cached)
        attn_implementation = self.config._attn_implementation
        need_weights = bool(output_attentions) or attn_implementation == "flex_attention"
        ctx = AttentionContext(
            position_ids, position_ids, valid_mask_BT, mask, num_cached, self.side.is_causal, need_weights=need_weights
        )
        if self.training and self.positions.has_hook("augment_positions"):
            pos_BT = self.positions.augment_positions(position_ids.expand(x_BTD.shape[0], -1), ctx)
            ctx = ctx.replace(query_pos_BQ=pos_BT, key_pos_BS=pos_BT)
        if state is not None:
            key_pos_BS = state.append("positions", ctx.query_pos_BQ.expand(x_BTD.shape[0], -1))
            ctx = ctx.replace(key_pos_BS=key_pos_BS, state=state)
        has_dropout = self.training and self.config.attention_dropout
        if state is None and attn_implementation == "sdpa" and not (ctx.need_weights or has_dropout):
            ctx = ctx.replace(use_linear_attention=supports_linear_attention(self.positions, ctx))
        x_BTD = self.positions.embed(x_BTD, ctx)
        if self.layernorm_embedding is not None:
            x_BTD = self.layernorm_embedding(x_BTD)
        pruned_ctx = prune_to_window(ctx, self.positions.sliding_window, self.min_keys_to_prune)
        return x_BTD, self.positions.prepare(x_BTD, ctx, pruned_ctx)

    def causal_context(
        self,
        x_BTD: Tensor,
        attention_mask: AttentionMask,
        position_ids: Tensor | None,
        cache: Cache | None,
        output_attentions: object,
    ) -> tuple[Tensor, Tensor, AttentionContext, AttentionMask]:
        """Of a causal self-attention: the tokens with their positions (B, T, D), their position ids, the context and
        the mask. `cache` is that of this self-attention."""
        # State and number of cached tokens are read here, before the first layer adds its keys to the cache.
        state, num_cached = self.read_state(cache, output_attentions), cached_seq_length(cache)
        if position_ids is None:
            position_ids = positions_from_mask(attention_mask, x_BTD.shape[1], num_cached, x_BTD.device)
        x_BTD, ctx = self.attention_context(
            x_BTD, attention_mask, position_ids, state, num_cached, output_attentions=output_attentions
        )
        mask = None if ctx.use_linear_attention else create_causal_mask(self.config, x_BTD, attention_mask, cache)
        return x_BTD, position_ids, ctx, ctx.gather_mask(mask)

    def read_state(self, own_cache: Cache | None, output_attentions: object) -> EncodingState | None:
        """The encodings' state in the self-attention's cache, None if nothing needs one.

        Tokens that are hidden by their distance are evicted first, unless the weights of all keys are wanted.
        """
        if own_cache is None or not self.needs_state_cache:
            return None
        evict_outside_window(own_cache, None if output_attentions else self.positions.hiding_distance)
        return state_of_cache(own_cache)

    def refuse_cache_under_checkpointing(self, cache: Cache | None) -> None:
        """Raise a ValueError for a cache in training with gradient checkpointing."""
        if cache is not None and self.gradient_checkpointing and self.training and torch.is_grad_enabled():
            raise ValueError(
                "Gradient checkpointing computes each layer twice, and therefore a layer must not write into a cache, "
                "but one was given; leave the cache out, or turn gradient checkpointing off."
            )


class PosEncEncoder(PosEncStack):
    """Encoder: source tokens (B, S) to encoder states (B, S, D)."""

    layer_class = PosEncEncoderLayer
    _can_record_outputs = {"hidden_states": PosEncEncoderLayer, "attentions": Attention}

    def __init__(self, config: PosEncConfig) -> None:
        super().__init__(config, config.side("encoder"))
        self.validate_attn_implementation()
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: object,
    ) -> BaseModelOutput:
        """Source (B, S) to encoder states (B, S, D)."""
        x_BTD = self.embed(input_ids, inputs_embeds)
        if position_ids is None:
            position_ids = positions_from_mask(attention_mask, x_BTD.shape[1], device=x_BTD.device)
        output_attentions = kwargs.get("output_attentions")
        x_BTD, ctx = self.attention_context(x_BTD, attention_mask, position_ids, output_attentions=output_attentions)
        attention_mask = (
            None if ctx.use_linear_attention else create_bidirectional_mask(self.config, x_BTD, attention_mask)
        )
        for layer in self.layers:
            x_BTD = layer(x_BTD, attention_mask, positions=self.positions, ctx=ctx, **kwargs)
        return BaseModelOutput(last_hidden_state=x_BTD if self.layer_norm is None else self.layer_norm(x_BTD))


class PosEncDecoder(PosEncStack):
    """Decoder: target tokens (B, T) and encoder states (B, S, D) to hidden states (B, T, D)."""

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
        validate_lookahead(self.alignment, self.cross_positions.hiding_lookahead)
        self.needs_state_cache = config.decoder_needs_state_cache
        self.validate_attn_implementation()
        self.post_init()

    def validate_attn_implementation(self) -> None:
        super().validate_attn_implementation()
        tracks_attention = self.alignment.update is not None
        validate_attn_implementation(self.config, self.config.side("cross"), self.cross_positions, tracks_attention)

    @normalize_model_inputs
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
        **kwargs: object,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Target (B, T) and encoder states (B, S, D) to hidden states (B, T, D); the inputs are PosEncModel's."""
        encoder_hidden_states = require_encoder_states(encoder_hidden_states)
        x_BTD = self.embed(input_ids, inputs_embeds)
        cache = self.resolve_cache(cache, use_cache)
        own_cache = None if cache is None else cache.self_attention_cache
        x_BTD, position_ids, ctx, self_mask = self.causal_context(
            x_BTD, attention_mask, position_ids, own_cache, kwargs.get("output_attentions")
        )
        target_mask_BT = target_valid_mask(ctx.valid_mask_BT, input_ids, self.config.pad_token_id)
        cross_ctx = cross_attention_context(
            self,
            x_BTD,
            ctx.replace(query_pos_BQ=position_ids, valid_mask_BT=target_mask_BT),
            encoder_hidden_states,
            cache,
            mask=encoder_attention_mask,
            encoder_position_ids=encoder_position_ids,
            source_positions_BT=cross_position_ids,
        )
        cross_mask = cross_attention_mask(self.config, x_BTD, encoder_attention_mask, encoder_hidden_states, cross_ctx)
        masks_and_states = self_mask, encoder_hidden_states, cross_mask
        x_BTD = self.run_layers(x_BTD, masks_and_states, ctx=ctx, cross_ctx=cross_ctx, cache=cache, **kwargs)
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=x_BTD, **{CACHE_NAME: cache})

    def resolve_cache(self, cache: EncoderDecoderCache | None, use_cache: bool | None) -> EncoderDecoderCache | None:
        """The given cache, or a new one with `use_cache`; a ValueError for one under gradient checkpointing."""
        self.refuse_cache_under_checkpointing(cache)
        if cache is None and use_cache:
            return EncoderDecoderCache(DynamicCache(config=self.config), DynamicCache(config=self.config))
        return cache

    def run_layers(
        self,
        x_BTD: Tensor,
        masks_and_states: tuple[AttentionMask, Tensor, AttentionMask],
        *,
        ctx: AttentionContext,
        cross_ctx: AttentionContext,
        **kwargs: object,
    ) -> Tensor:
        """The hidden states after all layers (B, T, D); updates an alignment that tracks the attention.

        `masks_and_states` are the mask of the target, the encoder states (B, S, D) and the mask of the source.
        """
        contexts = {
            "positions": self.positions,
            "ctx": ctx,
            "cross_positions": self.cross_positions,
            "cross_ctx": cross_ctx,
        }
        weights = []
        for layer in self.layers:
            x_BTD, p_BHTS = layer(x_BTD, *masks_and_states, **contexts, **kwargs)
            if cross_ctx.return_weights:
                weights.append(p_BHTS)
        if cross_ctx.return_weights:
            self.alignment("update", weights, masks_and_states[1], cross_ctx)
        return x_BTD if self.layer_norm is None else self.layer_norm(x_BTD)


class PosEncModel(PosEncPreTrainedModel, EncoderDecoder):
    """Encoder-decoder Transformer without an output projection."""

    encoder_class = PosEncEncoder
    decoder_class = PosEncDecoder

    @normalize_model_inputs
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
        encoder_outputs: BaseModelOutput | None = None,
        cache: EncoderDecoderCache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        track_attention: bool = False,
        **kwargs: Unpack[TransformersKwargs],  # type: ignore[misc]
    ) -> Seq2SeqModelOutput:
        """Source (B, S) and target (B, T) to hidden states (B, T, D).

        `position_ids` (B, S) and `decoder_position_ids` (B, T) are used if given; else a token's position is the number
        of unmasked tokens before it. A `decoder_attention_mask` covers the cached tokens and the new ones.
        `cross_position_ids` (B, T), source positions of the target's tokens, replace those of the alignment. An
        alignment that tracks the attention does so with a cache or with `track_attention=True`; otherwise it uses the
        target's length. In training a cache is made only with `use_cache=True`.
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
        tracks_attention = self.decoder.alignment.update is not None and cross_position_ids is None
        if tracks_attention and (track_attention or use_cache or cache is not None):
            decoder_outputs = decode_sequentially(self.decoder, **inputs, **kwargs)
        else:
            decoder_outputs = self.decoder(**inputs, **kwargs)
        return merge_outputs(encoder_outputs, decoder_outputs)


# `super().__init__` calls post_init. trf-ignore: TRF013
class PosEncForConditionalGeneration(PosEncPreTrainedModel, ConditionalGeneration, GenerationMixin):
    """Translation model: a PosEncModel and the projection on the target vocabulary."""

    base_model_class = PosEncModel
    summary = "The encoder-decoder Transformer."
    references = (VASWANI,)

    def __init__(self, config: PosEncConfig) -> None:
        super().__init__(config)
        if self.default_source_end_rule:
            self.generation_config.eos_requires_source_end = True

    @property
    def default_source_end_rule(self) -> bool | None:
        """Whether end tokens of a new model need the source's end in sight; None where no position is known."""
        decoder = self.model.decoder
        return has_source_end(decoder.alignment, decoder.cross_positions.hiding_lookahead) or None

    @normalize_model_inputs
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
        encoder_outputs: BaseModelOutput | None = None,
        cache: EncoderDecoderCache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        track_attention: bool = False,
        **kwargs: Unpack[TransformersKwargs],  # type: ignore[misc]
    ) -> Seq2SeqLMOutput:
        """The inputs of PosEncModel to logits (B, T, V); with `labels` (B, T), -100 where ignored, also to a loss."""
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
            track_attention=track_attention,
            **kwargs,
        )
        length_loss = None
        alignment = self.model.decoder.alignment
        if self.training and alignment.length_loss is not None and cross_position_ids is None:
            target_mask_BT = target_valid_mask(decoder_attention_mask, decoder_input_ids, self.config.pad_token_id)
            states_BSD = outputs.encoder_last_hidden_state
            length_loss = alignment("length_loss", states_BSD, attention_mask, target_mask_BT)
        return self.logits_and_loss(outputs, labels, kwargs, length_loss)

    def source_reach(self) -> SourceReach:
        """How many source tokens a decoding step reads: `left_context` before its source position, `lookahead` after.

        A ValueError, with the reason, for a model that reads all of its source.
        """
        return compute_source_reach(self)

    def end_only_at_source_end(self, end_token_ids: Sequence[int]) -> AbstractContextManager[LogitsProcessor]:
        """As the mixin's; a ValueError for a model without an alignment, or whose cross-attention hides no keys."""
        decoder = self.model.decoder
        return end_only_at_source_end(
            decoder.alignment, end_token_ids, decoder.cross_positions.hiding_lookahead, self.config.alignment_type
        )

    def limit_tokens_per_position(
        self, end_token_ids: Sequence[int], max_tokens: object, num_sentences: int
    ) -> AbstractContextManager[SourcePositionLimit]:
        """As the mixin's; a ValueError for a model without an alignment, and for a limit that is no whole number."""
        return limit_tokens_per_position(
            self.model.decoder.alignment, end_token_ids, max_tokens, num_sentences, self.config.alignment_type
        )

    def prepare_inputs_for_generation(self, input_ids: Tensor, **kwargs: object) -> dict[str, object]:
        """The inputs of a decoding step, with `track_attention`, because the target's length is unknown."""
        return super().prepare_inputs_for_generation(input_ids, **kwargs) | {"track_attention": True}


__all__ = ["PosEncForConditionalGeneration", "PosEncModel", "PosEncPreTrainedModel"]
