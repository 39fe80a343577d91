"""The encoding `window` against its reference implementation or its formula."""

import math
import warnings

import pytest
import torch
from support.models import tiny_config

with warnings.catch_warnings():  # 5.17 compiles it in a way that torch deprecates
    warnings.simplefilter("ignore")
from support.reference import EXACT, attended

from hf_posenc.encodings.registry import build_position_encodings
from hf_posenc.transformer.attention import Attention

# Window


@pytest.mark.reference("window")
@pytest.mark.parametrize("back_end", ["sdpa", "eager"])
@pytest.mark.parametrize("lookahead", [None, 0, 1])
@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
def test_window_attends_to_what_is_near_and_to_nothing_else_in_values_and_gradients(causal, lookahead, back_end):
    """Against a softmax over those keys alone; no gradient reaches what is further away."""
    torch.manual_seed(0)
    config = tiny_config("window", window_size=2, window_lookahead=lookahead, decoder_attention_heads=2)
    config._attn_implementation = back_end
    attention = Attention(config, num_heads=2, is_causal=causal, layer=0).double().eval()
    positions = build_position_encodings(config, config.side("decoder" if causal else "encoder"))
    x = torch.randn(2, 7, 16, dtype=torch.float64, requires_grad=True)
    mask = torch.ones(1, 1, 7, 7, dtype=torch.bool)
    ours = attended(attention, x, positions, mask.tril() if causal else mask)
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    q, k, v = (project(x).unflatten(2, (-1, attention.head_dim)).transpose(1, 2) for project in projections)
    rows, after = [], 0 if causal else 2 if lookahead is None else lookahead
    for i in range(7):
        near = slice(max(0, i - 2), i + after + 1)
        weights = (q[:, :, i, None] @ k[:, :, near].transpose(2, 3) / math.sqrt(8)).softmax(-1)
        rows.append((weights @ v[:, :, near]).flatten(1))
    expected = attention.out_proj(torch.stack(rows, 1))
    torch.testing.assert_close(ours, expected, **EXACT)
    mine, theirs = (torch.autograd.grad(out[:, 3].sum(), x, retain_graph=True)[0] for out in (ours, expected))
    torch.testing.assert_close(mine, theirs, **EXACT)
    assert mine[:, 1:4].abs().min() > 0
    assert not mine[:, 0].any() and not mine[:, 4 + after :].any()
    assert bool(after) == bool(mine[:, 4:6].any())
