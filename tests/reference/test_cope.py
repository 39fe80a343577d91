"""The encoding `cope` against its formula."""

from itertools import product

import pytest
import torch
from support.models import tiny_config
from support.reference import BOTH_SIDES, EXACT
from torch import nn

from hf_posenc import AttentionContext
from hf_posenc.encodings.positions import valid_keys
from hf_posenc.encodings.registry import build_position_encodings


@pytest.mark.reference("cope")
@BOTH_SIDES
def test_cope_counts_the_gates_from_the_key_to_the_query(side):
    """Both ends included; a hole in the second sentence's mask has no gate; positions end at the last vector."""
    torch.manual_seed(0)
    config = tiny_config("cope", cope_positions=3)
    spec = config.side(side)
    cope = build_position_encodings(config, spec)[0].double()
    nn.init.normal_(cope.vectors)
    causal, at, tokens = side == "decoder", torch.arange(6)[None], torch.ones(2, 6, dtype=torch.bool)
    tokens[1, 2] = False
    q, k = torch.randn(2, 2, spec.heads, 6, spec.head_dim, dtype=torch.float64, requires_grad=True)
    ctx = AttentionContext(at, at, tokens, tokens, is_causal=causal, layer=1)
    ours = cope.score_bias(q, k, ctx.replace(prepared=cope.prepare(torch.empty(2, 6, 16), ctx)))
    expected, scale, clamped = torch.zeros_like(ours), spec.head_dim**-0.5, 0
    for b, h, i, j in product(range(2), range(spec.heads), range(6), range(6)):
        if j > i and causal:
            continue
        between = [key for key in range(min(i, j), max(i, j) + 1) if tokens[b, key]]
        gates = [torch.sigmoid(q[b, h, i] @ k[b, h, key] * scale) for key in between]
        position = torch.clamp(sum(gates, torch.zeros((), dtype=torch.float64)), max=2)
        clamped += int(position == 2)
        vectors, lower = cope.vectors[1, 1 if j > i else 0], int(position)
        above = vectors[min(lower + 1, 2)]
        vector = (1 - (position - lower)) * vectors[lower] + (position - lower) * above
        expected[b, h, i, j] = q[b, h, i] @ vector * scale
    assert clamped > 0
    ours = ours.tril() if causal else ours
    torch.testing.assert_close(ours, expected, **EXACT)
    weight, inputs = torch.randn_like(ours), [q, k, cope.vectors]
    mine, theirs = (torch.autograd.grad((one * weight).sum(), inputs) for one in (ours, expected))
    torch.testing.assert_close(mine, theirs, **EXACT)


def test_a_mask_is_read_for_the_keys_that_a_cache_keeps():
    """Its first columns are of dropped tokens; a static cache has room beyond its last one."""
    mask = torch.tensor([[0, 1, 1, 0, 1]])
    for num_keys, expected in ((5, [0, 1, 1, 0, 1]), (3, [1, 0, 1]), (7, [0, 1, 1, 0, 1, 1, 1])):
        for given in (mask, mask[:, None, None] != 0):
            assert valid_keys(given, num_keys).long().tolist() == [[expected]]
    assert valid_keys(None, 5) is None
