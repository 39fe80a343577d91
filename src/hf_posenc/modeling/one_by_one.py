# SPDX-License-Identifier: Apache-2.0
"""Several new tokens, read one after another into a decoder's cache: for an alignment that follows the attention, and
so must have seen one token before the next has its place."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from .cache import cached_tokens
from .masks import mask_until, positions_of
from .model_inputs import CACHE_NAME, cache_of
from .modeling_shared import the_given


def read_one_by_one(
    decoder: Any,
    *,
    input_ids: Tensor | None,
    inputs_embeds: Tensor | None,
    attention_mask: Any,
    position_ids: Tensor | None,
    use_cache: bool | None,
    cache: Any,
    **inputs: Any,
) -> BaseModelOutputWithPastAndCrossAttentions:
    """What the decoder makes of its inputs, as from one forward; with a cache if one is given or wanted."""
    if decoder.gradient_checkpointing and decoder.training:
        raise ValueError(
            "Gradient checkpointing leaves out the cache, through which an alignment follows the attention; turn it "
            "off, or leave follow_alignment out."
        )
    tokens = the_given(input_ids, inputs_embeds)
    num_new, wants_cache = tokens.shape[1], use_cache or cache is not None
    if position_ids is None:  # of all the tokens, since a 4-D mask says nothing of those in the cache
        start = cached_tokens(None if cache is None else cache.self_attention_cache)
        position_ids = positions_of(attention_mask, num_new, start, tokens.device)
    keeps_size = cache is not None and cache.is_compileable
    per_token = {"input_ids": input_ids, "inputs_embeds": inputs_embeds, "position_ids": position_ids}
    steps = []
    for token in range(num_new):
        new = {name: given if given is None else given[:, token : token + 1] for name, given in per_token.items()}
        new["attention_mask"] = mask_until(attention_mask, token, num_new, keeps_size)
        steps.append(decoder(**new, use_cache=True, cache=cache, **inputs))
        cache = cache_of(steps[-1])
    return joined(steps, cache if wants_cache else None)


def joined(steps: list[Any], cache: Any) -> BaseModelOutputWithPastAndCrossAttentions:
    """The outputs of one token after another as those of all of them."""
    widest = 0 if steps[-1].attentions is None else steps[-1].attentions[0].shape[-1]

    def all_layers(name: str, axis: int, width: int = 0) -> tuple[Tensor, ...] | None:
        if getattr(steps[0], name) is None:
            return None
        layers = zip(*(getattr(step, name) for step in steps), strict=True)
        wide = ([nn.functional.pad(one, (0, max(0, width - one.shape[-1]))) for one in layer] for layer in layers)
        return tuple(torch.cat(layer, axis) for layer in wide)

    return BaseModelOutputWithPastAndCrossAttentions(
        last_hidden_state=torch.cat([step.last_hidden_state for step in steps], 1),
        **{CACHE_NAME: cache},
        hidden_states=all_layers("hidden_states", 1),
        attentions=all_layers("attentions", 2, widest),
        cross_attentions=all_layers("cross_attentions", 2),
    )
