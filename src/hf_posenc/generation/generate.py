# SPDX-License-Identifier: Apache-2.0
"""`generate` with the limits of length_limits.py and source_end.py, and the options of options.py."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, PreTrainedConfig

from ..encodings.masks import target_valid_mask
from .length_limits import (
    EXPECTED_LENGTH_OPTION,
    PerSentenceMaxLength,
    PerSentenceMinLength,
    expected_length_limits,
    max_target_lengths,
    validate_length_range,
)
from .model_inputs import rename_cache
from .options import (
    LENGTH_OPTIONS,
    POSITION_LIMIT_OPTION,
    POSITION_OPTIONS,
    SOURCE_END_OPTION,
    ExplicitGenerationConfig,
    explicit_max_new_tokens,
    explicit_option,
)
from .source_end import (
    SourceEndProcessor,
    SourcePositionLimit,
    SourcePositionReader,
    SourcePositionReaders,
    validate_position_limit,
)
from .target_vocabulary import GenerateOptions

# The argument of `forward` that takes the readers of source positions.
READERS_ARGUMENT = "source_position_readers"


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


def num_cached_tokens(options: GenerateOptions) -> int:
    """The number of target tokens in the cache that a call of `generate` is given, 0 without one."""
    cache: Any = rename_cache(options, "cache").get("cache")
    return 0 if cache is None else int(cache.get_seq_length())


class LengthLimitedGenerationMixin:
    """`generate` with a default length limit for each sentence."""

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
        return vars(self).get("generation_config")

    @generation_config.setter
    def generation_config(self, config: GenerationConfig) -> None:
        if type(config) is GenerationConfig:
            config.__class__ = ExplicitGenerationConfig  # not a copy: later changes of the same object apply here too
        vars(self)["generation_config"] = config

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
        `max_tokens_per_source_position` a translation ends after so many tokens at one source position (source_end.py).
        With `expected_length_range=(low, high)`, too, a sentence has `low` to `high` times the tokens that the model
        expects (length_limits.py), a limit that only `max_new_tokens` and `max_length` of the same call replace.
        """
        end_token_ids, pad_token_id = self.end_tokens(options, generation_config)
        lengths = {name: options.pop(name, None) for name in LENGTH_OPTIONS}
        options, limits = self.with_expected_lengths(
            {"input_ids": inputs, **options}, {**options, "logits_processor": logits_processor}, generation_config
        )
        if explicit_max_new_tokens(lengths) is not None:
            options |= lengths  # both, to replace those of a generation config
        elif limits is not None:
            options = self.with_length_limits(limits, options, generation_config)
        elif explicit_max_new_tokens({}, generation_config, self.generation_config) is None:
            num_source_tokens = source_lengths(inputs, options, pad_token_id)
            if num_source_tokens is not None:
                options = self.with_length_limits(
                    self.max_target_lengths(num_source_tokens), options, generation_config
                )
        logits_processor = options.pop("logits_processor")
        uses_cache = explicit_option("use_cache", options, generation_config, self.generation_config)
        if uses_cache is False or num_cached_tokens(options) > 0:
            options = self.with_decoder_mask(inputs, options, pad_token_id)
        num_sentences = len(source_lengths(inputs, options, pad_token_id) or [0])
        # Before a length limit, whose end is forced.
        rules = self.position_rules(options, generation_config, num_sentences)
        processors = LogitsProcessorList([*rules, *(logits_processor or [])])
        own_options = (*POSITION_OPTIONS, EXPECTED_LENGTH_OPTION)
        options = {name: value for name, value in options.items() if name not in own_options}
        if rules:
            options[READERS_ARGUMENT] = SourcePositionReaders((*rules, *(options.get(READERS_ARGUMENT) or ())))
        outputs = super().generate(  # type: ignore[misc]
            inputs, generation_config=generation_config, logits_processor=processors, **rename_cache(options)
        )
        prompt = options.get("decoder_input_ids")
        if isinstance(outputs, Tensor):
            return pad_after_end_token(outputs, end_token_ids, pad_token_id, prompt)
        outputs.sequences = pad_after_end_token(outputs.sequences, end_token_ids, pad_token_id, prompt)
        return outputs

    def with_decoder_mask(self, inputs: Tensor | None, options: GenerateOptions, pad_token_id: int) -> GenerateOptions:
        """The options with a mask of the target, to which `generate` adds each token that it writes.

        Without a cache the decoder reads these tokens again, and without a mask it would take a written padding token
        for padding. With a cache of a prompt's first tokens, transformers tells by the mask that they were read; such a
        prompt was generated, and none of it is padding.
        """
        prompt = options.get("decoder_input_ids")
        if options.get("decoder_attention_mask") is not None or options.get("decoder_inputs_embeds") is not None:
            return options
        if prompt is None:
            given = (options.get(name) for name in ("input_ids", "inputs_embeds", "attention_mask", "encoder_outputs"))
            source = inputs if inputs is not None else next((one for one in given if one is not None), None)
            if source is None:
                return options
            mask = torch.ones(len(source if isinstance(source, Tensor) else source[0]), 1, dtype=torch.long)
        elif num_cached_tokens(options) > 0:
            mask = torch.ones_like(prompt)
        else:
            is_valid = target_valid_mask(None, prompt, pad_token_id)
            assert is_valid is not None  # the prompt has ids
            mask = is_valid.long()
        return options | {"decoder_attention_mask": mask.to(self.device)}

    def position_rules(
        self, options: Mapping[str, object], generation_config: GenerationConfig | None, num_sentences: int
    ) -> list[SourcePositionReader]:
        """The processors of the options that read source positions; a ValueError for a model that has none."""
        end_token_ids, _ = self.end_tokens(options, generation_config)
        requires_source_end, max_tokens = (
            explicit_option(name, options, generation_config, self.generation_config) for name in POSITION_OPTIONS
        )
        rules: list[SourcePositionReader] = []
        if requires_source_end:
            self.require_source_positions(SOURCE_END_OPTION)
            if self.source_window is None:
                raise ValueError(
                    f"{SOURCE_END_OPTION} must be used with a window in the cross-attention, but this model has none; "
                    "leave it out."
                )
            rules.append(SourceEndProcessor(end_token_ids, self.source_window))
        if max_tokens is not None:
            rules.append(self.position_limit(end_token_ids, max_tokens, num_sentences))
        return rules

    def position_limit(
        self, end_token_ids: Sequence[int], max_tokens: object, num_sentences: int
    ) -> SourcePositionLimit:
        """The processor that ends sentences after `max_tokens` tokens at one source position; a ValueError for another
        number, without end tokens, and for a model that has no source positions."""
        max_tokens = validate_position_limit(max_tokens)
        self.require_source_positions(POSITION_LIMIT_OPTION)
        if not end_token_ids:
            raise ValueError(
                f"{POSITION_LIMIT_OPTION} must be used with an end token, but eos_token_id is None; set it, or leave "
                "the limit out."
            )
        return SourcePositionLimit(end_token_ids, max_tokens, num_sentences)

    def require_source_positions(self, option: str) -> None:
        """Raise a ValueError for an option that reads source positions, of a model without them."""
        if not self.returns_source_positions:
            raise ValueError(
                f"{option} must be used with a model whose alignment says where in the source it is, but this "
                f"{type(self).__name__} returns no source positions; leave it out."
            )

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

    def expected_target_lengths(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """The number of target tokens that the model predicts for each source (B); here a ValueError."""
        raise ValueError(
            "Only a PosEncForConditionalGeneration whose alignment predicts lengths, such as `fertility`, expects a "
            f"number of target tokens, but this is a {type(self).__name__}; leave {EXPECTED_LENGTH_OPTION} out."
        )

    def with_expected_lengths(
        self, source: Mapping[str, Any], options: GenerateOptions, generation_config: GenerationConfig | None = None
    ) -> tuple[GenerateOptions, list[int] | None]:
        """The options of `generate` with a processor for the lower limit and None for `expected_length_range`; and each
        sentence's upper limit in target tokens, without special ones, None without the option.

        `source` has the arguments of the encoder, or `encoder_outputs`. A ValueError where no length is expected.
        """
        length_range = explicit_option(EXPECTED_LENGTH_OPTION, options, generation_config, self.generation_config)
        options = {**options, EXPECTED_LENGTH_OPTION: None}  # it is read once
        if length_range is None:
            return options, None
        validate_length_range(length_range)
        names = ("input_ids", "attention_mask", "encoder_outputs", "inputs_embeds")
        encoder_inputs = {name: source.get(name) for name in names}
        end_token_ids, pad_token_id = self.end_tokens(options, generation_config)
        ids, mask = encoder_inputs["input_ids"], encoder_inputs["attention_mask"]
        if mask is None and ids is not None and pad_token_id not in end_token_ids:
            encoder_inputs["attention_mask"] = (ids != pad_token_id).long()  # as transformers' `generate` does
        lengths_B = self.expected_target_lengths(**encoder_inputs)
        shortest, longest = expected_length_limits(lengths_B, length_range)
        processors = options.get("logits_processor") or []
        limiter = PerSentenceMinLength(shortest, end_token_ids)
        room = (self.config.max_target_length or sys.maxsize) - 1
        limits = [min(length - 1, room) for length in longest]  # without </s>
        return options | {"logits_processor": LogitsProcessorList([*processors, limiter])}, limits

    def with_length_limits(
        self, max_target_lengths: list[int], options: GenerateOptions, generation_config: GenerationConfig | None = None
    ) -> GenerateOptions:
        """The options of `generate` with those that end each sentence at its limit."""
        end_token_ids, pad_token_id = self.end_tokens(options, generation_config)
        limit_token_id = end_token_ids[0] if end_token_ids else pad_token_id
        length_processor = PerSentenceMaxLength(max_target_lengths, token_id=limit_token_id)
        processors = LogitsProcessorList([*(options.get("logits_processor") or []), length_processor])
        num_special_tokens = 2 if end_token_ids else 1  # the start token, and </s>
        max_length = max(max_target_lengths) + num_special_tokens
        return options | {"max_length": max_length, "max_new_tokens": None, "logits_processor": processors}
