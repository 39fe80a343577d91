# SPDX-License-Identifier: Apache-2.0
"""The encoder-decoder Transformer of Vaswani et al. (encodings/base.py), with hooks for position encodings.

It calls hooks, never an encoding by name. Parameter names are BART's, the shape letters those of base.py. From
top to bottom: encoder, decoder, the model, the model with an output projection. Base classes are in
transformer/stack.py and transformer/encoder_decoder.py, layers are in transformer/stack.py.
"""

from collections.abc import Sequence
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import TransformersKwargs, can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from ..alignments.base import has_source_position, validate_lookahead, without_adapters
from ..alignments.registry import build_alignment
from ..encodings.base import VASWANI
from ..encodings.cache import cached_seq_length
from ..encodings.positions import (
    AttentionMask,
    new_valid_mask,
    positions_from_mask,
    slice_mask,
    target_valid_mask,
)
from ..encodings.registry import build_position_encodings
from ..generation.limits import SourcePositionReader, last_source_positions
from ..generation.model_inputs import (
    CACHE_NAME,
    encoder_states_error,
    get_cache,
    input_error,
    normalize_model_inputs,
)
from .attention import Attention, AttentionInputs, validate_attn_implementation
from .configuration_posenc import PosEncConfig
from .cross_attention import cross_attention
from .encoder_decoder import (
    ConditionalGeneration,
    DecoderOutput,
    EncoderDecoder,
    EncoderDecoderOutput,
    TranslationModelOutput,
)
from .stack import PosEncDecoderLayer, PosEncEncoderLayer, PosEncStack


class PosEncEncoder(PosEncStack):
    """Encoder: source tokens (B, S) to encoder states (B, S, D)."""

    config: PosEncConfig
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
        x_BTD, inputs = self.self_attention(x_BTD, attention_mask, position_ids, kwargs.get("output_attentions"))
        for layer in self.layers:
            x_BTD = layer(x_BTD, inputs, **kwargs)
        return BaseModelOutput(last_hidden_state=x_BTD if self.layer_norm is None else self.layer_norm(x_BTD))


class PosEncDecoder(PosEncStack):
    """Decoder: target tokens (B, T) and encoder states (B, S, D) to hidden states (B, T, D)."""

    config: PosEncConfig
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
        tracks_attention = without_adapters(self.alignment).update is not None
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
    ) -> DecoderOutput:
        """Target (B, T) and encoder states (B, S, D) to hidden states (B, T, D); the inputs are PosEncModel's."""
        if encoder_hidden_states is None or 0 in encoder_hidden_states.shape[:2]:
            raise encoder_states_error(encoder_hidden_states)
        x_BTD = self.embed(input_ids, inputs_embeds)
        self.refuse_cache_under_checkpointing(cache)
        if cache is None and use_cache:
            cache = EncoderDecoderCache(DynamicCache(config=self.config), DynamicCache(config=self.config))
        own_cache = None if cache is None else cache.self_attention_cache
        num_cached = cached_seq_length(own_cache)
        if position_ids is None:
            position_ids = positions_from_mask(attention_mask, x_BTD.shape[1], num_cached, x_BTD.device)
        output_attentions = kwargs.get("output_attentions")
        x_BTD, inputs = self.self_attention(
            x_BTD, attention_mask, position_ids, output_attentions, own_cache, num_cached
        )
        # Positions that are augmented in training, and hidden keys, are those of self-attention alone.
        target_mask_BT = target_valid_mask(inputs.ctx.valid_mask_BT, input_ids, self.config.pad_token_id)
        target_ctx = inputs.ctx.replace(query_pos_BQ=position_ids, valid_mask_BT=target_mask_BT, attended_keys=None)
        cross_inputs = cross_attention(
            self,
            x_BTD,
            target_ctx,
            encoder_hidden_states,
            cache,
            mask=encoder_attention_mask,
            encoder_position_ids=encoder_position_ids,
            source_positions_BT=cross_position_ids,
            output_attentions=output_attentions,
        )
        x_BTD = self.run_layers(x_BTD, inputs, cross_inputs, encoder_hidden_states, cache=cache, **kwargs)
        source_positions_BT = cross_inputs.ctx.query_pos_BQ if self.cross_positions.modifies_attention else None
        return DecoderOutput(last_hidden_state=x_BTD, source_positions=source_positions_BT, **{CACHE_NAME: cache})

    def run_layers(
        self,
        x_BTD: Tensor,
        inputs: AttentionInputs,
        cross_inputs: AttentionInputs,
        encoder_states_BSD: Tensor,
        **kwargs: object,
    ) -> Tensor:
        """The hidden states after all layers (B, T, D); updates an alignment that tracks the attention."""
        weights = []
        for layer in self.layers:
            x_BTD, p_BHTS = layer(x_BTD, inputs, cross_inputs, encoder_states_BSD, **kwargs)
            if cross_inputs.needs_weights:
                weights.append(p_BHTS)
        if cross_inputs.needs_weights:
            self.alignment("update", weights, encoder_states_BSD, cross_inputs.ctx)
        return x_BTD if self.layer_norm is None else self.layer_norm(x_BTD)


def decode_sequentially(
    decoder: PosEncDecoder,
    *,
    input_ids: Tensor | None,
    inputs_embeds: Tensor | None,
    attention_mask: AttentionMask,
    position_ids: Tensor | None,
    use_cache: bool | None,
    cache: EncoderDecoderCache | None,
    **inputs: object,
) -> DecoderOutput:
    """The decoder's outputs for all new tokens, which it reads one at a time, with a cache.

    An alignment that tracks the attention needs it: a token's source position depends on the attention of the token
    before it. The outputs have the cache if one is given or `use_cache`.
    """
    if decoder.gradient_checkpointing and decoder.training:
        raise ValueError(
            "Gradient checkpointing works without a cache, but an alignment tracks the attention through one; turn "
            "checkpointing off, or leave track_attention out."
        )
    tokens = input_ids if inputs_embeds is None else inputs_embeds
    if tokens is None or tokens.shape[1] == 0:
        raise input_error(input_ids, inputs_embeds)
    num_new, return_cache = tokens.shape[1], use_cache or cache is not None
    if position_ids is None:  # of all tokens at once, because a 4-D mask has no row for cached tokens
        num_cached = cached_seq_length(None if cache is None else cache.self_attention_cache)
        position_ids = positions_from_mask(attention_mask, num_new, num_cached, tokens.device)
    is_static = cache is not None and cache.is_compileable
    per_token = {"input_ids": input_ids, "inputs_embeds": inputs_embeds, "position_ids": position_ids}
    if num_new == 1 and return_cache:  # a step of `generate`, whose time counts
        return decoder(**per_token, attention_mask=attention_mask, use_cache=True, cache=cache, **inputs)
    steps = []
    for token in range(num_new):
        step_inputs: dict[str, object] = {
            name: values if values is None else values[:, token : token + 1] for name, values in per_token.items()
        }
        step_inputs["attention_mask"] = slice_mask(attention_mask, token, num_new, is_static)
        steps.append(decoder(**step_inputs, use_cache=True, cache=cache, **inputs))
        cache = get_cache(steps[-1])
    return concatenate_outputs(steps, cache if return_cache else None)


def concatenate_outputs(steps: list[DecoderOutput], cache: EncoderDecoderCache | None) -> DecoderOutput:
    """The outputs of single tokens, concatenated along the time axis."""
    positions = [step.source_positions for step in steps if step.source_positions is not None]
    max_keys = 0 if steps[-1].attentions is None else steps[-1].attentions[0].shape[-1]

    def all_layers(name: str, axis: int, pad_to: int = 0) -> tuple[Tensor, ...] | None:
        """Each layer's output of this name, concatenated; the last axis is padded to `pad_to` keys."""
        if getattr(steps[0], name) is None:
            return None
        layers = []
        for outputs in zip(*(getattr(step, name) for step in steps), strict=True):
            padded = [nn.functional.pad(output, (0, max(0, pad_to - output.shape[-1]))) for output in outputs]
            layers.append(torch.cat(padded, axis))
        return tuple(layers)

    return DecoderOutput(
        last_hidden_state=torch.cat([step.last_hidden_state for step in steps], 1),
        **{CACHE_NAME: cache},
        hidden_states=all_layers("hidden_states", 1),
        attentions=all_layers("attentions", 2, max_keys),
        cross_attentions=all_layers("cross_attentions", 2),
        source_positions=torch.cat(positions, 1) if positions else None,
    )


class PosEncModel(EncoderDecoder):
    """Encoder-decoder Transformer without an output projection."""

    config: PosEncConfig
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
    ) -> EncoderDecoderOutput:
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
        tracks_attention = without_adapters(self.decoder.alignment).update is not None and cross_position_ids is None
        if tracks_attention and (track_attention or use_cache or cache is not None):
            decoder_outputs = decode_sequentially(self.decoder, **inputs, **kwargs)
        else:
            decoder_outputs = self.decoder(**inputs, **kwargs)
        return EncoderDecoderOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            **{CACHE_NAME: getattr(decoder_outputs, CACHE_NAME)},
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
            source_positions=decoder_outputs.source_positions,
        )


# `super().__init__` calls post_init. trf-ignore: TRF013
class PosEncForConditionalGeneration(ConditionalGeneration):
    """Translation model: a PosEncModel and the projection on the target vocabulary."""

    config: PosEncConfig
    base_model_class = PosEncModel
    summary = "The encoder-decoder Transformer."
    references = (VASWANI,)

    def __init__(self, config: PosEncConfig) -> None:
        super().__init__(config)
        if self.default_source_end_rule:
            self.generation_config.eos_requires_source_end = True

    @property
    def returns_source_positions(self) -> bool:
        return has_source_position(self.model.decoder.alignment)

    @property
    def source_window(self) -> int | None:
        return self.model.decoder.cross_positions.hiding_lookahead

    @property
    def default_source_end_rule(self) -> bool | None:
        """Whether end tokens of a new model need the source's end in sight; None where no position is known."""
        return (self.returns_source_positions and self.source_window is not None) or None

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
        source_position_readers: Sequence[SourcePositionReader] | None = None,
        **kwargs: Unpack[TransformersKwargs],  # type: ignore[misc]
    ) -> TranslationModelOutput:
        """The inputs of PosEncModel to logits (B, T, V); with `labels` (B, T), -100 where ignored, also to a loss.

        The source positions of the new tokens are in the output, and each of `source_position_readers`, the logits
        processors of one call of `generate`, receives them.
        """
        if labels is not None:
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        num_cached = cached_seq_length(cache) if source_position_readers else 0  # before the layers add to it
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
        for reader in source_position_readers or ():
            source_ends_B1 = last_source_positions(attention_mask, position_ids, outputs.encoder_last_hidden_state)
            reader.read(num_cached, outputs.source_positions, source_ends_B1)
        length_loss = None
        alignment = self.model.decoder.alignment
        if self.training and without_adapters(alignment).length_loss is not None and cross_position_ids is None:
            x_BTD, states_BSD = outputs.last_hidden_state, outputs.encoder_last_hidden_state
            target_mask_BT = target_valid_mask(
                new_valid_mask(decoder_attention_mask, x_BTD.shape[1]), decoder_input_ids, self.config.pad_token_id
            )
            if target_mask_BT is None:
                target_mask_BT = torch.ones_like(x_BTD[..., 0], dtype=torch.bool)
            length_loss = alignment("length_loss", states_BSD, attention_mask, target_mask_BT)
        return self.logits_and_loss(outputs, labels, kwargs, length_loss)

    @torch.no_grad()
    def expected_target_lengths(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """The number of target tokens, `</s>` included, that the alignment predicts for each source (B), not rounded.

        A translation of far fewer tokens has ended early. Either `input_ids`, `inputs_embeds` or `encoder_outputs` must
        be given, with the mask of a padded batch. A ValueError for an alignment that predicts no length.
        """
        alignment = self.model.decoder.alignment
        if without_adapters(alignment).target_lengths is None:
            raise ValueError(
                "Only an alignment that predicts lengths, such as `fertility`, expects a number of target tokens, but "
                f"alignment_type is {self.config.alignment_type!r}; train a model with `fertility`."
            )
        if encoder_outputs is None:
            encoder_outputs = self.model.encoder(input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds)
        return alignment("target_lengths", encoder_outputs[0], attention_mask)


__all__ = ["PosEncForConditionalGeneration", "PosEncModel"]
