"""What the laws are tested on: tiny models for every registered encoding, for sums, and for two sides that differ."""

import os
from collections.abc import Iterator

# As many workers as cores: neither they nor the programs they start need more than one. Before torch is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from support.models import (
    ALIGNED,
    FAST,
    KINDS,
    LAWFUL,
    MIXED,
    REGISTERED,
    SINGLE,
    SUMS,
    TEXTS,
    TEXTS_VOCABULARY,
    sentences,
)
from support.upstream import pytest_ignore_collect, pytest_terminal_summary  # noqa: F401  (hooks of test_upstream.py)
from torch import Tensor

from hf_posenc import ALIGNMENTS, POSITION_ENCODINGS, PosEncTokenizer

pytest_plugins = ["support.hub_server"]

torch.set_num_threads(1)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Fixtures that are encodings: `registered` is each that can be by itself, `single` one of each kind, `entry_name`
    each name; `sides` is one of each kind, sums and alignments, or everything under the marker `invariant`, and under
    the marker `decoding` alignments that use the target's length as well; `family` is `sides` and RNN-NMT.

    All but FAST are marked `full`, so that `make test` leaves them to `make test-all`.
    """
    marks = {mark.name for mark in metafunc.definition.iter_markers()}
    sides = REGISTERED + SUMS + MIXED if "invariant" in marks else KINDS
    sides = sides + (list(ALIGNED) if "decoding" in marks else LAWFUL)
    fixtures = {
        "family": [*sides, "rnn_nmt"],
        "sides": sides,
        "registered": REGISTERED,
        "single": SINGLE,
        "entry_name": list(POSITION_ENCODINGS),
    }
    for fixture in fixtures.keys() & set(metafunc.fixturenames):
        metafunc.parametrize(
            fixture,
            [name if name in FAST else pytest.param(name, marks=pytest.mark.full) for name in fixtures[fixture]],
        )


@pytest.fixture
def unregistered_after() -> Iterator[None]:
    """Whatever a test registers is gone after it."""
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
