# SPDX-License-Identifier: Apache-2.0
"""Translation from text to text, because transformers 5 has no pipeline for it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import GenerationConfig, GenerationMixin, LogitsProcessor, PreTrainedConfig, PreTrainedTokenizerBase

from ..tokenizer.text import data_options, is_blank, validate_source_lengths, validate_texts
from .evaluation_view import evaluation_view
from .generate import READERS_ARGUMENT, LengthLimitedGenerationMixin
from .model_inputs import require_tokens
from .options import POSITION_LIMIT_OPTION, explicit_max_new_tokens, explicit_option
from .source_end import SourcePositionReaders
from .target_vocabulary import GenerateOptions, target_generate_options, with_target_vocab_size


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
        if tokens > num_embeddings:
            raise ValueError(
                f"A model needs the tokenizer it was trained with, but this tokenizer has {tokens} {side} tokens "
                f"and the model {num_embeddings}; load the tokenizer from the model's folder."
            )
    for name in ("pad_token_id", "eos_token_id"):
        tokenizer_id, config_id = getattr(tokenizer, name), getattr(config, name)
        if name == "eos_token_id" and config_id is None:
            continue
        config_ids = config_id if isinstance(config_id, list) else [config_id]
        if tokenizer_id not in config_ids:
            raise ValueError(
                f"A model needs the tokenizer it was trained with, but this tokenizer's {name} is {tokenizer_id} "
                f"and the model's {config_id}; load the tokenizer from the model's folder."
            )


# Source tokens of a batch: 32 sentences of 256 tokens, or 4 documents of 2048.
MAX_TOKENS_PER_BATCH = 8192
# Arguments of `generate` for a source and a prompt.
GIVEN_TOKENS = ("input_ids", "inputs_embeds", "decoder_input_ids", "decoder_inputs_embeds")
# Options that may end a sentence before its end token and its limit.
OTHER_STOPPING_OPTIONS = ("stopping_criteria", "max_time", "stop_strings")


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
    with tqdm(
        total=len(sources),
        unit="sentence",
        desc=description,
        position=progress_position,
        leave=False,
        disable=not progress,
    ) as progress_bar:
        while order:
            num_sentences = max(1, min(batch_size, tokens_per_batch // len(sources[order[0]])))
            batch = order[:num_sentences]
            if max_target_lengths is not None:
                batch = [i for i in batch if max_target_lengths[i] == max_target_lengths[order[0]]]
            order = order[len(batch) :]
            outputs |= zip(batch, translate_batch([sources[i] for i in batch]), strict=True)
            progress_bar.update(len(batch))
    in_order = [outputs[row] for row in range(len(sources))]
    texts = [text for text, _ in in_order]
    truncated = [is_truncated for _, is_truncated in in_order]
    return TranslationOutput(texts, truncated)


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


def truncate_at_end_token(
    ids: list[int], max_length: int, end_token_ids: list[int], pad_token_id: int | None
) -> tuple[list[int], bool]:
    """Generated `ids` up to the first end token, and whether they reached `max_length` without one.

    If a call stopped for another reason, such as a time limit, its last tokens are `pad_token_id`; None if it cannot
    have done so.
    """
    for number, token in enumerate(ids, 1):
        if token in end_token_ids:
            return ids[:number], False
    return ids, len(ids) == max_length and ids[-1:] != [pad_token_id]


class BatchTranslationMixin:
    """`translate` and `translations` of many texts by a model that translates one batch of token ids."""

    # Attributes of the PreTrainedModel that this class is mixed with.
    config: PreTrainedConfig
    generate: Callable[..., Any]
    device: torch.device
    modules: Callable[[], Iterator[nn.Module]]

    @torch.no_grad()
    def translate(self, texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, **options: Any) -> list[str]:
        """The translations of `texts`, in their order. Options and errors are those of `translations`."""
        return self.translations(texts, tokenizer, **options).texts

    @torch.no_grad()
    def translations(
        self,
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
        validate_tokenizer(self.config, tokenizer)
        config = generate.get("generation_config")
        for option, required in (("num_return_sequences", 1), ("return_dict_in_generate", False)):
            if (value := generate.get(option, getattr(config, option, None))) not in (required, None):
                raise ValueError(
                    f"translate returns one text for each source, but {option}={value!r} was given; call generate."
                )
        sources = encode_texts(texts, tokenizer)
        validate_source_lengths(sources, self.config.max_source_length)
        model = evaluation_view(self) if any(module.training for module in self.modules()) else self
        return translate_in_batches(
            sources,
            lambda sources: model.translate_batch(sources, tokenizer, **generate),
            batch_size=batch_size,
            tokens_per_batch=tokens_per_batch,
            progress=progress,
            description=description,
            progress_position=progress_position,
        )

    def translate_batch(
        self, sources: list[list[int]], tokenizer: PreTrainedTokenizerBase, **generate: Any
    ) -> list[tuple[str, bool]]:
        """The translations of one batch of token ids, and whether each was truncated."""
        raise NotImplementedError


def decoding_defaults(config: GenerationConfig | None) -> GenerateOptions:
    """The options of decoding that the generation config does not choose: beam search with 5 beams."""
    defaults = {"num_beams": 5, "do_sample": False, "num_return_sequences": 1, "return_dict_in_generate": False}
    return {name: value for name, value in defaults.items() if explicit_option(name, {}, config) is None}


class TranslationMixin(BatchTranslationMixin, LengthLimitedGenerationMixin):
    """`generate`, `translate` and `translations` for every encoder-decoder of the family."""

    def generate(
        self,
        inputs: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        logits_processor: Sequence[LogitsProcessor] | None = None,
        **options: Any,
    ) -> Any:
        """transformers' `generate`, with a length limit for each sentence, and the target's vocabulary for options that
        name no side.

        See generation/generate.py and generation/target_vocabulary.py.
        """
        require_tokens(inputs, *(options.get(name) for name in GIVEN_TOKENS))
        options = target_generate_options(self.config, (generation_config, self.generation_config), options)
        return super().generate(inputs, generation_config, logits_processor, **options)

    def compute_transition_scores(self, *args: object, **options: object) -> Tensor:
        """transformers' scores, with the target's vocabulary size, which transformers reads from the config."""
        side = SimpleNamespace(config=with_target_vocab_size(self.config))
        return GenerationMixin.compute_transition_scores(side, *args, **options)

    def translate_batch(
        self, sources: list[list[int]], tokenizer: PreTrainedTokenizerBase, **generate: Any
    ) -> list[tuple[str, bool]]:
        config = generate.get("generation_config")
        generate = decoding_defaults(config) | generate
        configs = (config, self.generation_config)
        inputs = tokenizer.pad({"input_ids": sources}, return_tensors="pt").to(self.device)
        generate, limits = self.with_expected_lengths(inputs, generate, config)
        max_target_lengths = limits or self.max_target_lengths(map(len, sources))
        max_length = explicit_max_new_tokens(generate, None if limits else config)
        if max_length is None:
            generate = self.with_length_limits(max_target_lengths, generate, config)
        else:
            if (positions := self.config.max_target_length) is not None and max_length >= positions:
                max_length = positions - 1
                generate |= {"max_new_tokens": max_length, "max_length": None}
            if explicit_option("forced_eos_token_id", generate, *configs) is not None:
                max_length -= 1  # a forced end token is not the model's: such a sentence is truncated
            max_target_lengths = [max_length] * len(sources)
        end_token_ids, pad_token_id = self.end_tokens(generate, config)
        sequences, position_limit = self.generate_limited(inputs, configs, tokenizer=tokenizer, **generate)
        outputs = []
        for row, (ids, max_length) in enumerate(zip(sequences, max_target_lengths, strict=True)):
            tokens, is_truncated = truncate_at_end_token(
                ids[1 : max_length + 1],
                max_length,
                end_token_ids,
                pad_token_id if may_stop_early(generate, *configs) else None,
            )
            if position_limit is not None and position_limit.has_ended(row, [ids[0], *tokens]):
                is_truncated = True
            outputs.append((tokens, is_truncated))
        texts = tokenizer.batch_decode([ids for ids, _ in outputs], skip_special_tokens=True)
        return [(text, truncated) for text, (_, truncated) in zip(texts, outputs, strict=True)]

    def generate_limited(
        self, inputs: Mapping[str, Any], configs: Sequence[GenerationConfig | None], **generate: Any
    ) -> tuple[list[list[int]], Any]:
        """The generated tokens of each sentence, and the limit by source position that may have ended some, or None.

        The options also hold the tokenizer, which `generate` needs for stop strings.
        """
        max_tokens = explicit_option(POSITION_LIMIT_OPTION, generate, *configs)
        if max_tokens is None:
            return self.generate(**inputs, **generate).tolist(), None
        end_token_ids, _ = self.end_tokens(generate, configs[0])
        position_limit = self.position_limit(end_token_ids, max_tokens, len(inputs["input_ids"]))
        processors = [position_limit, *(generate.get("logits_processor") or [])]
        options = generate | {"logits_processor": processors, POSITION_LIMIT_OPTION: None}
        options[READERS_ARGUMENT] = SourcePositionReaders((position_limit,))
        return self.generate(**inputs, **options).tolist(), position_limit
