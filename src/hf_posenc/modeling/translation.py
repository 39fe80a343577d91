# SPDX-License-Identifier: Apache-2.0
"""Text to text: what transformers 5 has no pipeline for any more."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm
from transformers import LogitsProcessor, LogitsProcessorList


@dataclass(frozen=True)
class Translations:
    """The translations in the order of their sources, and which of them ran into their length limit."""

    texts: list[str]
    truncated: list[bool]


class SentenceLimit(LogitsProcessor):
    """Ends each sentence of a batch at a limit of its own, in target tokens; a limit for the whole batch would let the
    length of a translation depend on its neighbours."""

    def __init__(self, limits: Sequence[int], *, num_beams: int, eos_token_id: int) -> None:
        self.limits_N = torch.tensor(limits).repeat_interleave(num_beams)
        self.eos_token_id = eos_token_id

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        over_N = (self.limits_N <= input_ids.shape[1] - 1).to(scores.device)
        only_eos = torch.full_like(scores, float("-inf"))
        only_eos[:, self.eos_token_id] = 0
        return torch.where(over_N[:, None], only_eos, scores)


def check_tokenizer(config: Any, tokenizer: Any) -> None:
    """A ValueError if a model of that `config` cannot have been trained with `tokenizer`."""
    # Of two vocabularies, a MarianTokenizer's length is the source's; the target's has this name.
    target = getattr(tokenizer, "target_vocab_size", len(getattr(tokenizer, "target_encoder", tokenizer)))
    for side, tokens, rows in (
        ("source", len(tokenizer), config.vocab_size),
        ("target", target, config.decoder_vocab_size),
    ):
        if tokens > rows:
            raise ValueError(
                f"A model goes with the tokenizer it was trained with, but this tokenizer has {tokens} {side} tokens "
                f"and the model {rows}; load the tokenizer from the model's own folder."
            )
    for name in ("pad_token_id", "eos_token_id"):
        theirs, ours = getattr(tokenizer, name), getattr(config, name)
        if theirs != ours:
            raise ValueError(
                f"A model goes with the tokenizer it was trained with, but this tokenizer's {name} is {theirs} and the "
                f"model's {ours}; load the tokenizer from the model's own folder."
            )


class Translation:
    """`translate`, for any encoder-decoder of the family."""

    @torch.no_grad()
    def translate(self: Any, texts: Iterable[str], tokenizer: Any, **options: Any) -> list[str]:
        """The translations of `texts`, in their order; the options are those of `translations`."""
        return self.translations(texts, tokenizer, **options).texts

    @torch.no_grad()
    def translations(
        self: Any,
        texts: Iterable[str],
        tokenizer: Any,
        *,
        batch_size: int = 32,
        progress: bool = False,
        description: str = "translating",
        bar: int = 0,
        **generate: Any,
    ) -> Translations:
        """The translations of `texts`, by beam search with 5 beams unless `generate` says otherwise.

        A translation has at most 2 x source + 50 tokens, or as many as the decoder's encoding can tell apart. Sentences
        of like length, in source tokens, share a batch of `batch_size`. With `progress`, a bar with this `description`
        is drawn on line `bar`. `generate` is passed on to `model.generate`. Raises a TypeError for a bare string, a
        ValueError for a tokenizer that is not the model's.
        """
        if isinstance(texts, str):
            raise TypeError(
                "translate takes a list of sentences, but was given one string; write translate([text], ...)."
            )
        check_tokenizer(self.config, tokenizer)
        texts = list(texts)
        sources = tokenizer(texts)["input_ids"] if texts else []
        order = sorted(range(len(sources)), key=lambda i: len(sources[i]), reverse=True)
        found: dict[int, tuple[str, bool]] = {}
        was_training = self.training
        self.eval()
        with tqdm(
            total=len(sources), unit="sentence", desc=description, position=bar, leave=False, disable=not progress
        ) as done:
            for start in range(0, len(order), batch_size):
                batch = order[start : start + batch_size]
                found |= zip(
                    batch, self.translate_batch([sources[i] for i in batch], tokenizer, **generate), strict=True
                )
                done.update(len(batch))
        self.train(was_training)
        return Translations([found[i][0] for i in range(len(sources))], [found[i][1] for i in range(len(sources))])

    def translate_batch(
        self: Any,
        sources: list[list[int]],
        tokenizer: Any,
        *,
        num_beams: int = 5,
        do_sample: bool = False,
        **generate: Any,
    ) -> list[tuple[str, bool]]:
        """The translations of one batch of token ids, and whether each was truncated."""
        longest = (self.config.longest_target or sys.maxsize) - 1
        limits = [min(2 * (len(source) - 1) + 50, longest) for source in sources]
        inputs = tokenizer.pad({"input_ids": sources}, return_tensors="pt").to(self.device)
        limit = SentenceLimit(limits, num_beams=num_beams, eos_token_id=self.config.eos_token_id)
        outputs = self.generate(
            **inputs,
            max_length=max(limits) + 2,  # and the start token, and </s>
            num_beams=num_beams,
            do_sample=do_sample,
            logits_processor=LogitsProcessorList([limit]),
            **generate,
        )
        texts = tokenizer.batch_decode(outputs, skip_special_tokens=True)
        ended = [self.config.eos_token_id in ids[1 : most + 1] for ids, most in zip(outputs, limits, strict=True)]
        return [(text, not whole) for text, whole in zip(texts, ended, strict=True)]
