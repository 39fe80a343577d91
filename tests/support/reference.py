"""What comparisons with reference implementations share: tolerances, tiny models, products and biases by hand."""

import warnings
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from support.models import tiny_config

with warnings.catch_warnings():  # 5.17 compiles it in a way that torch deprecates
    warnings.simplefilter("ignore")
from hf_posenc import AttentionContext
from hf_posenc.encodings.registry import build_position_encodings
from hf_posenc.encodings.sum import PositionEncodingSum
from hf_posenc.transformer.attention import Attention, AttentionInputs

EXACT = {"rtol": 1e-10, "atol": 1e-10}


def halves(width: int) -> Tensor:
    """Where a channel of the interleaved order (sin, cos, sin, cos) stands if all sines come first."""
    return torch.arange(width).view(2, width // 2).T.flatten()


# Rotary


def turned(positions: PositionEncodingSum, q: Tensor, k: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys of self-attention at the same positions."""
    contexts = positions.prepare(q, AttentionContext(at, at))
    return positions.rotate_queries(q, contexts), positions.rotate_keys(k, contexts)


def attended(attention: Attention, x: Tensor, positions: PositionEncodingSum, mask: Tensor | None = None) -> Tensor:
    """The output of a self-attention at positions 0, 1, ..., in its layer."""
    ctx = AttentionContext(at := torch.arange(x.shape[1])[None], at)
    return attention(x, AttentionInputs(positions, ctx, positions.prepare(x, ctx), mask))[0]


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
    contexts = positions.prepare(x, AttentionContext(BIASED, BIASED, is_causal=causal, layer=layer))
    ours = positions.score_bias(q, k, contexts).expand(2, heads, 7, 7)
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
    ctx = AttentionContext(BIASED, BIASED, is_causal=causal, layer=1)
    contexts = positions.prepare(torch.zeros(2, 7, 16).double(), ctx)
    ours = positions.rotate_queries(q, contexts) @ positions.rotate_keys(k, contexts).transpose(2, 3)
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
