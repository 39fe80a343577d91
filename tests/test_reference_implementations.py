"""Every encoding against somebody else's code for it, or against its equations as loops, in values and gradients."""

import copy
import math
import re
import warnings
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from conftest import Remembered, sentences, tiny_config, tiny_model
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import (
    AutoModelForSeq2SeqLM,
    DebertaConfig,
    LlamaConfig,
    MarianConfig,
    MarianModel,
    ParakeetEncoderConfig,
    T5Config,
)
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
from transformers.models.parakeet.modeling_parakeet import (
    ParakeetEncoderAttention,
    ParakeetEncoderRelPositionalEncoding,
)
from transformers.models.phi.modeling_phi import PhiRotaryEmbedding
from transformers.models.t5.modeling_t5 import T5Attention

with warnings.catch_warnings():  # 5.17 compiles it in a way that torch deprecates
    warnings.simplefilter("ignore")
    from transformers.models.deberta.modeling_deberta import DisentangledSelfAttention

from hf_posenc import AttentionContext, PosEncConfig, PosEncModel, sinusoids
from hf_posenc.modeling.attention import Attention
from hf_posenc.modeling.position_registry import build_position_encodings
from hf_posenc.modeling.position_sum import PositionEncodingSum
from hf_posenc.modeling.rnn import run_rnn

EXACT = {"rtol": 1e-10, "atol": 1e-10}


def test_every_registered_encoding_has_an_oracle(entry_name):
    """`none` answers no hook, so there is nothing to compare."""
    marks = [mark for test in globals().values() for mark in getattr(test, "pytestmark", []) if mark.name == "oracle"]
    assert entry_name == "none" or entry_name in {name for mark in marks for name in mark.args}


def halves(width: int) -> Tensor:
    """Where a channel of the interleaved order (sin, cos, sin, cos) stands if all sines come first."""
    return torch.arange(width).view(2, width // 2).T.flatten()


# Sinusoidal


@pytest.mark.parametrize("width", [2, 16, 50])
def test_the_sinusoids_are_the_formula(width):
    pos = torch.tensor([0, 1, 2, 17, 999, 45000, -3])
    expected = torch.empty(len(pos), width, dtype=torch.float64)
    for row, p in enumerate(pos.tolist()):
        for c in range(width // 2):
            expected[row, 2 * c] = math.sin(p / 10000 ** (2 * c / width))
            expected[row, 2 * c + 1] = math.cos(p / 10000 ** (2 * c / width))
    torch.testing.assert_close(sinusoids(pos, width, torch.float64), expected, rtol=1e-9, atol=1e-9)


def test_the_sinusoids_are_marians_in_another_order_of_channels():
    theirs = MarianSinusoidalPositionalEmbedding(60, 16).create_weight()
    ours = sinusoids(torch.arange(60), 16, torch.float64)
    torch.testing.assert_close(ours.float(), theirs[:, halves(16)], rtol=1e-6, atol=1e-6)


@pytest.mark.oracle("sinusoidal")
def test_sinusoidal_adds_the_sinusoids_and_passes_the_gradient_on():
    config = tiny_config("sinusoidal")
    positions = build_position_encodings(config, config.side("encoder"))
    x, at = (
        torch.randn(2, 5, 16, dtype=torch.float64, requires_grad=True),
        torch.tensor([[0, 0, 1, 2, 3], [0, 1, 2, 3, 4]]),
    )
    out = positions.embed(x, AttentionContext(at, at))
    torch.testing.assert_close(out, x + sinusoids(at, 16, torch.float64), **EXACT)
    out.sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))


# Learned
@pytest.mark.oracle("learned")
def test_learned_is_an_embedding_of_positions():
    config = tiny_config("learned")
    positions = build_position_encodings(config, config.side("encoder")).double()
    nn.init.normal_(positions[0].table)
    oracle = nn.Embedding(config.learned_max_positions, 16, _weight=positions[0].table.detach().clone())
    x, at = torch.randn(2, 4, 16, dtype=torch.float64), torch.tensor([[0, 0, 1, 63], [2, 3, 3, 9]])
    out = positions.embed(x, AttentionContext(at, at))
    expected = x + oracle(at)
    torch.testing.assert_close(out, expected, **EXACT)
    weight = torch.randn_like(out)
    (out * weight).sum().backward()
    (expected * weight).sum().backward()
    torch.testing.assert_close(positions[0].table.grad, oracle.weight.grad, **EXACT)


# Rotary


def turned(positions: PositionEncodingSum, q: Tensor, k: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys of self-attention at the same positions."""
    place = positions.prepare(q, AttentionContext(at, at))
    return positions.rotate_queries(q, place), positions.rotate_keys(k, place)


SCALINGS = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "another theta": {"rope_type": "default", "rope_theta": 500.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "beta_fast": 4.0,
        "beta_slow": 1.0,
    },
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
}
QUARTERS = ("default", "linear", "yarn", "llama3")
SCALINGS |= {f"{name}, a quarter": SCALINGS[name] | {"partial_rotary_factor": 0.25} for name in QUARTERS}


@pytest.mark.oracle("rotary")
@pytest.mark.parametrize("causal", [False, True], ids=["encoder", "decoder"])
@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
def test_rotary_is_llamas_in_another_order_of_channels(scaling, causal):
    """The two sides have heads of different width, so a frequency taken from the other side would show."""
    config = tiny_config(
        "rotary", d_model=64, rope_parameters=scaling, max_position_embeddings=64, encoder_attention_heads=4,
        decoder_attention_heads=2,
    )  # fmt: skip
    heads = 2 if causal else 4
    width = 64 // heads
    positions = build_position_encodings(config, config.side("decoder" if causal else "encoder"))
    # Llama's own default knows no partial factor; Phi's does.
    theirs_class = PhiRotaryEmbedding if "partial_rotary_factor" in scaling else LlamaRotaryEmbedding
    llama = theirs_class(
        LlamaConfig(
            hidden_size=64, num_attention_heads=heads, num_key_value_heads=heads, head_dim=width,
            rope_parameters=dict(scaling), max_position_embeddings=64,
        )
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, heads, 6, width, generator=generator).requires_grad_() for _ in range(2))
    at = torch.tensor([[0, 1, 2, 3, 4, 5], [0, 0, 7, 30, 31, 60]])
    ours = turned(positions, q, k, at)
    cos, sin = llama(q, at)
    many = cos.shape[-1]  # channels that are turned, all of them but for a partial factor
    order = halves(many)
    to_llama = order.argsort()
    theirs = [
        torch.cat((t[..., order], x[..., many:]), dim=-1)
        for t, x in zip(
            apply_rotary_pos_emb(q[..., :many][..., to_llama], k[..., :many][..., to_llama], cos, sin),
            (q, k),
            strict=True,
        )
    ]
    torch.testing.assert_close(list(ours), theirs, rtol=1e-4, atol=2e-5)
    weight = torch.randn(2, heads, 6, width, generator=generator)
    gradients = [
        torch.autograd.grad((a * weight).sum() + (b * weight.flip(0)).sum(), (q, k)) for a, b in (ours, theirs)
    ]
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(("kind", "factor"), [("default", 0.375), ("default", 0.01), ("linear", 0.0), ("yarn", 1.5)])
def test_a_factor_that_leaves_no_pairs_to_turn_is_refused(kind, factor):
    """Of heads of 8 channels; "proportional", which turns pairs of the whole head, takes any part of them."""
    scaling = SCALINGS[kind] | {"partial_rotary_factor": factor}
    with pytest.raises(
        ValueError, match=rf"even number of channels.*partial_rotary_factor={factor}, which of 8 .*choose"
    ):
        tiny_config("rotary", rope_parameters=scaling, decoder_attention_heads=2)
    whole = {"rope_type": "proportional", "rope_theta": 10000.0, "partial_rotary_factor": 0.375}
    assert tiny_config("rotary", rope_parameters=whole).rope_parameters["partial_rotary_factor"] == 0.375


def test_the_scalings_of_rotary_differ():
    q = torch.ones(1, 2, 40, 32)
    results = []
    for scaling in SCALINGS.values():
        config = tiny_config("rotary", d_model=64, rope_parameters=scaling, max_position_embeddings=64)
        positions = build_position_encodings(config, config.side("encoder"))
        results.append(turned(positions, q, q, torch.arange(40)[None])[0])
    for i, one in enumerate(results):
        assert all((one - other).abs().max() > 1e-2 for other in results[:i])


@pytest.mark.parametrize("at", [0, 1, 5, 300])
def test_rotary_turns_neighbouring_channels_by_the_formulas_angle(at):
    config = tiny_config("rotary")
    positions = build_position_encodings(config, config.side("encoder"))
    q = torch.randn(1, 1, 1, 8, dtype=torch.float64)
    ours, _ = turned(positions, q, q, torch.tensor([[at]]))
    expected = torch.view_as_complex(q.view(4, 2)) * torch.exp(
        1j * at * 10000 ** (-2 * torch.arange(4, dtype=torch.float64) / 8)
    )
    torch.testing.assert_close(ours.view(4, 2), torch.view_as_real(expected), **EXACT)


# Relative: the paper's equations as a double loop

INTERPOLATED = ["relative", "relative_key", "relative_sinusoidal", "t5"]
RELATIVE = {"relative": (True, True), "relative_key": (True, False), "relative_sinusoidal": (False, True)}


def double_loop(q, k, v, key_table, value_table, *, clip, allowed_BQS, causal):
    """z_i = sum_j softmax(e)_ij (v_j + aV_ij),  e_ij = q_i (k_j + aK_ij)^T / sqrt(K),  a_ij = w[clip(j - i)] (BQHK)."""
    batch, heads, length, width = q.shape
    rows = []
    for b in range(batch):
        for h in range(heads):
            for i in range(length):
                keys = [j for j in range(length) if allowed_BQS[b, i, j] and not (causal and j > i)]
                rows_of = [max(-clip, min(clip, j - i)) + clip for j in keys]
                e = torch.stack([q[b, h, i] @ (k[b, h, j] + key_table[r]) for j, r in zip(keys, rows_of, strict=True)])
                alpha = (e / math.sqrt(width)).softmax(0)
                extra = [
                    torch.zeros_like(v[b, h, j]) if value_table is None else value_table[r]
                    for j, r in zip(keys, rows_of, strict=True)
                ]
                rows.append(sum(a * (v[b, h, j] + x) for a, j, x in zip(alpha, keys, extra, strict=True)))
    return torch.stack(rows).view(batch, heads, length, width).transpose(1, 2)


@pytest.mark.oracle(*RELATIVE)
@pytest.mark.parametrize("padding", [False, True], ids=["no padding", "key padding"])
@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("back_end", ["sdpa", "eager"])
@pytest.mark.parametrize("name", RELATIVE)
def test_relative_is_the_double_loop_in_values_and_gradients(name, back_end, causal, padding):
    trained, with_values = RELATIVE[name]
    torch.manual_seed(0)
    sizes = {"decoder_layers": 2, "decoder_attention_heads": 2}
    config, heads, width, length, layer = tiny_config(name, relative_clip=2, **sizes), 2, 8, 6, 1
    config._attn_implementation = back_end
    attention = Attention(config, num_heads=heads, is_causal=causal, layer=layer).double().eval()
    positions = build_position_encodings(config, config.side("decoder" if causal else "encoder")).double()
    for parameter in positions.parameters():
        nn.init.normal_(parameter)
    # Queries, keys and values of three independent inputs, so that each has a gradient of its own.
    x = [torch.randn(2, length, heads * width, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    for projection, tensor in zip((attention.q_proj, attention.k_proj, attention.v_proj), x, strict=True):
        projection.forward = lambda _, tensor=tensor: tensor
    attention.out_proj.forward = lambda out: out
    real = torch.ones(2, length, dtype=torch.bool)
    if padding:
        real[1, -2:] = False
    allowed = real[:, None, :].expand(2, length, length)
    mask = (allowed & torch.ones(length, length, dtype=torch.bool).tril())[:, None] if causal else allowed[:, None]
    at = torch.arange(length)[None]
    zeros = torch.zeros(2, length, heads * width, dtype=torch.float64)
    place = positions.prepare(zeros, AttentionContext(at, at))
    ours, _ = attention(zeros, mask if padding or causal else None, positions=positions, ctx=place)
    if trained:
        tables = [positions[0].keys, positions[0].values] if with_values else [positions[0].keys]
    else:
        fixed = [
            [f(d / 10000 ** (2 * c / width)) for c in range(width // 2) for f in (math.sin, math.cos)]
            for d in range(-2, 3)
        ]
        tables = []
    key_table = tables[0][layer] if trained else torch.tensor(fixed, dtype=torch.float64)
    value_table = (tables[1][layer] if trained else key_table) if with_values else None
    q, k, v = (t.view(2, length, heads, width).transpose(1, 2) for t in x)
    loop = double_loop(q, k, v, key_table, value_table, clip=2, allowed_BQS=allowed, causal=causal).flatten(2)
    torch.testing.assert_close(ours, loop, **EXACT)
    weight = torch.randn_like(ours)
    mine, theirs = (torch.autograd.grad((out * weight).sum(), [*x, *tables]) for out in (ours, loop))
    torch.testing.assert_close(mine, theirs, **EXACT)
    assert all(gradient[layer].abs().min() > 0 or causal for gradient in mine[3:])
    assert not any(gradient[0].any() for gradient in mine[3:]), "a layer's table is its own"


@pytest.mark.parametrize("name", INTERPOLATED)
def test_what_is_looked_up_between_two_tokens_is_the_mean_of_both_weighted_by_nearness(name):
    """Of scores and values: a place of 2.3 is seven tenths of what position 2 is, and three of what 3 is."""
    torch.manual_seed(0)
    config = tiny_config(name, cross_position_encoding_type=name)
    positions = build_position_encodings(config, config.side("cross")).double()
    for parameter in positions.parameters():
        nn.init.normal_(parameter)
    q, p = torch.randn(2, 4, 3, 4, dtype=torch.float64), torch.rand(2, 4, 3, 8, dtype=torch.float64)
    places, keys = torch.tensor([[2.3, 0.0, 6.75]], dtype=torch.float64), torch.arange(8)[None]

    def at(where):
        return replace(positions.prepare(q, AttentionContext(where, keys, is_cross=True)), layer=1)

    share, below, above = places.frac()[..., None], at(places.floor().long()), at(places.floor().long() + 1)
    answers = [(positions.score_bias, (q, q))] + ([(positions.value_bias, (p,))] if positions.has_value_bias else [])
    for hook, inputs in answers:
        ours = hook(*inputs, at(places))
        expected = hook(*inputs, below) * (1 - share) + hook(*inputs, above) * share
        torch.testing.assert_close(ours, expected, **EXACT)
        if parameters := list(positions.parameters()):
            weight = torch.randn_like(ours)
            mine, theirs = (
                torch.autograd.grad((out * weight).sum(), parameters, allow_unused=True, materialize_grads=True)
                for out in (ours, expected)
            )
            torch.testing.assert_close(mine, theirs, **EXACT)


# Window


@pytest.mark.oracle("window")
@pytest.mark.parametrize("back_end", ["sdpa", "eager"])
@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
def test_window_attends_to_what_is_near_and_to_nothing_else_in_values_and_gradients(causal, back_end):
    """Against a softmax over those keys alone; no gradient reaches what is further away."""
    torch.manual_seed(0)
    config = tiny_config("window", window_size=2, decoder_attention_heads=2)
    config._attn_implementation = back_end
    attention = Attention(config, num_heads=2, is_causal=causal, layer=0).double().eval()
    positions = build_position_encodings(config, config.side("decoder" if causal else "encoder"))
    x, at = torch.randn(2, 7, 16, dtype=torch.float64, requires_grad=True), torch.arange(7)[None] + 3
    mask = torch.ones(1, 1, 7, 7, dtype=torch.bool)
    place = positions.prepare(x, AttentionContext(at, at))
    ours, _ = attention(x, mask.tril() if causal else mask, positions=positions, ctx=place)
    q, k, v = (attention.split_heads(project(x)) for project in (attention.q_proj, attention.k_proj, attention.v_proj))
    rows = []
    for i in range(7):
        near = slice(max(0, i - 2), i + 1 if causal else i + 3)
        weights = (q[:, :, i, None] @ k[:, :, near].transpose(2, 3) / math.sqrt(8)).softmax(-1)
        rows.append((weights @ v[:, :, near]).flatten(1))
    expected = attention.out_proj(torch.stack(rows, 1))
    torch.testing.assert_close(ours, expected, **EXACT)
    mine, theirs = (torch.autograd.grad(out[:, 3].sum(), x, retain_graph=True)[0] for out in (ours, expected))
    torch.testing.assert_close(mine, theirs, **EXACT)
    assert mine[:, 1:4].abs().min() > 0
    assert not mine[:, 0].any() and not mine[:, 6].any()
    assert causal != bool(mine[:, 4:6].any())


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


@pytest.mark.oracle(*CELLS)
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
    at, memory = torch.zeros(3, 5, dtype=torch.long), Remembered(first)
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


# The whole model

MARIAN_SIZES = {
    "vocab_size": 29, "d_model": 16, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 2,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 24, "decoder_ffn_dim": 20, "dropout": 0.0,
}  # fmt: skip


def marian_like(name: str, scale: bool) -> tuple[PosEncModel, MarianModel]:
    """Our model and Marian with our weights, whose table of positions is ours, or zero for `none`."""
    ours = tiny_model(name, **{**MARIAN_SIZES, "decoder_vocab_size": 29}, scale_embedding=scale).model
    theirs = MarianModel(
        MarianConfig(
            **MARIAN_SIZES, decoder_vocab_size=29, share_encoder_decoder_embeddings=False, scale_embedding=scale,
            activation_function="relu", max_position_embeddings=40, pad_token_id=0, tie_word_embeddings=False,
            attention_dropout=0.0, activation_dropout=0.0, decoder_start_token_id=1,
        )
    )  # fmt: skip
    theirs.double().eval()
    missing, unexpected = theirs.load_state_dict(ours.state_dict(), strict=False)
    assert unexpected == []
    assert [key for key in missing if "embed_positions" not in key] == []
    for stack in (theirs.encoder, theirs.decoder):
        table = sinusoids(torch.arange(40), 16, torch.float64)
        # Marian's own table, in our order of channels; then in float64, since theirs is a float32 one.
        torch.testing.assert_close(
            table.float(), stack.embed_positions.create_weight()[:, halves(16)].float(), rtol=1e-5, atol=1e-6
        )
        stack.embed_positions.weight.data = table if name == "sinusoidal" else torch.zeros_like(table)
    return ours, theirs


@pytest.mark.parametrize("scale", [True, False], ids=["scaled", "unscaled"])
@pytest.mark.parametrize("name", ["sinusoidal", "none"])
def test_the_model_is_marian(name, scale):
    ours, theirs = marian_like(name, scale)
    inputs = {
        "input_ids": sentences(3, 6, seed=1),
        "attention_mask": torch.tensor([[1] * 6, [1] * 4 + [0] * 2, [1] * 5 + [0]]),
        "decoder_input_ids": sentences(3, 8, seed=2),
    }  # fmt: skip
    results = []
    for model in (ours, theirs):
        out = model(**inputs, output_hidden_states=True)
        out.last_hidden_state[..., :5].sin().sum().backward()
        results.append(out)
    mine, marians = results
    tokens = inputs["attention_mask"] == 1  # padding stands at position 0 here, and is counted on in Marian
    for one, other in zip(mine.encoder_hidden_states, marians.encoder_hidden_states, strict=True):
        torch.testing.assert_close(one[tokens], other[tokens], **EXACT)
    torch.testing.assert_close(mine.decoder_hidden_states, marians.decoder_hidden_states, **EXACT)
    torch.testing.assert_close(mine.last_hidden_state, marians.last_hidden_state, **EXACT)
    gradients = {key: parameter.grad for key, parameter in theirs.named_parameters() if "embed_positions" not in key}
    torch.testing.assert_close({key: parameter.grad for key, parameter in ours.named_parameters()}, gradients, **EXACT)


def torch_attention(attention: nn.Module, prefix: str) -> dict[str, Tensor]:
    projections = [attention.q_proj, attention.k_proj, attention.v_proj]
    return {
        f"{prefix}.in_proj_weight": torch.cat([p.weight for p in projections]),
        f"{prefix}.in_proj_bias": torch.cat([p.bias for p in projections]),
        f"{prefix}.out_proj.weight": attention.out_proj.weight,
        f"{prefix}.out_proj.bias": attention.out_proj.bias,
    }


def torch_layer(layer: nn.Module, norms: list[str]) -> dict[str, Tensor]:
    weights = torch_attention(layer.self_attn, "self_attn")
    if len(norms) == 3:
        weights |= torch_attention(layer.encoder_attn, "multihead_attn")
    modules = {"linear1": layer.fc1, "linear2": layer.fc2}
    modules |= {f"norm{i + 1}": getattr(layer, norm) for i, norm in enumerate(norms)}
    return weights | {
        f"{name}.{kind}": getattr(module, kind) for name, module in modules.items() for kind in ("weight", "bias")
    }


@pytest.mark.parametrize("norm_first", [True, False], ids=["norm first", "norm after"])
def test_the_layers_are_torchs_own(norm_first):
    ours = tiny_model("none", norm_first=norm_first).model
    common = {"dropout": 0.0, "batch_first": True, "norm_first": norm_first, "dtype": torch.float64}
    source, target = sentences(3, 6, seed=1), sentences(3, 8, seed=2)
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2, [1] * 5 + [0]])
    outputs = ours(input_ids=source, attention_mask=mask, decoder_input_ids=target)
    memory = ours.encoder.embed_tokens(source) * 4.0
    for layer in ours.encoder.layers:
        oracle = nn.TransformerEncoderLayer(16, 2, 24, **common)
        oracle.load_state_dict(torch_layer(layer, ["self_attn_layer_norm", "final_layer_norm"]))
        memory = oracle(memory, src_key_padding_mask=mask == 0)
    x = ours.decoder.embed_tokens(target) * 4.0
    if norm_first:
        memory = ours.encoder.layer_norm(memory)
    future = torch.ones(8, 8, dtype=torch.bool).triu(1)
    for layer in ours.decoder.layers:
        oracle = nn.TransformerDecoderLayer(16, 4, 20, **common)
        oracle.load_state_dict(
            torch_layer(layer, ["self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"])
        )
        x = oracle(x, memory, tgt_mask=future, memory_key_padding_mask=mask == 0)
    if norm_first:
        x = ours.decoder.layer_norm(x)
    torch.testing.assert_close(outputs.encoder_last_hidden_state[mask == 1], memory[mask == 1], **EXACT)
    torch.testing.assert_close(outputs.last_hidden_state, x, **EXACT)


def test_the_defaults_are_the_base_transformers():
    config = PosEncConfig()
    assert (config.encoder_layers, config.decoder_layers, config.d_model) == (6, 6, 512)
    assert (config.encoder_ffn_dim, config.encoder_attention_heads, config.relative_clip) == (2048, 8, 16)


# First weights: the bounds of uniform ones, the deviation of normal ones, by whose formulas they are drawn

FAMILIES = ["lstm+learned+relative", "gru+relative_key to learned+gru", "rnn_nmt"]


def drawn(model: nn.Module, initializer: str) -> dict[str, tuple[str, float]]:
    """How each parameter is drawn: uniformly up to a bound, normally with a deviation, or not at all."""
    xavier, draws = initializer == "xavier", {}
    for prefix, module in model.named_modules():
        for name, p in module.named_parameters(recurse=False):
            draw = None
            if isinstance(module, nn.Embedding) or name == "table":
                draw = ("normal", p.shape[-1] ** -0.5 if xavier else 1.0)
            elif isinstance(module, nn.LayerNorm) or name == "final_logits_bias":
                draw = ("constant", 1.0 if name == "weight" else 0.0)
            elif xavier and "bias" in name:
                draw = ("constant", 0.0)
            elif isinstance(module, nn.Linear):
                draw = ("uniform", (6 / sum(module.weight.shape)) ** 0.5 if xavier else module.in_features**-0.5)
            elif isinstance(module, nn.RNNBase):
                gate = (module.hidden_size, p.shape[-1])
                draw = ("uniform", (6 / sum(gate)) ** 0.5 if xavier else module.hidden_size**-0.5)
            elif name in ("keys", "values"):
                draw = ("uniform", (6 / sum(p.shape[1:])) ** 0.5) if xavier else ("normal", 1.0)
            draws[f"{prefix}.{name}".lstrip(".")] = draw
    return draws


@pytest.mark.parametrize("initializer", ["xavier", "torch"])
@pytest.mark.parametrize("where", FAMILIES)
def test_a_new_model_is_drawn_as_its_initializer_says(where, initializer):
    torch.manual_seed(0)
    config = tiny_config(where, d_model=64, initializer=initializer, output_bias=True)
    model = AutoModelForSeq2SeqLM.from_config(config)
    draws = drawn(model, initializer)
    assert set(draws) == {name for name, _ in model.named_parameters()}
    for name, p in model.named_parameters():
        kind, size = draws[name]
        if kind == "constant":
            assert (p == size).all(), name
        elif kind == "uniform":
            # The largest of a bias's few numbers may lie further below the bound than that of a matrix's many.
            assert (0.95 if p.ndim > 1 else 0.8) * size < p.abs().max() <= size, name
        else:
            rows = p[1:] if "embed_tokens" in name else p
            assert abs(rows.std() / size - 1) < 0.1, name
            assert abs(rows.mean()) < 0.1 * size, name
            assert "embed_tokens" not in name or not p[0].any(), name


@pytest.mark.parametrize("missing", [(), ("bias", "values")], ids=["whole", "in part"])
@pytest.mark.parametrize("initializer", ["xavier", "torch"])
@pytest.mark.parametrize("where", FAMILIES)
def test_what_is_loaded_is_not_drawn_again(where, initializer, missing, tmp_path):
    """Where a checkpoint lacks a bias or a table, transformers draws it, and must not draw its neighbours with it."""
    model = tiny_model(where, initializer=initializer, output_bias=True, dtype=torch.float32)
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    kept = {name: p for name, p in saved.items() if not any(part in name for part in missing)}
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    torch.manual_seed(5)
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, ignore_mismatched_sizes=bool(missing))
    assert again.config.initializer == initializer
    loaded = dict(again.named_parameters())
    assert set(loaded) == set(saved)
    assert [name for name in saved if not torch.equal(saved[name], loaded[name])] == [
        name for name in saved if name not in kept
    ]
    assert all(p.isfinite().all() and p.abs().max() < 5 for p in loaded.values())


# T5


@pytest.mark.oracle("t5")
@pytest.mark.parametrize("causal", [False, True], ids=["encoder", "decoder"])
@pytest.mark.parametrize(("buckets", "furthest"), [(32, 128), (32, 256), (64, 128), (4, 3), (12, 40)])
def test_t5_is_transformers_t5_at_every_distance(buckets, furthest, causal):
    """600 tokens: beyond the last bucket's edge, from its first token to its last and back."""
    config = tiny_config("t5", t5_buckets=buckets, t5_max_distance=furthest)
    positions = build_position_encodings(config, config.side("decoder" if causal else "encoder")).double()
    fields = {"relative_attention_num_buckets": buckets, "relative_attention_max_distance": furthest, "num_heads": 2}
    theirs = T5Attention(T5Config(**fields, is_decoder=causal), has_relative_attention_bias=True)
    oracle = theirs.relative_attention_bias = nn.Embedding(buckets, 4 if causal else 2).double()
    with torch.no_grad():
        positions[0].table.copy_(oracle.weight)
    x, at = torch.zeros(1, 600, 16, dtype=torch.float64), torch.arange(600)[None] + 5
    ours, expected = (
        positions.score_bias(x, x, positions.prepare(x, AttentionContext(at, at))),
        theirs.compute_bias(600, 600),
    )
    weight = torch.randn(600, 600, dtype=torch.float64)
    if causal:
        weight = weight.tril()
    torch.testing.assert_close(ours * weight, expected * weight, **EXACT)
    (ours * weight).sum().backward()
    (expected * weight).sum().backward()
    torch.testing.assert_close(positions[0].table.grad, oracle.weight.grad, **EXACT)


def test_a_t5_whose_wide_buckets_begin_behind_their_end_is_refused():
    with pytest.raises(ValueError, match=r"t5_max_distance must be above t5_buckets / 2.* 16 and 32; raise"):
        PosEncConfig(position_encoding_type="t5", t5_max_distance=16)


# What adds numbers to scores: against its formula, pair by pair


BIASED = torch.tensor([[0, 1, 2, 3, 4, 5, 9], [3, 4, 5, 6, 7, 8, 40]])


def assert_bias(name: str, side: str, formula, *, layer: int = 1, **changes) -> None:
    """What a layer adds to the score of each pair that its side may see is `formula(encoding)(pair)`, and so are the
    gradients of query, key and parameters. A pair has a head h and positions i and j, counted from 0, a query q and a
    key k; sentences are of 7 tokens, with gaps."""
    torch.manual_seed(0)
    config = tiny_config(name, **changes)
    positions = build_position_encodings(config, config.side(side)).double()
    for parameter in positions.parameters():
        nn.init.normal_(parameter)
    bias_of, heads, causal = formula(positions[0]), config.side(side).heads, side == "decoder"
    x = torch.zeros(2, 7, 16, dtype=torch.float64)
    q, k = (torch.randn(2, heads, 7, 16 // heads, dtype=torch.float64, requires_grad=True) for _ in range(2))
    place = positions.prepare(x, AttentionContext(BIASED, BIASED, is_causal=causal))
    ours = positions.score_bias(q, k, replace(place, layer=layer)).expand(2, heads, 7, 7)
    expected = torch.zeros_like(ours)
    for b, h, i, j in product(range(2), range(heads), range(7), range(7)):
        if not causal or j <= i:
            at = BIASED[b].tolist()
            pair = SimpleNamespace(h=h, i=at[i], j=at[j], q=q[b, h, i], k=k[b, h, j])
            expected[b, h, i, j] = bias_of(pair)
    seen = torch.ones(7, 7).tril() if causal else torch.ones(7, 7)
    torch.testing.assert_close(ours * seen, expected, **EXACT)
    if parameters := list(positions.parameters()):
        weight, found = torch.randn_like(expected), []
        for bias in (ours * seen, expected):
            found.append(torch.autograd.grad((bias * weight).sum(), [q, k, *parameters], materialize_grads=True))
        torch.testing.assert_close(*found, **EXACT)
        assert all(gradient.any() for gradient in found[0][2:])


# Both ways, or the past alone
BOTH_SIDES = pytest.mark.parametrize("side", ["encoder", "decoder"])


# ALiBi


@pytest.mark.oracle("alibi", "alibi_symmetric")
@BOTH_SIDES
@pytest.mark.parametrize("name", ["alibi", "alibi_symmetric"])
def test_alibi_is_its_formula(name, side):
    def formula(_):
        heads = 2 if side == "encoder" else 4
        past = [2 ** (-8 * h / heads) for h in range(1, heads + 1)]
        future = past[::-1] if name == "alibi" else past
        return lambda pair: -(past if pair.j < pair.i else future)[pair.h] * abs(pair.j - pair.i)

    assert_bias(name, side, formula)


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6, 8, 12, 16])
def test_a_decoders_alibi_is_blooms_for_any_number_of_heads(heads):
    """Theirs is the price times the key's position: what that lacks is the same for a whole row of scores."""
    config = tiny_config("alibi", d_model=48, decoder_attention_heads=heads)
    positions, at = build_position_encodings(config, config.side("decoder")), torch.arange(9)[None]
    x = torch.zeros(1, 9, 48, dtype=torch.float64)
    ours = positions.score_bias(x, x, positions.prepare(x, AttentionContext(at, at, is_causal=True)))[0]
    theirs = build_alibi_tensor(torch.ones(1, 9), heads, torch.float64).view(heads, 1, 9)
    theirs = (theirs - theirs.transpose(1, 2)).tril()
    torch.testing.assert_close(ours.tril(), theirs, rtol=1e-6, atol=1e-6)  # they have float32


# KERPLE


@pytest.mark.oracle("kerple", "kerple_power")
@BOTH_SIDES
@pytest.mark.parametrize("name", ["kerple", "kerple_power"])
def test_kerple_is_its_formula(name, side):
    def formula(encoding):
        def bias(pair):
            way, distance = 1 if pair.j > pair.i else 0, abs(pair.j - pair.i)
            a, raw = nn.functional.softplus(encoding.a[way, pair.h]), encoding.p[way, pair.h]
            if name == "kerple":
                return -nn.functional.softplus(raw) * torch.log(1 + a * distance)
            return -a * distance ** (2 * torch.sigmoid(raw)) if distance else 0 * a

        return bias

    assert_bias(name, side, formula)


@pytest.mark.parametrize("name", ["kerple", "kerple_power"])
def test_kerple_begins_with_the_authors_ranges_of_a_and_p(name):
    config = tiny_config(name, d_model=512, encoder_attention_heads=256)
    kerple = build_position_encodings(config, config.side("encoder"))[0]
    kerple.init_weights()
    a, p = nn.functional.softplus(kerple.a), nn.functional.softplus(kerple.p)
    if name == "kerple_power":
        p = 2 * kerple.p.sigmoid()
    assert 0 < a.min() < 0.1 and 0.9 < a.max() <= 1.001
    assert 0 < p.min() < 0.2 and 1.8 < p.max() <= 2.001


# FIRE


@pytest.mark.oracle("fire")
@BOTH_SIDES
@pytest.mark.parametrize("threshold", [5.0, 30.0, 512.0])
@pytest.mark.parametrize("layer", [0, 1])
def test_fire_is_its_formula_and_so_a_network_of_rectified_units(layer, threshold, side):
    """The network is torch's, two Linears. One of its units is on everywhere, another nowhere."""

    def formula(fire):
        c, multiple = fire.c[layer], fire.multiple[layer]
        with torch.no_grad():
            fire.weight_in[layer, :2], multiple[()] = 0, 0.7
            fire.bias_in[layer, :2] = torch.tensor([0.3, -0.3])

        def f(x):
            unit = nn.functional.linear(x[None], fire.weight_in[layer][:, None], fire.bias_in[layer])
            return nn.functional.linear(unit.relu(), fire.weight_out[layer])

        def psi(x):
            return torch.log(torch.abs(c * x) + 1)

        def bias(pair):
            goes = pair.i if side == "decoder" else max(pair.i, 6 - pair.i)
            furthest = torch.clamp(torch.abs(multiple * threshold), min=goes)
            sign = -1 if pair.j > pair.i else 1
            return f(sign * psi(pair.i - pair.j) / (psi(furthest) + 1e-6))[pair.h]

        return bias

    assert_bias("fire", side, formula, layer=layer, fire_threshold=threshold, fire_hidden_size=12)


# Sandwich


@pytest.mark.oracle("sandwich")
@BOTH_SIDES
def test_sandwich_is_its_formula(side):
    def formula(_):
        heads = 2 if side == "encoder" else 4

        def bias(pair):
            waves = sum(math.cos((pair.j - pair.i) * 10000 ** (-2 * c / 12)) for c in range(6))
            return (waves - 6) * heads / (8 * (pair.h + 1))

        return bias

    assert_bias("sandwich", side, formula)


# Transformer-XL


@BOTH_SIDES
def test_transformer_xl_is_its_formula(side):
    def formula(xl):
        def bias(pair):
            width, d = len(pair.q), pair.i - pair.j
            waves = [f(d / 10000 ** (2 * c / 16)) for c in range(8) for f in (math.sin, math.cos)]
            r = xl.weight[1, pair.h] @ torch.tensor(waves, dtype=torch.float64)
            return (xl.u[1, pair.h] @ pair.k + (pair.q + xl.v[1, pair.h]) @ r) / math.sqrt(width)

        return bias

    assert_bias("transformer_xl", side, formula)


def encoder_attention(name: str) -> tuple[Attention, PositionEncodingSum]:
    """One layer of a tiny encoder and its encoding, drawn at random."""
    torch.manual_seed(0)
    config = tiny_config(name, encoder_layers=1)
    config._attn_implementation = "eager"
    attention = Attention(config, num_heads=2, is_causal=False, layer=0).double().eval()
    positions = build_position_encodings(config, config.side("encoder")).double()
    for parameter in positions.parameters():
        nn.init.normal_(parameter)
    return attention, positions


@pytest.mark.oracle("transformer_xl")
def test_transformer_xl_is_the_attention_of_parakeets_encoder():
    attention, positions = encoder_attention("transformer_xl")
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2, "attention_bias": True}
    theirs_config = ParakeetEncoderConfig(**sizes, attn_implementation="eager")
    theirs = ParakeetEncoderAttention(theirs_config, layer_idx=0).double().eval()
    xl, x = positions[0], torch.randn(2, 9, 16, dtype=torch.float64, requires_grad=True)
    theirs.load_state_dict(
        {name.replace("out_proj", "o_proj"): tensor for name, tensor in attention.state_dict().items()}
        | {"relative_k_proj.weight": xl.weight[0].flatten(0, 1), "bias_u": xl.u[0], "bias_v": xl.v[0]}
    )
    at = torch.arange(9)[None]
    ours, _ = attention(x, positions=positions, ctx=positions.prepare(x, AttentionContext(at, at)))
    expected, _ = theirs(x, ParakeetEncoderRelPositionalEncoding(theirs_config)(x))
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)  # their sinusoids are in float32
    weight = torch.randn_like(ours)
    mine = torch.autograd.grad((ours * weight).sum(), [x, xl.u, xl.v, xl.weight])
    of_theirs = [x, theirs.bias_u, theirs.bias_v, theirs.relative_k_proj.weight]
    others = torch.autograd.grad((expected * weight).sum(), of_theirs)
    for one, other in zip(mine, others, strict=True):
        torch.testing.assert_close(one.flatten(), other.flatten(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("rotary+transformer_xl", "TransformerXL asks for the keys' content, but `rotary` turns keys"),
        ("deberta+xpos", "Deberta asks for the keys' content, but `xpos` turns keys"),
        ("pope+rotary", "Pope gives each channel an angle of its own, but `rotary` turns keys"),
    ],
)
def test_what_needs_keys_as_they_are_is_refused_beside_what_turns_them(named, why):
    with pytest.raises(ValueError, match=rf"'{re.escape(named)}': {why} by their position; leave one"):
        PosEncConfig(position_encoding_type=named)


def test_an_odd_width_has_no_pairs_for_transformer_xl():
    with pytest.raises(ValueError, match="d_model must be even, but it is 15; choose"):
        PosEncConfig(
            position_encoding_type="transformer_xl", d_model=15, encoder_attention_heads=3, decoder_attention_heads=3
        )


# DeBERTa


@BOTH_SIDES
def test_deberta_is_its_formula(side):
    def formula(deberta):
        def bias(pair):
            width = len(pair.q)
            own = slice(pair.h * width, (pair.h + 1) * width)
            vector = deberta.vectors[max(-3, min(2, pair.i - pair.j)) + 3]
            key = deberta.key_weight[1, own] @ vector
            query = deberta.query_weight[1, own] @ vector + deberta.query_bias[1, own]
            return (pair.q @ key + pair.k @ query) / math.sqrt(3 * width)

        return bias

    assert_bias("deberta", side, formula)


@pytest.mark.oracle("deberta")
def test_deberta_is_the_attention_of_transformers_deberta():
    """Of an encoder, content and its scale included; theirs has no biases where ours are 0."""
    attention, positions = encoder_attention("deberta")
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "relative_attention": True, "max_relative_positions": 3}
    theirs = DisentangledSelfAttention(DebertaConfig(**sizes, pos_att_type=["c2p", "p2c"])).double().eval()
    ours, x = positions[0], torch.randn(2, 9, 16, dtype=torch.float64, requires_grad=True)
    projections = [attention.q_proj, attention.k_proj, attention.v_proj]
    with torch.no_grad():
        for linear in (*projections, attention.out_proj):
            linear.bias.zero_()
        attention.out_proj.weight.copy_(torch.eye(16))
        in_heads = [linear.weight.view(2, 8, 16) for linear in projections]  # theirs: head by head, q, k, v in each
        theirs.in_proj.weight.copy_(torch.stack(in_heads, 1).flatten(0, 2))
        theirs.pos_proj.weight.copy_(ours.key_weight[0])
        theirs.pos_q_proj.weight.copy_(ours.query_weight[0])
        theirs.pos_q_proj.bias.copy_(ours.query_bias[0])
    vectors, at = ours.vectors.detach().clone().requires_grad_(), torch.arange(9)[None]
    found, _ = attention(x, positions=positions, ctx=positions.prepare(x, AttentionContext(at, at)))
    query_minus_key = at.T - at
    mask = torch.ones(2, 1, 9, 9)
    expected, _ = theirs(x, mask, relative_pos=query_minus_key[None], rel_embeddings=vectors)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)  # they divide by float32 numbers
    weight = torch.randn_like(found)
    of_ours = [x, ours.vectors, ours.key_weight, ours.query_weight, ours.query_bias]
    of_theirs = [x, vectors, theirs.pos_proj.weight, theirs.pos_q_proj.weight, theirs.pos_q_proj.bias]
    mine = torch.autograd.grad((found * weight).sum(), of_ours)
    for one, other in zip(mine, torch.autograd.grad((expected * weight).sum(), of_theirs), strict=True):
        torch.testing.assert_close(one.flatten(), other.flatten(), rtol=1e-5, atol=1e-5)


# What queries and keys become: their products against the formula, pair by pair


def assert_products(name: str, side: str, formula) -> None:
    """The product of each query with each key that its side may see is `formula(encoding)(pair)`, and so are the
    gradients of query, key and parameters; the pairs are those of `assert_bias`."""
    torch.manual_seed(0)
    config = tiny_config(name)
    positions = build_position_encodings(config, config.side(side)).double()
    for parameter in positions.parameters():
        nn.init.uniform_(parameter, -3, -0.1)
    heads, causal, product_of = config.side(side).heads, side == "decoder", formula(positions[0])
    q, k = (torch.randn(2, heads, 7, 16 // heads, dtype=torch.float64, requires_grad=True) for _ in range(2))
    place = positions.prepare(torch.zeros(2, 7, 16).double(), AttentionContext(BIASED, BIASED, is_causal=causal))
    place = replace(place, layer=1)
    ours = positions.rotate_queries(q, place) @ positions.rotate_keys(k, place).transpose(2, 3)
    expected = torch.zeros_like(ours)
    for b, h, i, j in product(range(2), range(heads), range(7), range(7)):
        if not causal or j <= i:
            at = BIASED[b].tolist()
            expected[b, h, i, j] = product_of(SimpleNamespace(h=h, i=at[i], j=at[j], q=q[b, h, i], k=k[b, h, j]))
    ours = ours.tril() if causal else ours
    torch.testing.assert_close(ours, expected, **EXACT)
    weight, parameters = torch.randn_like(ours), list(positions.parameters())
    mine, theirs = (torch.autograd.grad((one * weight).sum(), [q, k, *parameters]) for one in (ours, expected))
    torch.testing.assert_close(mine, theirs, **EXACT)
    assert all(gradient.any() for gradient in mine)


@pytest.mark.oracle("xpos")
@BOTH_SIDES
def test_xpos_is_rotary_that_falls_with_the_distance_in_the_decoder(side):
    def formula(_):
        def score(pair):
            width, total = len(pair.q), 0
            for c in range(width // 2):
                q, k = (torch.view_as_complex(x[2 * c : 2 * c + 2]) for x in (pair.q, pair.k))
                z = (2 * c + 0.4 * width) / (1.4 * width) if side == "decoder" else 1.0
                angle = (pair.i - pair.j) * 10000 ** (-2 * c / width)
                turned = q * k.conj() * complex(math.cos(angle), math.sin(angle))
                total = total + turned.real * z ** ((pair.i - pair.j) / 200)
            return total

        return score

    assert_products("xpos", side, formula)


@pytest.mark.oracle("pope")
@BOTH_SIDES
def test_pope_is_its_formula(side):
    def formula(pope):
        def score(pair):
            lengths = nn.functional.softplus(pair.q) * nn.functional.softplus(pair.k)
            speeds = torch.tensor([100 ** (-c / len(pair.q)) for c in range(len(pair.q))], dtype=torch.float64)
            return (lengths * torch.cos((pair.j - pair.i) * speeds + pope.delta[1, pair.h, 0])).sum()

        return score

    assert_products("pope", side, formula)


@torch.no_grad()
def test_popes_offsets_stay_within_a_turn_behind():
    config = tiny_config("pope")
    positions, at = build_position_encodings(config, config.side("encoder")).double(), torch.arange(5)[None]
    k, found = torch.randn(1, 2, 5, 8, dtype=torch.float64), []
    place = replace(positions.prepare(torch.zeros(1, 5, 16).double(), AttentionContext(at, at)), layer=0)
    for offset in (0.5, 0.0, -2 * math.pi, -7.0, -1.0):
        nn.init.constant_(positions[0].delta, offset)
        found.append(positions.rotate_keys(k, place))
    torch.testing.assert_close(found[:4], [found[1]] * 4, **EXACT)
    assert (found[4] - found[1]).abs().max() > 0.1


# Log n


@pytest.mark.oracle("log_n", "log_n_learned")
@BOTH_SIDES
@pytest.mark.parametrize("name", ["log_n", "log_n_learned"])
def test_log_n_scales_queries_by_the_logarithm_of_what_they_see(name, side):
    """Of 7 tokens in one sentence, 5 in the other, with padding before them."""
    torch.manual_seed(0)
    config = tiny_config(f"relative+{name}")
    log_n = build_position_encodings(config, config.side(side))[1].double()
    for parameter in log_n.parameters():
        nn.init.normal_(parameter)
    heads, causal = config.side(side).heads, side == "decoder"
    mask, at = torch.tensor([[1] * 7, [0, 0] + [1] * 5]), torch.tensor([[0, 1, 2, 3, 4, 5, 6], [0, 0, 0, 1, 2, 3, 4]])
    place = AttentionContext(at, at, mask == 1, mask, is_causal=causal, layer=1)
    place = replace(place, prepared=log_n.prepare(torch.zeros(2, 7, 16).double(), place))
    q = torch.randn(2, heads, 7, 16 // heads, dtype=torch.float64, requires_grad=True)
    ours, expected = log_n.rotate_queries(q, place), torch.zeros_like(q)
    for b, h, i in product(range(2), range(heads), range(7)):
        n = (int(mask[b, : i + 1].sum()) if causal else int(mask[b].sum())) or 1
        rate = log_n.rate[1, h] if name == "log_n_learned" else 1 / math.log(4)
        expected[b, h, i] = q[b, h, i] * math.log(n) * rate
    torch.testing.assert_close(ours, expected, **EXACT)
    weight, inputs = torch.randn_like(ours), [q, *log_n.parameters()]
    mine, theirs = (torch.autograd.grad((one * weight).sum(), inputs) for one in (ours, expected))
    torch.testing.assert_close(mine, theirs, **EXACT)


def test_the_trained_log_n_begins_as_the_fixed_one():
    config = tiny_config("relative+log_n_learned", log_n_length=50)
    rate = build_position_encodings(config, config.side("decoder"))[1]
    rate.init_weights()
    torch.testing.assert_close(rate.rate, torch.full((3, 4), 1 / math.log(50)))


# Positions of training


def positions_of_training(name: str, pos: Tensor, **changes) -> Tensor:
    config = tiny_config(name, **changes)
    return build_position_encodings(config, config.side("encoder")).augment_positions(pos, AttentionContext(pos, pos))


SENTENCES = torch.arange(12).expand(4000, -1)


@pytest.mark.oracle("shape")
def test_shape_shifts_each_sentence_by_a_number_drawn_evenly():
    torch.manual_seed(0)
    found = positions_of_training("shape", SENTENCES, shape_shifts=10) - SENTENCES
    assert found.dtype == torch.int64
    assert torch.equal(found, found[:, :1].expand(-1, 12))
    counts = found[:, 0].bincount(minlength=10)
    assert len(counts) == 10 and counts.min() > 300 and counts.max() < 500  # 400 each, by chance 19 more or less


@pytest.mark.oracle("cape")
def test_cape_shifts_jitters_and_stretches_evenly_within_its_bounds():
    torch.manual_seed(0)
    still = {"cape_shift": 0.0, "cape_jitter": 0.0, "cape_stretch": 1.0}

    def assert_even(drawn: Tensor, bound: float):
        """Uniform between -bound and bound: by its ends, its mean and its variance."""
        assert drawn.abs().max() <= bound + 1e-5 and drawn.max() > 0.99 * bound and drawn.min() < -0.99 * bound
        assert drawn.mean().abs() < 0.05 * bound and (drawn.var() / (bound**2 / 3) - 1).abs() < 0.1

    shifted = positions_of_training("cape", SENTENCES, **still | {"cape_shift": 5.0}) - SENTENCES
    torch.testing.assert_close(shifted, shifted[:, :1].expand(-1, 12))
    assert_even(shifted[:, 0], 5.0)
    stretched = positions_of_training("cape", SENTENCES, **still | {"cape_stretch": 1.5})[:, 1:] / SENTENCES[:, 1:]
    torch.testing.assert_close(stretched, stretched[:, :1].expand(-1, 11))
    assert_even(stretched[:, 0].log(), math.log(1.5))
    jittered = positions_of_training("cape", SENTENCES, **still | {"cape_jitter": 0.5}) - SENTENCES
    assert_even(jittered, 0.5)
    assert (jittered[:, 1:] - jittered[:, :-1]).abs().mean() > 0.3  # each token by itself
    everything = positions_of_training("cape", SENTENCES, cape_shift=5.0, cape_jitter=0.5, cape_stretch=1.03)
    assert (everything.diff() >= 0).all()
    assert everything.max() <= (11 + 5.5) * 1.03 and everything.max() > 16


@pytest.mark.parametrize("name", ["shape", "cape"])
def test_shape_and_cape_add_the_sinusoids_of_their_positions_and_pass_the_gradient_on(name):
    config = tiny_config(name)
    positions = build_position_encodings(config, config.side("encoder"))
    x, at = torch.randn(1, 3, 16, dtype=torch.float64, requires_grad=True), torch.tensor([[0.5, 1.75, 400.0]])
    out = positions.embed(x, AttentionContext(at, at))
    expected = [[f(p / 10000 ** (2 * c / 16)) for c in range(8) for f in (math.sin, math.cos)] for p in at[0].tolist()]
    torch.testing.assert_close(out, x + torch.tensor(expected, dtype=torch.float64), **EXACT)
    out.sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))


@pytest.mark.full
@pytest.mark.oracle("randomized")
def test_randomized_draws_an_ordered_sample_of_many_positions_by_which_each_token_is_as_likely():
    """Of the i-th of T draws from N without replacement the mean is (i + 1) (N + 1) / (T + 1) - 1."""
    torch.manual_seed(0)
    pos = torch.tensor([[0, 1, 2, 3], [0, 0, 0, 1], [0, 2, 3, 9]])
    drawn = torch.stack(
        [positions_of_training("sinusoidal+randomized", pos, randomized_positions=20) for _ in range(2000)]
    )
    assert (drawn[:, 0].diff() > 0).all() and drawn[:, 0].min() == 0 and drawn[:, 0].max() == 19
    mean = torch.tensor([(i + 1) * 21 / 5 - 1 for i in range(4)])
    torch.testing.assert_close(drawn[:, 0].double().mean(0).float(), mean, rtol=0.0, atol=0.35)
    assert torch.equal(drawn[:, 1], drawn[:, 0][:, [0, 0, 0, 1]])  # padding first: a token's position says which draw
    assert torch.equal(drawn[:, 2, :3], drawn[:, 0][:, [0, 2, 3]])
    assert torch.equal(drawn[:, 2, 3], drawn[:, 0, 3] + 6)  # given positions beyond the tokens follow the last one
    assert torch.equal(
        positions_of_training("sinusoidal+randomized", SENTENCES[:3], randomized_positions=5), SENTENCES[:3]
    )


RANDOM = {
    "shape": {"shape_shifts": 500},
    "cape": {"cape_shift": 5.0, "cape_jitter": 0.5, "cape_stretch": 1.03},
    "relative+randomized": {"randomized_positions": 50},
    "t5+randomized": {"randomized_positions": 50},
}


@pytest.mark.parametrize("name", RANDOM)
def test_what_is_drawn_is_drawn_once_a_forward_and_in_training_alone(name):
    """Checkpointing replays the layers with it; two sides and two forwards differ."""
    model = tiny_model(name, dropout=0.0, **RANDOM[name])
    batch = {"input_ids": sentences(3, 6), "labels": sentences(3, 9, seed=2)}

    def gradients() -> list[Tensor]:
        model.zero_grad()
        torch.manual_seed(5)
        model(**batch).loss.backward()
        return [parameter.grad for parameter in model.parameters()]

    assert torch.equal(model(**batch).logits, model(**batch).logits)
    model.train()
    assert (model(**batch).logits - model(**batch).logits).abs().max() > 1e-3
    plain = gradients()
    (getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable)()
    torch.testing.assert_close(gradients(), plain, **EXACT)


@pytest.mark.parametrize(
    ("named_sum", "reason"),
    [
        ("log_n", "says nothing of where a token is .* write a sum, such as 'relative[+]log_n'"),
        ("randomized+log_n", "says nothing of where a token is .* such as 'relative[+]randomized[+]log_n'"),
        ("shape+cape", "`shape` and `cape` both change the positions of training"),
        ("shape+randomized", "`shape` and `randomized` both change the positions of training"),
        ("learned+randomized", "`randomized` changes the positions of training, for which the table of `learned`"),
        ("cape+learned", "`cape` changes the positions of training, for which the table of `learned`"),
        ("relative+log_n+log_n_learned", "presets of one encoding, LogN"),
    ],
)
def test_sums_that_make_no_sense_are_refused(named_sum, reason):
    with pytest.raises(ValueError, match=reason):
        PosEncConfig(position_encoding_type=named_sum)
    with pytest.raises(ValueError, match=reason):
        PosEncConfig(decoder_position_encoding_type=named_sum)


def test_log_n_by_itself_makes_sense_between_decoder_and_encoder():
    assert PosEncConfig(cross_position_encoding_type="log_n").modifies_cross_attention


# Forgetting


@pytest.mark.oracle("forgetting")
@BOTH_SIDES
def test_forgetting_is_the_sum_of_the_gates_between_query_and_key(side):
    """Two tokens of padding before the second sentence have none."""
    torch.manual_seed(0)
    config = tiny_config("forgetting")
    forgetting = build_position_encodings(config, config.side(side))[0].double()
    for parameter in forgetting.parameters():
        nn.init.normal_(parameter)
    heads, causal, at = config.side(side).heads, side == "decoder", torch.arange(6)[None]
    x, tokens = torch.randn(2, 6, 16, dtype=torch.float64, requires_grad=True), torch.ones(2, 6, dtype=torch.bool)
    tokens[1, :2] = False
    ours = forgetting.score_bias(x, x, AttentionContext(at, at, tokens, is_causal=causal, layer=1, inputs_BTD=x))
    expected = torch.zeros_like(ours)
    for b, h, i, j in product(range(2), range(heads), range(6), range(6)):
        if j > i and causal:
            continue
        way = 1 if j > i else 0
        gates = [
            torch.sigmoid(forgetting.weight[1, way, h] @ x[b, token] + forgetting.bias[1, way, h]).log()
            for token in range(min(i, j) + 1, max(i, j) + 1)
            if tokens[b, token]
        ]
        expected[b, h, i, j] = sum(gates)
    ours = ours.tril() if causal else ours
    torch.testing.assert_close(ours, expected, **EXACT)
    weight, inputs = torch.randn_like(ours), [x, *forgetting.parameters()]
    mine, theirs = (torch.autograd.grad((one * weight).sum(), inputs) for one in (ours, expected))
    torch.testing.assert_close(mine, theirs, **EXACT)
    assert all(gradient[1].abs().min() > 0 for gradient in mine[1:])
