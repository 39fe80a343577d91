"""What a trained system does token by token: where its loss lies, how far its attention reaches, and how widely.

`diagnose` returns what JSON can hold (P target positions, L layers, H heads):

    test_set_sha256, n, pairs_per_group, training_limit
    targets_cut             targets that reach past what the decoder's encoding can tell apart, measured up to there
    lengths_known           whether the loss is that of a model which was told how long each target is; see `diagnose`
    loss_by_position
        nats, tokens        sums over the sentences (P); </s> is a token, at the position behind the last subword
        groups              by source length; each has low, high, label, n, n_in_test_set, the sums nats and tokens,
            perplexity, nats_standard_error     exp(nats / tokens); of nats / tokens, sentences being what is sampled
            by_position     nats, tokens (its own P); position by position the groups add up to the whole
    attention_distance
        encoder, decoder    None for a stack without self-attention
            inside, beyond  sentences of at most training_limit subwords, and longer ones; None if there are none
                queries, mean   how many, and the mean of their |query - key| in tokens, weighted by attention (L, H)
                uniform         the same if all keys had the same weight, those that a window hides included
    attention_entropy
        encoder, cross      None for a model without; else by source length; each group has low, high, label, n
            queries, mean   how many, and the mean entropy of their attention in nats (L, H); None without queries
            uniform         the mean of ln n, of n keys that a query may see (attention_entropy.py)
    decoding                what it writes by itself, and where it is meanwhile (place_diagnostics.py), or None

Diagnoses of version 0.1 lack `lengths_known`, `attention_entropy` and `decoding`.
At most `pairs_per_group` pairs of a group are drawn, so sums over groups stand for those pairs, not for the test set.
Lengths are in subwords without special tokens, positions count from 0. A pair's group is by its source; inside or
beyond is by the sentence that attends, in the decoder the target. Loss is teacher-forced and never smoothed.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data import sample_by_length
from ..metrics.length_buckets.checks import group_bounds
from ..modeling.looked_at import looked_at
from ..modeling.translation import check_tokenizer
from ..training.losses import reads_lengths
from .attention_entropy import entropy_by_group, summed_entropies
from .evaluation import test_set_hash
from .place_diagnostics import decode_by_length, lengths_of, token_ids

# Weights of all heads in a batch: 150 MB in float32.
MOST_WEIGHTS = 150_000_000 // 4


class Sentence(NamedTuple):
    """Of one pair, the nats of each target token (P), and sums over queries or None: of the distances of either stack's
    attention (L, H), of the entropies of the encoder's and of cross-attention with what bounds them (2, L, H)."""

    nats: np.ndarray
    encoder: np.ndarray | None
    decoder: np.ndarray | None
    encoder_entropy: np.ndarray | None
    cross_entropy: np.ndarray | None


def diagnose(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    test: Dataset,
    *,
    source_language: str,
    target_language: str,
    edges: Sequence[int],
    training_limit: int | None,
    pairs_per_group: int | None = 200,
    decoded_per_group: int = 20,
    told_lengths: bool = False,
    batch_size: int = 32,
    progress: bool = False,
    description: str = "diagnosing",
    bar: int = 0,
) -> dict[str, Any]:
    """The diagnosis of one system on one test set, by one process; the module's docstring says what it holds.

    `edges` are the metric's: upper bounds of the groups, inclusive. `decoded_per_group` of each group's pairs are also
    decoded. A model whose alignment reads the target's length reads targets token by token, as it does in decoding;
    with `told_lengths` at once, as in training. Long sentences share a batch with fewer than `batch_size`. With
    `progress`, a bar with this `description` is drawn on line `bar`. A ValueError if there are no pairs, or if another
    tokenizer has measured them.
    """
    check_tokenizer(model.config, tokenizer)
    if not len(test):
        raise ValueError("A diagnosis needs at least one pair, but this test set has 0; give it another one.")
    pairs = test if pairs_per_group is None else sample_by_length(test, edges, pairs_per_group)
    languages = (source_language, target_language)
    sources, targets = token_ids(pairs, tokenizer, *languages)
    longest = model.config.longest_target
    seen = [ids[:longest] for ids in targets]
    shown = {"desc": description, "position": bar, "disable": not progress}
    aware = reads_lengths(model.config)
    sentences = measure_pairs(model, sources, seen, batch_size, shown, use_cache=aware and not told_lengths)
    groups = by_length_group(sentences, pairs["source_length"], test["source_length"], edges)
    few = sample_by_length(pairs, edges, decoded_per_group)
    shown |= {"desc": f"{description}, decoding"}
    by_source = (pairs["source_length"], edges)
    limit = math.inf if training_limit is None else training_limit + tokenizer.num_special_tokens_to_add()
    inside, target_inside = lengths_of(sources) <= limit, lengths_of(targets) <= limit
    return {
        "test_set_sha256": test_set_hash(test),
        "n": len(pairs),
        "pairs_per_group": pairs_per_group,
        "training_limit": training_limit,
        "targets_cut": int((lengths_of(targets) > lengths_of(seen)).sum()),
        "lengths_known": aware and told_lengths,
        "loss_by_position": by_position([sentence.nats for sentence in sentences]) | {"groups": groups},
        "attention_distance": {
            "encoder": mean_distances([s.encoder for s in sentences], lengths_of(sources), inside, causal=False),
            "decoder": mean_distances([s.decoder for s in sentences], lengths_of(seen), target_inside, causal=True),
        },
        "attention_entropy": {
            "encoder": entropy_by_group([s.encoder_entropy for s in sentences], lengths_of(sources), *by_source),
            "cross": entropy_by_group([s.cross_entropy for s in sentences], lengths_of(seen), *by_source),
        },
        "decoding": decode_by_length(
            model, tokenizer, few, *languages, edges=edges, pairs_per_group=decoded_per_group, shown=shown
        ),
    }


def by_length_group(
    sentences: list[Sentence], lengths: Sequence[int], all_lengths: Sequence[int], edges: Sequence[int]
) -> list[dict[str, Any]]:
    """The loss of each group of the sentences, and how many pairs the whole test set has in it."""
    group_of, all_groups = np.searchsorted(edges, lengths), np.searchsorted(edges, all_lengths)
    groups = []
    for group, bounds in enumerate(group_bounds(edges)):
        loss = group_loss([sentences[row].nats for row in np.flatnonzero(group_of == group)])
        groups.append(bounds | loss | {"n_in_test_set": int((all_groups == group).sum())})
    return groups


def measure_pairs(
    model: PreTrainedModel,
    sources: list[list[int]],
    targets: list[list[int]],
    batch_size: int,
    shown: dict[str, Any],
    *,
    use_cache: bool,
) -> list[Sentence]:
    """Every pair of token ids measured, in their order; the longest first, so that what is too long fails at once.
    `shown` are the options of the bar."""
    longest, heads = np.maximum(lengths_of(sources), lengths_of(targets)), number_of_heads(model.config)
    order, found = np.argsort(-longest, kind="stable"), dict[int, Sentence]()
    with looked_at(model), torch.no_grad(), tqdm(total=len(order), unit="pair", leave=False, **shown) as done:
        while (first := len(found)) < len(order):
            most = max(1, min(batch_size, MOST_WEIGHTS // (heads * int(longest[order[first]]) ** 2)))
            rows = order[first : first + most].tolist()
            both = ([side[row] for row in rows] for side in (sources, targets))
            found |= zip(rows, measure_batch(model, *both, use_cache=use_cache), strict=True)
            done.update(len(rows))
    return [found[row] for row in range(len(order))]


def number_of_heads(config: Any) -> int:
    """Of all attentions of all layers; RNN-NMT has one attention of one head."""
    encoder, decoder = (
        getattr(config, f"{side}_layers") * getattr(config, f"{side}_attention_heads", 0)
        for side in ("encoder", "decoder")
    )
    return max(1, encoder + 2 * decoder)


def measure_batch(
    model: PreTrainedModel, sources: list[list[int]], targets: list[list[int]], *, use_cache: bool
) -> list[Sentence]:
    """The pairs of one batch, padded on the right."""

    def padded(rows: list[list[int]], padding: int) -> Tensor:
        return pad_sequence([torch.tensor(ids) for ids in rows], True, padding).to(model.device)

    labels, mask = padded(targets, -100), padded([[1] * len(ids) for ids in sources], 0)
    ids, decoder_ids = padded(sources, model.config.pad_token_id), model.prepare_decoder_input_ids_from_labels(labels)
    outputs = model(ids, mask, decoder_ids, use_cache=use_cache, output_attentions=True)
    wide = torch.promote_types(outputs.logits.dtype, torch.float32)
    nats_BP = nn.functional.cross_entropy(outputs.logits.transpose(1, 2).to(wide), labels, reduction="none")
    sums = (
        summed_distances(outputs.encoder_attentions, mask != 0),
        summed_distances(outputs.decoder_attentions, labels != -100),
        summed_entropies(outputs.encoder_attentions, mask != 0),
        summed_entropies(outputs.cross_attentions, labels != -100),
    )
    rows = zip(nats_BP.cpu().double().numpy(), targets, *sums, strict=True)
    return [Sentence(nats_P[: len(target)], *of_pair) for nats_P, target, *of_pair in rows]


def summed_distances(attentions: Sequence[Tensor] | None, mask_BQ: Tensor) -> Sequence[np.ndarray | None]:
    """|query - key| weighted by attention, summed over each sentence's queries (L, H); Nones without attention."""
    if not attentions:
        return [None] * len(mask_BQ)
    wide = torch.promote_types(attentions[0].dtype, torch.float32)
    places = torch.arange(mask_BQ.shape[1], device=mask_BQ.device)
    away_QS = (places[:, None] - places).abs().to(wide)
    each_BHQ = [torch.einsum("bhqs,qs->bhq", p_BHQS.to(wide), away_QS) * mask_BQ[:, None] for p_BHQS in attentions]
    return list(torch.stack(each_BHQ, dim=1).cpu().double().sum(-1).numpy())


def mean_distances(sums: list[Any], tokens: np.ndarray, inside: np.ndarray, *, causal: bool) -> dict[str, Any] | None:
    """The mean distance of a stack's queries, inside and beyond; each sentence has `tokens` (N) of them."""
    if any(sum_LH is None for sum_LH in sums):
        return None
    # The sum over n queries that weigh alike the keys 0 to n - 1, or 0 to their own place.
    uniform = tokens * (tokens - 1) / 4 if causal else (tokens**2 - 1) / 3

    def over(rows_N: np.ndarray) -> dict[str, Any] | None:
        if not (queries := int(tokens[rows_N].sum())):
            return None
        mean_LH = np.stack(sums)[rows_N].sum(0) / queries
        return {"queries": queries, "mean": mean_LH.tolist(), "uniform": float(uniform[rows_N].sum() / queries)}

    return {"inside": over(inside), "beyond": over(~inside)}


def group_loss(nats: list[np.ndarray]) -> dict[str, Any]:
    """The sums of a group's sentences, given the nats of their tokens, and what follows from them.

    The standard error is that of a ratio of sums, n / (n - 1) sum_i (nats_i - ratio tokens_i)^2 / tokens^2 its square:
    Cochran, Sampling Techniques, 3rd edition (Wiley 1977), chapter 6, of an endless population. One sentence has none.
    """
    n, sums_N, tokens_N = len(nats), np.array([one.sum() for one in nats]), lengths_of(nats)
    total, tokens = float(sums_N.sum()), int(tokens_N.sum())
    perplexity = math.exp(min(total / tokens, 700.0)) if n else None
    rest_N = sums_N - total / max(tokens, 1) * tokens_N
    error = math.sqrt(n / (n - 1) * (rest_N**2).sum()) / tokens if n > 1 else None
    known = {"n": n, "nats": total, "tokens": tokens, "perplexity": perplexity, "nats_standard_error": error}
    return known | {"by_position": by_position(nats)}


def by_position(nats: list[np.ndarray]) -> dict[str, list]:
    """The sums of all sentences at each target position, and how many sentences have a token there (P)."""
    sums, tokens = np.zeros((2, max(map(len, nats), default=0)))
    for one in nats:
        sums[: len(one)] += one
        tokens[: len(one)] += 1
    return {"nats": sums.tolist(), "tokens": tokens.astype(int).tolist()}
