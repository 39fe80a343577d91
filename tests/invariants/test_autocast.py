"""Under autocast the values of every encoding are as exact as in half precision: angles, biases and distances."""

import copy

import pytest
import torch
from support.models import ALIGNED, tiny_config, tiny_model
from torch import Tensor, nn

from hf_posenc import POSITION_ENCODINGS, AttentionContext
from hf_posenc.encodings.registry import build_position_encodings
from hf_posenc.encodings.sum import PositionEncodingSum

pytestmark = pytest.mark.invariant

FIELDS = {
    "encoder": "position_encoding_type",
    "decoder": "decoder_position_encoding_type",
    "cross": "cross_position_encoding_type",
}
FIRST = 1500  # bfloat16 represents whole numbers up to 256


def values(
    encodings: PositionEncodingSum, x_BTD: Tensor, q_BHTK: Tensor, *, is_causal: bool, is_cross: bool
) -> list[Tensor]:
    """What the hooks return at positions from FIRST on: embeddings, rotations, and the biases of queries of zeros."""
    pos_BT = torch.arange(FIRST, FIRST + x_BTD.shape[1])[None]
    ctx = AttentionContext(pos_BT, pos_BT, is_causal=is_causal, is_cross=is_cross, layer=0, inputs_BTD=x_BTD)
    contexts = encodings.prepare(x_BTD, ctx)
    found = [
        encodings.embed(x_BTD, ctx) - x_BTD,
        encodings.rotate_queries(q_BHTK, contexts),
        encodings.rotate_keys(q_BHTK, contexts),
    ]
    if encodings.has_score_bias:
        zeros_BHTK = torch.zeros_like(q_BHTK)
        found.append(encodings.score_bias(zeros_BHTK, zeros_BHTK, contexts))
    return [value.float() for value in found]


@pytest.mark.parametrize("side", ["encoder", "decoder", "cross"])
@torch.no_grad()
def test_hooks_are_as_exact_as_in_half_precision(entry_name, side):
    entry = POSITION_ENCODINGS[entry_name]
    encoding = f"rotary+{entry_name}" if entry.is_modifier else entry_name
    fields = {FIELDS[side]: encoding}
    if entry.max_length_field:
        fields[entry.max_length_field] = 2 * FIRST
    try:
        config = tiny_config("relative", **fields)
    except ValueError:
        pytest.skip("no encoding of cross-attention")
    torch.manual_seed(0)
    encodings = build_position_encodings(config, config.side(side))
    for parameter in encodings.parameters():
        nn.init.normal_(parameter)
    half = copy.deepcopy(encodings).bfloat16()
    exact = copy.deepcopy(half).float()
    heads = config.side(side).heads
    x_BTD, q_BHTK = torch.randn(2, 40, 16).bfloat16(), torch.randn(2, heads, 40, 16 // heads).bfloat16()
    how = {"is_causal": side == "decoder", "is_cross": side == "cross"}
    expected = values(exact, x_BTD.float(), q_BHTK.float(), **how)
    in_half = values(half, x_BTD, q_BHTK, **how)
    with torch.autocast("cpu", torch.bfloat16):
        under_autocast = values(exact, x_BTD.float(), q_BHTK, **how)
    for exact_value, half_value, value in zip(expected, in_half, under_autocast, strict=True):
        allowed = 1.1 * (half_value - exact_value).square().mean().sqrt()
        assert (value - exact_value).square().mean().sqrt() <= allowed


@pytest.mark.parametrize("name", ALIGNED)
@torch.no_grad()
def test_source_positions_are_those_without_autocast(name):
    model = tiny_model(name, dtype=torch.float32)
    x_BTD, states_BSD = torch.randn(2, 12, 16), torch.randn(2, 9, 16)
    queries_BT, keys_BS = (FIRST + torch.arange(length)[None].expand(2, -1) for length in (12, 9))
    ctx = AttentionContext(queries_BT, keys_BS, is_cross=True)
    expected = model.model.decoder.alignment.source_positions(x_BTD, states_BSD, ctx)
    with torch.autocast("cpu", torch.bfloat16):
        found = model.model.decoder.alignment.source_positions(x_BTD, states_BSD, ctx)
    assert torch.equal(found, expected)
