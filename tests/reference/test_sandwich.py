"""The encoding `sandwich` against its reference implementation or its formula."""

import math
import warnings

import pytest

with warnings.catch_warnings():  # 5.17 compiles it in a way that torch deprecates
    warnings.simplefilter("ignore")
from support.reference import BOTH_SIDES, assert_bias

# Sandwich


@pytest.mark.reference("sandwich")
@BOTH_SIDES
def test_sandwich_is_its_formula(side):
    def formula(_):
        heads = 2 if side == "encoder" else 4

        def bias(pair):
            waves = sum(math.cos((pair.j - pair.i) * 10000 ** (-2 * c / 12)) for c in range(6))
            return (waves - 6) * heads / (8 * (pair.h + 1))

        return bias

    assert_bias("sandwich", side, formula)
