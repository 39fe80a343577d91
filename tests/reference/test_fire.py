"""The encoding `fire` against its reference implementation or its formula."""

import warnings

import pytest
import torch
from torch import nn

with warnings.catch_warnings():  # 5.17 compiles it in a way that torch deprecates
    warnings.simplefilter("ignore")
from support.reference import BOTH_SIDES, assert_bias

# FIRE


@pytest.mark.reference("fire")
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
