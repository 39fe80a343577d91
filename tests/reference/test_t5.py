"""The encoding `t5` against its reference implementation or its formula."""

import warnings

import pytest
import torch
from support.models import tiny_config
from torch import nn
from transformers import (
    T5Config,
)
from transformers.models.t5.modeling_t5 import T5Attention

with warnings.catch_warnings():  # 5.17 compiles it in a way that torch deprecates
    warnings.simplefilter("ignore")
from support.reference import EXACT

from hf_posenc import AttentionContext, PosEncConfig
from hf_posenc.encodings.registry import build_position_encodings

# T5


@pytest.mark.reference("t5")
@pytest.mark.parametrize("causal", [False, True], ids=["encoder", "decoder"])
@pytest.mark.parametrize(("buckets", "furthest"), [(32, 128), (32, 256), (64, 128), (4, 3), (12, 40)])
def test_t5_is_transformers_t5_at_every_distance(buckets, furthest, causal):
    """600 tokens: beyond the last bucket's edge, from its first token to its last and back."""
    config = tiny_config("t5", t5_buckets=buckets, t5_max_distance=furthest)
    positions = build_position_encodings(config, config.side("decoder" if causal else "encoder")).double()
    fields = {"relative_attention_num_buckets": buckets, "relative_attention_max_distance": furthest, "num_heads": 2}
    theirs = T5Attention(T5Config(**fields, is_decoder=causal), has_relative_attention_bias=True)
    reference = theirs.relative_attention_bias = nn.Embedding(buckets, 4 if causal else 2).double()
    with torch.no_grad():
        positions[0].table.copy_(reference.weight)
    x, at = torch.zeros(1, 600, 16, dtype=torch.float64), torch.arange(600)[None] + 5
    ours, expected = (
        positions.score_bias(x, x, positions.prepare(x, AttentionContext(at, at))),
        theirs.compute_bias(600, 600),
    )
    weight = torch.randn(600, 600, dtype=torch.float64)
    if causal:
        weight = weight.tril()
    torch.testing.assert_close(ours * weight, expected * weight, **EXACT)
    (ours * weight).sum().backward()
    (expected * weight).sum().backward()
    torch.testing.assert_close(positions[0].table.grad, reference.weight.grad, **EXACT)


def test_a_t5_whose_wide_buckets_begin_behind_their_end_is_refused():
    with pytest.raises(ValueError, match=r"t5_max_distance .* t5_buckets / 2.* 16 and 32;"):
        PosEncConfig(position_encoding_type="t5", t5_max_distance=16)
