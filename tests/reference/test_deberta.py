"""The encoding `deberta` against its reference implementation or its formula."""

import math
import warnings

import pytest
import torch
from transformers import (
    DebertaConfig,
)

with warnings.catch_warnings():  # 5.17 compiles it in a way that torch deprecates
    warnings.simplefilter("ignore")
    from transformers.models.deberta.modeling_deberta import DisentangledSelfAttention
from support.reference import BOTH_SIDES, assert_bias, attended, encoder_attention

# DeBERTa


@BOTH_SIDES
def test_deberta_is_its_formula(side):
    def formula(deberta):
        def bias(pair):
            width = len(pair.q)
            own = slice(pair.h * width, (pair.h + 1) * width)
            vector = deberta.vectors[max(-3, min(2, pair.i - pair.j)) + 3]
            key = deberta.key_weight[1, own] @ vector
            query = deberta.query_weight[1, own] @ vector + deberta.query_bias[1, own]
            return (pair.q @ key + pair.k @ query) / math.sqrt(3 * width)

        return bias

    assert_bias("deberta", side, formula)


@pytest.mark.reference("deberta")
def test_deberta_is_the_attention_of_transformers_deberta():
    """Of an encoder, content and its scale included; theirs has no biases where ours are 0."""
    attention, positions = encoder_attention("deberta")
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "relative_attention": True, "max_relative_positions": 3}
    theirs = DisentangledSelfAttention(DebertaConfig(**sizes, pos_att_type=["c2p", "p2c"])).double().eval()
    ours, x = positions[0], torch.randn(2, 9, 16, dtype=torch.float64, requires_grad=True)
    projections = [attention.q_proj, attention.k_proj, attention.v_proj]
    with torch.no_grad():
        for linear in (*projections, attention.out_proj):
            linear.bias.zero_()
        attention.out_proj.weight.copy_(torch.eye(16))
        in_heads = [linear.weight.view(2, 8, 16) for linear in projections]  # theirs: head by head, q, k, v in each
        theirs.in_proj.weight.copy_(torch.stack(in_heads, 1).flatten(0, 2))
        theirs.pos_proj.weight.copy_(ours.key_weight[0])
        theirs.pos_q_proj.weight.copy_(ours.query_weight[0])
        theirs.pos_q_proj.bias.copy_(ours.query_bias[0])
    vectors, at = ours.vectors.detach().clone().requires_grad_(), torch.arange(9)[None]
    found = attended(attention, x, positions)
    query_minus_key = at.T - at
    mask = torch.ones(2, 1, 9, 9)
    expected, _ = theirs(x, mask, relative_pos=query_minus_key[None], rel_embeddings=vectors)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)  # they divide by float32 numbers
    weight = torch.randn_like(found)
    of_ours = [x, ours.vectors, ours.key_weight, ours.query_weight, ours.query_bias]
    of_theirs = [x, vectors, theirs.pos_proj.weight, theirs.pos_q_proj.weight, theirs.pos_q_proj.bias]
    mine = torch.autograd.grad((found * weight).sum(), of_ours)
    for one, other in zip(mine, torch.autograd.grad((expected * weight).sum(), of_theirs), strict=True):
        torch.testing.assert_close(one.flatten(), other.flatten(), rtol=1e-5, atol=1e-5)
