# SPDX-License-Identifier: Apache-2.0
"""Options of `generate` that read tokens: the target's vocabulary for them, or an error.

transformers reads a config's `vocab_size` and a tokenizer's `get_vocab()`. With one vocabulary for both sides these are
the target's. With two vocabularies they are the source's, but generated tokens are the target's.
"""

from copy import copy
from typing import Any

from transformers import GenerationConfig, PreTrainedConfig

# Keywords of `generate`, each of a type of its own.
GenerateOptions = dict[str, Any]

# Options that compare a translation with its source, token by token, and their values without an effect.
SOURCE_COMPARING_OPTIONS = {"encoder_repetition_penalty": 1.0, "encoder_no_repeat_ngram_size": 0}
# Options for which transformers takes the config's `vocab_size` as the number of target tokens.
EQUAL_SIZE_OPTIONS = ("watermarking_config", "prompt_lookup_num_tokens")


def target_generate_options(
    config: PreTrainedConfig, defaults: tuple[GenerationConfig | None, ...], options: GenerateOptions
) -> GenerateOptions:
    """The options of `generate`, with the target's side of a tokenizer; `defaults` are generation configs or None.

    Raises a ValueError for an option, or an assistant model, that cannot work with two different vocabularies.
    """
    tokenizer = options.get("tokenizer")
    sizes = (config.vocab_size, config.decoder_vocab_size)
    shares_vocabulary = sizes[0] == sizes[1] and getattr(tokenizer, "shares_vocabulary", True)
    for name, no_effect_value in SOURCE_COMPARING_OPTIONS.items():
        if not shares_vocabulary and (value := effective_option(name, defaults, options)) not in (
            None,
            no_effect_value,
        ):
            raise ValueError(
                f"{name} compares a translation with its source token by token and needs one vocabulary for both "
                f"sides, but there are two ({sizes[0]} and {sizes[1]} tokens) and {name}={value!r}; leave it out."
            )
    for name in EQUAL_SIZE_OPTIONS:
        if sizes[0] != sizes[1] and effective_option(name, defaults, options) is not None:
            raise ValueError(
                f"{name} needs vocabularies of one size, because transformers counts the target's tokens by the "
                f"source's, but they have {sizes[0]} and {sizes[1]} tokens; leave it out, or make the smaller table as "
                "large as the other (resize_token_embeddings, resize_decoder_token_embeddings)."
            )
    if hasattr(tokenizer, "target_encoder") and effective_option("stop_strings", defaults, options) is not None:
        raise ValueError(
            "stop_strings must be given with a tokenizer that has the target's vocabulary as a side of its own, but "
            f"transformers would search the source's of this {type(tokenizer).__name__} with two; leave them out, or "
            "give stopping_criteria."
        )
    if (assistant := options.get("assistant_model")) is not None:
        assistant_sizes = (assistant.config.vocab_size, getattr(assistant.config, "decoder_vocab_size", None))
        if sizes != assistant_sizes:
            raise ValueError(
                "An assistant must have the model's vocabularies, because both use the same token ids, but the model "
                f"has {sizes[0]} source and {sizes[1]} target tokens and the assistant {assistant_sizes[0]} and "
                f"{assistant_sizes[1]}; choose one that was trained with the same tokenizer."
            )
    return options if tokenizer is None else options | {"tokenizer": getattr(tokenizer, "target", tokenizer)}


def effective_option(name: str, defaults: tuple[GenerationConfig | None, ...], options: GenerateOptions) -> object:
    """The value of an option: the call's, else that of the first generation config with one, else None."""
    values = [options.get(name), *(getattr(default, name, None) for default in defaults)]
    return next((value for value in values if value is not None), None)


def with_target_vocab_size(config: PreTrainedConfig) -> PreTrainedConfig:
    """A copy of the config whose `vocab_size` is the target's."""
    view = copy(config)
    view.vocab_size = config.target_vocab_size
    return view
