"""The encoding `log_n` against its reference implementation or its formula."""

import math
import warnings
from dataclasses import replace
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

# Log n


@pytest.mark.reference("log_n", "log_n_learned")
@BOTH_SIDES
@pytest.mark.parametrize("name", ["log_n", "log_n_learned"])
def test_log_n_scales_queries_by_the_logarithm_of_their_number_of_keys(name, side):
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
