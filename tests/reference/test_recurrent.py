"""The encoding `recurrent` against its reference implementation or its formula."""

import copy
import warnings

import pytest
import torch
from support.models import RecordedState, tiny_config
from torch import Tensor, nn

with warnings.catch_warnings():  # 5.17 compiles it in a way that torch deprecates
    warnings.simplefilter("ignore")
from support.reference import EXACT

from hf_posenc import AttentionContext
from hf_posenc.encodings.registry import build_position_encodings
from hf_posenc.encodings.rnn import run_rnn
from hf_posenc.encodings.sum import PositionEncodingSum

# Recurrent: torch's own cells, stepped token by token

CELLS = {"gru": nn.GRUCell, "lstm": nn.LSTMCell}


WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


MASKS = {
    "no padding": None,
    "left padding": [[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [0, 0, 0, 0, 1]],
    "right padding": [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0]],
    "holes": [[1, 0, 1, 1, 0], [0, 1, 0, 0, 1], [1, 0, 0, 1, 1]],
    "a sentence without tokens": [[1, 1, 0, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]],
}


def mask_of(rows: list[list[int]] | None) -> Tensor | None:
    return None if rows is None else torch.tensor(rows) == 1


def recurrent(cell: str, *, causal: bool, directions: int, hidden_size: int | None) -> PositionEncodingSum:
    torch.manual_seed(0)
    config = tiny_config(cell, **{f"{cell}_bidirectional": directions == 2, f"{cell}_hidden_size": hidden_size})
    return build_position_encodings(config, config.side("decoder" if causal else "encoder")).double()


def cells_of(rnn: nn.RNNBase) -> dict[str, nn.RNNCellBase]:
    """Cells with the weights of a network of one layer, by the ending that torch gives the direction's weights."""
    cells = {}
    for ending in ("_l0", "_l0_reverse")[: 2 if rnn.bidirectional else 1]:
        cells[ending] = CELLS[rnn.mode.lower()](rnn.input_size, rnn.hidden_size, dtype=torch.float64)
        cells[ending].load_state_dict({name: rnn.get_parameter(name + ending) for name in WEIGHTS})
    return cells


def stepped(cell: nn.RNNCellBase, x_TD: list[Tensor], state_M: Tensor | None = None) -> list[Tensor]:
    """The state after each token: h, followed for an LSTM by c."""
    lstm, states = isinstance(cell, nn.LSTMCell), []
    state = None if state_M is None else tuple(state_M.chunk(2)) if lstm else state_M
    for x_D in x_TD:
        state = cell(x_D, state)
        states.append(torch.cat(state) if lstm else state)
    return states


def assert_same_gradients(positions: PositionEncodingSum, cells: dict[str, nn.RNNCellBase], linear: nn.Module) -> None:
    """Of every weight: the network's with its cells', the projection's with its copy's."""
    theirs = {f"rnn.{name}{ending}": getattr(cell, name).grad for ending, cell in cells.items() for name in WEIGHTS} | {
        f"projection.{name}": parameter.grad for name, parameter in linear.named_parameters()
    }
    torch.testing.assert_close({name: p.grad for name, p in positions[0].named_parameters()}, theirs, **EXACT)
    assert all(gradient.any() for gradient in theirs.values())


@pytest.mark.reference(*CELLS)
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("hidden_size", [None, 8])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("cell", CELLS)
def test_recurrent_is_torchs_own_cell_over_the_tokens_in_values_and_gradients(cell, directions, hidden_size, mask):
    """Two directions of half the model's width need no projection, nor does one of the whole; the others have one."""
    positions, mask = recurrent(cell, causal=False, directions=directions, hidden_size=hidden_size), mask_of(mask)
    width = hidden_size or 16
    cells, linear = cells_of(positions[0].rnn), copy.deepcopy(positions[0].projection)
    assert isinstance(linear, nn.Identity if width * directions == 16 else nn.Linear)
    x = torch.randn(3, 5, 16, dtype=torch.float64, requires_grad=True)
    real = torch.ones(3, 5, dtype=torch.bool) if mask is None else mask
    at = torch.zeros(3, 5, dtype=torch.long)
    out = positions.embed(x, AttentionContext(at, at, mask))
    rows = []
    for tokens in (sentence[places] for sentence, places in zip(x, real, strict=True)):
        ways = [stepped(cells["_l0"], list(tokens))]
        if directions == 2:
            ways.append(stepped(cells["_l0_reverse"], list(tokens.flip(0)))[::-1])
        rows += [linear(torch.cat([h[:width] for h in hs])) for hs in zip(*ways, strict=True)]
    expected, weight = torch.stack(rows), torch.randn(len(rows), 16, dtype=torch.float64)
    torch.testing.assert_close(out[real], expected, **EXACT)
    gradients = []
    for result in (out[real], expected):
        (result * weight).sum().backward()
        gradients.append(x.grad)
        x.grad = None
    torch.testing.assert_close(*gradients, **EXACT)
    assert_same_gradients(positions, cells, linear)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("hidden_size", [None, 8])
@pytest.mark.parametrize("cell", CELLS)
def test_recurrent_with_a_state_is_torchs_own_cell_in_every_state_and_output(cell, hidden_size, mask):
    """The decoder's path in cached decoding, which has one direction even where the encoder has two."""
    positions, mask = recurrent(cell, causal=True, directions=2, hidden_size=hidden_size), mask_of(mask)
    width = hidden_size or 16
    cells, linear = cells_of(positions[0].rnn), copy.deepcopy(positions[0].projection)
    assert list(cells) == ["_l0"]
    x = torch.randn(3, 5, 16, dtype=torch.float64, requires_grad=True)
    state_width = 2 * width if cell == "lstm" else width
    first = torch.randn(3, state_width, dtype=torch.float64).tanh().requires_grad_()
    real = torch.ones(3, 5, dtype=torch.bool) if mask is None else mask
    at, memory = torch.zeros(3, 5, dtype=torch.long), RecordedState(first)
    out = positions.embed(x, AttentionContext(at, at, mask, state=memory))
    states = memory.kept
    rows = []
    for sentence, places, state in zip(x, real, first, strict=True):
        for token, is_real in zip(sentence, places, strict=True):
            state = stepped(cells["_l0"], [token], state)[0] if is_real else state
            rows.append(state)
    expected_states = torch.stack(rows).view(3, 5, -1)
    expected = linear(expected_states[..., :width])
    torch.testing.assert_close(states, expected_states, **EXACT)
    torch.testing.assert_close(out[real], expected[real], **EXACT)
    weights = [torch.randn_like(out[real]), torch.randn_like(states)]
    gradients = []
    for results in ((out[real], states), (expected[real], expected_states)):
        sum((result * weight).sum() for result, weight in zip(results, weights, strict=True)).backward()
        gradients.append((x.grad, first.grad))
        x.grad = first.grad = None
    torch.testing.assert_close(*gradients, **EXACT)
    assert_same_gradients(positions, cells, linear)


@pytest.mark.parametrize("mask", list(MASKS.values())[:4], ids=list(MASKS)[:4])
def test_a_stack_of_two_directions_reads_each_padded_sentence_as_if_it_were_alone(mask):
    torch.manual_seed(0)
    rnn, mask = nn.LSTM(16, 6, 3, batch_first=True, bidirectional=True, dtype=torch.float64), mask_of(mask)
    x = torch.randn(3, 5, 16, dtype=torch.float64, requires_grad=True)
    out, last = run_rnn(rnn, x, mask)
    assert [tuple(state.shape) for state in last] == [(6, 3, 6)] * 2
    for i, places in enumerate(torch.ones(3, 5, dtype=torch.bool) if mask is None else mask):
        ours = (out[i, places], last[0][:, i], last[1][:, i])
        alone, (h, c) = rnn(x[i][places])
        torch.testing.assert_close(ours, (alone, h, c), **EXACT)
        gradients = [
            torch.autograd.grad(sum(result.sin().sum() for result in results), x, retain_graph=True)[0]
            for results in (ours, (alone, h, c))
        ]
        torch.testing.assert_close(*gradients, **EXACT)
