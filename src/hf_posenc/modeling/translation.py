# SPDX-License-Identifier: Apache-2.0
"""Text to text: what transformers 5 has no pipeline for any more."""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm
from transformers import LogitsProcessor, LogitsProcessorList

from .model_inputs import rename_cache
from .text_checks import check_lengths, checked_texts


@dataclass(frozen=True)
class Translations:
    """The translations in the order of their sources, and which of them ran into their length limit."""

    texts: list[str]
    truncated: list[bool]


class SentenceLimit(LogitsProcessor):
    """Ends each sentence of a batch at a limit of its own, in target tokens; a limit for the whole batch would let the
    length of a translation depend on its neighbours. Each sentence has equally many rows of scores, its beams."""

    def __init__(self, limits: Sequence[int], *, eos_token_id: int) -> None:
        self.limits_B = torch.tensor(limits)
        self.eos_token_id = eos_token_id

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        over_B = (self.limits_B <= input_ids.shape[1] - 1).to(scores.device)
        over_N = over_B.repeat_interleave(len(scores) // len(over_B))
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


LENGTHS = ("max_length", "max_new_tokens")
# Of a batch's sources: 32 sentences of 256 tokens, or 4 documents of 2048.
TOKENS_PER_BATCH = 8192


def source_lengths(inputs: Tensor | None, given: dict[str, Any], pad_token_id: int) -> list[int] | None:
    """The tokens of each source that `generate` is given, special ones included; None if it is given none."""
    mask, ids = given.get("attention_mask"), given.get("input_ids") if inputs is None else inputs
    if mask is not None and mask.ndim == 2:
        return (mask != 0).sum(1).tolist()
    if ids is not None:
        return (ids != pad_token_id).sum(1).tolist()
    if (x_BSD := given.get("inputs_embeds")) is None and (outputs := given.get("encoder_outputs")) is not None:
        x_BSD = outputs[0]
    return None if x_BSD is None else [x_BSD.shape[1]] * len(x_BSD)


def most_tokens(lengths: Iterable[int], longest_target: int | None) -> list[int]:
    """The limits of Translation, for a decoder that can take so many tokens, None for any number."""
    return [min(2 * (length - 1) + 50, (longest_target or sys.maxsize) - 1) for length in lengths]


def in_batches(
    sources: Sequence[list[int]],
    translate_batch: Callable[[list[list[int]]], Iterable[tuple[str, bool]]],
    *,
    batch_size: int,
    tokens_per_batch: int = TOKENS_PER_BATCH,
    progress: bool = False,
    description: str = "translating",
    bar: int = 0,
) -> Translations:
    """All translations, in order, of sources as token ids; those of like length are translated together, `batch_size`
    of them, or fewer if they would have more than `tokens_per_batch` tokens, padding included. A source of no tokens
    has an empty translation."""
    order = sorted((i for i, source in enumerate(sources) if source), key=lambda i: len(sources[i]), reverse=True)
    found = dict.fromkeys(range(len(sources)), ("", False))
    with tqdm(
        total=len(sources), unit="sentence", desc=description, position=bar, leave=False, disable=not progress
    ) as done:
        while order:
            most = max(1, min(batch_size, tokens_per_batch // len(sources[order[0]])))
            batch, order = order[:most], order[most:]
            found |= zip(batch, translate_batch([sources[i] for i in batch]), strict=True)
            done.update(len(batch))
    return Translations([found[i][0] for i in range(len(sources))], [found[i][1] for i in range(len(sources))])


def token_ids(texts: list[str], tokenizer: Any) -> list[list[int]]:
    """The tokens of each text, special ones included; none of a text that is blank."""
    encoded = tokenizer(texts)["input_ids"] if texts else []
    return [ids if text.strip() else [] for text, ids in zip(texts, encoded, strict=True)]


class Translation:
    """`translate`, for any encoder-decoder of the family, and a limit for `generate` where it is told none."""

    def generate(
        self: Any,
        inputs: Tensor | None = None,
        generation_config: Any = None,
        logits_processor: Sequence[LogitsProcessor] | None = None,
        **options: Any,
    ) -> Any:
        """As transformers', but where nothing says how long (neither `max_new_tokens` nor `max_length`, here or in a
        generation config), a sentence has at most 2 x source + 50 tokens, as in `translations`, and not 20."""
        configs = [vars(config) for config in (generation_config, self.generation_config) if config is not None]
        if all(where.get(name) is None for where in (options, *configs) for name in LENGTHS):
            lengths = source_lengths(inputs, options, self.config.pad_token_id)
            if lengths is not None:
                options |= self.at_most(self.limits(lengths), logits_processor)
                logits_processor = options.pop("logits_processor")
        return super().generate(  # type: ignore[misc]
            inputs, generation_config=generation_config, logits_processor=logits_processor, **rename_cache(options)
        )

    def limits(self: Any, lengths: Iterable[int]) -> list[int]:
        """The most target tokens, without special ones, of sentences whose sources have so many tokens, with </s>."""
        return most_tokens(lengths, self.config.longest_target)

    def at_most(self: Any, limits: list[int], logits_processor: Sequence[LogitsProcessor] | None) -> dict[str, Any]:
        """The options of `generate` that end each sentence at its limit."""
        limit = SentenceLimit(limits, eos_token_id=self.config.eos_token_id)
        together = LogitsProcessorList([*(logits_processor or []), limit])
        return {"max_length": max(limits) + 2, "logits_processor": together}  # and the start token, and </s>

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
        tokens_per_batch: int = TOKENS_PER_BATCH,
        progress: bool = False,
        description: str = "translating",
        bar: int = 0,
        **generate: Any,
    ) -> Translations:
        """The translations of `texts`, by beam search with 5 beams unless `generate` or its generation_config says
        otherwise.

        A translation has at most 2 x source + 50 tokens, or as many as the decoder's encoding can tell apart. Sentences
        of like length, in source tokens, share a batch: `batch_size` of them, or fewer if they would have more than
        `tokens_per_batch` tokens, padding included. A blank text has an empty translation. With `progress`, a bar
        with this `description` is drawn on line `bar`. `generate` is passed on to `model.generate`. Raises, before
        anything is computed, a TypeError for what is no list of strings, a ValueError for a tokenizer that is not the
        model's, and one that names the text which is no UTF-8 or longer than the table of an encoding.
        """
        texts = checked_texts(texts)
        check_tokenizer(self.config, tokenizer)
        config = generate.get("generation_config")
        for option, plain in (("num_return_sequences", 1), ("return_dict_in_generate", False)):
            if (given := generate.get(option, getattr(config, option, None))) not in (plain, None):
                raise ValueError(
                    f"translate gives one text for each source, but {option}={given!r} was given; call generate."
                )
        sources = token_ids(texts, tokenizer)
        check_lengths(sources, self.config.longest_source)
        was_training = self.training
        self.eval()
        try:
            return in_batches(
                sources,
                lambda sources: self.translate_batch(sources, tokenizer, **generate),
                batch_size=batch_size,
                tokens_per_batch=tokens_per_batch,
                progress=progress,
                description=description,
                bar=bar,
            )
        finally:
            self.train(was_training)

    def translate_batch(self: Any, sources: list[list[int]], tokenizer: Any, **generate: Any) -> list[tuple[str, bool]]:
        """The translations of one batch of token ids, and whether each was truncated."""
        limits = self.limits(map(len, sources))
        inputs = tokenizer.pad({"input_ids": sources}, return_tensors="pt").to(self.device)
        config = generate.get("generation_config")
        search = {"num_beams": 5, "do_sample": False, "num_return_sequences": 1, "return_dict_in_generate": False}
        generate = {name: value for name, value in search.items() if getattr(config, name, None) is None} | generate
        if free := all(generate.get(name) is None and getattr(config, name, None) is None for name in LENGTHS):
            generate |= self.at_most(limits, generate.get("logits_processor"))
        outputs = self.generate(**inputs, tokenizer=tokenizer, **generate)  # by which stop strings are read
        texts = tokenizer.batch_decode(outputs, skip_special_tokens=True)
        ends = [most + 1 if free else None for most in limits]
        ended = [self.config.eos_token_id in ids[1:end] for ids, end in zip(outputs, ends, strict=True)]
        return [(text, not whole) for text, whole in zip(texts, ended, strict=True)]
