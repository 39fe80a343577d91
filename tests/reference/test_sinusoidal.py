"""The encoding `sinusoidal` against its reference implementation or its formula."""

import math
import warnings

import pytest
import torch
from support.models import tiny_config
from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

with warnings.catch_warnings():  # 5.17 compiles it in a way that torch deprecates
    warnings.simplefilter("ignore")
from support.reference import EXACT, halves

from hf_posenc import AttentionContext, sinusoids
from hf_posenc.encodings.registry import build_position_encodings

# Sinusoidal


@pytest.mark.parametrize("width", [2, 16, 50])
def test_the_sinusoids_are_the_formula(width):
    pos = torch.tensor([0, 1, 2, 17, 999, 45000, -3])
    expected = torch.empty(len(pos), width, dtype=torch.float64)
    for row, p in enumerate(pos.tolist()):
        for c in range(width // 2):
            expected[row, 2 * c] = math.sin(p / 10000 ** (2 * c / width))
            expected[row, 2 * c + 1] = math.cos(p / 10000 ** (2 * c / width))
    torch.testing.assert_close(sinusoids(pos, width, torch.float64), expected, rtol=1e-9, atol=1e-9)


def test_the_sinusoids_are_marians_in_another_order_of_channels():
    theirs = MarianSinusoidalPositionalEmbedding(60, 16).create_weight()
    ours = sinusoids(torch.arange(60), 16, torch.float64)
    torch.testing.assert_close(ours.float(), theirs[:, halves(16)], rtol=1e-6, atol=1e-6)


def test_offset_and_base_give_the_sinusoids_of_m2m_100():
    padding = 1
    theirs = M2M100SinusoidalPositionalEmbedding(60, 16, padding)(torch.full((1, 50), 7))
    config = tiny_config("sinusoidal", sinusoidal_offset=padding + 1, sinusoidal_base=10000.0 ** (8 / 7))
    positions = build_position_encodings(config, config.side("decoder"))
    at = torch.arange(50)[None]
    ours = positions.embed(torch.zeros(1, 50, 16, dtype=torch.float64), AttentionContext(at, at))
    torch.testing.assert_close(ours.float(), theirs[..., halves(16)], rtol=0, atol=1e-5)


@pytest.mark.reference("sinusoidal")
def test_sinusoidal_adds_the_sinusoids_and_passes_the_gradient_on():
    config = tiny_config("sinusoidal")
    positions = build_position_encodings(config, config.side("encoder"))
    x, at = (
        torch.randn(2, 5, 16, dtype=torch.float64, requires_grad=True),
        torch.tensor([[0, 0, 1, 2, 3], [0, 1, 2, 3, 4]]),
    )
    out = positions.embed(x, AttentionContext(at, at))
    torch.testing.assert_close(out, x + sinusoids(at, 16, torch.float64), **EXACT)
    out.sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))
