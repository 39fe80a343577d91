"""What the laws are tested on: tiny models for every registered encoding, for sums, and for two sides that differ."""

from collections.abc import Iterator

import pytest
import torch
import transformers
from packaging.version import Version
from torch import Tensor, nn
from transformers import initialization as init

from hf_posenc import (
    POSITION_ENCODINGS,
    PosEncConfig,
    PosEncForConditionalGeneration,
    PositionEncoding,
    PositionEncodingEntry,
    register_position_encoding,
)

torch.set_num_threads(1)

# Before 5.18 transformers' beam search took the encoder's vocabulary for the decoder's, and a dynamic cache's `reset`
# left its length; both hold for any model, so there the tests have one vocabulary and do not reset that cache.
BEFORE_5_18 = Version(transformers.__version__) < Version("5.18")

REGISTERED = list(POSITION_ENCODINGS)
SUMS = ["sinusoidal+relative", "rotary+relative_key", "learned+rotary"]
MIXED = ["none to relative", "relative to none", "rotary to sinusoidal", "relative_key to learned"]
# An encoding with a state, so that a state's laws hold before the first real one is registered.
TOY = ["running_mean", "running_mean+relative", "none to running_mean"]

# Small enough that a tiny input reaches past the clip and that a table's end can be met.
SMALL_KNOBS = {"relative_clip": 3, "learned_max_positions": 64}


class RunningMean(PositionEncoding):
    """Adds to every token a share of the mean of the tokens up to it; the state is their sum and their number."""

    def __init__(self, config, *, causal, num_layers, num_heads, head_width) -> None:
        super().__init__(config, causal=causal, num_layers=num_layers, num_heads=num_heads, head_width=head_width)
        self.share = nn.Parameter(torch.empty(config.d_model))

    def embed(self, x_BTD, pos_BT, mask_BT, state_BM):
        one_BT1 = x_BTD.new_ones(*x_BTD.shape[:2], 1) if mask_BT is None else mask_BT[..., None].to(x_BTD.dtype)
        states_BTM = torch.cat((x_BTD * one_BT1, one_BT1), dim=-1).cumsum(1)
        if state_BM is not None:
            states_BTM = states_BTM + state_BM[:, None]
        return x_BTD + self.share * states_BTM[..., :-1] / states_BTM[..., -1:].clamp(min=1), states_BTM

    def init_weights(self) -> None:
        init.ones_(self.share)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `sides` runs on all of the above, one that takes `registered` on every registered encoding."""
    if "sides" in metafunc.fixturenames:
        metafunc.parametrize("sides", REGISTERED + SUMS + MIXED + TOY, indirect=True)
    if "registered" in metafunc.fixturenames:
        metafunc.parametrize("registered", REGISTERED)


@pytest.fixture
def unregistered_after() -> Iterator[None]:
    """Whatever a test registers is gone after it."""
    before = dict(POSITION_ENCODINGS)
    yield
    POSITION_ENCODINGS.clear()
    POSITION_ENCODINGS.update(before)


@pytest.fixture
def running_mean(unregistered_after: None) -> None:
    """The toy encoding with a state is registered while a test runs."""
    register_position_encoding(
        "running_mean", RunningMean, summary="A running mean.", shift_invariant=True, has_state=True
    )


@pytest.fixture
def sides(request: pytest.FixtureRequest) -> str:
    if "running_mean" in request.param:
        request.getfixturevalue("running_mean")
    return request.param


def tiny_config(sides: str, **changes) -> PosEncConfig:
    """A config whose encoder and decoder differ in every size; `sides` is a sum, or "sum to sum" if they differ."""
    encoder, _, decoder = sides.partition(" to ")
    used = {knob.name for entry in entries(sides) for knob in entry.knobs}
    fields = {
        "vocab_size": 29,
        "decoder_vocab_size": 29 if BEFORE_5_18 else 31,
        "d_model": 16,
        "encoder_layers": 2,
        "decoder_layers": 3,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 24,
        "decoder_ffn_dim": 20,
        "position_encoding_type": encoder,
        "decoder_position_encoding_type": decoder or encoder,
    } | {knob: value for knob, value in SMALL_KNOBS.items() if knob in used}
    return PosEncConfig(**(fields | changes))


def tiny_model(
    sides: str, *, seed: int = 0, dtype: torch.dtype = torch.float64, **changes
) -> PosEncForConditionalGeneration:
    """A model with no parameter left at zero or one, so that none is without effect; in evaluation mode."""
    torch.manual_seed(seed)
    model = PosEncForConditionalGeneration(tiny_config(sides, **changes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model.to(dtype).eval()


def entries(sides: str) -> list[PositionEncodingEntry]:
    """The registry's entries of both sides."""
    return [POSITION_ENCODINGS[name] for name in sides.replace(" to ", "+").split("+")]


def sentences(*shape: int, seed: int = 1, vocab_size: int = 29) -> Tensor:
    """Random token ids without special ones."""
    return torch.randint(4, vocab_size, shape, generator=torch.Generator().manual_seed(seed))


def padded(rows: list[Tensor], side: str) -> tuple[Tensor, Tensor]:
    """Rows of different lengths as one batch, and its mask."""
    longest = max(len(row) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        place = slice(longest - len(row), None) if side == "left" else slice(None, len(row))
        ids[i, place], mask[i, place] = row, 1
    return ids, mask
