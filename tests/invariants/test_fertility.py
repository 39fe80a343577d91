"""The fertility alignment against loops over its formulas, and its loss."""

import pytest
import torch
from support.decoding import EXACT
from support.models import padded, sentences, tiny_config, tiny_model
from torch import Tensor, nn

from hf_posenc import AttentionContext, PosEncConfig
from hf_posenc.alignments.registry import build_alignment
from hf_posenc.encodings.cache import EncodingState
from hf_posenc.lab.training.trainer import label_smoothed_loss

pytestmark = pytest.mark.invariant

FLOAT32 = {"atol": 1e-6, "rtol": 1e-6}  # the loss is computed in it
FERTILITY = "relative+window by fertility"


def fertility_alignment(**changes: float):
    """An alignment whose fertilities differ from token to token."""
    config = tiny_config(FERTILITY, cross_position_encoding_type="rotary", fertility_max_step=4.0, **changes)
    alignment = build_alignment(config).double().eval()
    torch.manual_seed(1)
    nn.init.normal_(alignment.weight)
    nn.init.normal_(alignment.bias)
    return alignment


def source_context(num_source: int, padding: list[int], **fields) -> AttentionContext:
    """Sources with so many padding tokens on the left."""
    index = torch.arange(num_source)
    first = torch.tensor(padding)[:, None]
    return AttentionContext(
        torch.zeros(1, 1), (index - first).clamp(min=0), mask=(index >= first).long(), is_cross=True, **fields
    )


def target_tokens_before(fertilities: list[float], position: float) -> float:
    """F: the target tokens before a source position; the last token's fertility continues."""
    spent, edge = 0.0, -0.5
    for token in range(10_000):
        fertility = fertilities[min(token, len(fertilities) - 1)]
        if position <= edge + 1:
            return spent + (position - edge) * fertility
        spent, edge = spent + fertility, edge + 1
    raise AssertionError


def position_after(fertilities: list[float], num_target: float) -> float:
    """The inverse of F, by bisection."""
    low, high = -0.5, 10.0 * len(fertilities)
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if target_tokens_before(fertilities, middle) < num_target else (low, middle)
    return low


def fertilities_of(alignment, states_BSD: Tensor, padding: list[int]) -> list[list[float]]:
    scores = states_BSD.detach() @ alignment.weight[0].detach() + alignment.bias.detach()
    values = nn.functional.softplus(scores) + 1 / alignment.config.fertility_max_step
    return [row[first:].tolist() for row, first in zip(values, padding, strict=True)]


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_expected_length_is_the_sum_of_the_fertilities_whatever_the_padding(side):
    model = tiny_model(FERTILITY)
    sources = [sentences(1, length, seed=length)[0] for length in (4, 7)]
    lengths = model.expected_target_lengths(*padded(sources, side))
    for source, length in zip(sources, lengths, strict=True):
        states = model.model.encoder(source[None]).last_hidden_state
        (fertilities,) = fertilities_of(model.model.decoder.alignment, states, [0])
        assert length.item() == pytest.approx(sum(fertilities), rel=1e-6)
    with pytest.raises(ValueError, match=r"such as `fertility`, .* alignment_type is 'length_ratio'; train"):
        tiny_model("relative+window by length_ratio").expected_target_lengths(sources[0][None])


@torch.no_grad()
def test_positions_of_a_whole_target_are_the_inverse_of_the_scaled_sum():
    alignment, padding = fertility_alignment(), [0, 3]
    states, target_mask = torch.randn(2, 7, 16).double(), torch.ones(2, 9, dtype=torch.bool)
    target_mask[1, 5:] = False
    ctx = source_context(7, padding, valid_mask_BT=target_mask)
    found = alignment("source_positions", torch.zeros(2, 9, 16).double(), states, ctx)
    for row, fertilities in enumerate(fertilities_of(alignment, states, padding)):
        num_target = int(target_mask[row].sum())
        for t in range(num_target):
            expected = position_after(fertilities, (t + 0.5) * sum(fertilities) / num_target)
            assert float(found[row, t]) == pytest.approx(expected, abs=1e-9)


class KeptState(EncodingState):
    """A state that gives back what was appended last."""

    def __init__(self) -> None:
        self.stored: Tensor | None = None

    def last(self, name: str, width: int) -> Tensor | None:
        return None if self.stored is None else self.stored[:, -1]

    def append(self, name: str, new: Tensor) -> Tensor:
        self.stored = new
        return new


@pytest.mark.parametrize("gain", [0.0, 0.3])
@torch.no_grad()
def test_positions_of_decoding_equal_loops_over_the_formula(gain):
    alignment, padding = fertility_alignment(fertility_gain=gain, fertility_min_step=0.4), [0, 3]
    states, state = torch.randn(2, 9, 16).double(), KeptState()
    ctx = source_context(9, padding, state=state)
    x_B1D = torch.zeros(2, 1, 16).double()
    expected, num_at_least = [None, None], 0
    for step in range(14):
        found = alignment("source_positions", x_B1D, states, ctx)
        weights = torch.zeros(2, 1, 1, 9).double()
        for row, fertilities in enumerate(fertilities_of(alignment, states, padding)):
            if step == 0:
                expected[row] = position_after(fertilities, 0.5)
            clamped = min(max(expected[row], -0.5), len(fertilities) - 0.5)
            assert float(found[row]) == pytest.approx(clamped, abs=1e-9)
            centroid = (step * 3) % len(fertilities)
            weights[row, 0, 0, padding[row] + centroid] = 1.0
            local_step = position_after(fertilities, target_tokens_before(fertilities, clamped) + 1) - clamped
            wanted = local_step + gain * (centroid - clamped)
            num_at_least += wanted < 0.4 * local_step
            expected[row] = clamped + max(wanted, 0.4 * local_step)
        alignment("update", [weights], states, ctx.replace(query_pos_BQ=found))
    assert (num_at_least > 0) == (gain > 0)


def test_the_loss_is_a_poisson_likelihood_of_the_length_and_trains_fertilities_with_the_encoder():
    alignment, padding = fertility_alignment(fertility_loss_weight=0.5), [0, 3]
    states = torch.randn(2, 7, 16).double().requires_grad_()
    source_mask = source_context(7, padding).mask
    target_mask = torch.ones(2, 9, dtype=torch.bool)
    target_mask[1, 5:] = False
    loss = alignment("length_loss", states, source_mask, target_mask)
    expected = 0.0
    for fertilities, num_target in zip(fertilities_of(alignment, states, padding), (9, 5), strict=True):
        rates = torch.tensor([sum(fertilities), num_target])  # the second has the greatest likelihood
        found, greatest = torch.distributions.Poisson(rates).log_prob(torch.tensor(float(num_target)))
        expected += 0.5 * float(greatest - found)
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-5)
    loss.backward()
    assert alignment.weight.grad.abs().max() > 0 and states.grad[1, 3:].abs().max() > 0
    assert not states.grad[1, :3].any()


@torch.no_grad()
def test_a_pair_twice_as_long_has_twice_the_loss():
    """So that the share of a target token does not grow with the length."""
    alignment, states = fertility_alignment(), torch.randn(1, 7, 16).double()
    target_mask = torch.ones(1, 19, dtype=torch.bool)
    once = alignment("length_loss", states, None, target_mask)
    twice = alignment("length_loss", torch.cat((states, states), 1), None, torch.cat((target_mask, target_mask), 1))
    assert once > 0.1
    torch.testing.assert_close(twice, 2 * once, **EXACT)


def test_the_models_loss_is_that_of_its_tokens_and_that_of_the_length(source, target):
    """With labels, with a Trainer's number of tokens, and with smoothed labels."""
    model = tiny_model(FERTILITY, cross_position_encoding_type="rotary", dropout=0.0).train()
    model.zero_grad()
    outputs = model(input_ids=source, labels=target)
    tokens = nn.functional.cross_entropy(outputs.logits.flatten(0, 1), target.flatten())
    expected = tokens + outputs.length_loss / target.numel()
    torch.testing.assert_close(outputs.loss, expected, **FLOAT32)
    summed = model(input_ids=source, labels=target, num_items_in_batch=54).loss
    torch.testing.assert_close(summed, expected * target.numel() / 54, **FLOAT32)
    start = model.prepare_decoder_input_ids_from_labels(target)
    with pytest.warns(UserWarning, match="trained only by outputs.length_loss"):
        outputs_without = model(input_ids=source, decoder_input_ids=start)
    smoothed = label_smoothed_loss(outputs_without, target, smoothing=0.0)
    torch.testing.assert_close(smoothed, expected, **FLOAT32)
    outputs.loss.backward()
    alignment = model.model.decoder.alignment
    assert alignment.bias.grad.abs().max() > 0
    assert model.eval()(input_ids=source, labels=target).length_loss is None
    other = tiny_model("relative+window by length_ratio", cross_position_encoding_type="rotary").train()
    assert other(input_ids=source, labels=target).length_loss is None


@torch.no_grad()
def test_padding_of_a_source_changes_no_loss_of_the_length():
    model = tiny_model(FERTILITY, cross_position_encoding_type="rotary", dropout=0.0).train()
    short, target = sentences(1, 3), sentences(1, 5)
    alone = model(input_ids=short, labels=target).length_loss
    for side in ("left", "right"):
        source, mask = padded([sentences(1, 8)[0], short[0]], side)
        found = model(input_ids=source[1:], attention_mask=mask[1:], labels=target).length_loss
        torch.testing.assert_close(found, alone, **EXACT)


def test_the_loss_of_the_length_counts_the_target_tokens_of_every_mask(source, target):
    """In training a mask of the keys of each query, and embeddings without a mask."""
    model = tiny_model(FERTILITY, dropout=0.0, fertility_offset=0.0, fertility_jitter=0.0).train()
    mask = torch.ones_like(target)
    mask[0, -3:] = 0
    given = {"input_ids": source, "decoder_input_ids": target, "labels": target.masked_fill(mask == 0, -100)}
    own_keys = torch.ones(target.shape[1], target.shape[1]).tril().bool() & mask.bool()[:, None, None]
    for row in (slice(0, 1), slice(None)):
        by_row = {name: ids[row] for name, ids in given.items()}
        expected = model(**by_row, decoder_attention_mask=mask[row])
        found = model(**by_row, decoder_attention_mask=own_keys[row])
        torch.testing.assert_close(found.length_loss, expected.length_loss, **EXACT)
        torch.testing.assert_close(found.loss, expected.loss, **EXACT)
    embeds = model.get_decoder().embed_tokens(given.pop("decoder_input_ids"))
    found = model(**given, decoder_inputs_embeds=embeds).length_loss
    expected = model(**given, decoder_inputs_embeds=embeds, decoder_attention_mask=torch.ones_like(mask)).length_loss
    torch.testing.assert_close(found, expected, **EXACT)


@pytest.mark.parametrize("name", ["recurrent_step", "fertility_step"])
def test_a_step_of_any_size_can_begin(name):
    """Where exp(step), or exp of its inverse, is no number."""
    alignment = name.removesuffix("_step")
    for value in (1e-4, 800.0 if alignment == "recurrent" else 1.9):
        config = tiny_config(f"relative+window by {alignment}", cross_position_encoding_type="rotary", **{name: value})
        built = build_alignment(config)
        built.init_weights()
        if alignment == "fertility":
            (found,) = 1 / built.fertilities(torch.zeros(1, 1, config.d_model), None)
        else:
            found = nn.functional.softplus(built.step_bias)
        assert found.item() == pytest.approx(value, rel=1e-4)


def test_steps_that_no_fertility_or_window_allows_are_refused():
    fields = {"cross_position_encoding_type": "rotary", "alignment_type": "fertility"}
    with pytest.raises(ValueError, match=r"fertility_step .* fertility_max_step.* 3\.0 and 2\.0"):
        PosEncConfig(**fields, fertility_step=3.0, fertility_max_step=2.0)
    with pytest.raises(ValueError, match=r"8 after .* distance of 4 .*; widen"):
        tiny_model(FERTILITY, cross_position_encoding_type="rotary+window", fertility_max_step=7.5)
