"""SHAPE, CAPE and randomized positions: their distributions and formulas."""

import math
import warnings

import pytest
import torch
from support.models import sentences, tiny_config, tiny_model
from torch import Tensor

with warnings.catch_warnings():  # 5.17 compiles it in a way that torch deprecates
    warnings.simplefilter("ignore")
from support.reference import EXACT

from hf_posenc import AttentionContext
from hf_posenc.encodings.registry import build_position_encodings

# Positions of training


def positions_of_training(name: str, pos: Tensor, **changes) -> Tensor:
    config = tiny_config(name, **changes)
    return build_position_encodings(config, config.side("encoder")).augment_positions(pos, AttentionContext(pos, pos))


SENTENCES = torch.arange(12).expand(4000, -1)


@pytest.mark.reference("shape")
def test_shape_shifts_each_sentence_by_a_uniform_sample():
    torch.manual_seed(0)
    found = positions_of_training("shape", SENTENCES, shape_shifts=10) - SENTENCES
    assert found.dtype == torch.int64
    assert torch.equal(found, found[:, :1].expand(-1, 12))
    counts = found[:, 0].bincount(minlength=10)
    assert len(counts) == 10 and counts.min() > 300 and counts.max() < 500  # 400 each, by chance 19 more or less


@pytest.mark.reference("cape")
def test_cape_shifts_jitters_and_stretches_evenly_within_its_bounds():
    torch.manual_seed(0)
    still = {"cape_shift": 0.0, "cape_jitter": 0.0, "cape_stretch": 1.0}

    def assert_even(drawn: Tensor, bound: float):
        """Uniform between -bound and bound: by its ends, its mean and its variance."""
        assert drawn.abs().max() <= bound + 1e-5 and drawn.max() > 0.99 * bound and drawn.min() < -0.99 * bound
        assert drawn.mean().abs() < 0.05 * bound and (drawn.var() / (bound**2 / 3) - 1).abs() < 0.1

    shifted = positions_of_training("cape", SENTENCES, **still | {"cape_shift": 5.0}) - SENTENCES
    torch.testing.assert_close(shifted, shifted[:, :1].expand(-1, 12))
    assert_even(shifted[:, 0], 5.0)
    stretched = positions_of_training("cape", SENTENCES, **still | {"cape_stretch": 1.5})[:, 1:] / SENTENCES[:, 1:]
    torch.testing.assert_close(stretched, stretched[:, :1].expand(-1, 11))
    assert_even(stretched[:, 0].log(), math.log(1.5))
    jittered = positions_of_training("cape", SENTENCES, **still | {"cape_jitter": 0.5}) - SENTENCES
    assert_even(jittered, 0.5)
    assert (jittered[:, 1:] - jittered[:, :-1]).abs().mean() > 0.3  # each token by itself
    everything = positions_of_training("cape", SENTENCES, cape_shift=5.0, cape_jitter=0.5, cape_stretch=1.03)
    assert (everything.diff() >= 0).all()
    assert everything.max() <= (11 + 5.5) * 1.03 and everything.max() > 16


@pytest.mark.parametrize("name", ["shape", "cape"])
def test_shape_and_cape_add_the_sinusoids_of_their_positions_and_pass_the_gradient_on(name):
    config = tiny_config(name)
    positions = build_position_encodings(config, config.side("encoder"))
    x, at = torch.randn(1, 3, 16, dtype=torch.float64, requires_grad=True), torch.tensor([[0.5, 1.75, 400.0]])
    out = positions.embed(x, AttentionContext(at, at))
    expected = [[f(p / 10000 ** (2 * c / 16)) for c in range(8) for f in (math.sin, math.cos)] for p in at[0].tolist()]
    torch.testing.assert_close(out, x + torch.tensor(expected, dtype=torch.float64), **EXACT)
    out.sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))


@pytest.mark.full
@pytest.mark.reference("randomized")
def test_randomized_positions_are_an_ordered_uniform_sample():
    """Of the i-th of T draws from N without replacement the mean is (i + 1) (N + 1) / (T + 1) - 1."""
    torch.manual_seed(0)
    pos = torch.tensor([[0, 1, 2, 3], [0, 0, 0, 1], [0, 2, 3, 9]])
    drawn = torch.stack(
        [positions_of_training("sinusoidal+randomized", pos, randomized_positions=20) for _ in range(2000)]
    )
    assert (drawn[:, 0].diff() > 0).all() and drawn[:, 0].min() == 0 and drawn[:, 0].max() == 19
    mean = torch.tensor([(i + 1) * 21 / 5 - 1 for i in range(4)])
    torch.testing.assert_close(drawn[:, 0].double().mean(0).float(), mean, rtol=0.0, atol=0.35)
    assert torch.equal(drawn[:, 1], drawn[:, 0][:, [0, 0, 0, 1]])  # padding first: a token's position says which draw
    assert torch.equal(drawn[:, 2, :3], drawn[:, 0][:, [0, 2, 3]])
    assert torch.equal(drawn[:, 2, 3], drawn[:, 0, 3] + 6)  # given positions beyond the tokens follow the last one
    assert torch.equal(
        positions_of_training("sinusoidal+randomized", SENTENCES[:3], randomized_positions=5), SENTENCES[:3]
    )


RANDOM = {
    "shape": {"shape_shifts": 500},
    "cape": {"cape_shift": 5.0, "cape_jitter": 0.5, "cape_stretch": 1.03},
    "relative+randomized": {"randomized_positions": 50},
    "t5+randomized": {"randomized_positions": 50},
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_augmentation_is_sampled_once_a_forward_and_in_training_only(name):
    """Checkpointing replays the layers with it; two sides and two forwards differ."""
    model = tiny_model(name, dropout=0.0, **RANDOM[name])
    batch = {"input_ids": sentences(3, 6), "labels": sentences(3, 9, seed=2)}

    def gradients() -> list[Tensor]:
        model.zero_grad()
        torch.manual_seed(5)
        model(**batch).loss.backward()
        return [parameter.grad for parameter in model.parameters()]

    assert torch.equal(model(**batch).logits, model(**batch).logits)
    model.train()
    assert (model(**batch).logits - model(**batch).logits).abs().max() > 1e-3
    plain = gradients()
    (getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable)()
    torch.testing.assert_close(gradients(), plain, **EXACT)
