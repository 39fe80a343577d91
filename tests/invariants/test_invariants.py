"""Invariants of every position encoding: one property a test, over the whole registry."""

import copy

import pytest
import torch
from support.decoding import (
    CHUNKS,
    EXACT,
    HOLES,
    TOKENS,
    LargestTensor,
    assert_padding_changes_nothing,
    cache_for,
    decode,
    gradients,
)
from support.models import (
    BEFORE_5_18,
    EVERY_ENCODING,
    SINGLE,
    RecordedState,
    entries,
    gradients_after_a_step,
    sentences,
    tiny_config,
    tiny_model,
)
from torch import nn
from transformers import AutoModelForSeq2SeqLM, DynamicCache, EncoderDecoderCache
from transformers.cache_utils import StaticLayer

from hf_posenc import POSITION_ENCODINGS, AttentionContext
from hf_posenc.encodings.cache import StatefulLayer, StaticStatefulLayer
from hf_posenc.encodings.positions import new_valid_mask, positions_from_mask

pytestmark = pytest.mark.invariant

# torch compiles C++ for flex attention, so on a rotation with a bias only, unless the environment has EVERY_ENCODING.
FLEX = SINGLE if EVERY_ENCODING else ["rotary+alibi"]


# Caching


# A way to decode with each cache; the tests after this one have the other two pairs.
@pytest.mark.parametrize(("chunks", "kind"), [(TOKENS, "dynamic"), (CHUNKS, "static")], ids=["tokens", "chunks"])
@torch.no_grad()
def test_cached_decoding_equals_the_full_forward(family, chunks, kind, source, target):
    model = tiny_model(family)
    full = model(input_ids=source, decoder_input_ids=target).logits
    torch.testing.assert_close(decode(model, source, target, chunks, cache_for(model, kind)), full, **EXACT)


@pytest.mark.parametrize(("chunks", "kind"), [(TOKENS, "static"), (CHUNKS, "dynamic")], ids=["tokens", "chunks"])
@torch.no_grad()
def test_cached_decoding_equals_the_full_forward_at_given_positions_with_gaps(sides, chunks, kind, source, target):
    model = tiny_model(sides)
    positions = torch.tensor(
        [[0, 1, 4, 5, 6, 13, 14, 15, 20], [2, 3, 4, 5, 6, 7, 8, 9, 40], [5, 6, 8, 9, 11, 12, 14, 15, 17]]
    )
    full = model(input_ids=source, decoder_input_ids=target, decoder_position_ids=positions).logits
    cached = decode(model, source, target, chunks, cache_for(model, kind), positions=positions)
    torch.testing.assert_close(cached, full, **EXACT)


@pytest.mark.parametrize(("chunks", "kind"), [(TOKENS, "static"), (CHUNKS, "dynamic")], ids=["tokens", "chunks"])
@torch.no_grad()
def test_cached_decoding_equals_the_full_forward_under_a_mask_with_holes(family, chunks, kind, source, target):
    model = tiny_model(family)
    full = model(input_ids=source, decoder_input_ids=target, decoder_attention_mask=HOLES).logits
    cached = decode(model, source, target, chunks, cache_for(model, kind), mask=HOLES)
    torch.testing.assert_close(cached[HOLES == 1], full[HOLES == 1], **EXACT)


PICK = torch.tensor([2, 0, 0])
OPERATIONS = {
    "reordered": (lambda cache: cache.reorder_cache(PICK), lambda rows: rows[PICK]),
    "selected": (lambda cache: cache.batch_select_indices(PICK[:2]), lambda rows: rows[PICK[:2]]),
    "repeated": (lambda cache: cache.batch_repeat_interleave(2), lambda rows: rows.repeat_interleave(2, dim=0)),
}


@pytest.mark.parametrize(
    ("operation", "kind"),
    [("reordered", "dynamic"), ("reordered", "static"), ("selected", "dynamic"), ("repeated", "dynamic")],
)
@torch.no_grad()
def test_a_cache_whose_rows_move_continues_like_one_built_for_those_rows(family, operation, kind, source, target):
    """What beam search does. The rows have different positions and states, so forgetting to move them shows."""
    model, (move, moved) = tiny_model(family), OPERATIONS[operation]
    cache = cache_for(model, kind)
    decode(model, source, target, [3, 3], cache, mask=HOLES)
    move(cache)
    source, target, mask = moved(source), moved(target), moved(HOLES)
    continued = decode(model, source, target, [2, 1], cache, mask=mask, start=6)
    fresh = decode(model, source, target, [6, 2, 1], cache_for(model, kind), mask=mask)[:, 6:]
    torch.testing.assert_close(continued, fresh, **EXACT)


@pytest.mark.parametrize(
    ("rejected", "kind"), [(0, "dynamic"), (1, "dynamic"), (4, "dynamic"), (1, "static"), (4, "static")]
)
@torch.no_grad()
def test_a_cropped_cache_continues_like_one_without_the_cropped_tokens(family, rejected, kind, source, target):
    model = tiny_model(family)
    cache, other = cache_for(model, kind), target.roll(1, dims=1)
    if kind == "static" and not hasattr(StaticLayer, "crop"):
        pytest.skip("transformers before 5.24 cannot crop a static cache")
    decode(
        model,
        source,
        torch.cat((target[:, :4], other[:, 4 : 4 + rejected]), dim=1),
        [4, *[1] * rejected],
        cache,
        mask=HOLES,
    )
    cache.self_attention_cache.crop(-rejected)  # transformers crops both of dynamic ones alone
    continued = decode(model, source, target, [2, 3], cache, mask=HOLES, start=4)
    fresh = decode(model, source, target, [4, 5], cache_for(model, kind), mask=HOLES)[:, 4:]
    torch.testing.assert_close(continued, fresh, **EXACT)


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@torch.no_grad()
def test_a_reset_cache_is_a_new_one(family, kind, source, target):
    if kind == "dynamic" and BEFORE_5_18:
        pytest.skip("transformers before 5.18 leaves a dynamic cache its length when it is reset")
    model = tiny_model(family)
    cache = cache_for(model, kind)
    decode(model, source, target, [3, 3], cache, mask=HOLES)
    cache.reset()
    source, target = source.roll(1, dims=0), target.roll(1, dims=0)
    again = decode(model, source, target, [4, 5], cache)
    torch.testing.assert_close(again, decode(model, source, target, [4, 5], cache_for(model, kind)), **EXACT)


def test_a_cache_without_encoding_state_is_refused(source, target):
    model = tiny_model("relative")
    cache = EncoderDecoderCache(DynamicCache(config=tiny_config("none")), DynamicCache(config=tiny_config("none")))
    with pytest.raises(ValueError, match=r"DynamicCache\(config=model.config\)"):
        decode(model, source, target, [9], cache)


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize(
    ("filled_by", "where"), [("relative", "gru"), ("relative", "rnn_nmt"), ("gru", "lstm"), ("lstm", "rnn_nmt")]
)
def test_a_cache_that_another_model_filled_is_refused(filled_by, where, kind, source, target):
    """It knows no states, or others: to go on from a state of zeros would be silently wrong."""
    model, other = tiny_model(where), tiny_model(filled_by)
    cache = cache_for(other, kind)
    decode(other, source, target, [4, 2], cache)
    with pytest.raises(ValueError, match=r"cached tokens .* of 0: another"):
        decode(model, source, target, [1], cache, start=6)


@pytest.mark.parametrize(("where", "name"), [("gru", "positions"), ("relative", "positions"), ("rnn_nmt", "states")])
def test_a_cache_whose_keys_were_cropped_alone_is_refused(where, name, source, target):
    """As by code that knows no more of a cache than its keys and values; `crop`, which it has, does it all."""
    model = tiny_model(where)
    cache = cache_for(model, "dynamic")
    decode(model, source, target, [4, 2], cache)
    for layer in cache.self_attention_cache.layers:
        layer.keys, layer.values = layer.keys[:, :, :4], layer.values[:, :, :4]
    message = rf"are 4 cached tokens and the {name}.* of 6: .*cropped alone.*by cache\.crop"
    with pytest.raises(ValueError, match=message):
        decode(model, source, target, [1], cache, start=4)


# Padding, batches, positions


@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_padding_changes_nothing(family, side):
    assert_padding_changes_nothing(tiny_model(family), side)


@torch.no_grad()
def test_a_batch_is_its_sentences(family, source, target):
    model = tiny_model(family)
    batch = model(input_ids=source, decoder_input_ids=target).logits
    alone = [model(input_ids=s[None], decoder_input_ids=t[None]).logits for s, t in zip(source, target, strict=True)]
    torch.testing.assert_close(batch, torch.cat(alone), **EXACT)


@torch.no_grad()
def test_the_future_is_hidden_from_the_decoder(family, source, target):
    model = tiny_model(family)
    full = model(input_ids=source, decoder_input_ids=target).logits
    start = model(input_ids=source, decoder_input_ids=target[:, :5]).logits
    torch.testing.assert_close(full[:, :5], start, **EXACT)


@torch.no_grad()
def test_given_positions_win_over_the_mask(sides):
    model = tiny_model(sides)
    source, target = sentences(1, 5, seed=1), sentences(1, 5, seed=2)
    gaps = torch.tensor([[3, 4, 6, 10, 11]])
    at_gaps = model(input_ids=source, position_ids=gaps, decoder_input_ids=target, decoder_position_ids=gaps).logits
    pad = torch.zeros(1, 2, dtype=torch.long)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1]])
    shifted = torch.cat((pad, gaps), dim=1)
    masked = model(
        input_ids=torch.cat((pad, source), dim=1), attention_mask=mask, position_ids=shifted,
        decoder_input_ids=torch.cat((pad, target), dim=1), decoder_attention_mask=mask, decoder_position_ids=shifted,
    ).logits  # fmt: skip
    torch.testing.assert_close(masked[:, 2:], at_gaps, **EXACT)
    reads_positions = [not (entry.permutation_equivariant or entry.is_stateful) for entry in entries(sides)]
    if any(reads_positions) and sides != "cope":  # which reads the order of the keys alone
        assert (at_gaps - model(input_ids=source, decoder_input_ids=target).logits).abs().max() > 1e-4


def test_positions_count_the_tokens_that_the_mask_lets_through():
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 0, 0, 1, 1], [1, 1, 1, 0, 0]])
    assert positions_from_mask(mask, 5).tolist() == [[0, 0, 0, 1, 2], [0, 0, 0, 1, 2], [0, 1, 2, 0, 0]]


# The facts that the registry states


@torch.no_grad()
def test_shift_invariance_matches_the_registry(sides, source, target):
    model = tiny_model(sides)
    at = torch.arange(9)[None]
    here = model(input_ids=source, position_ids=at[:, :6], decoder_input_ids=target, decoder_position_ids=at).logits
    there = model(
        input_ids=source, position_ids=at[:, :6] + 23, decoder_input_ids=target, decoder_position_ids=at + 23
    ).logits
    if all(entry.shift_invariant for entry in entries(sides)):
        torch.testing.assert_close(there, here, **EXACT)
    else:
        assert (there - here).abs().max() > 1e-3


@torch.no_grad()
def test_reversal_equivariance_matches_the_registry(sides, source):
    encoder = tiny_model(sides).model.encoder
    memory, reversed_memory = encoder(source).last_hidden_state, encoder(source.flip(1)).last_hidden_state
    if all(entry.reversal_equivariant for entry in entries(sides.partition(" to ")[0])):
        torch.testing.assert_close(reversed_memory, memory.flip(1), **EXACT)
    else:
        assert (reversed_memory - memory.flip(1)).abs().max() > 1e-3


@torch.no_grad()
def test_permutation_equivariance_matches_the_registry(sides, source):
    encoder, order = tiny_model(sides).model.encoder, torch.tensor([3, 0, 5, 1, 4, 2])
    memory, shuffled = encoder(source).last_hidden_state, encoder(source[:, order]).last_hidden_state
    if all(entry.permutation_equivariant for entry in entries(sides.partition(" to ")[0])):
        torch.testing.assert_close(shuffled, memory[:, order], **EXACT)
    else:
        assert (shuffled - memory[:, order]).abs().max() > 1e-3


def test_zero_init_is_identity_matches_the_registry_and_has_gradients(registered, source, target):
    model, none = tiny_model(registered), tiny_model("none")
    none.load_state_dict(model.state_dict(), strict=False)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".positions." in name:
                parameter.zero_()
    batch = {"input_ids": source, "labels": target}
    off = (model(**batch).logits - none(**batch).logits).abs().max()
    assert off < 1e-9 or off > 1e-3
    found = gradients_after_a_step(model, **batch)
    learns = all(gradient.any() for name, gradient in found.items() if ".positions." in name)
    assert POSITION_ENCODINGS[registered].zero_init_is_identity == bool(off < 1e-9 and learns)


@torch.no_grad()
def test_is_stateful_matches_the_registry(sides):
    """Where there is one, padding leaves it as it was."""
    decoder, x, at = tiny_model(sides).model.decoder, torch.randn(3, 9, 16).double(), torch.arange(9)[None]
    for entry, encoding in zip(entries(sides.rpartition(" to ")[2]), decoder.positions, strict=True):
        memory = RecordedState(torch.randn(3, 64).double().tanh())
        place = AttentionContext(at, at, HOLES == 1, HOLES, is_causal=True, layer=0, inputs_BTD=x, state=memory)
        if encoding.embed is not None:
            encoding.embed(x, place)
        elif encoding.is_stateful:
            encoding.score_bias(x, x, place)
        assert entry.is_stateful == encoding.is_stateful == (memory.kept is not None)
        if entry.is_stateful:
            before = memory.before[:, None, : memory.kept.shape[-1]]
            advanced = (memory.kept != torch.cat((before, memory.kept[:, :-1]), dim=1)).any(-1)
            assert torch.equal(advanced, HOLES == 1)


def test_the_cache_holds_state_exactly_for_stateful_encodings(sides):
    model = tiny_model(sides)
    decoder_entries = entries(sides.rpartition(" to ")[2])
    hooks = ("score_bias", "value_bias")
    for entry, encoding in zip(decoder_entries, model.model.decoder.positions, strict=True):
        assert entry.needs_state_cache == (
            entry.is_stateful or any(getattr(encoding, hook) is not None for hook in hooks)
        )
    remembers = any(entry.needs_state_cache for entry in decoder_entries)
    assert model.config.decoder_needs_state_cache == remembers
    first, *others = cache_for(model, "dynamic").self_attention_cache.layers
    assert (type(first) is StatefulLayer) == remembers
    assert not any(type(layer) is StatefulLayer for layer in others)
    assert (type(cache_for(model, "static").self_attention_cache.layers[0]) is StaticStatefulLayer) == remembers


def test_an_entry_is_called_like_the_class_it_stands_for(registered):
    entry = POSITION_ENCODINGS[registered]
    config = tiny_config(registered)
    encoding = entry(config, config.side("decoder"))
    assert type(encoding) is entry.encoding
    assert entry.summary.endswith(".")


@torch.no_grad()
def test_max_length_matches_the_registry(registered):
    entry = POSITION_ENCODINGS[registered]
    sizes = {
        "d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 1,
        "decoder_attention_heads": 1, "max_position_embeddings": 50,
    }  # fmt: skip
    if entry.max_length_field is None:
        model = tiny_model(registered, dtype=torch.float32, **sizes)
        long = sentences(1, 1500)
        logits = model(input_ids=long, decoder_input_ids=long).logits
        assert logits.shape[1] == 1500
        assert logits.isfinite().all()
        return
    model = tiny_model(registered, **sizes, **{entry.max_length_field: 7})
    model(input_ids=sentences(1, 7), decoder_input_ids=sentences(1, 7))
    remedy = rf"{registered}.*{entry.max_length_field}=7.*position 7;.*larger {entry.max_length_field}"
    with pytest.raises(ValueError, match=remedy):
        model(input_ids=sentences(1, 8), decoder_input_ids=sentences(1, 7))
    with pytest.raises(ValueError, match=remedy):
        model(input_ids=sentences(1, 7), decoder_input_ids=sentences(1, 8))


# Parameters and gradients


def test_the_gradient_reaches_every_parameter(family, source, target):
    model = tiny_model(family, output_bias=True)
    model(input_ids=source, labels=target).loss.backward()
    unreached = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert unreached == []


def test_an_encoding_holds_parameters_and_no_buffers(family):
    model = tiny_model(family)
    assert list(model.named_buffers()) == []
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}


def test_an_encoding_that_is_not_used_creates_no_parameters(sides):
    def others(model: nn.Module) -> set[str]:
        own = (".positions.", ".alignment.")
        return {name for name, _ in model.named_parameters() if not any(part in name for part in own)}

    model, bare = tiny_model(sides), tiny_model("none")
    assert others(model) == {name for name, _ in bare.named_parameters()}
    for stack in (model.model.encoder, model.model.decoder):
        assert len(stack.positions) == len(stack.side.encoding.split("+"))


def test_a_new_model_is_initialised_and_a_seed_gives_it_again(family):
    models = []
    for _ in range(2):
        torch.manual_seed(3)
        models.append(AutoModelForSeq2SeqLM.from_config(tiny_config(family)))
    for (name, first), (_, second) in zip(*(model.named_parameters() for model in models), strict=True):
        assert first.isfinite().all(), name
        assert first.abs().max() < 10, name
        assert torch.equal(first, second), name


@pytest.mark.capability("sdpa = eager")
@pytest.mark.decoding
@pytest.mark.parametrize("norm_first", [False, True])
def test_eager_equals_sdpa_in_values_and_gradients(sides, norm_first, source, target):
    model = tiny_model(sides, norm_first=norm_first)
    mask = torch.tensor([[1] * 6, [0] * 2 + [1] * 4, [1] * 5 + [0]])
    inputs = {
        "input_ids": source, "attention_mask": mask, "decoder_input_ids": target,
        "decoder_attention_mask": HOLES, "labels": target.masked_fill(HOLES == 0, -100),
    }  # fmt: skip
    assert model.config._attn_implementation == "sdpa"
    fast, fast_gradients = model(**inputs).logits, gradients(model, **inputs)
    model.set_attn_implementation("eager")
    slow, slow_gradients = model(**inputs).logits, gradients(model, **inputs)
    torch.testing.assert_close(fast[HOLES == 1], slow[HOLES == 1], **EXACT)
    torch.testing.assert_close(fast_gradients, slow_gradients, **EXACT)


@pytest.mark.capability("flex")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch about itself, while it compiles
@pytest.mark.parametrize("system", FLEX)
@torch.no_grad()
def test_flex_attention_equals_eager_where_it_is_allowed(system, source, target):
    model = tiny_model(system, dtype=torch.float32, d_model=64, encoder_layers=1, decoder_layers=1)
    if model.model.encoder.positions.has_value_bias:
        pytest.skip("refused: it gives no weights, which the value term needs")
    inputs = {
        "input_ids": source, "attention_mask": torch.tensor([[1] * 6, [0] * 2 + [1] * 4, [1] * 5 + [0]]),
        "decoder_input_ids": target, "decoder_attention_mask": HOLES,
    }  # fmt: skip
    model.set_attn_implementation("eager")
    expected = model(**inputs).logits
    model.set_attn_implementation("flex_attention")
    torch._dynamo.reset()
    # With shapes that vary torch 2.13 writes C++ that does not compile, once there is a bias.
    with torch._dynamo.config.patch(automatic_dynamic_shapes=False):
        logits = model(**inputs).logits
    torch.testing.assert_close(logits[HOLES == 1], expected[HOLES == 1], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="flex attention has no backward on a CPU")
def test_flex_attentions_gradients_equal_eagers_where_it_is_allowed(single, source, target):
    model = tiny_model(single, dtype=torch.float32, d_model=64, dropout=0.0).cuda()
    if model.model.encoder.positions.has_value_bias:
        pytest.skip("refused: it gives no weights, which the value term needs")
    inputs = {"input_ids": source.cuda(), "labels": target.cuda()}
    model.set_attn_implementation("eager")
    expected = gradients(model, **inputs)
    model.set_attn_implementation("flex_attention")
    torch._dynamo.reset()
    torch.testing.assert_close(gradients(model, **inputs), expected, rtol=1e-3, atol=1e-3)


def test_flex_attention_is_refused_exactly_where_it_would_leave_a_value_term_out(sides):
    model = tiny_model(sides)
    if any(stack.positions.has_value_bias for stack in (model.model.encoder, model.model.decoder)):
        with pytest.raises(ValueError, match=r"flex_attention.*attention weights.*sdpa or eager"):
            model.set_attn_implementation("flex_attention")
    else:
        model.set_attn_implementation("flex_attention")


@pytest.mark.parametrize("back_end", ["sdpa", "eager"])
@torch.no_grad()
def test_attention_weights_are_given_on_request_and_sum_to_one(sides, back_end, source, target):
    model = tiny_model(sides)
    model.set_attn_implementation(back_end)
    plain = model(input_ids=source, decoder_input_ids=target).logits
    outputs = model(input_ids=source, decoder_input_ids=target, output_attentions=True)
    torch.testing.assert_close(outputs.logits, plain, **EXACT)
    shapes = {
        "encoder_attentions": [(3, 2, 6, 6)] * 2,
        "decoder_attentions": [(3, 4, 9, 9)] * 3,
        "cross_attentions": [(3, 4, 9, 6)] * 3,
    }
    for kind, expected in shapes.items():
        weights = getattr(outputs, kind)
        assert [tuple(p.shape) for p in weights] == expected, kind
        for p in weights:
            torch.testing.assert_close(p.sum(-1), torch.ones_like(p.sum(-1)), **EXACT)
    for p in outputs.decoder_attentions:
        assert not p.triu(1).any()


@pytest.mark.capability("gradient checkpointing")
@pytest.mark.decoding
def test_gradient_checkpointing_gives_the_same_gradients(sides, source, target):
    model = tiny_model(sides, dropout=0.0).train()
    calls = []
    for stack in (model.model.encoder, model.model.decoder):
        stack.layers[-1].fc1.register_forward_hook(lambda *_: calls.append(1))
    plain = gradients(model, input_ids=source, labels=target)
    assert len(calls) == 2
    # The first name is that of transformers 5.23, which deprecates the second.
    (getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable)()
    torch.testing.assert_close(gradients(model, input_ids=source, labels=target), plain, **EXACT)
    assert len(calls) == 2 + 4, "each layer runs once forward and once more on the way back"


def test_the_loss_is_the_cross_entropy_of_the_labels(family, source, target):
    model = tiny_model(family)
    labels = target.masked_fill(torch.tensor([[1] * 9, [1] * 5 + [0] * 4, [1] * 7 + [0] * 2]) == 0, -100)
    inputs = torch.cat((torch.ones(3, 1, dtype=torch.long), labels[:, :-1].clamp(min=0)), dim=1)
    outputs = model(input_ids=source, labels=labels)
    logits = model(input_ids=source, decoder_input_ids=inputs).logits
    torch.testing.assert_close(outputs.logits[labels != -100], logits[labels != -100], **EXACT)
    losses = nn.functional.cross_entropy(
        logits.float().flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum"
    )
    torch.testing.assert_close(outputs.loss, losses / 21, rtol=1e-6, atol=1e-6)
    given = model(input_ids=source, labels=labels, num_items_in_batch=torch.tensor(100)).loss
    torch.testing.assert_close(given, losses / 100, rtol=1e-6, atol=1e-6)


@torch.no_grad()
def test_bfloat16_is_near_float32_even_far_from_position_zero(family, source, target):
    """bfloat16 counts without gaps only to 256: angles held in it would move the logits by about their own size."""
    model = tiny_model(family, dtype=torch.float32)
    at = torch.arange(9)[None] + min(model.config.max_target_length or 1012, model.config.max_source_length or 1012) - 9
    inputs = {"input_ids": source, "position_ids": at[:, :6], "decoder_input_ids": target, "decoder_position_ids": at}
    exact = model(**inputs).logits
    half = copy.deepcopy(model).to(torch.bfloat16)(**inputs).logits
    assert half.dtype == torch.bfloat16
    assert (half.float() - exact).square().mean().sqrt() < 0.04 * exact.std()


# Memory


def test_no_tensor_grows_with_length_times_length_times_width(sides):
    length, width = 64, 32
    model = tiny_model(
        sides, d_model=2 * width, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2,
    )  # fmt: skip
    ids = sentences(2, length)
    with LargestTensor() as largest:
        model(input_ids=ids, labels=ids).loss.backward()
    assert 2 * length * 2 * width <= largest.numel < length * length * width


def test_the_memory_invariant_detects_one_vector_per_query_and_key():
    length, width = 64, 32
    q, table = torch.randn(2, 2, length, width), torch.randn(7, width, requires_grad=True)
    at = torch.arange(length)
    with LargestTensor() as largest:
        vectors = table[(at[None] - at[:, None]).clamp(-3, 3) + 3]
        torch.einsum("bhqk,qsk->bhqs", q, vectors).sum().backward()
    assert largest.numel >= length * length * width


def test_padding_is_read_off_masks_of_every_kind():
    """A static cache's mask is 4-D before the decoder sees it, Boolean for sdpa and additive for eager."""
    mask = torch.tensor([[0, 1, 1], [1, 0, 1]])
    allowed = torch.ones(3, 3, dtype=torch.bool).tril() & (mask[:, None, None, :] == 1)
    additive = torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)
    for given in (mask, allowed, additive):
        assert torch.equal(new_valid_mask(given, 3), mask == 1)
    for given in (mask, allowed[:, :, 1:], additive[:, :, 1:]):
        assert torch.equal(new_valid_mask(given, 2, 1), mask[:, 1:] == 1)
    assert new_valid_mask(None, 3) is None
