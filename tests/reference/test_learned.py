"""The encoding `learned` against its reference implementation or its formula."""

import warnings

import pytest
import torch
from support.models import tiny_config
from torch import nn

with warnings.catch_warnings():  # 5.17 compiles it in a way that torch deprecates
    warnings.simplefilter("ignore")
from support.reference import EXACT

from hf_posenc import AttentionContext
from hf_posenc.encodings.registry import build_position_encodings


# Learned
@pytest.mark.reference("learned")
def test_learned_is_an_embedding_of_positions():
    config = tiny_config("learned")
    positions = build_position_encodings(config, config.side("encoder")).double()
    nn.init.normal_(positions[0].table)
    reference = nn.Embedding(config.learned_max_positions, 16, _weight=positions[0].table.detach().clone())
    x, at = torch.randn(2, 4, 16, dtype=torch.float64), torch.tensor([[0, 0, 1, 63], [2, 3, 3, 9]])
    out = positions.embed(x, AttentionContext(at, at))
    expected = x + reference(at)
    torch.testing.assert_close(out, expected, **EXACT)
    weight = torch.randn_like(out)
    (out * weight).sum().backward()
    (expected * weight).sum().backward()
    torch.testing.assert_close(positions[0].table.grad, reference.weight.grad, **EXACT)
