"""`measure_length`: all parts at all lengths, saved one by one, and their report."""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..utils.atomic_io import short_hash
from .figure import draw_report, draw_sources, save_report
from .parts import PARTS, Job, Record, position_table, wavelengths
from .report import LengthReport
from .seq2seq import SourceReport, measure_sources
from .store import Store, claimed_length
from .text import default_lengths, encode, make_blocks, prefix_tokens, validate_lengths

Lengths = Sequence[int] | None


def measure_length(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Iterable[str],
    lengths: Lengths = None,
    *,
    references: Iterable[str] | None = None,
    output: str | Path | None = None,
    max_blocks: int = 8,
    trials: int = 2,
    progress: bool = True,
) -> LengthReport | SourceReport:
    """Measure the length that a language model can use, and return a report; `str` of it is the verdict.

    `model` is decoder-only, any class of transformers or of this package; `texts` are documents. At each of `lengths`,
    in tokens, are measured: the loss by position, the gain of more context on the same tokens, copying a random string,
    retrieval of a sentence and of a value by depth, repetition in greedy generation, and attention by distance. Default
    lengths are powers of two from 128 to twice the length of the config, as far as the texts reach.

    `max_blocks`: blocks of the longest length that are scored. `trials`: random inputs for each length and depth, and
    blocks that are continued. `output`: a folder for report.json, report.md and report.png; each part is saved in it
    when it is done, and the same call goes on from what is saved. `progress` shows bars.

    An encoder-decoder is measured by source length instead: `texts` are sources, and `references` their targets.

    Raises a ValueError, before any compute, for lengths that do not ascend, for texts that are shorter than the longest
    of them, and for a model that reads later tokens.
    """
    if isinstance(texts, str):
        raise ValueError("texts must be a list of documents, but they are one string; put it into a list.")
    texts = list(texts)
    if model.config.is_encoder_decoder:
        by_source = measure_sources(model, tokenizer, texts, references, lengths, output, max_blocks, progress)
        if output is not None:
            save_report(by_source, Path(output), draw_sources)
        return by_source
    if references is not None:
        raise ValueError("references are of an encoder-decoder, but the model is decoder-only; leave them out.")
    prefix = prefix_tokens(tokenizer)
    documents = [encode(tokenizer, text) for text in texts]
    claimed = claimed_length(model)
    lengths = default_lengths(claimed, max(map(len, documents), default=0)) if lengths is None else list(lengths)
    validate_lengths(lengths)
    blocks = make_blocks(documents, prefix, lengths[-1], max_blocks)
    special = set(tokenizer.all_special_ids)
    tokens = sorted({token for block in blocks for token in block.ids_T.tolist()} - special)
    job = Job(model, tokenizer, blocks, lengths, prefix, tokens, trials, progress)
    was_training = model.training
    model.eval()
    try:
        validate_causal(model, blocks[0].ids_T[:16])
        content = short_hash(str([block.ids_T.tolist() for block in blocks]))
        store = Store(output, {"lengths": lengths, "trials": trials, "blocks": content}, model)
        with store.lock():
            report = measure_parts(job, store, claimed)
    finally:
        model.train(was_training)
    if output is not None:
        save_report(report, Path(output), draw_report)
    return report


def measure_parts(job: Job, store: Store, claimed: int | None) -> LengthReport:
    """All parts at all lengths that the model reads, and their report."""
    table, lengths, failure = position_table(job.model), list(job.lengths), None
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
        if name == "context" and "failure" in record:
            failure, lengths = record["failure"], [shorter for shorter in lengths if shorter < length]
            if not lengths:
                raise ValueError(
                    f"The model must be able to read {length} tokens, the shortest of lengths, but it stops with: "
                    f"{failure} Give shorter lengths."
                )
            continue
        parts[name][length] = record
    return LengthReport(
        model=job.model.config._name_or_path or type(job.model).__name__,
        claimed=claimed,
        lengths=list(job.lengths),
        documents=len({block.document for block in job.blocks}),
        blocks=len(job.blocks),
        trials=job.trials,
        wavelengths=wavelengths(job.model),
        parts=parts,
        readable=lengths[-1],
        failure=failure,
    )


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
