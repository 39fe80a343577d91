"""Encoder-decoders by source length: the loss of references, and the chrF of greedy translations."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..utils.atomic_io import short_hash
from .report import RISE, THRESHOLD, with_interval
from .scoring import mean_with_interval
from .store import Record, Store, claimed_length
from .text import validate_lengths

MIN_SOURCE = 2  # tokens
EXTRA_TOKENS = 50  # of a translation, beyond twice its source


@dataclass(frozen=True)
class SourceReport:
    """What was measured of an encoder-decoder; `str` of it is the verdict.

    `claimed` is the length of the model's config. `records` has, for each of `lengths`, the pairs whose sources have up
    to so many tokens and more than the length before it.
    """

    model: str
    claimed: int | None
    lengths: list[int]
    records: dict[int, Record] = field(repr=False)

    def __str__(self) -> str:
        return self.verdict

    def means(self, name: str) -> dict[int, Mapping[str, Any]]:
        """The mean of "loss" or "chrf" by source length, with its interval over pairs."""
        by_length = dict[int, Mapping[str, Any]]()
        for length, record in self.records.items():
            if record.get(name):
                by_length[length] = mean_with_interval(record[name], range(len(record[name])))
        return by_length

    @property
    def verdict(self) -> str:
        """One line: the claimed length, and up to which source length loss and chrF stay near their best."""
        claims = ["claims no length" if self.claimed is None else f"claimed {self.claimed}"]
        losses, scores = self.means("loss"), self.means("chrf")
        if len(losses) < len(self.lengths):
            claims.append(f"reads sources of up to {max(losses)}")
        best = min(losses, key=lambda length: losses[length]["mean"])
        higher = [length for length in losses if length > best and losses[length]["mean"] > losses[best]["mean"] + RISE]
        claims.append(f"loss is lowest at sources of up to {best}")
        if higher:
            claims.append(f"loss rises at sources of up to {higher[0]}")
        highest = max(score["mean"] for score in scores.values())
        kept = [length for length in scores if scores[length]["mean"] >= THRESHOLD * highest]
        claims.append(f"chrF within 90 % of its best up to {kept[-1]}")
        return "; ".join(claims)

    def to_dict(self) -> dict[str, Any]:
        """All numbers of the report, as JSON takes them."""
        return {
            "model": self.model,
            "verdict": self.verdict,
            "claimed_length": self.claimed,
            "lengths": self.lengths,
            "pairs": {length: len(record.get("loss", [])) for length, record in self.records.items()},
            "loss": self.means("loss"),
            "chrf": self.means("chrf"),
        }

    def to_markdown(self) -> str:
        """The verdict, and a table with a row for each source length."""
        losses, scores = self.means("loss"), self.means("chrf")
        lines = [f"# Usable source length of {self.model}", "", f"**{self.verdict}**", ""]
        lines += ["| source tokens up to | pairs | loss | chrF |", "| --- | --- | --- | --- |"]
        for length, record in self.records.items():
            cells = [str(length), str(len(record.get("loss", [])))]
            cells += [with_interval(losses.get(length)), with_interval(scores.get(length))]
            lines.append(f"| {' | '.join(cells)} |")
        lines += ["", "Losses of references in nats a token, chrF of greedy translations: means over pairs, with 95 % "]
        lines[-1] += "bootstrap intervals over pairs."
        return "\n".join(lines) + "\n"


def measure_sources(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sources: Sequence[str],
    references: Iterable[str] | None,
    lengths: Sequence[int] | None,
    output: str | Path | None,
    max_pairs: int,
    progress: bool,
) -> SourceReport:
    """The report of an encoder-decoder on up to `max_pairs` pairs for each source length; see `measure_length`."""
    references = [] if references is None else list(references)
    if len(references) != len(sources) or not sources:
        raise ValueError(
            "An encoder-decoder needs a reference for each source, one or more, but there are "
            f"{len(sources)} sources and {len(references)} references; give both, line by line."
        )
    counts = [len(tokenizer(source, truncation=False, verbose=False)["input_ids"]) for source in sources]
    if lengths is None:
        lengths = [16]
        while lengths[-1] < max(counts):
            lengths.append(2 * lengths[-1])
    validate_lengths(lengths, MIN_SOURCE)
    pairs_of: dict[int, list[tuple[str, str]]] = {length: [] for length in lengths}
    for source, reference, count in zip(sources, references, counts, strict=True):
        length = next((length for length in lengths if count <= length), None)
        if length is not None and len(pairs_of[length]) < max_pairs:
            pairs_of[length].append((source, reference))
    if not pairs_of[lengths[-1]]:
        raise ValueError(
            f"texts must have sources of up to {lengths[-1]} tokens, the longest of lengths, and more than the length "
            f"before it, but the longest source has {max(counts)}; give longer ones, or shorter lengths."
        )
    was_training = model.training
    model.eval()
    store = Store(output, {"lengths": list(lengths), "pairs": short_hash(str(pairs_of))}, model)
    records: dict[int, Record] = {}
    try:
        with store.lock():
            for length in tqdm(lengths, desc="measure", disable=not progress):
                pairs = tqdm(pairs_of[length], desc=f"sources {length}", leave=False, disable=not progress)
                make = partial(score_pairs, model, tokenizer, pairs)
                records[length] = store.saved(f"sources-{length}", make)
    finally:
        model.train(was_training)
    name = model.config._name_or_path or type(model).__name__
    return SourceReport(name, claimed_length(model), list(lengths), records)


def score_pairs(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, pairs: Iterable[tuple[str, str]]) -> Record:
    """The mean loss of each reference, in nats a token, and the chrF of each translation."""
    from sacrebleu import sentence_chrf  # imported here, because measuring language models does not need it

    record: Record = {"loss": [], "chrf": []}
    longest = getattr(model.config, "max_target_length", None) or claimed_length(model)
    for source, reference in pairs:
        inputs = tokenizer([source], truncation=False, return_tensors="pt").to(model.device)
        labels_1T = tokenizer(text_target=[reference], truncation=False, return_tensors="pt")["input_ids"]
        record["loss"].append(reference_loss(model, inputs, labels_1T.to(model.device)))
        limit = 2 * inputs["input_ids"].shape[1] + EXTRA_TOKENS
        if longest is not None:
            limit = min(limit, longest - 1)  # the start token stands before
        tokens_1T = model.generate(**inputs, max_new_tokens=limit, num_beams=1, do_sample=False)
        translation = tokenizer.decode(tokens_1T[0], skip_special_tokens=True)
        record["chrf"].append(sentence_chrf(translation, [reference]).score)
    return record


@torch.no_grad()
def reference_loss(model: PreTrainedModel, inputs: Mapping[str, Tensor], labels_1T: Tensor) -> float:
    """The mean loss of the tokens of a reference, without label smoothing."""
    logits_1TV = model(**inputs, labels=labels_1T).logits
    return float(nn.functional.cross_entropy(logits_1TV[0].float(), labels_1T[0]))
