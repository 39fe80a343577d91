"""Losses of single tokens by any decoder-only model, with bounded memory; intervals over documents.

Shape letters: T tokens, N scored tokens, V vocabulary, D width.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

MAX_LOGITS = 2**26  # numbers in memory at once: 256 MiB in float32
NUM_RESAMPLES = 1000
CONFIDENCE = 0.95


@torch.no_grad()
def score_tokens(model: PreTrainedModel, ids_T: Tensor, first: int = 1) -> tuple[Tensor, Tensor]:
    """The loss of each token from `first` on, in nats (N), and whether it is the most likely one (N), on the CPU.

    `first` is 1 or more: the model predicts a token from those before it.
    """
    losses, are_top, start = [], [], first - 1
    for logits_NV in logits_in_pieces(model, ids_T[None].to(model.device), start):
        targets_N = ids_T[start + 1 : start + 1 + len(logits_NV)].to(logits_NV.device)
        losses.append(nn.functional.cross_entropy(logits_NV.float(), targets_N, reduction="none").cpu())
        are_top.append((logits_NV.argmax(-1) == targets_N).cpu())
        start += len(logits_NV)
    return torch.cat(losses), torch.cat(are_top)


def logits_in_pieces(model: PreTrainedModel, ids_1T: Tensor, start: int) -> Iterator[Tensor]:
    """The logits (N, V) at the positions from `start` to the last but one, in pieces of at most MAX_LOGITS numbers.

    The body of the model runs once. Then the whole model runs on pieces of its hidden states, so that what a model does
    to its logits is done here too, such as scaling or capping them. Hooks of the body see one call, with all tokens. A
    model whose `forward` does not call its body as a module runs at once.
    """
    end, body = ids_1T.shape[1] - 1, model.base_model
    piece = max(1, MAX_LOGITS // model.config.get_text_config().vocab_size)
    if body is not model and end - start > piece:
        outputs = body(input_ids=ids_1T, use_cache=False)
        with sliced_body(model, outputs) as sliced:
            for first in range(start, end, piece):
                sliced.slice = slice(first, min(first + piece, end))
                logits_1NV = model(input_ids=ids_1T[:, sliced.slice], use_cache=False).logits
                if not sliced.num_calls:
                    break
                yield logits_1NV[0]
        if sliced.num_calls:
            return
    yield model(input_ids=ids_1T, use_cache=False).logits[0, start:end]


class SlicedBody(nn.Module):
    """In place of a model's body: it returns a slice of hidden states that the body has computed, and counts its calls.

    The hooks of the body do not run again; all other attributes are those of the body.
    """

    def __init__(self, body: nn.Module, outputs: Any) -> None:
        super().__init__()
        object.__setattr__(self, "body", body)  # not as a submodule
        self.outputs, self.slice, self.num_calls = outputs, slice(None), 0

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "body"), name)

    def forward(self, *args: object, **kwargs: object) -> Any:
        self.num_calls += 1
        return type(self.outputs)(last_hidden_state=self.outputs.last_hidden_state[:, self.slice])


@contextmanager
def sliced_body(model: PreTrainedModel, outputs: Any) -> Iterator[SlicedBody]:
    """Context manager: the body of a model returns slices of its hidden states in `outputs`."""
    name, body = model.base_model_prefix, model.base_model
    setattr(model, name, sliced := SlicedBody(body, outputs))
    try:
        yield sliced
    finally:
        setattr(model, name, body)


def mean_with_interval(values: Sequence[float], groups: Sequence[int] | None = None) -> dict[str, Any]:
    """The mean of the values, and its 95 % bootstrap interval over groups; None for fewer than two groups.

    A group is a document, by default each value. Its values are resampled together: they are not independent.
    """
    numbers = np.asarray(values, dtype=np.float64)
    names, group_of = np.unique(np.arange(len(values)) if groups is None else groups, return_inverse=True)
    mean = float(numbers.mean())
    if len(names) < 2:
        return {"mean": mean, "interval": None}
    sums, counts = np.bincount(group_of, weights=numbers), np.bincount(group_of)
    drawn = np.random.default_rng(0).integers(len(names), size=(NUM_RESAMPLES, len(names)))
    means = sums[drawn].sum(1) / counts[drawn].sum(1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return {"mean": mean, "interval": [float(low), float(high)]}
