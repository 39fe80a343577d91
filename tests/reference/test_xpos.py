"""The encoding `xpos` against its reference implementation or its formula."""

import math
import warnings

import pytest
import torch

with warnings.catch_warnings():  # 5.17 compiles it in a way that torch deprecates
    warnings.simplefilter("ignore")
from support.reference import BOTH_SIDES, assert_products


@pytest.mark.reference("xpos")
@BOTH_SIDES
def test_xpos_is_rotary_that_decays_with_the_distance_in_the_decoder(side):
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
