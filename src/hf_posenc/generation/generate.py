# SPDX-License-Identifier: Apache-2.0
"""`generate` of encoder-decoders: the limits of limits.py, and the target's vocabulary for options that name no side.

transformers reads a config's `vocab_size` and a tokenizer's `get_vocab()`. With one vocabulary for both sides these are
the target's. With two vocabularies they are the source's, but generated tokens are the target's.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    GenerationMixin,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)

from ..encodings.positions import target_valid_mask
from ..hub.errors import require
from .limits import (
    EXPECTED_LENGTH_OPTION,
    LENGTH_OPTIONS,
    POSITION_OPTIONS,
    READERS_ARGUMENT,
    ExplicitGenerationConfig,
    GenerateOptions,
    explicit_max_new_tokens,
    explicit_option,
    max_target_lengths,
    source_position_rules,
    with_expected_lengths,
    with_length_limits,
)
from .model_inputs import CACHE_NAME, rename_cache, require_tokens
from .translate import TranslationOutput, translate

# Arguments of `generate` for a source and a prompt.
GIVEN_TOKENS = ("input_ids", "inputs_embeds", "decoder_input_ids", "decoder_inputs_embeds")
# Options that compare a translation with its source, token by token, and their values without an effect.
SOURCE_COMPARING_OPTIONS = {"encoder_repetition_penalty": 1.0, "encoder_no_repeat_ngram_size": 0}
# Options for which transformers takes the config's `vocab_size` as the number of target tokens.
EQUAL_SIZE_OPTIONS = ("watermarking_config", "prompt_lookup_num_tokens")
# Options that transformers does not have.
OWN_OPTIONS = (*POSITION_OPTIONS, EXPECTED_LENGTH_OPTION)


class Seq2SeqGenerationMixin(GenerationMixin):
    """`generate`, `translate` and `translations` of an encoder-decoder."""

    config: PreTrainedConfig
    device: torch.device

    @property
    def returns_source_positions(self) -> bool:
        """Whether an alignment gives each decoding step a source position."""
        return False

    @property
    def source_window(self) -> int | None:
        """From this distance on, source tokens after a step's source position are hidden; None if none are."""
        return None

    @property
    def generation_config(self) -> GenerationConfig:
        return self.__dict__.get("generation_config")

    @generation_config.setter
    def generation_config(self, config: GenerationConfig) -> None:
        if type(config) is GenerationConfig:
            config.__class__ = ExplicitGenerationConfig  # not a copy: later changes of the same object apply here too
        self.__dict__["generation_config"] = config

    def generate(
        self,
        inputs: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        logits_processor: Sequence[LogitsProcessor] | None = None,
        **options: Any,
    ) -> Any:
        """transformers' `generate`, with padding after each sentence's end token and another default length.

        Without `max_new_tokens` and `max_length`, here and in both generation configs, a sentence has at most
        2 x source + 50 tokens, as in `translations`; transformers' default is 20.
        With `eos_requires_source_end=True`, here or in a generation config, an end token is written only where the
        source's end is in the window of the cross-attention. New models with an alignment have it. With
        `max_tokens_per_source_position` a translation ends after so many tokens at one source position (limits.py).
        With `expected_length_range=(low, high)`, too, a sentence has `low` to `high` times the tokens that the model
        expects (limits.py), a limit that only `max_new_tokens` and `max_length` of the same call replace.
        """
        require_tokens(inputs, *(options.get(name) for name in GIVEN_TOKENS))
        configs = (generation_config, self.generation_config)
        options = target_generate_options(self.config, configs, rename_cache(options))
        end_token_ids, pad_token_id = self.end_tokens(options, generation_config)
        num_source_tokens = source_lengths(inputs, options, pad_token_id)
        lengths = {name: options.pop(name, None) for name in LENGTH_OPTIONS}
        options["logits_processor"] = logits_processor
        source = {"input_ids": inputs, **options}
        options, limits = with_expected_lengths(self, source, options, generation_config)
        if explicit_max_new_tokens(lengths) is not None:
            options |= lengths  # both, to replace those of a generation config
        else:
            if limits is None and num_source_tokens and explicit_max_new_tokens({}, *configs) is None:
                limits = self.max_target_lengths(num_source_tokens)
            if limits is not None:
                options = with_length_limits(self, limits, options, generation_config)
        cache = options.get(CACHE_NAME)
        num_cached = 0 if cache is None else int(cache.get_seq_length())
        if num_cached > 0 or explicit_option("use_cache", options, *configs) is False:
            options = with_decoder_mask(options, num_source_tokens, num_cached, pad_token_id, self.device)
        rules = options.pop(READERS_ARGUMENT, None)
        if rules is None:
            rules = source_position_rules(self, options, generation_config, len(num_source_tokens or [0]))
        # Before a length limit, whose end is forced.
        processors = LogitsProcessorList([*rules, *(options.pop("logits_processor") or [])])
        options = {name: value for name, value in options.items() if name not in OWN_OPTIONS}
        if rules:
            options[READERS_ARGUMENT] = rules
        outputs = super().generate(inputs, generation_config=generation_config, logits_processor=processors, **options)
        prompt = options.get("decoder_input_ids")
        if isinstance(outputs, Tensor):
            return pad_after_end_token(outputs, end_token_ids, pad_token_id, prompt)
        outputs.sequences = pad_after_end_token(outputs.sequences, end_token_ids, pad_token_id, prompt)
        return outputs

    def translations(
        self, texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, **options: Any
    ) -> TranslationOutput:
        """The translations of `texts`, in their order, and whether each was truncated at a length limit.

        Options are `batch_size`, `tokens_per_batch`, those of the progress bar, and those of `generate`. The function
        `translate` of generation/translate.py describes them, and the errors.
        """
        return translate(self, texts, tokenizer, **options)

    def translate(self, texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, **options: Any) -> list[str]:
        """The texts of `translations`, which has the same options."""
        return self.translations(texts, tokenizer, **options).texts

    def compute_transition_scores(self, *args: object, **options: object) -> Tensor:
        """transformers' scores, with the target's vocabulary size, which transformers reads from the config."""
        config = copy(self.config)
        config.vocab_size = config.target_vocab_size
        return GenerationMixin.compute_transition_scores(SimpleNamespace(config=config), *args, **options)

    def end_tokens(
        self, options: Mapping[str, object] | None = None, generation_config: GenerationConfig | None = None
    ) -> tuple[list[int], int]:
        """The end tokens of a call of `generate`, none or more, and its padding token."""
        end_token_ids, pad_token_id = (
            explicit_option(name, options or {}, generation_config, self.generation_config)
            for name in ("eos_token_id", "pad_token_id")
        )
        end_token_ids = [] if end_token_ids is None else torch.as_tensor(end_token_ids).flatten().tolist()
        if pad_token_id is None:  # as transformers does
            pad_token_id = end_token_ids[0] if end_token_ids else self.config.pad_token_id
        return end_token_ids, int(pad_token_id)

    def start_token(
        self, options: Mapping[str, object] | None = None, generation_config: GenerationConfig | None = None
    ) -> int:
        """The first token of each target in a call of `generate`."""
        for name in ("decoder_start_token_id", "bos_token_id"):
            start = explicit_option(name, options or {}, generation_config, self.generation_config)
            if start is not None:
                return int(start)
        start_id = self.config.decoder_start_token_id
        assert start_id is not None  # the config refuses None
        return start_id

    def max_target_lengths(self, lengths: Iterable[int]) -> list[int]:
        """Each sentence's limit in target tokens, without special ones, from source lengths with `</s>`."""
        return max_target_lengths(lengths, self.config.max_target_length)

    def expected_target_lengths(self, *inputs: Any, **named_inputs: Any) -> Tensor:
        """The number of target tokens that the model predicts for each source (B); here a ValueError."""
        raise ValueError(
            "Only a PosEncForConditionalGeneration whose alignment predicts lengths, such as `fertility`, expects a "
            f"number of target tokens, but this is a {type(self).__name__}; leave {EXPECTED_LENGTH_OPTION} out."
        )


def source_lengths(inputs: Tensor | None, model_inputs: Mapping[str, Tensor], pad_token_id: int) -> list[int] | None:
    """The number of tokens of each source in a call of `generate`, special ones included; None without a source."""
    mask = model_inputs.get("attention_mask")
    ids = model_inputs.get("input_ids") if inputs is None else inputs
    if mask is not None and mask.ndim == 2:
        return (mask != 0).sum(1).tolist()
    if ids is not None:
        return (ids != pad_token_id).sum(1).tolist()
    x_BSD = model_inputs.get("inputs_embeds")
    encoder_outputs = model_inputs.get("encoder_outputs")
    if x_BSD is None and encoder_outputs is not None:
        x_BSD = encoder_outputs[0]
    return None if x_BSD is None else [x_BSD.shape[1]] * len(x_BSD)


def pad_after_end_token(
    ids_NT: Tensor, end_token_ids: Sequence[int], pad_token_id: int, prompt: Tensor | None
) -> Tensor:
    """Generated tokens (N, T) with padding after each row's first end token.

    End tokens in the prompt, by default the start token, do not count. (If padding is token 0, transformers' beam
    search fills up with end tokens.)
    """
    first = 1
    if prompt is not None:  # `generate` may have added the start token to it
        starts_with_prompt = torch.equal(ids_NT[:1, : prompt.shape[1]], prompt[:1].to(ids_NT))
        first = prompt.shape[1] if starts_with_prompt else prompt.shape[1] + 1
    is_end_NT = torch.isin(ids_NT, torch.tensor(end_token_ids, dtype=ids_NT.dtype, device=ids_NT.device))
    is_end_NT[:, :first] = False
    return ids_NT.masked_fill(is_end_NT.cumsum(1) - is_end_NT.long() > 0, pad_token_id)


def with_decoder_mask(
    options: GenerateOptions,
    num_source_tokens: Sequence[int] | None,
    num_cached: int,
    pad_token_id: int,
    device: torch.device,
) -> GenerateOptions:
    """The options with a mask of the target, to which `generate` adds each token that it writes.

    Without a cache the decoder reads these tokens again, and without a mask it would take a written padding token
    for padding. With a cache of a prompt's first tokens, transformers tells by the mask that they were read; such a
    prompt was generated, and none of it is padding.
    """
    if options.get("decoder_attention_mask") is not None or options.get("decoder_inputs_embeds") is not None:
        return options
    prompt = options.get("decoder_input_ids")
    if prompt is not None:
        is_valid = None if num_cached > 0 else target_valid_mask(None, prompt, pad_token_id)
        mask = torch.ones_like(prompt) if is_valid is None else is_valid.long()
    elif num_source_tokens is not None:
        mask = torch.ones(len(num_source_tokens), 1, dtype=torch.long)
    else:
        return options
    return options | {"decoder_attention_mask": mask.to(device)}


def target_generate_options(
    config: PreTrainedConfig, configs: tuple[GenerationConfig | None, ...], options: GenerateOptions
) -> GenerateOptions:
    """The options of `generate`, with the target's side of a tokenizer.

    Raises a ValueError for an option, or an assistant model, that cannot work with two different vocabularies.
    """
    tokenizer = options.get("tokenizer")
    sizes = (config.vocab_size, config.decoder_vocab_size)
    shares_vocabulary = sizes[0] == sizes[1] and getattr(tokenizer, "shares_vocabulary", True)
    for name, no_effect_value in SOURCE_COMPARING_OPTIONS.items():
        value = explicit_option(name, options, *configs)
        require(
            shares_vocabulary or value in (None, no_effect_value),
            f"{name} compares a translation with its source token by token and needs one vocabulary for both sides, "
            f"but there are two ({sizes[0]} and {sizes[1]} tokens) and {name}={value!r}; leave it out.",
        )
    for name in EQUAL_SIZE_OPTIONS:
        require(
            sizes[0] == sizes[1] or explicit_option(name, options, *configs) is None,
            f"{name} needs vocabularies of one size, because transformers counts the target's tokens by the source's, "
            f"but they have {sizes[0]} and {sizes[1]} tokens; leave it out, or make the smaller table as large as the "
            "other (resize_token_embeddings, resize_decoder_token_embeddings).",
        )
    require(
        not hasattr(tokenizer, "target_encoder") or explicit_option("stop_strings", options, *configs) is None,
        "stop_strings must be given with a tokenizer that has the target's vocabulary as a side of its own, but "
        f"transformers would search the source's of this {type(tokenizer).__name__} with two; leave them out, or give "
        "stopping_criteria.",
    )
    assistant = options.get("assistant_model")
    if assistant is not None:
        theirs = (assistant.config.vocab_size, getattr(assistant.config, "decoder_vocab_size", None))
        require(
            sizes == theirs,
            "An assistant must have the model's vocabularies, because both use the same token ids, but the model has "
            f"{sizes[0]} source and {sizes[1]} target tokens and the assistant {theirs[0]} and {theirs[1]}; choose one "
            "that was trained with the same tokenizer.",
        )
    return options if tokenizer is None else options | {"tokenizer": getattr(tokenizer, "target", tokenizer)}
