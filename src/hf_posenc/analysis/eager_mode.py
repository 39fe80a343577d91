# SPDX-License-Identifier: Apache-2.0
"""A model while its attention is looked at."""

from collections.abc import Iterator
from contextlib import contextmanager

from transformers import PreTrainedModel


@contextmanager
def eager_eval_mode(model: PreTrainedModel) -> Iterator[None]:
    """Without dropout, and with the back end that returns the weights of every encoding; afterwards as before."""
    attention_interface, training = model.config._attn_implementation, model.training
    model.eval().set_attn_implementation("eager")
    try:
        yield
    finally:
        model.train(training).set_attn_implementation(attention_interface)
