# SPDX-License-Identifier: Apache-2.0
"""Sequential decoding: a decoder reads several new tokens into its cache, one at a time.

An alignment that tracks the attention needs it: a token's source position depends on the attention of the token
before it.
"""

import torch
from torch import Tensor, nn
from transformers import EncoderDecoderCache, PreTrainedModel

from ..encodings.cache import cached_seq_length
from ..encodings.masks import AttentionMask, positions_from_mask, slice_mask
from ..generation.model_inputs import CACHE_NAME, exactly_one_input, get_cache
from .encoder_decoder import DecoderOutput


def decode_sequentially(
    decoder: PreTrainedModel,
    *,
    input_ids: Tensor | None,
    inputs_embeds: Tensor | None,
    attention_mask: AttentionMask,
    position_ids: Tensor | None,
    use_cache: bool | None,
    cache: EncoderDecoderCache | None,
    **inputs: object,
) -> DecoderOutput:
    """The decoder's outputs for all new tokens, as from one forward; with a cache if one is given or `use_cache`."""
    if decoder.gradient_checkpointing and decoder.training:
        raise ValueError(
            "Gradient checkpointing works without a cache, but an alignment tracks the attention through one; turn "
            "checkpointing off, or leave track_attention out."
        )
    tokens = exactly_one_input(input_ids, inputs_embeds)
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
