# SPDX-License-Identifier: Apache-2.0
"""Translation from text to text, because transformers 5 has no pipeline for it.

`translate` takes an encoder-decoder, or a decoder-only model that was trained on sources with their targets, such as a
task's inputs with its answers. For the latter the source is the prompt, and the target continues it:

    source </s> target </s>
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar, cast

import torch
from torch import nn
from tqdm.auto import tqdm
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..hub.errors import data_options, is_blank, require, validate_source_lengths, validate_texts
from .limits import (
    READERS_ARGUMENT,
    GenerateOptions,
    GeneratingModel,
    PerSentenceLength,
    explicit_max_new_tokens,
    explicit_option,
    max_target_lengths,
    source_position_rules,
    with_expected_lengths,
    with_length_limits,
    with_processors,
)

ModelT = TypeVar("ModelT", bound=PreTrainedModel)

# Source tokens of a batch: 32 sentences of 256 tokens, or 4 documents of 2048.
MAX_TOKENS_PER_BATCH = 8192
# Options that may end a sentence before its end token and its limit.
OTHER_STOPPING_OPTIONS = ("stopping_criteria", "max_time", "stop_strings")


@dataclass(frozen=True)
class TranslationOutput:
    """Translations in the order of their sources, and whether each was truncated at a length limit."""

    texts: list[str]
    truncated: list[bool]


def validate_tokenizer(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise a ValueError if a model of that `config` cannot have been trained with `tokenizer`."""
    # The length of a MarianTokenizer with two vocabularies is the source's; `target_encoder` has the target's.
    target = getattr(tokenizer, "target_vocab_size", len(getattr(tokenizer, "target_encoder", tokenizer)))
    for side, tokens, num_embeddings in (
        ("source", len(tokenizer), config.vocab_size),
        ("target", target, config.target_vocab_size),
    ):
        require(
            tokens <= num_embeddings,
            f"A model needs the tokenizer it was trained with, but this tokenizer has {tokens} {side} tokens and the "
            f"model {num_embeddings}; load the tokenizer from the model's folder.",
        )
    for name in ("pad_token_id", "eos_token_id"):
        tokenizer_id, config_id = getattr(tokenizer, name), getattr(config, name)
        config_ids = config_id if isinstance(config_id, list) else [config_id]
        require(
            tokenizer_id in config_ids or (name, config_id) == ("eos_token_id", None),
            f"A model needs the tokenizer it was trained with, but this tokenizer's {name} is {tokenizer_id} and the "
            f"model's {config_id}; load the tokenizer from the model's folder.",
        )


def evaluation_view(model: ModelT, attn_implementation: str | None = None) -> ModelT:
    """The model in eval mode, with this attention back end if one is given: other objects, but the same parameters.

    All threads share the modules of a model. A call that set and restored `training` there would change the calls that
    run at the same time, such as a step of training.
    """
    views: dict[int, nn.Module] = {}
    configs: dict[int, PreTrainedConfig] = {}

    def view_of(module: nn.Module) -> nn.Module:
        if id(module) in views:  # a module that stands in two places, such as shared embeddings
            return views[id(module)]
        view = views[id(module)] = object.__new__(type(module))
        for name, value in vars(module).items():
            # transformers adds hooks to the modules from which it collects outputs.
            vars(view)[name] = copy(value) if "hooks" in name else value
            if isinstance(value, PreTrainedConfig):
                vars(view)[name] = configs.setdefault(id(value), copy(value))
        children = {name: None if child is None else view_of(child) for name, child in module._modules.items()}
        vars(view).update(training=False, _modules=children)
        return view

    view = cast(ModelT, view_of(model))
    if attn_implementation is not None:
        view.set_attn_implementation(attn_implementation)
    return view


@torch.no_grad()
def translate(
    model: GeneratingModel,
    texts: Iterable[str],
    tokenizer: PreTrainedTokenizerBase,
    *,
    batch_size: int = 32,
    tokens_per_batch: int = MAX_TOKENS_PER_BATCH,
    progress: bool = False,
    description: str = "translating",
    progress_position: int = 0,
    **generate: Any,
) -> TranslationOutput:
    """Translate `texts` by beam search with 5 beams; `generate` or its generation_config may change the decoding.

    A translation has at most 2 x source + 50 tokens, or the maximum length of the decoder's encoding. Sentences of
    similar length, in source tokens, share a batch: `batch_size` sentences, or fewer to stay within
    `tokens_per_batch` tokens with padding. A blank text has an empty translation. With `progress`, a progress bar
    with this `description` is on line `progress_position`. `generate` is passed on to `model.generate`.

    Raises, before any compute, a TypeError unless `texts` is a list of strings. Raises a ValueError for a tokenizer
    that is not the model's, for a text that is not UTF-8, and for one that is longer than an encoding's table.
    """
    texts = validate_texts(texts)
    validate_tokenizer(model.config, tokenizer)
    config = generate.get("generation_config")
    for option, required in (("num_return_sequences", 1), ("return_dict_in_generate", False)):
        value = generate.get(option, getattr(config, option, None))
        require(
            value in (required, None),
            f"translate returns one text for each source, but {option}={value!r} was given; call generate.",
        )
    sources = encode_texts(texts, tokenizer)
    validate_source_lengths(sources, model.config.max_source_length)
    translate_batch = translate_sources if model.config.is_encoder_decoder else continue_prompts
    model = evaluation_view(model) if any(module.training for module in model.modules()) else model
    return translate_in_batches(
        sources,
        lambda sources: translate_batch(model, sources, tokenizer, **generate),
        batch_size=batch_size,
        tokens_per_batch=tokens_per_batch,
        progress=progress,
        description=description,
        progress_position=progress_position,
    )


def translate_in_batches(
    sources: Sequence[list[int]],
    translate_batch: Callable[[list[list[int]]], Iterable[tuple[str, bool]]],
    *,
    batch_size: int,
    tokens_per_batch: int = MAX_TOKENS_PER_BATCH,
    progress: bool = False,
    description: str = "translating",
    progress_position: int = 0,
    max_target_lengths: Sequence[int] | None = None,
) -> TranslationOutput:
    """Translations of `sources` (token ids), in order; sources of similar length share a batch.

    A batch has `batch_size` sentences, or fewer to stay within `tokens_per_batch` tokens with padding, or where
    `max_target_lengths` differ. An empty source has an empty translation. `translate_batch` returns texts and whether
    each is truncated; `progress`, `description` and `progress_position` configure a progress bar.
    """
    order = sorted((i for i, source in enumerate(sources) if source), key=lambda i: len(sources[i]), reverse=True)
    outputs = dict.fromkeys(range(len(sources)), ("", False))
    bar_options = {"desc": description, "position": progress_position, "leave": False, "disable": not progress}
    with tqdm(total=len(sources), unit="sentence", **bar_options) as progress_bar:
        while order:
            num_sentences = max(1, min(batch_size, tokens_per_batch // len(sources[order[0]])))
            batch = order[:num_sentences]
            if max_target_lengths is not None:
                batch = [i for i in batch if max_target_lengths[i] == max_target_lengths[order[0]]]
            order = order[len(batch) :]
            outputs |= zip(batch, translate_batch([sources[i] for i in batch]), strict=True)
            progress_bar.update(len(batch))
    return TranslationOutput([text for text, _ in outputs.values()], [truncated for _, truncated in outputs.values()])


def encode_texts(texts: list[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """The tokens of each text, special ones included; empty for a text that is blank or normalized to nothing."""
    if not texts:
        return []
    encoded = tokenizer(texts, **data_options(tokenizer))["input_ids"]
    num_special = tokenizer.num_special_tokens_to_add()
    return [[] if is_blank(text) or len(ids) <= num_special else ids for text, ids in zip(texts, encoded, strict=True)]


def may_stop_early(options: Mapping[str, Any], *configs: GenerationConfig | None) -> bool:
    """Whether something other than an end token or a length limit may end a sentence."""
    return any(explicit_option(name, options, *configs) is not None for name in OTHER_STOPPING_OPTIONS)


def truncate_at_end_tokens(
    sequences: Sequence[list[int]], limits: Sequence[int], end_token_ids: Sequence[int], pad_token_id: int | None
) -> tuple[list[list[int]], list[bool]]:
    """Generated tokens up to the first end token of each sequence, and whether they reached their limit without one.

    If a call stopped for another reason, such as a time limit, its last tokens are `pad_token_id`; None if it cannot
    have done so.
    """
    kept, truncated = [], []
    for ids, limit in zip(sequences, limits, strict=True):
        ids = ids[:limit]
        length = next((number for number, token in enumerate(ids, 1) if token in end_token_ids), None)
        kept.append(ids[:length])
        truncated.append(length is None and len(ids) == limit and ids[-1:] != [pad_token_id])
    return kept, truncated


def decoding_defaults(config: GenerationConfig | None) -> GenerateOptions:
    """The options of decoding that the generation config does not choose: beam search with 5 beams."""
    defaults = {"num_beams": 5, "do_sample": False, "num_return_sequences": 1, "return_dict_in_generate": False}
    return {name: value for name, value in defaults.items() if explicit_option(name, {}, config) is None}


def translate_sources(
    model: GeneratingModel, sources: list[list[int]], tokenizer: PreTrainedTokenizerBase, **generate: Any
) -> list[tuple[str, bool]]:
    """The translations of one batch of token ids by an encoder-decoder, and whether each was truncated."""
    config = generate.get("generation_config")
    generate = decoding_defaults(config) | generate
    configs = (config, model.generation_config)
    inputs = tokenizer.pad({"input_ids": sources}, return_tensors="pt").to(model.device)
    generate, limits = with_expected_lengths(model, inputs, generate, config)
    max_lengths = limits or model.max_target_lengths(map(len, sources))
    max_length = explicit_max_new_tokens(generate, None if limits else config)
    if max_length is None:
        generate = with_length_limits(model, max_lengths, generate, config)
    else:
        if (positions := model.config.max_target_length) is not None and max_length >= positions:
            max_length = positions - 1
            generate |= {"max_new_tokens": max_length, "max_length": None}
        if explicit_option("forced_eos_token_id", generate, *configs) is not None:
            max_length -= 1  # a forced end token is not the model's: such a sentence is truncated
        max_lengths = [max_length] * len(sources)
    end_token_ids, pad_token_id = model.end_tokens(generate, config)
    is_padded_early = may_stop_early(generate, *configs)
    rules = source_position_rules(model, generate, config, len(sources))
    sequences = model.generate(**inputs, tokenizer=tokenizer, **generate | {READERS_ARGUMENT: rules}).tolist()
    kept, truncated = truncate_at_end_tokens(
        [ids[1:] for ids in sequences], max_lengths, end_token_ids, pad_token_id if is_padded_early else None
    )
    for row, ids in enumerate(kept):
        truncated[row] |= any(rule.has_ended(row, [sequences[row][0], *ids]) for rule in rules)
    return list(zip(tokenizer.batch_decode(kept, skip_special_tokens=True), truncated, strict=True))


def continue_prompts(
    model: GeneratingModel, sources: list[list[int]], tokenizer: PreTrainedTokenizerBase, **generate: Any
) -> list[tuple[str, bool]]:
    """The continuations of one batch of token ids by a decoder-only model, and whether each was truncated."""
    config = generate.get("generation_config")
    generate = decoding_defaults(config) | generate
    inputs = tokenizer.pad({"input_ids": sources}, padding_side="left", return_tensors="pt").to(model.device)
    width = inputs["input_ids"].shape[1]
    limits = max_continuation_lengths(model.config, sources, generate, config)
    num_steps, positions = max(limits) + 1, model.config.max_sequence_length  # with </s>
    if positions is not None and width + num_steps > positions and len(set(map(len, sources))) > 1:
        # a short source would be continued beyond the last position of a long one
        groups = [list(group) for _, group in groupby(sources, key=len)]
        return [output for group in groups for output in continue_prompts(model, group, tokenizer, **generate)]
    end_token_id = tokenizer.eos_token_id
    limiter = PerSentenceLength(limits, end_token_id, prompt_length=width)
    generate = with_processors(generate, limiter) | {
        "max_new_tokens": num_steps,
        "max_length": None,
        "eos_token_id": end_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    is_padded_early = may_stop_early(generate, config, model.generation_config)
    sequences = model.generate(**inputs, tokenizer=tokenizer, **generate)[:, width:].tolist()
    kept, truncated = truncate_at_end_tokens(
        sequences, limits, [end_token_id], tokenizer.pad_token_id if is_padded_early else None
    )
    return list(zip(tokenizer.batch_decode(kept, skip_special_tokens=True), truncated, strict=True))


def max_continuation_lengths(
    model_config: PreTrainedConfig,
    sources: list[list[int]],
    options: Mapping[str, Any] | None = None,
    config: GenerationConfig | None = None,
) -> list[int]:
    """Each target's limit in tokens, without `</s>`: that of the options, or else 2 x source + 50; within the
    encoding's maximum length, and at least one. As in `generate`, `max_length` counts the source, too."""
    limits = []
    for ids, default in zip(sources, max_target_lengths(map(len, sources), None), strict=True):
        chosen = explicit_max_new_tokens(options or {}, config, prompt_length=len(ids))
        room = (model_config.max_sequence_length or sys.maxsize) - len(ids) - 1
        limits.append(max(1, min(default if chosen is None else chosen, room)))
    return limits
