"""The encoding `relative` against its reference implementation or its formula."""

import math
import warnings

import pytest
import torch
from support.models import tiny_config
from torch import nn

with warnings.catch_warnings():  # 5.17 compiles it in a way that torch deprecates
    warnings.simplefilter("ignore")
from support.reference import EXACT, attended

from hf_posenc import AttentionContext
from hf_posenc.encodings.registry import build_position_encodings
from hf_posenc.transformer.attention import Attention

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


@pytest.mark.reference(*RELATIVE)
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
    zeros = torch.zeros(2, length, heads * width, dtype=torch.float64)
    ours = attended(attention, zeros, positions, mask if padding or causal else None)
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
def test_fractional_positions_interpolate_linearly(name):
    """Of scores and values: a place of 2.3 is seven tenths of what position 2 is, and three of what 3 is."""
    torch.manual_seed(0)
    config = tiny_config(name, cross_position_encoding_type=name)
    positions = build_position_encodings(config, config.side("cross")).double()
    for parameter in positions.parameters():
        nn.init.normal_(parameter)
    q, p = torch.randn(2, 4, 3, 4, dtype=torch.float64), torch.rand(2, 4, 3, 8, dtype=torch.float64)
    places, keys = torch.tensor([[2.3, 0.0, 6.75]], dtype=torch.float64), torch.arange(8)[None]

    def at(where):
        return positions.prepare(q, AttentionContext(where, keys, is_cross=True, layer=1))

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
