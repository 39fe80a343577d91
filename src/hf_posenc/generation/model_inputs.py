# SPDX-License-Identifier: Apache-2.0
"""Keyword arguments of `forward`: the cache under either of its names, and no keyword that nothing reads.

transformers 5.24 renamed the keyword and the output field `past_key_values` to `cache`. `forward` takes `**kwargs`,
which transformers requires, so a renamed keyword is dropped without an error: each cached step then sees one token and
no history. Therefore the family accepts both names, writes the one that the installed transformers reads, and refuses
what is left over. As there, the old name is deprecated where the new one is known.
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

# A `forward`, whose signature the decorator keeps for a type checker.
ForwardT = TypeVar("ForwardT", bound=Callable[..., object])


def get_cache(outputs: ModelOutput) -> EncoderDecoderCache | None:
    """The cache in a model's outputs, None if it has none; the field is `cache` or `past_key_values`."""
    return getattr(outputs, CACHE_NAME)


def rename_cache(inputs: Mapping[str, object], name: str = CACHE_NAME) -> dict[str, object]:
    """The inputs with their cache, if any, under this `name`; a ValueError for two caches."""
    caches = [inputs[known] for known in CACHE_NAMES if inputs.get(known) is not None]
    if len(caches) > 1:
        raise ValueError("A forward takes one cache, but both cache and past_key_values were given; leave one out.")
    rest = {key: value for key, value in inputs.items() if key not in CACHE_NAMES}
    return rest | {name: caches[0]} if caches else rest


def normalize_model_inputs(forward: ForwardT) -> ForwardT:
    """Decorator of a `forward` with an argument `cache`, which may be given as `past_key_values`. A keyword that is
    neither an argument of `forward`, nor one of FORWARDED_KEYWORDS or of the model's own `loss_keywords`, is a
    TypeError, unless its value is None."""
    signature = inspect.signature(forward)
    arguments = [name for name in signature.parameters if name not in ("self", "kwargs")]

    @functools.wraps(forward)
    def normalized_forward(self: object, *args: object, **kwargs: object) -> object:
        is_old_name = CACHE_NAME == "cache" and kwargs.get("past_key_values") is not None
        kwargs = rename_cache(kwargs, "cache")
        if is_old_name and not torch.compiler.is_compiling():
            message = "`past_key_values` is deprecated since transformers 5.24, which calls it `cache`; use that name."
            warnings.warn(message, FutureWarning, stacklevel=2)
        known = {*arguments, *FORWARDED_KEYWORDS, *getattr(self, "loss_keywords", ())}
        for name, value in kwargs.items():
            if value is not None and name not in known:
                raise TypeError(
                    f"{type(self).__name__} reads no input {name!r}, and it would have no effect; the "
                    f"nearest one is {closest_name(name, arguments)!r}. Leave it out, or rename it."
                )
        return forward(self, *args, **kwargs)

    # `generate` refuses a cache whose name is not in the signature.
    renamed = [p.replace(name=CACHE_NAME) if p.name == "cache" else p for p in signature.parameters.values()]
    normalized_forward.__signature__ = signature.replace(parameters=renamed)  # type: ignore[attr-defined]
    return cast(ForwardT, normalized_forward)


def exactly_one_input(input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
    """A stack's only input, token ids or embeddings; a ValueError for none, for both, and for no tokens in it."""
    tokens = input_ids if inputs_embeds is None else inputs_embeds
    if tokens is None:
        raise ValueError(
            "Each stack must be given its tokens, but one has none: give the only or the encoder's as input_ids or "
            "inputs_embeds, a second one's as decoder_input_ids, decoder_inputs_embeds or labels. (With "
            "label_smoothing_factor transformers' Trainer keeps labels away; give its DataCollatorForSeq2Seq the "
            "model: model=model.)"
        )
    if input_ids is not None and inputs_embeds is not None:
        raise ValueError(
            "Exactly one of input_ids and inputs_embeds must be given to each stack; leave one of them out."
        )
    require_tokens(tokens)
    return tokens


def require_tokens(*inputs: Tensor | None) -> None:
    """Raise a ValueError for ids, labels or states (B, T, ...) without a sentence, or without a token in each."""
    for tokens in inputs:
        if tokens is not None and 0 in tokens.shape[:2] and not torch.compiler.is_compiling():
            raise ValueError(
                f"A batch must have at least one sentence, and each at least one token, but its shape is "
                f"{tuple(tokens.shape)}; leave the call out, or give each sentence its start or end token."
            )


def require_encoder_states(encoder_hidden_states: Tensor | None) -> Tensor:
    """An encoder's output (B, S, D); a ValueError if a decoder was called without one."""
    if encoder_hidden_states is None:
        raise ValueError("A decoder must have an encoder's output, but got None; give encoder_hidden_states (B, S, D).")
    require_tokens(encoder_hidden_states)
    return encoder_hidden_states


__all__ = [
    "CACHE_NAME",
    "CACHE_NAMES",
    "exactly_one_input",
    "get_cache",
    "normalize_model_inputs",
    "rename_cache",
    "require_encoder_states",
    "require_tokens",
]
