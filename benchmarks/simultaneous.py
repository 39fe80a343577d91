"""Policies of simultaneous translation for a model of whole sentences: when it reads a source word and when it writes.

A policy takes units, which are sentences or chunks of a document, and writes target tokens into them with the number of
source words that had been read. latency.py says what each policy is.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, StoppingCriteria

ROWS_PER_BATCH = 128


@dataclass
class Unit:
    """Source words that are translated for themselves: a sentence or a chunk, after `offset` words of its document.

    `ids` are the written target tokens, `delays` the source words of the unit that had been read for each.
    """

    document: int
    offset: int
    words: list[str]
    ids: list[int] = field(default_factory=list)
    delays: list[int] = field(default_factory=list)

    def write(self, ids: Sequence[int], delay: int) -> None:
        self.ids += ids
        self.delays += [delay] * len(ids)


class EndOnlyWhere(LogitsProcessor):
    """Forbids the end token in rows of which more source is to come."""

    def __init__(self, end_token_ids: Sequence[int], may_end: Sequence[bool]) -> None:
        self.end_token_ids, self.must_go_on_N = list(end_token_ids), ~torch.tensor(may_end)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        allowed = scores.clone()
        allowed[:, self.end_token_ids] = float("-inf")
        return torch.where(self.must_go_on_N[:, None], allowed, scores)


class StopBeforeWord(StoppingCriteria):
    """Stops a row at a token with which a second new word begins."""

    def __init__(self, starts_word_V: Tensor, num_given: int) -> None:
        self.starts_word_V, self.num_given = starts_word_V, num_given

    def __call__(self, input_ids: Tensor, scores: Tensor, **options: Any) -> Tensor:
        is_later = input_ids.shape[1] > self.num_given + 1
        return self.starts_word_V[input_ids[:, -1]] & is_later


class PrefixTranslator:
    """Greedy translation of source prefixes behind given target prefixes, in batches, by a model of whole sentences."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.end_token_ids, _ = model.end_tokens()
        tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
        self.starts_word_V = torch.tensor([token.startswith(" ") for token in tokens])

    def continuations(self, sources: list[str], prefixes: list[list[int]], **options: Any) -> list[list[int]]:
        """The tokens behind each prefix, the end token not included. Options as in `continue_batch`."""
        result: list[list[int]] = []
        for start in range(0, len(sources), ROWS_PER_BATCH):
            rows = slice(start, start + ROWS_PER_BATCH)
            batch_options: dict[str, Any] = {
                name: value[rows] if isinstance(value, list) else value for name, value in options.items()
            }
            result += self.continue_batch(sources[rows], prefixes[rows], **batch_options)
        return result

    def continue_batch(
        self,
        sources: list[str],
        prefixes: list[list[int]],
        *,
        may_end: list[bool] | None = None,
        one_word: bool = False,
    ) -> list[list[int]]:
        """`may_end`: the rows that may end. `one_word`: at most the next word of each row.

        A row has at most 2 x source + 10 tokens behind its prefix.
        """
        inputs = self.tokenizer(sources, return_tensors="pt", padding=True)
        limits = [2 * length + 10 for length in inputs["attention_mask"].sum(1).tolist()]
        given, mask = self.pad_left(prefixes)
        num_given = given.shape[1]
        outputs = self.model.generate(
            **inputs, decoder_input_ids=given, decoder_attention_mask=mask, num_beams=1, do_sample=False,
            max_new_tokens=max(limits),
            logits_processor=[EndOnlyWhere(self.end_token_ids, may_end)] if may_end else [],
            stopping_criteria=[StopBeforeWord(self.starts_word_V, num_given)] if one_word else [],
        )  # fmt: skip
        new = zip(outputs[:, num_given:].tolist(), limits, strict=True)
        rows = [self.up_to_end(row[:limit]) for row, limit in new]
        return [self.first_word(row) for row in rows] if one_word else rows

    def pad_left(self, prefixes: list[list[int]]) -> tuple[Tensor, Tensor]:
        """The start token and each prefix, padded on the left, and the mask."""
        num_given = 1 + max(map(len, prefixes))
        given = torch.full((len(prefixes), num_given), self.model.config.pad_token_id)
        mask = torch.zeros_like(given)
        for row, ids in enumerate(prefixes):
            given[row, num_given - 1 - len(ids) :] = torch.tensor([self.model.start_token(), *ids])
            mask[row, num_given - 1 - len(ids) :] = 1
        return given, mask

    def up_to_end(self, ids: list[int]) -> list[int]:
        """The tokens before the end token or the padding."""
        ends = {*self.end_token_ids, self.model.config.pad_token_id}
        return list(itertools.takewhile(lambda token: token not in ends, ids))

    def first_word(self, ids: list[int]) -> list[int]:
        """The tokens up to the second one with which a word begins."""
        later = [index for index, token in enumerate(ids) if index and self.starts_word_V[token]]
        return ids[: later[0]] if later else ids


def prefix(unit: Unit, num_read: int) -> str:
    return " ".join(unit.words[:num_read])


def write_whole(translator: PrefixTranslator, units: list[Unit]) -> None:
    """Translate each unit when its last word has been read."""
    rows = translator.continuations([" ".join(unit.words) for unit in units], [[]] * len(units))
    for unit, ids in zip(units, rows, strict=True):
        unit.write(ids, len(unit.words))


def write_wait_k(translator: PrefixTranslator, units: list[Unit], k: int) -> None:
    """Write a target word after the k-th and each later source word, and the rest after the last."""
    for num_read in range(1, max(len(unit.words) for unit in units) + 1):
        ending = [unit for unit in units if len(unit.words) == num_read]
        going_on = [unit for unit in units if len(unit.words) > num_read >= k]
        for group, options in ((going_on, {"may_end": [False] * len(going_on), "one_word": True}), (ending, {})):
            if group:
                sources, prefixes = [prefix(unit, num_read) for unit in group], [unit.ids for unit in group]
                for unit, ids in zip(group, translator.continuations(sources, prefixes, **options), strict=True):
                    unit.write(ids, num_read)


def write_agreement(translator: PrefixTranslator, units: list[Unit], stride: int) -> None:
    """Write what two translations in a row share, after each `stride` source words, and the rest after the last."""
    previous: dict[int, list[int]] = {}
    for num_read in range(1, max(len(unit.words) for unit in units) + 1):
        is_stride = num_read % stride == 0
        group = [unit for unit in units if len(unit.words) == num_read or (is_stride and len(unit.words) > num_read)]
        if not group:
            continue
        sources, prefixes = [prefix(unit, num_read) for unit in group], [unit.ids for unit in group]
        for unit, ids in zip(group, translator.continuations(sources, prefixes), strict=True):
            whole = unit.ids + ids
            num_shared = len(whole) if len(unit.words) == num_read else shared_length(whole, previous.get(id(unit), []))
            previous[id(unit)] = whole
            unit.write(whole[len(unit.ids) : num_shared], num_read)


def write_revised(translator: PrefixTranslator, units: list[Unit]) -> float:
    """Translate each unit again after every word; returns the erased tokens for each token of the last translation."""
    rows = [(unit, num_read) for unit in units for num_read in range(1, len(unit.words) + 1)]
    translations = iter(translator.continuations([prefix(*row) for row in rows], [[]] * len(rows)))
    num_erased = 0
    for unit in units:
        versions = [next(translations) for _ in unit.words]
        num_erased += sum(len(old) - shared_length(old, new) for old, new in itertools.pairwise(versions))
        fixed = [shared_length(version, versions[-1]) for version in versions]
        for num_read in range(len(versions)):
            num_fixed = min(fixed[num_read:])  # what no later version changes
            unit.write(versions[-1][len(unit.ids) : num_fixed], num_read + 1)
    return num_erased / max(1, sum(len(unit.ids) for unit in units))


def shared_length(one: Sequence[object], other: Sequence[object]) -> int:
    """The length of the longest common prefix."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
