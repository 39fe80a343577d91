# SPDX-License-Identifier: Apache-2.0
"""Inputs of `forward`: the cache under either of its names, no keyword that nothing reads, and tokens in each stack.

transformers 5.24 renamed the keyword and the output field `past_key_values` to `cache`. `forward` takes `**kwargs`,
which transformers requires, and would drop a renamed keyword without an error: each cached step then sees one token and
no history. Therefore the family accepts both names, and refuses what is left over.
"""

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import TypeVar, cast

import torch
from torch import Tensor
from transformers import EncoderDecoderCache
from transformers.modeling_outputs import Seq2SeqLMOutput
from transformers.utils import ModelOutput, TransformersKwargs

from ..hub.errors import closest_name

CACHE_NAMES = ("cache", "past_key_values")
# The name by which the installed transformers passes a cache to a model and reads it from the outputs.
CACHE_NAME = next(name for name in CACHE_NAMES if name in Seq2SeqLMOutput.__dataclass_fields__)
# What attention back ends and the loss read. `ignore_index` is an argument of transformers' loss functions.
FORWARDED_KEYWORDS = {*TransformersKwargs.__annotations__, "return_dict", "ignore_index"}
ForwardT = TypeVar("ForwardT", bound=Callable[..., object])


def get_cache(outputs: ModelOutput) -> EncoderDecoderCache | None:
    """The cache in a model's outputs, None if it has none."""
    return getattr(outputs, CACHE_NAME)


def rename_cache(inputs: Mapping[str, object], name: str = CACHE_NAME) -> dict[str, object]:
    """The inputs with their cache, if any, under this `name`; a ValueError for two caches."""
    renamed = dict(inputs)
    caches = [renamed.pop(known, None) for known in CACHE_NAMES]
    if None not in caches:
        raise ValueError("A forward takes one cache, but both cache and past_key_values were given; leave one out.")
    for cache in caches:
        if cache is not None:
            renamed[name] = cache
    return renamed


def normalize_model_inputs(forward: ForwardT) -> ForwardT:
    """Decorator of a `forward` with an argument `cache`, which may be given as `past_key_values`.

    A keyword is a TypeError if it is neither an argument of `forward`, nor one of FORWARDED_KEYWORDS or of the model's
    own `loss_keywords`, unless its value is None.
    """
    signature = inspect.signature(forward)
    arguments = [name for name in signature.parameters if name not in ("self", "kwargs")]
    known = {*arguments, *FORWARDED_KEYWORDS}

    @functools.wraps(forward)
    def normalized_forward(self: object, *args: object, **kwargs: object) -> object:
        if "past_key_values" in kwargs:
            is_deprecated = CACHE_NAME == "cache" and kwargs["past_key_values"] is not None
            kwargs = rename_cache(kwargs, "cache")
            if is_deprecated and not torch.compiler.is_compiling():
                message = "`past_key_values` is deprecated since transformers 5.24, which calls it `cache`; use that."
                warnings.warn(message, FutureWarning, stacklevel=2)
        for name, value in kwargs.items():
            if name not in known and value is not None and name not in getattr(self, "loss_keywords", ()):
                raise TypeError(
                    f"{type(self).__name__} reads no input {name!r}, and it would have no effect; the "
                    f"nearest one is {closest_name(name, arguments)!r}. Leave it out, or rename it."
                )
        return forward(self, *args, **kwargs)

    # `generate` refuses a cache whose name is not in the signature.
    renamed = [p.replace(name=CACHE_NAME) if p.name == "cache" else p for p in signature.parameters.values()]
    normalized_forward.__signature__ = signature.replace(parameters=renamed)  # type: ignore[attr-defined]
    return cast(ForwardT, normalized_forward)


def require_tokens(*inputs: Tensor | None) -> None:
    """Raise a ValueError for ids, labels or embeddings (B, T, ...) without a sentence, or without a token in each."""
    for tokens in inputs:
        if tokens is not None and 0 in tokens.shape[:2]:
            raise empty_batch_error(tokens)


# Errors whose condition stands where the inputs are read, because the time of a decoding step counts.


def empty_batch_error(tokens: Tensor) -> ValueError:
    return ValueError(
        f"A batch must have at least one sentence, and each at least one token, but its shape is "
        f"{tuple(tokens.shape)}; leave the call out, or give each sentence its start or end token."
    )


def input_error(input_ids: Tensor | None, inputs_embeds: Tensor | None) -> ValueError:
    """The error of a stack that was not given exactly one input, token ids or embeddings, with tokens in it."""
    if input_ids is not None and inputs_embeds is not None:
        return ValueError(
            "Exactly one of input_ids and inputs_embeds must be given to each stack; leave one of them out."
        )
    tokens = input_ids if inputs_embeds is None else inputs_embeds
    if tokens is not None:
        return empty_batch_error(tokens)
    return ValueError(
        "Each stack must be given its tokens, but one has none: give the only or the encoder's as input_ids or "
        "inputs_embeds, a second one's as decoder_input_ids, decoder_inputs_embeds or labels. (With "
        "label_smoothing_factor transformers' Trainer keeps labels away; give its DataCollatorForSeq2Seq the "
        "model: model=model.)"
    )


def encoder_states_error(encoder_hidden_states: Tensor | None) -> ValueError:
    """The error of a decoder that was called without an encoder's output, or with an empty one."""
    if encoder_hidden_states is not None:
        return empty_batch_error(encoder_hidden_states)
    return ValueError("A decoder must have an encoder's output, but got None; give encoder_hidden_states (B, S, D).")
