"""`measure_length`: all parts at all lengths, saved one by one, and their report."""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .figure import save_report
from .parts import PARTS, Job, position_table, wavelengths
from .report import LengthReport, summarize
from .seq2seq import measure_sources, pairs_by_length
from .store import Record, Store, claimed_length
from .text import default_lengths, encode, make_blocks, prefix_tokens, validate_lengths


def measure_length(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Iterable[str],
    lengths: Sequence[int] | None = None,
    *,
    references: Iterable[str] | None = None,
    output: str | Path | None = None,
    max_blocks: int = 8,
    trials: int = 2,
    progress: bool = True,
) -> LengthReport:
    """Measure the length that a language model can use, and return a report; `str` of it is the verdict.

    `model` is decoder-only, any class of transformers or of this package, with its `tokenizer`; `texts` are documents.
    At each of `lengths`, in tokens, are measured: the loss by position, the gain of more context on the same tokens,
    copying a random string, retrieval of a sentence and of a value by depth, repetition in greedy generation, and
    attention by distance. Default lengths are powers of two from 128 to twice the length of the config, as far as the
    texts reach.

    `max_blocks`: blocks of the longest length that are scored. `trials`: random inputs for each length and depth, and
    blocks that are continued. `output`: a folder for report.json, report.md and report.png; each part is saved in it
    when it is done, and the same call goes on from what is saved. `progress` shows bars.

    An encoder-decoder is measured by source length instead: `texts` are sources, and `references` their targets.

    Raises a ValueError, before any compute, for lengths that do not ascend, for texts that are shorter than the longest
    of them, and for a model that reads later tokens.
    """
    if isinstance(texts, str):
        raise ValueError("texts must be a list of documents, but they are one string; put it into a list.")
    texts, name = list(texts), model.config._name_or_path or type(model).__name__
    facts: dict[str, Any] = {"model": name, "claimed_length": claimed_length(model), "failures": {}}
    was_training = model.training
    model.eval()
    try:
        if model.config.is_encoder_decoder:
            pairs = pairs_by_length(tokenizer, texts, references, lengths, max_blocks)
            facts["lengths"] = list(pairs)
            with Store(output, {"pairs": pairs}, model).locked() as store:
                report = measure_sources(model, tokenizer, pairs, store, facts, progress)
        else:
            if references is not None:
                raise ValueError("references are of an encoder-decoder, but the model is decoder-only; leave them out.")
            job = make_job(model, tokenizer, texts, lengths, max_blocks, trials, progress)
            facts |= {"lengths": list(job.lengths), "blocks": len(job.blocks), "trials": trials}
            facts["documents"] = len({block.document for block in job.blocks})
            ids = [block.ids_T.tolist() for block in job.blocks]
            with Store(output, {"lengths": facts["lengths"], "trials": trials, "blocks": ids}, model).locked() as store:
                report = measure_parts(job, store, facts)
    finally:
        model.train(was_training)
    if output is not None:
        save_report(report, Path(output))
    return report


def make_job(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    lengths: Sequence[int] | None,
    max_blocks: int,
    trials: int,
    progress: bool,
) -> Job:
    """What the parts read of a decoder-only model; the ValueErrors of `measure_length`."""
    prefix = prefix_tokens(tokenizer)
    documents = [encode(tokenizer, text) for text in texts]
    if lengths is None:
        lengths = default_lengths(claimed_length(model), max(map(len, documents), default=0))
    validate_lengths(lengths)
    blocks = make_blocks(documents, prefix, lengths[-1], max_blocks)
    validate_causal(model, blocks[0].ids_T[:16])
    tokens = {token for block in blocks for token in block.ids_T.tolist()} - set(tokenizer.all_special_ids)
    return Job(model, tokenizer, blocks, lengths, prefix, sorted(tokens), trials, progress)


def measure_parts(job: Job, store: Store, facts: dict[str, Any]) -> LengthReport:
    """All parts at all lengths that the model reads, and their report."""
    table, lengths = position_table(job.model), list(job.lengths)
    parts: dict[str, dict[int, Record]] = {name: {} for name in PARTS}
    steps = [(name, length) for name in PARTS for length in (lengths[-1:] if name == "loss" else lengths)]
    for name, length in tqdm(steps, desc="measure", disable=not job.progress):
        if name == "loss":
            length = lengths[-1]  # known only now: the first part has found out what the model can read
        if length not in lengths:
            continue
        if table is not None and length > table:
            record: Record = {"failure": f"Its table has {table} positions."}
        else:
            record = store.saved(f"{name}-{length}", partial(PARTS[name], job, length))
        if "failure" in record:
            facts["failures"][f"{name} at {length}"] = record["failure"]
            if name == "context":
                lengths = [shorter for shorter in lengths if shorter < length]
            if not lengths:
                raise ValueError(
                    f"The model must be able to read {length} tokens, the shortest of lengths, but it stops with: "
                    f"{record['failure']} Give shorter lengths."
                )
        elif record:
            parts[name][length] = record
    return summarize(facts | {"rope_wavelengths": wavelengths(job.model)}, parts)


@torch.no_grad()
def validate_causal(model: PreTrainedModel, ids_T: torch.Tensor) -> None:
    """Raise a ValueError if the logits of a token depend on later ones, here on the second half."""
    half = len(ids_T) // 2
    ids_2T = torch.stack([ids_T, torch.cat([ids_T[:half], ids_T[:half].flip(0)])])
    logits_2TV = model(input_ids=ids_2T.to(model.device), use_cache=False).logits[:, :half]
    rounding = 16 * torch.finfo(logits_2TV.dtype).eps * logits_2TV.abs().max()
    if (logits_2TV[0] - logits_2TV[1]).abs().max() > rounding:
        raise ValueError(
            f"A language model must not read later tokens, but {type(model).__name__} does; give one that is "
            "decoder-only, or load an encoder with is_decoder=True."
        )
