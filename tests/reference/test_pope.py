"""The encoding `pope` against its reference implementation or its formula."""

import math
import warnings

import pytest
import torch
from support.models import tiny_config
from torch import nn

with warnings.catch_warnings():  # 5.17 compiles it in a way that torch deprecates
    warnings.simplefilter("ignore")
from support.reference import BOTH_SIDES, EXACT, assert_products

from hf_posenc import AttentionContext
from hf_posenc.encodings.registry import build_position_encodings


@pytest.mark.reference("pope")
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
def test_pope_offsets_stay_in_their_range():
    config = tiny_config("pope")
    positions, at = build_position_encodings(config, config.side("encoder")).double(), torch.arange(5)[None]
    k, found = torch.randn(1, 2, 5, 8, dtype=torch.float64), []
    contexts = positions.prepare(torch.zeros(1, 5, 16).double(), AttentionContext(at, at, layer=0))
    for offset in (0.5, 0.0, -2 * math.pi, -7.0, -1.0):
        nn.init.constant_(positions[0].delta, offset)
        found.append(positions.rotate_keys(k, contexts))
    torch.testing.assert_close(found[:4], [found[1]] * 4, **EXACT)
    assert (found[4] - found[1]).abs().max() > 0.1
