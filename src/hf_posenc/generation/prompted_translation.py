# SPDX-License-Identifier: Apache-2.0
"""Translation by a decoder-only model: the source is the prompt, and the target continues it.

    source </s> target </s>

is one sequence of tokens, as PosEncTokenizer encodes source and target one after the other. A task's input and answer
are a source and a target.
"""

import sys
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from transformers import GenerationConfig, LogitsProcessorList, PreTrainedTokenizerBase

from .length_limits import PerSentenceMaxLength, max_target_lengths
from .options import explicit_max_new_tokens
from .translation import (
    BatchTranslationMixin,
    decoding_defaults,
    may_stop_early,
    truncate_at_end_token,
)


class PromptedTranslationMixin(BatchTranslationMixin):
    """`translate` and `translations` for a decoder-only model that was trained on sources with their targets."""

    generation_config: GenerationConfig  # of the PreTrainedModel that this class is mixed with

    def translate_batch(
        self, sources: list[list[int]], tokenizer: PreTrainedTokenizerBase, **generate: Any
    ) -> list[tuple[str, bool]]:
        """The continuations of one batch of token ids, and whether each was truncated."""
        config = generate.get("generation_config")
        generate = decoding_defaults(config) | generate
        inputs = tokenizer.pad({"input_ids": sources}, padding_side="left", return_tensors="pt").to(self.device)
        width = inputs["input_ids"].shape[1]
        limits = self.max_continuation_lengths(sources, generate, config)
        num_steps, positions = max(limits) + 1, self.config.max_sequence_length  # with </s>
        if positions is not None and width + num_steps > positions and len(set(map(len, sources))) > 1:
            # a short source would be continued beyond the last position of a long one
            groups = [list(group) for _, group in groupby(sources, key=len)]
            return [output for group in groups for output in self.translate_batch(group, tokenizer, **generate)]
        end_token_id = tokenizer.eos_token_id
        limiter = PerSentenceMaxLength(limits, token_id=end_token_id, prompt_length=width)
        generate |= {
            "logits_processor": LogitsProcessorList([*(generate.pop("logits_processor", None) or []), limiter]),
            "max_new_tokens": num_steps,
            "max_length": None,
            "eos_token_id": end_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        }
        is_padded_early = may_stop_early(generate, config, self.generation_config)
        sequences = self.generate(**inputs, tokenizer=tokenizer, **generate)[:, width:].tolist()
        outputs = [
            truncate_at_end_token(
                ids[:limit], limit, [end_token_id], tokenizer.pad_token_id if is_padded_early else None
            )
            for ids, limit in zip(sequences, limits, strict=True)
        ]
        texts = tokenizer.batch_decode([ids for ids, _ in outputs], skip_special_tokens=True)
        return [(text, truncated) for text, (_, truncated) in zip(texts, outputs, strict=True)]

    def max_continuation_lengths(
        self,
        sources: list[list[int]],
        options: Mapping[str, Any] | None = None,
        config: GenerationConfig | None = None,
    ) -> list[int]:
        """Each target's limit in tokens, without `</s>`: that of the options, or else 2 x source + 50; within the
        encoding's maximum length, and at least one. As in `generate`, `max_length` counts the source, too."""
        limits = []
        for ids, default in zip(sources, max_target_lengths(map(len, sources), None), strict=True):
            chosen = explicit_max_new_tokens(options or {}, config, prompt_length=len(ids))
            room = (self.config.max_sequence_length or sys.maxsize) - len(ids) - 1
            limits.append(max(1, min(default if chosen is None else chosen, room)))
        return limits
