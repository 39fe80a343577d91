"""The encoding `xpos` against its reference implementation or its formula."""

import math
import warnings

import pytest
import torch

with warnings.catch_warnings():  # 5.17 compiles it in a way that torch deprecates
    warnings.simplefilter("ignore")
from support.causal import tiny_causal_model
from support.models import sentences
from support.reference import BOTH_SIDES, assert_products

from hf_posenc.generation.model_inputs import CACHE_NAME


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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@torch.no_grad()
def test_positions_are_exact_or_refused(dtype):
    """With or without a cache: a key that grows by a token's factor at every token, up to its dtype's range."""
    model, ids = tiny_causal_model("xpos", dtype=dtype, xpos_scale_base=1.0), sentences(2, 2)
    end = math.ceil(math.log(torch.finfo(dtype).max) / math.log(1.4 / 0.4))
    near = model(ids).logits
    tolerance = 100 * torch.finfo(dtype).eps
    firsts, refused = {end * part // 16 for part in range(17)}, set()
    for first in firsts:
        positions = first + torch.arange(2)[None]
        try:
            whole = model(ids, position_ids=positions).logits
        except ValueError as error:
            assert "`xpos` has the positions" in str(error)
            refused.add(first)
            continue
        torch.testing.assert_close(whole, near, rtol=tolerance, atol=tolerance)
        cache = model(ids[:, :1], position_ids=positions[:, :1], use_cache=True)[CACHE_NAME]
        step = model(ids[:, 1:], position_ids=positions[:, 1:], **{CACHE_NAME: cache})
        torch.testing.assert_close(step.logits, near[:, 1:], rtol=tolerance, atol=tolerance)
    assert refused == {first for first in firsts if first >= min(refused)} and min(refused) > end // 3
