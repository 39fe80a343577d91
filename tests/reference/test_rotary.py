"""The encoding `rotary` against its reference implementation or its formula."""

import warnings

import pytest
import torch
from support.models import tiny_config
from transformers import (
    LlamaConfig,
)
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.phi.modeling_phi import PhiRotaryEmbedding

with warnings.catch_warnings():  # 5.17 compiles it in a way that torch deprecates
    warnings.simplefilter("ignore")
from support.reference import EXACT, halves, turned

from hf_posenc.encodings.registry import build_position_encodings

SCALINGS = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "another theta": {"rope_type": "default", "rope_theta": 500.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "beta_fast": 4.0,
        "beta_slow": 1.0,
    },
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
}


QUARTERS = ("default", "linear", "yarn", "llama3")


SCALINGS |= {f"{name}, a quarter": SCALINGS[name] | {"partial_rotary_factor": 0.25} for name in QUARTERS}


@pytest.mark.reference("rotary")
@pytest.mark.parametrize("causal", [False, True], ids=["encoder", "decoder"])
@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
def test_rotary_is_llamas_in_another_order_of_channels(scaling, causal):
    """The two sides have heads of different width, so a frequency taken from the other side would show."""
    config = tiny_config(
        "rotary", d_model=64, rope_parameters=scaling, max_position_embeddings=64, encoder_attention_heads=4,
        decoder_attention_heads=2,
    )  # fmt: skip
    heads = 2 if causal else 4
    width = 64 // heads
    positions = build_position_encodings(config, config.side("decoder" if causal else "encoder"))
    # Llama's own default knows no partial factor; Phi's does.
    theirs_class = PhiRotaryEmbedding if "partial_rotary_factor" in scaling else LlamaRotaryEmbedding
    llama = theirs_class(
        LlamaConfig(
            hidden_size=64, num_attention_heads=heads, num_key_value_heads=heads, head_dim=width,
            rope_parameters=dict(scaling), max_position_embeddings=64,
        )
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, heads, 6, width, generator=generator).requires_grad_() for _ in range(2))
    at = torch.tensor([[0, 1, 2, 3, 4, 5], [0, 0, 7, 30, 31, 60]])
    ours = turned(positions, q, k, at)
    cos, sin = llama(q, at)
    many = cos.shape[-1]  # channels that are turned, all of them but for a partial factor
    order = halves(many)
    to_llama = order.argsort()
    theirs = [
        torch.cat((t[..., order], x[..., many:]), dim=-1)
        for t, x in zip(
            apply_rotary_pos_emb(q[..., :many][..., to_llama], k[..., :many][..., to_llama], cos, sin),
            (q, k),
            strict=True,
        )
    ]
    torch.testing.assert_close(list(ours), theirs, rtol=1e-4, atol=2e-5)
    weight = torch.randn(2, heads, 6, width, generator=generator)
    gradients = [
        torch.autograd.grad((a * weight).sum() + (b * weight.flip(0)).sum(), (q, k)) for a, b in (ours, theirs)
    ]
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(("kind", "factor"), [("default", 0.375), ("default", 0.01), ("linear", 0.0), ("yarn", 1.5)])
def test_a_rotary_factor_that_leaves_no_pairs_of_channels_is_refused(kind, factor):
    """Of heads of 8 channels; "proportional", which turns pairs of the whole head, takes any part of them."""
    scaling = SCALINGS[kind] | {"partial_rotary_factor": factor}
    with pytest.raises(ValueError, match=rf"even .*partial_rotary_factor={factor}, .* of 8 .*choose"):
        tiny_config("rotary", rope_parameters=scaling, decoder_attention_heads=2)
    whole = {"rope_type": "proportional", "rope_theta": 10000.0, "partial_rotary_factor": 0.375}
    assert tiny_config("rotary", rope_parameters=whole).rope_parameters["partial_rotary_factor"] == 0.375


def test_the_scalings_of_rotary_differ():
    q = torch.ones(1, 2, 40, 32)
    results = []
    for scaling in SCALINGS.values():
        config = tiny_config("rotary", d_model=64, rope_parameters=scaling, max_position_embeddings=64)
        positions = build_position_encodings(config, config.side("encoder"))
        results.append(turned(positions, q, q, torch.arange(40)[None])[0])
    for i, one in enumerate(results):
        assert all((one - other).abs().max() > 1e-2 for other in results[:i])


@pytest.mark.parametrize("at", [0, 1, 5, 300])
def test_rotary_rotates_adjacent_channels_by_the_angle_of_its_formula(at):
    config = tiny_config("rotary")
    positions = build_position_encodings(config, config.side("encoder"))
    q = torch.randn(1, 1, 1, 8, dtype=torch.float64)
    ours, _ = turned(positions, q, q, torch.tensor([[at]]))
    expected = torch.view_as_complex(q.view(4, 2)) * torch.exp(
        1j * at * 10000 ** (-2 * torch.arange(4, dtype=torch.float64) / 8)
    )
    torch.testing.assert_close(ours.view(4, 2), torch.view_as_real(expected), **EXACT)
