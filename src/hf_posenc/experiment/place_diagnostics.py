"""What a system writes by itself and where in the source it is meanwhile: greedy decodings of a few pairs.

`decode_by_length` returns what JSON can hold (T tokens written, </s> among them):

    pairs_per_group         at most so many pairs of a group are decoded, and
    tokens_per_group        no more of them than have so many source and target tokens together, but one at least
    far                     tokens: a centre that moves by more has left its place
    groups                  by source length; each has low, high, label, n, and of an empty group no more than that
        greedy              of the plain decodings: bleu, bleu_ci (95 %), length_ratio
        end_forbidden       the same of decodings of exactly as many tokens as the reference has
        ended               the share of plain decodings that ended before their length limit
        centre              of the plain decodings; None for a model without cross-attention weights
            steps           from one token to the next
            jumps           the share of them in which the centre moves by more than `far` tokens, either way
            backwards       the share in which it moves back by more
            final           the centre where </s> is written over the place of the source's last token; mean
        examples            the first of the group's pairs
            source, target  tokens of source and reference, </s> among them
            ended           as above
            centre          of each token written (T), or None
            place           where the encodings of the cross-attention took each token to be (T); None without any

The centre of a step is that by which alignments follow the attention, attention_centre of modeling/alignment.py.
What is written with </s> forbidden tells a lost end from a lost
place: whoever knows the place goes on translating, and gains by it.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..metrics import load_length_buckets
from ..metrics.length_buckets.checks import group_bounds
from ..modeling.alignment import attention_centre
from ..modeling.looked_at import looked_at
from ..modeling.model_inputs import cache_of

FAR = 5
EXAMPLES = 3
TOKENS_PER_GROUP = 20_000
MOST_TOKENS = 2**13  # of all sources in a batch, padding included; the cache of 6 layers of width 512 is then 600 MB


class Written(NamedTuple):
    """One decoding: its tokens without its end token, whether it ended before its limit, the centre and place at each
    token and at the end (T), or None, and its end token, which is text where it is no special one."""

    ids: list[int]
    ended: bool
    centre: np.ndarray | None
    place: np.ndarray | None
    end: tuple[int, ...] = ()


def decode_by_length(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Dataset,
    source_language: str,
    target_language: str,
    *,
    edges: Sequence[int],
    pairs_per_group: int,
    shown: dict[str, Any],
) -> dict[str, Any] | None:
    """The decodings of the pairs, which have been drawn; None without any. `shown` are the options of the bar."""
    if not len(pairs):
        return None
    languages = (source_language, target_language)
    pairs = affordable(pairs, *token_ids(pairs, tokenizer, *languages), edges)
    sources, targets = token_ids(pairs, tokenizer, *languages)
    forced = [min(len(ids), model.config.longest_target or len(ids)) - 1 for ids in targets]
    with looked_at(model), tqdm(total=2 * len(pairs), unit="pair", leave=False, **shown) as done:
        greedy = decode(model, sources, model.limits(map(len, sources)), done, may_end=True)
        exact = decode(model, sources, forced, done, may_end=False)
    scores = zip(*(scored(tokenizer, made, pairs, target_language, edges) for made in (greedy, exact)), strict=True)
    group_of, groups = np.searchsorted(edges, pairs["source_length"]), []
    for group, (bounds, (plain, forbidden)) in enumerate(zip(group_bounds(edges), scores, strict=True)):
        rows = np.flatnonzero(group_of == group)
        groups.append(bounds | {"n": len(rows)})
        if len(rows):
            sizes = [(len(sources[row]), len(targets[row])) for row in rows]
            groups[-1] |= {"greedy": plain, "end_forbidden": forbidden} | described([greedy[k] for k in rows], sizes)
    return {"pairs_per_group": pairs_per_group, "tokens_per_group": TOKENS_PER_GROUP, "far": FAR, "groups": groups}


def affordable(pairs: Dataset, sources: list[list[int]], targets: list[list[int]], edges: Sequence[int]) -> Dataset:
    """Of each group the pairs that come first and have at most TOKENS_PER_GROUP tokens together; at least one."""
    spent, rows = dict[int, int](), []
    tokens_N = lengths_of(sources) + lengths_of(targets)
    for row, group in enumerate(np.searchsorted(edges, pairs["source_length"]).tolist()):
        if group not in spent or spent[group] + tokens_N[row] <= TOKENS_PER_GROUP:
            rows.append(row)
            spent[group] = spent.get(group, 0) + tokens_N[row]
    return pairs.select(rows)


def token_ids(
    pairs: Dataset, tokenizer: PreTrainedTokenizerBase, source_language: str, target_language: str
) -> tuple[list[list[int]], list[list[int]]]:
    """Sources and targets; a ValueError if the pairs' `source_length` is of another tokenizer."""
    translations = list(pairs["translation"])
    sources = tokenizer([row[source_language] for row in translations], truncation=False)["input_ids"]
    targets = tokenizer(text_target=[row[target_language] for row in translations], truncation=False)["input_ids"]
    special = tokenizer.num_special_tokens_to_add()
    source_lengths = np.asarray(pairs["source_length"])
    for row in np.flatnonzero(source_lengths != lengths_of(sources) - special)[:1]:
        raise ValueError(
            f"A test set's source_length is in subwords of the system's tokenizer, but pair {row} has "
            f"{source_lengths[row]} and this tokenizer makes {len(sources[row]) - special}; measure it with this one."
        )
    return sources, targets


def lengths_of(rows: Sequence[Any]) -> np.ndarray:
    return np.array([len(row) for row in rows], dtype=int)


def decode(
    model: PreTrainedModel, sources: list[list[int]], limits: list[int], done: tqdm, *, may_end: bool
) -> list[Written]:
    """A decoding of each source, in their order; those of like length share a batch."""
    order, found = np.argsort([-len(ids) for ids in sources], kind="stable"), dict[int, Written]()
    while (first := len(found)) < len(order):
        most = max(1, MOST_TOKENS // len(sources[order[first]]))
        rows = order[first : first + most].tolist()
        batch = decode_batch(model, [sources[row] for row in rows], [limits[row] for row in rows], may_end=may_end)
        found |= zip(rows, batch, strict=True)
        done.update(len(rows))
    return [found[row] for row in range(len(order))]


@torch.no_grad()
def decode_batch(
    model: PreTrainedModel, sources: list[list[int]], limits: list[int], *, may_end: bool
) -> list[Written]:
    """Greedy decodings token by token, each of at most its limit of tokens, or of exactly as many unless it `may_end`.

    As `generate` would, but what attention weighs is forgotten once its centre is known: of all steps the weights would
    take as much memory as the target is long.
    """
    given = [torch.tensor(ids, device=model.device) for ids in sources]
    mask_BS = pad_sequence([torch.ones_like(ids) for ids in given], True, 0)
    memory = model.model.encoder(pad_sequence(given, True, model.config.pad_token_id), mask_BS)
    keys_1S = torch.arange(mask_BS.shape[1], device=model.device)[None]
    limits_B, (ends, pad) = torch.tensor(limits, device=model.device), model.end_tokens()
    new_B, cache = torch.full_like(limits_B, model.start_token()), None
    written, centres, ended_B = list[Tensor](), list[Tensor](), torch.zeros_like(limits_B, dtype=torch.bool)
    with places_seen(model) as places:
        while not ended_B.all():
            step = {"decoder_input_ids": new_B[:, None], "cache": cache, "use_cache": True}
            outputs = model(encoder_outputs=memory, attention_mask=mask_BS, output_attentions=True, **step)
            scores_BV, cache = outputs.logits[:, -1].clone(), cache_of(outputs)
            if not may_end:
                scores_BV[:, ends] = -torch.inf
            over_B = limits_B <= len(written)
            new_B = torch.where(over_B, ends[0] if ends else pad, scores_BV.argmax(-1))
            ended_B = ended_B | over_B | torch.isin(new_B, new_B.new_tensor(ends))
            written.append(new_B)
            if outputs.cross_attentions:
                centres.append(attention_centre(outputs.cross_attentions, keys_1S)[:, 0])
    tokens_BT = torch.stack(written, 1).cpu().numpy()
    curves = [joined(steps, len(sources)) for steps in (centres, [place_BT[:, 0] for place_BT in places])]
    return [
        finished(tokens_T, limit, ends, [None if of_BT is None else of_BT[row] for of_BT in curves])
        for row, (tokens_T, limit) in enumerate(zip(tokens_BT, limits, strict=True))
    ]


def finished(tokens_T: np.ndarray, limit: int, ends: list[int], curves: list[np.ndarray | None]) -> Written:
    """A row of a batch, up to its end token or its limit."""
    number = int(np.append(np.isin(tokens_T[:limit], ends), True).argmax())
    centre, place = (None if curve_T is None else curve_T[: number + 1] for curve_T in curves)
    end = tuple(tokens_T[:limit][number : number + 1].tolist())
    return Written(tokens_T[:number].tolist(), number < limit, centre, place, end)


def joined(steps: list[Tensor], batch: int) -> np.ndarray | None:
    """The values of all steps, each of all sentences (B) or of any one of them (1), as curves (B, T)."""
    return torch.stack([one.expand(batch) for one in steps], 1).cpu().double().numpy() if steps else None


@contextmanager
def places_seen(model: Any) -> Iterator[list[Tensor]]:
    """The places (B or 1, T) that the model's alignment gives meanwhile, if cross-attention has an encoding to ask."""
    seen, alignment = list[Tensor](), getattr(model.model.decoder, "alignment", None)
    if alignment is None:
        yield seen
        return

    def see(_: Any, arguments: tuple[Any, ...], answer: Any) -> None:
        if arguments[0] == "places":
            seen.append(answer)

    hook = alignment.register_forward_hook(see)
    try:
        yield seen
    finally:
        hook.remove()


def scored(
    tokenizer: PreTrainedTokenizerBase,
    made: list[Written],
    pairs: Dataset,
    target_language: str,
    edges: Sequence[int],
) -> list[dict[str, Any]]:
    """BLEU with its interval, and the length ratio, of each group of the pairs that were so decoded."""
    texts = tokenizer.batch_decode([[*one.ids, *one.end] for one in made], skip_special_tokens=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "a confidence interval needs two pairs")  # one pair's is None
        result: Any = load_length_buckets().compute(
            predictions=texts,
            references=[row[target_language] for row in pairs["translation"]],
            source_lengths=list(pairs["source_length"]),
            edges=edges,
            metrics=["bleu"],
            bootstrap=1000,
        )
    return [{name: group.get(name) for name in ("bleu", "bleu_ci", "length_ratio")} for group in result["groups"]]


def described(made: list[Written], sizes: list[tuple[int, int]]) -> dict[str, Any]:
    """How far the centres of a group's decodings go and how many ended; some of them in full, with tokens of source and
    reference."""
    examples = [
        {"source": source, "target": target, "ended": one.ended}
        | {"centre": rounded(one.centre), "place": rounded(one.place)}
        for one, (source, target) in zip(made[:EXAMPLES], sizes, strict=False)
    ]
    curves = [one.centre for one in made if one.centre is not None]
    found = {"ended": sum(one.ended for one in made) / len(made), "centre": None, "examples": examples}
    if not curves:
        return found
    moves = np.concatenate([np.diff(curve_T) for curve_T in curves])
    final = [curve_T[-1] / max(source - 1, 1) for curve_T, (source, _) in zip(curves, sizes, strict=True)]
    shares = {"jumps": abs(moves) > FAR, "backwards": moves < -FAR}
    centre = {name: float(far.mean()) if len(moves) else 0.0 for name, far in shares.items()}
    return found | {"centre": {"steps": len(moves)} | centre | {"final": float(np.mean(final))}}


def rounded(curve_T: np.ndarray | None) -> list[float] | None:
    return None if curve_T is None else np.round(curve_T, 2).tolist()
