"""Encoder-decoders by source length: the loss of references, and the chrF of greedy translations."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .report import RISE, THRESHOLD, LengthReport, Mean, with_interval
from .scoring import mean_with_interval
from .store import Record, Store, claimed_length
from .text import validate_lengths

MIN_SOURCE = 2  # tokens
EXTRA_TOKENS = 50  # of a translation, beyond twice its source
NOTE = (
    "Losses of references are in nats a token, chrF is that of greedy translations: means over pairs, with 95 % "
    "bootstrap intervals over pairs. A row has sources that are longer than those of the row before it."
)
Pairs = list[tuple[str, str]]


def pairs_by_length(
    tokenizer: PreTrainedTokenizerBase,
    sources: Sequence[str],
    references: Iterable[str] | None,
    lengths: Sequence[int] | None,
    max_pairs: int,
) -> dict[int, Pairs]:
    """Up to `max_pairs` pairs for each length, whose sources have up to so many tokens and more than the one before.

    Default lengths are powers of two from 16. Raises a ValueError for sources without references, for lengths that do
    not ascend, and without a source for the longest.
    """
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
    pairs: dict[int, Pairs] = {length: [] for length in lengths}
    for source, reference, count in zip(sources, references, counts, strict=True):
        length = min((length for length in lengths if count <= length), default=None)
        if length is not None and len(pairs[length]) < max_pairs:
            pairs[length].append((source, reference))
    if not pairs[lengths[-1]]:
        raise ValueError(
            f"texts must have sources of up to {lengths[-1]} tokens, the longest of lengths, and more than the length "
            f"before it, but the longest source has {max(counts)}; give longer ones, or shorter lengths."
        )
    return pairs


def measure_sources(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs_of: Mapping[int, Pairs],
    store: Store,
    facts: dict[str, Any],
    progress: bool,
) -> LengthReport:
    """The report of an encoder-decoder on these pairs. `facts` are model, claimed_length and lengths."""
    losses, scores = dict[int, Mean](), dict[int, Mean]()
    for length in tqdm(pairs_of, desc="measure", disable=not progress):
        pairs = tqdm(pairs_of[length], desc=f"sources {length}", leave=False, disable=not progress)
        record = store.saved(f"sources-{length}", partial(score_pairs, model, tokenizer, pairs))
        if "failure" in record:
            facts["failures"][f"sources of up to {length}"] = record["failure"]
        elif record["loss"]:
            losses[length], scores[length] = (mean_with_interval(record[name]) for name in ("loss", "chrf"))
    if not losses:
        raise ValueError(f"The model must be able to read sources, but it stops with: {facts['failures']}")
    claimed, best = facts["claimed_length"], min(losses, key=lambda length: losses[length]["mean"])
    claims = ["claims no length" if claimed is None else f"claimed {claimed}"]
    if facts["failures"]:
        claims.append(f"reads sources of up to {max(losses)}")
    claims.append(f"loss is lowest at sources of up to {best}")
    higher = [length for length in losses if length > best and losses[length]["mean"] > losses[best]["mean"] + RISE]
    if higher:
        claims.append(f"loss rises at sources of up to {higher[0]}")
    highest = max(score["mean"] for score in scores.values())
    kept = [length for length in scores if scores[length]["mean"] >= THRESHOLD * highest]
    claims.append(f"chrF within 90 % of its best up to {kept[-1]}")
    numbers = facts | {"loss": losses, "chrf": scores}
    rows = []
    for length, pairs in pairs_of.items():
        rows.append(
            [str(length), str(len(pairs)), with_interval(losses.get(length)), with_interval(scores.get(length))]
        )
    failures = [f"Not measured: {name}, because: {reason}" for name, reason in facts["failures"].items()]
    columns = ("source tokens up to", "pairs", "loss", "chrF")
    return LengthReport("; ".join(claims), numbers, columns, rows, [NOTE, *failures])


@torch.no_grad()
def score_pairs(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, pairs: Iterable[tuple[str, str]]) -> Record:
    """The mean loss of each reference, in nats a token, without label smoothing, and the chrF of translations."""
    from sacrebleu import sentence_chrf  # imported here, because measuring language models does not need it

    record: Record = {"loss": [], "chrf": []}
    longest = getattr(model.config, "max_target_length", None) or claimed_length(model)
    for source, reference in pairs:
        inputs = tokenizer([source], truncation=False, return_tensors="pt").to(model.device)
        labels_1T = tokenizer(text_target=[reference], truncation=False, return_tensors="pt")["input_ids"]
        labels_1T = labels_1T.to(model.device)
        logits_TV = model(**inputs, labels=labels_1T).logits[0].float()
        record["loss"].append(float(nn.functional.cross_entropy(logits_TV, labels_1T[0])))
        limit = 2 * inputs["input_ids"].shape[1] + EXTRA_TOKENS
        if longest is not None:
            limit = min(limit, longest - 1)  # the start token stands before
        tokens_1T = model.generate(**inputs, max_new_tokens=limit, num_beams=1, do_sample=False)
        translation = tokenizer.decode(tokens_1T[0], skip_special_tokens=True)
        record["chrf"].append(sentence_chrf(translation, [reference]).score)
    return record
