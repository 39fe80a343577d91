# SPDX-License-Identifier: Apache-2.0
"""Text to text: what transformers 5 has no pipeline for any more."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tqdm.auto import tqdm

from .generation_shared import Generation, chosen, given_length
from .text_checks import check_lengths, checked_texts


@dataclass(frozen=True)
class Translations:
    """The translations in the order of their sources, and which of them ran into their length limit."""

    texts: list[str]
    truncated: list[bool]


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
        if theirs not in (ours if isinstance(ours, list) else [ours]) and (name, ours) != ("eos_token_id", None):
            raise ValueError(
                f"A model goes with the tokenizer it was trained with, but this tokenizer's {name} is {theirs} and the "
                f"model's {ours}; load the tokenizer from the model's own folder."
            )


# Of a batch's sources: 32 sentences of 256 tokens, or 4 documents of 2048.
TOKENS_PER_BATCH = 8192
# What may end a sentence besides an end token and its limit.
OTHER_STOPS = ("stopping_criteria", "max_time", "stop_strings")


def in_batches(
    sources: Sequence[list[int]],
    translate_batch: Callable[[list[list[int]]], Iterable[tuple[str, bool]]],
    *,
    batch_size: int,
    tokens_per_batch: int = TOKENS_PER_BATCH,
    progress: bool = False,
    description: str = "translating",
    bar: int = 0,
    limits: Sequence[int] | None = None,
) -> Translations:
    """All translations, in order, of sources as token ids; those of like length are translated together, `batch_size`
    of them, or fewer if they would have more than `tokens_per_batch` tokens, padding included, or if their `limits` are
    not equal. A source of no tokens has an empty translation."""
    order = sorted((i for i, source in enumerate(sources) if source), key=lambda i: len(sources[i]), reverse=True)
    found = dict.fromkeys(range(len(sources)), ("", False))
    with tqdm(
        total=len(sources), unit="sentence", desc=description, position=bar, leave=False, disable=not progress
    ) as done:
        while order:
            most = max(1, min(batch_size, tokens_per_batch // len(sources[order[0]])))
            batch = order[:most]
            if limits is not None:
                batch = [i for i in batch if limits[i] == limits[order[0]]]
            order = order[len(batch) :]
            found |= zip(batch, translate_batch([sources[i] for i in batch]), strict=True)
            done.update(len(batch))
    return Translations([found[i][0] for i in range(len(sources))], [found[i][1] for i in range(len(sources))])


def token_ids(texts: list[str], tokenizer: Any) -> list[list[int]]:
    """The tokens of each text, special ones included; none of a text that is blank."""
    encoded = tokenizer(texts)["input_ids"] if texts else []
    return [ids if text.strip() else [] for text, ids in zip(texts, encoded, strict=True)]


def until_end(ids: list[int], most: int, ends: list[int], filled_by: int | None) -> tuple[list[int], bool]:
    """The first `most` tokens that were written, up to the first end token; and whether they are that many without one.
    What a call may have stopped for another reason, such as a time, is filled up with padding, `filled_by`."""
    for number, token in enumerate(ids, 1):
        if token in ends:
            return ids[:number], False
    return ids, len(ids) == most and ids[-1:] != [filled_by]


class Translation(Generation):
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
        config = generate.get("generation_config")
        search = {"num_beams": 5, "do_sample": False, "num_return_sequences": 1, "return_dict_in_generate": False}
        generate = {name: value for name, value in search.items() if chosen(name, {}, config) is None} | generate
        configs = (config, self.generation_config)
        limits = self.limits(map(len, sources))
        if (most := given_length(generate, config)) is None:
            generate = self.at_most(limits, generate, config)
        else:  # and an end that is forced there is none
            limits = [most - (chosen("forced_eos_token_id", generate, *configs) is not None)] * len(sources)
        ends, pad = self.end_tokens(generate, config)
        stoppable = any(chosen(name, generate, *configs) is not None for name in OTHER_STOPS)
        inputs = tokenizer.pad({"input_ids": sources}, return_tensors="pt").to(self.device)
        rows = self.generate(**inputs, tokenizer=tokenizer, **generate).tolist()  # by which stop strings are read
        found = [
            until_end(ids[1 : most + 1], most, ends, pad if stoppable else None)
            for ids, most in zip(rows, limits, strict=True)
        ]
        texts = tokenizer.batch_decode([ids for ids, _ in found], skip_special_tokens=True)
        return [(text, truncated) for text, (_, truncated) in zip(texts, found, strict=True)]
