"""Fixtures and parametrisation: tiny models of every registered encoding, of combinations, of stacks that differ."""

import gc
import os
from collections.abc import Iterator

# One thread a worker and child process, because there are as many workers as cores. Set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from support.models import (
    ALIGNED,
    CAUSAL_FAST,
    FAST,
    KINDS,
    MIXED,
    REGISTERED,
    SINGLE,
    SUMS,
    TEXTS,
    TEXTS_VOCABULARY,
    WITHOUT_LENGTHS,
    sentences,
)
from support.upstream import pytest_ignore_collect, pytest_terminal_summary  # noqa: F401  (hooks of test_upstream.py)
from torch import Tensor

from hf_posenc import ALIGNMENTS, POSITION_ENCODINGS, PosEncTokenizer

pytest_plugins = ["support.hub_server"]

torch.set_num_threads(1)
gc.disable()  # until pytest_collection_finish


def pytest_collection_finish() -> None:
    """Keep the objects of torch, transformers and all tests from the garbage collector.

    A collection of them takes half a second, and each training asks for one.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise the fixtures that are names of encodings.

    `registered`: encodings that can be used alone. `single`: one of each kind. `entry_name`: every registry name.
    `sides`: one of each kind, combinations and alignments; everything under the marker `invariant`; under `decoding`
    also alignments that use the target length. `family`: `sides` and RNN-NMT. `decoder_only`: all encodings and
    sums of a decoder-only model. All except FAST are marked `full`; of `decoder_only` all except two, because the
    layers are the same.
    """
    marks = {mark.name for mark in metafunc.definition.iter_markers()}
    sides = REGISTERED + SUMS + MIXED if "invariant" in marks else KINDS
    sides = sides + (list(ALIGNED) if "decoding" in marks else WITHOUT_LENGTHS)
    fixtures = {
        "family": [*sides, "rnn_nmt"],
        "sides": sides,
        "decoder_only": REGISTERED + SUMS,
        "registered": REGISTERED,
        "single": SINGLE,
        "entry_name": list(POSITION_ENCODINGS),
    }
    for fixture in fixtures.keys() & set(metafunc.fixturenames):
        fast = CAUSAL_FAST if fixture == "decoder_only" else FAST
        metafunc.parametrize(
            fixture,
            [name if name in fast else pytest.param(name, marks=pytest.mark.full) for name in fixtures[fixture]],
        )


@pytest.fixture
def unregistered_after() -> Iterator[None]:
    """Remove what a test registers."""
    before = [(registry, dict(registry)) for registry in (POSITION_ENCODINGS, ALIGNMENTS)]
    yield
    for registry, entries_before in before:
        registry.clear()
        registry.update(entries_before)


@pytest.fixture(scope="session")
def tokenizer() -> PosEncTokenizer:
    return PosEncTokenizer.train(TEXTS * 2, TEXTS_VOCABULARY)


@pytest.fixture
def source() -> Tensor:
    return sentences(3, 6, seed=1)


@pytest.fixture
def target() -> Tensor:
    return sentences(3, 9, seed=2)
