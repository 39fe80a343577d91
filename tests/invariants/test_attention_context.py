"""The hook interface, tested by encodings that need each part of it: keys, masks, training positions, layer state,
cross-attention. Each satisfies the invariants of the registered ones."""

from dataclasses import replace

import pytest
import torch
from support.decoding import EXACT, HOLES, assert_padding_changes_nothing, cache_for, decode, gradients
from support.models import sentences, tiny_config, tiny_model
from torch import nn
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask

from hf_posenc import (
    POSITION_ENCODINGS,
    AttentionContext,
    PosEncConfig,
    PositionEncoding,
    register_position_encoding,
)
from hf_posenc.encodings.positions import num_attendable
from hf_posenc.transformer.attention import AttentionInputs

pytestmark = pytest.mark.invariant


class Keyed(PositionEncoding):
    """A trained vector for each clipped distance, against which each key is held."""

    summary, shift_invariant = "What a key says of its distance.", True

    def __init__(self, config, side):
        super().__init__(config, side)
        self.table = nn.Parameter(torch.zeros(side.layers, 5, side.head_dim))

    def prepare(self, x_BTD, ctx):
        return (ctx.distance_BQS.clamp(-2, 2) + 2)[:, None]

    def score_bias(self, q_BHQK, k_BHSK, ctx):
        scores_BHRS = self.table[ctx.layer] @ (k_BHSK * self.scaling).transpose(2, 3)
        return scores_BHRS.gather(2, ctx.prepared.expand(*q_BHQK.shape[:3], -1))


class Counted(PositionEncoding):
    """Queries grow with the logarithm of the number of keys that they may see."""

    summary, shift_invariant, permutation_equivariant, reversal_equivariant = "Scaled by log n.", True, True, True

    def prepare(self, x_BTD, ctx):
        return (1 + ctx.num_attendable_BQ).log()[:, None, :, None].to(x_BTD.dtype)

    def rotate_queries(self, q_BHQK, ctx):
        return q_BHQK * ctx.prepared


class Gated(PositionEncoding):
    """A sum over all keys so far that each layer remembers for itself."""

    summary, shift_invariant, is_stateful = "A gate for each token, summed up.", True, True

    def __init__(self, config, side):
        super().__init__(config, side)
        self.gates = nn.Parameter(torch.zeros(side.layers, side.heads, side.head_dim))

    def score_bias(self, q_BHQK, k_BHSK, ctx):
        gate_BTH = torch.einsum("bhtk,hk->bth", q_BHQK, self.gates[ctx.layer]).sigmoid()
        if ctx.valid_mask_BT is not None:
            gate_BTH = gate_BTH * ctx.valid_mask_BT[..., None]
        sum_BTH = gate_BTH.cumsum(1)
        if ctx.state is None:
            return (sum_BTH[:, :, None] - sum_BTH[:, None]).permute(0, 3, 1, 2)
        before = ctx.state.last("sums", self.side.heads)
        sum_BTH = sum_BTH if before is None else sum_BTH + before[:, None]
        return (sum_BTH[:, :, None] - ctx.state.append("sums", sum_BTH)[:, None]).permute(0, 3, 1, 2)


class Shifted(PositionEncoding):
    """Positions one hundred further on in training, and as they are elsewhere."""

    summary, shift_invariant = "Positions of training.", True

    def augment_positions(self, pos_BT, ctx):
        return pos_BT + 100


class Near(PositionEncoding):
    summary, shift_invariant, reversal_equivariant = "Every head pays for distance.", True, True

    def score_bias(self, q_BHQK, k_BHSK, ctx):
        return -0.3 * ctx.distance_BQS.abs()[:, None].to(q_BHQK.dtype)


TRIED = {"keyed": Keyed, "counted": Counted, "gated": Gated, "near": Near}
CROSS = ["keyed", "counted", "near", "relative", "relative_key", "rotary", "rotary+relative", "keyed+counted"]


@pytest.fixture(autouse=True)
def registered_here(unregistered_after):
    for name, encoding in (TRIED | {"shifted": Shifted}).items():
        register_position_encoding(name, encoding)


def cross_model(cross: str, own: str = "sinusoidal", **changes):
    return tiny_model(own, cross_position_encoding_type=cross, **changes)


# The invariants test whether their inputs are right.


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("chunks", [[1] * 9, [4, 1, 3, 1]], ids=["token by token", "in chunks"])
@pytest.mark.parametrize("name", [*TRIED, "gated+near", "gated+keyed+counted"])
@torch.no_grad()
def test_cached_decoding_equals_the_full_forward(name, chunks, kind):
    model, source, target = tiny_model(name), sentences(3, 6, seed=1), sentences(3, 9, seed=2)
    full = model(input_ids=source, decoder_input_ids=target, decoder_attention_mask=HOLES).logits
    cached = decode(model, source, target, chunks, cache_for(model, kind), mask=HOLES)
    torch.testing.assert_close(cached[HOLES == 1], full[HOLES == 1], **EXACT)


class Keeping(PositionEncoding):
    """Remembers what all layers share, under a name that others may use, and says how much of it there is."""

    summary, shift_invariant, is_stateful = "How many tokens there were.", True, True

    def prepare(self, x_BTD, ctx):
        one_BT1 = torch.ones_like(x_BTD[..., :1])
        return one_BT1.cumsum(1) if ctx.state is None else ctx.state.append("positions", one_BT1).cumsum(1)

    def score_bias(self, q_BHQK, k_BHSK, ctx):
        return ctx.prepared.mT[:, None] / 10


class KeepingToo(PositionEncoding):
    summary, shift_invariant, is_stateful = Keeping.summary, True, True
    prepare, score_bias = Keeping.prepare, Keeping.score_bias


@torch.no_grad()
def test_prepared_values_belong_to_their_encoding():
    register_position_encoding("keeping", Keeping)
    register_position_encoding("keeping_too", KeepingToo)
    model, source, target = tiny_model("keeping+keeping_too"), sentences(3, 6, seed=1), sentences(3, 9, seed=2)
    full = model(input_ids=source, decoder_input_ids=target).logits
    cached = decode(model, source, target, [4, 1, 4], cache_for(model, "dynamic"))
    torch.testing.assert_close(cached, full, **EXACT)


@torch.no_grad()
def test_a_replaced_or_wrapped_encoding_is_called():
    model, source = tiny_model("relative"), sentences(3, 6, seed=1)
    other = tiny_model("relative", seed=1).model.encoder.positions[0]
    expected = tiny_model("relative")
    expected.model.encoder.positions[0].load_state_dict(other.state_dict())
    model.model.encoder.positions[0] = other
    inputs = {"input_ids": source, "decoder_input_ids": source}
    assert torch.equal(model(**inputs).logits, expected(**inputs).logits)
    assert not torch.equal(model(**inputs).logits, tiny_model("relative")(**inputs).logits)


@pytest.mark.parametrize("name", TRIED)
@torch.no_grad()
def test_the_state_of_each_layer_is_cropped_and_reordered_with_the_keys(name):
    model, source, target = tiny_model(name), sentences(3, 6, seed=1), sentences(3, 9, seed=2)
    cache, other, pick = cache_for(model, "dynamic"), target.roll(1, dims=1), torch.tensor([2, 0, 0])
    decode(model, source, torch.cat((target[:, :4], other[:, 4:7]), 1), [4, 1, 1, 1], cache, mask=HOLES)
    cache.crop(-3)
    cache.reorder_cache(pick)
    source, target, mask = source[pick], target[pick], HOLES[pick]
    continued = decode(model, source, target, [2, 3], cache, mask=mask, start=4)
    fresh = decode(model, source, target, [4, 5], cache_for(model, "dynamic"), mask=mask)[:, 4:]
    torch.testing.assert_close(continued, fresh, **EXACT)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", TRIED)
@torch.no_grad()
def test_padding_changes_nothing(name, side):
    assert_padding_changes_nothing(tiny_model(name), side)


@pytest.mark.parametrize("name", TRIED)
def test_eager_equals_sdpa_and_checkpointing_changes_no_gradient(name):
    model, source, target = tiny_model(name, dropout=0.0).train(), sentences(3, 6), sentences(3, 9, seed=2)
    plain = gradients(model, input_ids=source, labels=target)
    assert all(gradient.any() for gradient in plain.values())
    model.set_attn_implementation("eager")
    torch.testing.assert_close(gradients(model, input_ids=source, labels=target), plain, **EXACT)
    model.set_attn_implementation("sdpa")
    (getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable)()
    torch.testing.assert_close(gradients(model, input_ids=source, labels=target), plain, **EXACT)


@torch.no_grad()
def test_positions_of_training_reach_every_hook_and_evaluation_never_sees_them():
    """`shifted` alone moves what `sinusoidal` adds, and nothing of `relative`, which sees distances."""
    source, target = sentences(3, 6), sentences(3, 9, seed=2)
    at = torch.arange(9)[None]
    here = {"input_ids": source, "decoder_input_ids": target}
    there = here | {"position_ids": at[:, :6] + 100, "decoder_position_ids": at + 100}
    model = tiny_model("shifted+sinusoidal+relative", dropout=0.0)
    plain, moved = model(**here).logits, model(**there).logits
    assert (moved - plain).abs().max() > 1e-3
    torch.testing.assert_close(model.train()(**here).logits, moved, **EXACT)


# Cross-attention


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("cross", CROSS)
@torch.no_grad()
def test_in_cross_attention_cached_decoding_equals_the_full_forward(cross, kind):
    model, source, target = cross_model(cross), sentences(3, 6, seed=1), sentences(3, 9, seed=2)
    full = model(input_ids=source, decoder_input_ids=target, decoder_attention_mask=HOLES).logits
    cached = decode(model, source, target, [4, 1, 3, 1], cache_for(model, kind), mask=HOLES)
    torch.testing.assert_close(cached[HOLES == 1], full[HOLES == 1], **EXACT)
    without = tiny_model("sinusoidal")
    assert (without(input_ids=source, decoder_input_ids=target).logits - full).abs().max() > 1e-3


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("cross", CROSS)
@torch.no_grad()
def test_in_cross_attention_padding_changes_nothing(cross, side):
    assert_padding_changes_nothing(cross_model(cross), side)


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("cross", ["near", "relative", "rotary"])
@torch.no_grad()
def test_given_source_position_ids_last_through_cached_decoding(cross, kind):
    """They are given at the first step only, as by `generate`."""
    model, source, target = cross_model(cross), sentences(3, 6, seed=1), sentences(3, 9, seed=2)
    positions = torch.tensor([[0, 2, 4, 6, 8, 10], [3, 4, 5, 6, 7, 8], [1, 1, 2, 3, 5, 8]])
    full = model(input_ids=source, position_ids=positions, decoder_input_ids=target).logits
    cache, memory, logits = cache_for(model, kind), model.model.encoder(source, position_ids=positions), []
    for start, end in ((0, 4), (4, 5), (5, 9)):
        given = {"position_ids": positions} if start == 0 else {}
        step = model(encoder_outputs=memory, decoder_input_ids=target[:, start:end], cache=cache, **given)
        logits.append(step.logits)
    torch.testing.assert_close(torch.cat(logits, 1), full, **EXACT)
    assert (model(input_ids=source, decoder_input_ids=target).logits - full).abs().max() > 1e-3


@pytest.mark.parametrize("cross", ["near", "relative", "rotary"])
@torch.no_grad()
def test_cross_attention_depends_only_on_the_distance_to_the_source_position(cross):
    """Both sides moved together change nothing; one of them alone does."""
    model, source, target = cross_model(cross, own="relative"), sentences(3, 6), sentences(3, 9, seed=2)
    at, inputs = torch.arange(9)[None], {"input_ids": source, "decoder_input_ids": target}
    here = model(**inputs).logits
    both = model(**inputs, position_ids=at[:, :6] + 7, decoder_position_ids=at + 7).logits
    torch.testing.assert_close(both, here, **EXACT)
    assert (model(**inputs, position_ids=at[:, :6] + 7).logits - here).abs().max() > 1e-3


@pytest.mark.parametrize("cross", ["keyed", "relative", "rotary"])
def test_in_cross_attention_the_gradient_reaches_every_parameter(cross):
    model = cross_model(cross)
    found = gradients(model, input_ids=sentences(3, 6), labels=sentences(3, 9, seed=2))
    assert all(gradient.any() for gradient in found.values())
    trained = any("cross_positions" in name for name in found)
    assert trained == (cross != "rotary")


def test_what_cannot_act_in_cross_attention_is_refused_when_the_config_is_made():
    for name, entry in POSITION_ENCODINGS.items():
        if name in ("forgetting", "cope"):  # they act, but between the tokens of one text
            with pytest.raises(ValueError, match=f"`{name}` sums the gates"):
                PosEncConfig(cross_position_encoding_type=name)
        elif entry.modifies_attention or name == "none":
            PosEncConfig(cross_position_encoding_type=name)
        else:
            with pytest.raises(ValueError, match=rf"cross_position_encoding_type='{name}': `{name}` acts on embedded"):
                PosEncConfig(cross_position_encoding_type=name)
    with pytest.raises(ValueError, match=r"'relative\+gru': `gru` .*relative_key"):
        PosEncConfig(cross_position_encoding_type="relative+gru")
    with pytest.raises(ValueError, match=r"cross_\w+='rotery'.*nearest is 'rotary'"):
        PosEncConfig(cross_position_encoding_type="rotery")


# The value itself


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_attendable_keys_are_counted_as_by_the_masks_of_transformers(is_causal, masked):
    """By 2-D masks, by none, and by the 4-D ones that transformers makes of them."""
    config = tiny_config("none")
    config._attn_implementation = "eager"
    x, given = torch.zeros(3, 9, 16), HOLES if masked else None
    all_there = torch.ones_like(HOLES)
    make = create_causal_mask if is_causal else create_bidirectional_mask
    theirs = make(config, x, HOLES if masked else all_there, *([None] if is_causal else []))
    expected = torch.full((3, 9), 9) if theirs is None else (theirs == 0)[:, 0].sum(-1).expand(3, 9)
    tokens = HOLES == 1 if masked else all_there == 1

    def counted(mask, num_new=9, num_cached=0):
        return num_attendable(mask, num_new, 9, num_cached, is_causal, x.device).expand(3, num_new)

    assert torch.equal(counted(given)[tokens], expected[tokens])
    assert torch.equal(counted(given, 2, 7)[tokens[:, 7:]], expected[:, 7:][tokens[:, 7:]])
    if theirs is not None:
        assert torch.equal(counted(theirs)[tokens], expected[tokens])


def test_the_inputs_of_an_attention_move_with_their_contexts_and_leave_the_encodings() -> None:
    """accelerate moves them between devices, and would move the parameters of a module among them."""
    at, positions = torch.arange(3)[None], tiny_model("relative").model.encoder.positions
    ctx = AttentionContext(at, at)
    there = AttentionInputs(positions, ctx, positions.prepare(torch.zeros(1, 3, 16), ctx), at > 0).to("meta")
    moved = [there.mask, there.ctx.query_pos_BQ, there.contexts[0].prepared.weighted_rows[0][0]]
    assert all(tensor.is_meta for tensor in moved)
    assert not any(parameter.is_meta for parameter in there.positions.parameters())


def test_an_attention_context_moves_with_its_tensors_and_is_immutable():
    ctx = AttentionContext(
        torch.arange(3)[None], torch.arange(3)[None], prepared=[(torch.ones(2), None), None], layer=1
    )
    there = ctx.to("meta")
    assert {there.query_pos_BQ.device.type, there.key_pos_BS.device.type, there.prepared[0][0].device.type} == {"meta"}
    assert there.layer == 1
    with pytest.raises(AttributeError):
        ctx.layer = 2


def test_a_context_is_replaced_as_dataclasses_would():
    ctx = AttentionContext(torch.arange(3)[None], torch.arange(3)[None])
    assert vars(ctx.replace(layer=1)) == vars(replace(ctx, layer=1))
    with pytest.raises(AssertionError, match=r"no fields of a context: .*lyaer"):
        ctx.replace(lyaer=1)


def test_a_view_of_the_decoder_has_no_prefixes():
    view = PosEncConfig(decoder_layers=2).get_text_config(decoder=True)
    assert view.encoder_layers == 2 and view.start_token_id == 1
    assert not [name for name in vars(view) if name.startswith("decoder_")]


def test_an_encoding_that_does_not_say_what_it_is_is_refused():
    with pytest.raises(TypeError, match="Silent lacks summary and shift_invariant"):
        register_position_encoding("silent", type("Silent", (PositionEncoding,), {}))
