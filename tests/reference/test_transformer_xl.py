"""The encoding `transformer_xl` against its reference implementation or its formula."""

import math
import re
import warnings

import pytest
import torch
from transformers import (
    ParakeetEncoderConfig,
)
from transformers.models.parakeet.modeling_parakeet import (
    ParakeetEncoderAttention,
    ParakeetEncoderRelPositionalEncoding,
)

with warnings.catch_warnings():  # 5.17 compiles it in a way that torch deprecates
    warnings.simplefilter("ignore")
from support.reference import BOTH_SIDES, assert_bias, attended, encoder_attention

from hf_posenc import PosEncConfig

# Transformer-XL


@BOTH_SIDES
def test_transformer_xl_is_its_formula(side):
    def formula(xl):
        def bias(pair):
            width, d = len(pair.q), pair.i - pair.j
            waves = [f(d / 10000 ** (2 * c / 16)) for c in range(8) for f in (math.sin, math.cos)]
            r = xl.weight[1, pair.h] @ torch.tensor(waves, dtype=torch.float64)
            return (xl.u[1, pair.h] @ pair.k + (pair.q + xl.v[1, pair.h]) @ r) / math.sqrt(width)

        return bias

    assert_bias("transformer_xl", side, formula)


@pytest.mark.reference("transformer_xl")
def test_transformer_xl_is_the_attention_of_parakeets_encoder():
    attention, positions = encoder_attention("transformer_xl")
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2, "attention_bias": True}
    theirs_config = ParakeetEncoderConfig(**sizes, attn_implementation="eager")
    theirs = ParakeetEncoderAttention(theirs_config, layer_idx=0).double().eval()
    xl, x = positions[0], torch.randn(2, 9, 16, dtype=torch.float64, requires_grad=True)
    theirs.load_state_dict(
        {name.replace("out_proj", "o_proj"): tensor for name, tensor in attention.state_dict().items()}
        | {"relative_k_proj.weight": xl.weight[0].flatten(0, 1), "bias_u": xl.u[0], "bias_v": xl.v[0]}
    )
    ours = attended(attention, x, positions)
    expected, _ = theirs(x, ParakeetEncoderRelPositionalEncoding(theirs_config)(x))
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)  # their sinusoids are in float32
    weight = torch.randn_like(ours)
    mine = torch.autograd.grad((ours * weight).sum(), [x, xl.u, xl.v, xl.weight])
    of_theirs = [x, theirs.bias_u, theirs.bias_v, theirs.relative_k_proj.weight]
    others = torch.autograd.grad((expected * weight).sum(), of_theirs)
    for one, other in zip(mine, others, strict=True):
        torch.testing.assert_close(one.flatten(), other.flatten(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("rotary+transformer_xl", "TransformerXL reads the keys' content, but `rotary` rotates keys"),
        ("deberta+xpos", "Deberta reads the keys' content, but `xpos` rotates keys"),
        ("pope+rotary", "Pope gives each channel its own angle, but `rotary` rotates keys"),
    ],
)
def test_encodings_that_need_unrotated_keys_are_refused_with_rotations(named, why):
    with pytest.raises(ValueError, match=rf"'{re.escape(named)}': {why} .*; leave"):
        PosEncConfig(position_encoding_type=named)


def test_an_odd_width_has_no_pairs_for_transformer_xl():
    with pytest.raises(ValueError, match="the model's width must be even, but it is 15;"):
        PosEncConfig(
            position_encoding_type="transformer_xl", d_model=15, encoder_attention_heads=3, decoder_attention_heads=3
        )
