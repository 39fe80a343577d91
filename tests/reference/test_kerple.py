"""The encoding `kerple` against its reference implementation or its formula."""

import warnings

import pytest
import torch
from support.models import tiny_config
from torch import nn

with warnings.catch_warnings():  # 5.17 compiles it in a way that torch deprecates
    warnings.simplefilter("ignore")
from support.reference import BOTH_SIDES, assert_bias

from hf_posenc.encodings.registry import build_position_encodings

# KERPLE


@pytest.mark.reference("kerple", "kerple_power")
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
