# SPDX-License-Identifier: Apache-2.0
"""Normalization steps of a tokenizer: what changes in a text before it is split into subwords.

The steps are normalizers of the package tokenizers, stored in tokenizer.json. Therefore a saved tokenizer reads every
text as in training. Each step is idempotent: a text that is normalized already does not change.
"""

import json
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from tokenizers import Regex, Tokenizer, normalizers
from tokenizers.models import BPE

from ..hub.errors import closest_name

State = dict[str, Any]  # a normalizer as in tokenizer.json


def no_punctuation() -> normalizers.Normalizer:
    """Each run of punctuation marks and whitespace as one space, none at either end: `T-Shirt.` is `T Shirt`."""
    return normalizers.Sequence([normalizers.Replace(Regex(r"[\p{P}\s]+"), " "), normalizers.Strip()])


NORMALIZATION_STEPS: dict[str, Callable[[], normalizers.Normalizer]] = {
    "lowercase": normalizers.Lowercase,
    "no_punctuation": no_punctuation,
}


def validate_steps(steps: Sequence[str]) -> None:
    """Raise a ValueError for an unknown step, and for one that is given twice."""
    names = ", ".join(NORMALIZATION_STEPS)
    if isinstance(steps, str):
        raise ValueError(f"Normalization must be a list of steps, but it is the text {steps!r}; write [{steps!r}].")
    for step in steps:
        if step not in NORMALIZATION_STEPS:
            raise ValueError(
                f"A normalization step must be one of {names}, but it is {step!r}; the nearest one is "
                f"{closest_name(str(step), NORMALIZATION_STEPS)!r}."
            )
    if len(set(steps)) < len(steps):
        raise ValueError(f"Each normalization step must be given once, but they are {list(steps)}; remove the repeats.")


def build_normalizer(steps: Sequence[str]) -> normalizers.Normalizer:
    """The steps in their order as one normalizer."""
    return normalizers.Sequence([NORMALIZATION_STEPS[step]() for step in steps])


def with_steps(backend: Tokenizer, steps: Sequence[str]) -> Tokenizer:
    """A copy of the backend that applies `steps`, and no other steps, before its own normalizer."""
    state = json.loads(backend.to_str())
    states = [state for step in steps for state in step_states()[step]] + split_normalizer(backend)[1]
    state["normalizer"] = {"type": "Sequence", "normalizers": states} if len(states) > 1 else next(iter(states), None)
    return Tokenizer.from_str(json.dumps(state))


def split_normalizer(backend: Tokenizer) -> tuple[list[str], list[State]]:
    """The steps at the head of a backend's normalizer, and the normalizers behind them as in tokenizer.json."""
    own = flat_states(backend)
    steps: list[str] = []
    while step := next((name for name, states in step_states().items() if own[: len(states)] == states), None):
        steps.append(step)
        own = own[len(step_states()[step]) :]
    return steps, own


@cache
def step_states() -> dict[str, list[State]]:
    """Each step as in tokenizer.json."""
    states = {}
    for step, build in NORMALIZATION_STEPS.items():
        backend = Tokenizer(BPE())
        backend.normalizer = build()
        states[step] = flat_states(backend)
    return states


def flat_states(backend: Tokenizer) -> list[State]:
    """A backend's normalizers as in tokenizer.json: tokenizers saves nested sequences as one."""
    state = json.loads(backend.to_str())["normalizer"]
    if state is None:
        return []
    return state["normalizers"] if state["type"] == "Sequence" else [state]
