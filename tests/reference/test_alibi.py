"""The encoding `alibi` against its reference implementation or its formula."""

import warnings

import pytest
import torch
from support.models import tiny_config
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

with warnings.catch_warnings():  # 5.17 compiles it in a way that torch deprecates
    warnings.simplefilter("ignore")
from support.reference import BOTH_SIDES, assert_bias

from hf_posenc import AttentionContext
from hf_posenc.encodings.registry import build_position_encodings

# ALiBi


@pytest.mark.reference("alibi", "alibi_symmetric")
@BOTH_SIDES
@pytest.mark.parametrize("name", ["alibi", "alibi_symmetric"])
def test_alibi_is_its_formula(name, side):
    def formula(_):
        heads = 2 if side == "encoder" else 4
        past = [2 ** (-8 * h / heads) for h in range(1, heads + 1)]
        future = past[::-1] if name == "alibi" else past
        return lambda pair: -(past if pair.j < pair.i else future)[pair.h] * abs(pair.j - pair.i)

    assert_bias(name, side, formula)


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6, 8, 12, 16])
def test_a_decoders_alibi_is_blooms_for_any_number_of_heads(heads):
    """Theirs is the price times the key's position: what that lacks is the same for a whole row of scores."""
    config = tiny_config("alibi", d_model=48, decoder_attention_heads=heads)
    positions, at = build_position_encodings(config, config.side("decoder")), torch.arange(9)[None]
    x = torch.zeros(1, 9, 48, dtype=torch.float64)
    ours = positions.score_bias(x, x, positions.prepare(x, AttentionContext(at, at, is_causal=True)))[0]
    theirs = build_alibi_tensor(torch.ones(1, 9), heads, torch.float64).view(heads, 1, 9)
    theirs = (theirs - theirs.transpose(1, 2)).tril()
    torch.testing.assert_close(ours.tril(), theirs, rtol=1e-6, atol=1e-6)  # they have float32
