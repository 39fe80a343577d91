# SPDX-License-Identifier: Apache-2.0
"""Context manager for reading attention weights."""

from collections.abc import Iterator
from contextlib import contextmanager

from transformers import PreTrainedModel


@contextmanager
def eager_eval_mode(model: PreTrainedModel) -> Iterator[None]:
    """Eval mode with eager attention, which returns the weights of every encoding; restores both."""
    attention_interface, training = model.config._attn_implementation, model.training
    model.eval().set_attn_implementation("eager")
    try:
        yield
    finally:
        model.train(training).set_attn_implementation(attention_interface)
