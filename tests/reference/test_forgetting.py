"""The encoding `forgetting` against its reference implementation or its formula."""

import warnings
from itertools import product

import pytest
import torch
from support.models import tiny_config
from torch import nn

with warnings.catch_warnings():  # 5.17 compiles it in a way that torch deprecates
    warnings.simplefilter("ignore")
from support.reference import BOTH_SIDES, EXACT

from hf_posenc import AttentionContext
from hf_posenc.encodings.registry import build_position_encodings

# Forgetting


@pytest.mark.reference("forgetting")
@BOTH_SIDES
def test_forgetting_is_the_sum_of_log_gates_between_query_and_key(side):
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
