# SPDX-License-Identifier: Apache-2.0
"""Limits of a sentence's length in `generate`, in target tokens.

By default a target has at most 2 x source + 50 tokens, or the maximum length of the decoder's encoding.
`expected_length_range`, an option of a call, gives limits in multiples of the length E that the model expects
(`expected_target_lengths`), where `</s>` counts:

    floor(low E) <= number of target tokens <= ceil(high E)

Before the lower limit no end token can be chosen, and at the upper limit it is forced.
"""

import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor

EXPECTED_LENGTH_OPTION = "expected_length_range"


def force_token(scores: Tensor, rows_N: Tensor, token_id: int) -> Tensor:
    """The scores (N, V), in which these rows (N, Boolean) can choose this token alone."""
    forced_scores = torch.full_like(scores, float("-inf"))
    forced_scores[:, token_id] = 0
    return torch.where(rows_N[:, None], forced_scores, scores)


def forbid_tokens(scores: Tensor, rows_N1: Tensor, token_ids: Sequence[int]) -> Tensor:
    """The scores (N, V); these rows (N, 1, Boolean) can choose none of these tokens, unless nothing else is left."""
    allowed = scores.clone()
    allowed[:, list(token_ids)] = float("-inf")
    is_forced_N1 = (allowed == float("-inf")).all(1, keepdim=True)
    return torch.where(rows_N1.to(scores.device) & ~is_forced_N1, allowed, scores)


class PerSentenceMaxLength(LogitsProcessor):
    """Logits processor that ends each sentence of a batch at its own limit, in target tokens.

    With one limit for the whole batch, the length of a translation would depend on its neighbours. Every sentence has
    the same number of rows of scores, its beams. From the limit on, each token is `token_id`: an end token, which ends
    the sentence, or else padding. The `prompt_length` tokens before the target, here the start token, do not count.
    """

    def __init__(self, max_target_lengths: Sequence[int], *, token_id: int, prompt_length: int = 1) -> None:
        self.max_target_lengths_B = torch.tensor(max_target_lengths)
        self.token_id, self.prompt_length = token_id, prompt_length

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        is_over_B = (self.max_target_lengths_B <= input_ids.shape[1] - self.prompt_length).to(scores.device)
        return force_token(scores, is_over_B.repeat_interleave(len(scores) // len(is_over_B)), self.token_id)


class PerSentenceMinLength(LogitsProcessor):
    """Logits processor that forbids end tokens before each sentence has its minimum number of target tokens.

    The end token counts. Every sentence has the same number of rows of scores. The `prompt_length` tokens before the
    target, here the start token, do not count.
    """

    def __init__(self, min_target_lengths: Sequence[int], end_token_ids: Sequence[int], prompt_length: int = 1) -> None:
        self.min_target_lengths_B = torch.tensor(min_target_lengths)
        self.end_token_ids, self.prompt_length = end_token_ids, prompt_length

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        is_early_B = input_ids.shape[1] - self.prompt_length + 1 < self.min_target_lengths_B
        is_early_N1 = is_early_B.repeat_interleave(len(scores) // len(is_early_B))[:, None]
        return forbid_tokens(scores, is_early_N1, self.end_token_ids)


def max_target_lengths(lengths: Iterable[int], max_target_length: int | None) -> list[int]:
    """Each sentence's limit in target tokens, from source lengths with `</s>`: 2 x source + 50.

    `max_target_length` is the decoder's maximum with the start token, None without one.
    """
    return [min(2 * (length - 1) + 50, (max_target_length or sys.maxsize) - 1) for length in lengths]


def expected_length_limits(expected_B: Tensor, length_range: Any) -> tuple[list[int], list[int]]:
    """The shortest and the longest translation of each sentence, in target tokens with `</s>`."""
    low, high = validate_length_range(length_range)
    expected = expected_B.tolist()
    return [math.floor(low * one) for one in expected], [max(2, math.ceil(high * one)) for one in expected]


def validate_length_range(length_range: Any) -> tuple[float, float]:
    """The two factors; a ValueError unless they are numbers, the first from 0 on and not above the second."""
    factors = list(length_range) if isinstance(length_range, (list, tuple)) else []
    if (
        len(factors) != 2
        or any(isinstance(one, bool) or not isinstance(one, (int, float)) for one in factors)
        or not 0 <= factors[0] <= factors[1] < math.inf
        or factors[1] == 0
    ):
        raise ValueError(
            f"{EXPECTED_LENGTH_OPTION} must be two multiples of the expected length, from 0 on, the lower one first, "
            f"but it is {length_range!r}; (0.8, 1.3) allows from a fifth fewer tokens to three tenths more."
        )
    return factors[0], factors[1]
