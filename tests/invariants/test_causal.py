"""Invariants of the decoder-only model: one property a test, over the whole registry."""

import pytest
import torch
from support.causal import causal_cache, decode_causal, tiny_causal_model
from support.decoding import CHUNKS, EXACT, HOLES, TOKENS, gradients
from support.models import entries, padded, sentences, tiny_model
from torch import nn

from hf_posenc.encodings.cache import EVICTION_SLACK

GENERATE = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": 2, "pad_token_id": 0}


@torch.no_grad()
def test_logits_depend_on_no_later_token(decoder_only, target):
    model = tiny_causal_model(decoder_only)
    changed = torch.cat((target[:, :5], target.roll(1, dims=0)[:, 5:]), dim=1)
    logits, changed_logits = model(target).logits, model(changed).logits
    torch.testing.assert_close(changed_logits[:, :5], logits[:, :5], **EXACT)
    assert (changed_logits[:, 5:] - logits[:, 5:]).abs().amax(-1).min() > 1e-6
    torch.testing.assert_close(model(target[:, :5]).logits, logits[:, :5], **EXACT)


@torch.no_grad()
def test_logits_are_those_of_a_decoder_whose_cross_attention_adds_nothing(decoder_only, target):
    """The reference is the encoder-decoder: the same layers with the same weights, behind another class."""
    sizes = {"decoder_vocab_size": 29, "norm_first": True}
    model, reference = tiny_causal_model(decoder_only), tiny_model(f"none to {decoder_only}", **sizes)
    decoder = reference.model.decoder
    decoder.load_state_dict(model.model.state_dict(), strict=False)
    for layer in decoder.layers:
        layer.encoder_attn.out_proj.weight.zero_()
        layer.encoder_attn.out_proj.bias.zero_()
    hidden = decoder(target, encoder_hidden_states=torch.randn(3, 2, 16).double(), use_cache=False).last_hidden_state
    torch.testing.assert_close(model.model(target, use_cache=False).last_hidden_state, hidden, **EXACT)


# Each pair of a way to decode, a cache and a mask.
@pytest.mark.parametrize(
    ("chunks", "kind", "mask"),
    [(TOKENS, "dynamic", None), (TOKENS, "static", HOLES), (CHUNKS, "dynamic", HOLES), (CHUNKS, "static", None)],
    ids=["tokens-dynamic", "tokens-static-holes", "chunks-dynamic-holes", "chunks-static"],
)
@torch.no_grad()
def test_cached_decoding_equals_the_full_forward(decoder_only, chunks, kind, mask, target):
    model = tiny_causal_model(decoder_only)
    full = model(target, attention_mask=mask).logits
    cached = decode_causal(model, target, chunks, causal_cache(model, kind), mask=mask)
    valid = torch.ones_like(target) == 1 if mask is None else mask == 1
    torch.testing.assert_close(cached[valid], full[valid], **EXACT)


@torch.no_grad()
def test_a_cache_whose_rows_move_continues_like_one_built_for_those_rows(decoder_only, target):
    model, rows = tiny_causal_model(decoder_only), torch.tensor([2, 0, 0])
    cache = causal_cache(model, "dynamic")
    decode_causal(model, target, [3, 3], cache, mask=HOLES)
    cache.reorder_cache(rows)
    moved, mask = target[rows], HOLES[rows]
    continued = decode_causal(model, moved, [2, 1], cache, mask=mask, start=6)
    fresh = decode_causal(model, moved, [6, 2, 1], causal_cache(model, "dynamic"), mask=mask)
    torch.testing.assert_close(continued, fresh[:, 6:], **EXACT)


@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_padding_changes_nothing(decoder_only, side):
    model, rows = tiny_causal_model(decoder_only), [sentences(n, seed=n) for n in (4, 8, 1)]
    ids, mask = padded(rows, side)
    logits = model(ids, attention_mask=mask).logits
    for i, row in enumerate(rows):
        torch.testing.assert_close(logits[i][mask[i] == 1], model(row[None]).logits[0], **EXACT)


@pytest.mark.capability("dynamic and static cache", model="decoder-only")
@pytest.mark.decoding
@pytest.mark.parametrize("num_beams", [1, 3], ids=["greedy", "beams"])
def test_generating_with_a_cache_equals_generating_without(decoder_only, num_beams, target):
    model = tiny_causal_model(decoder_only)
    plain = model.generate(target, num_beams=num_beams, use_cache=False, **GENERATE)
    assert plain.shape[1] > target.shape[1]
    assert torch.equal(model.generate(target, num_beams=num_beams, **GENERATE), plain)
    static = {"cache_implementation": "static", "disable_compile": True}
    assert torch.equal(model.generate(target, num_beams=num_beams, **static, **GENERATE), plain)


@pytest.mark.decoding
def test_a_prompt_is_continued_in_a_batch_as_alone(decoder_only):
    """Prompts of different lengths, with padding on their left."""
    model, rows = tiny_causal_model(decoder_only), [sentences(n, seed=n) for n in (4, 7, 2)]
    ids, mask = padded(rows, "left")
    options = GENERATE | {"eos_token_id": None}
    continued = model.generate(ids, attention_mask=mask, **options)[:, ids.shape[1] :]
    alone = [model.generate(row[None], **options)[0, row.shape[0] :] for row in rows]
    assert torch.equal(continued, torch.stack(alone))
    static = {"cache_implementation": "static", "disable_compile": True}
    assert torch.equal(model.generate(ids, attention_mask=mask, **static, **options)[:, ids.shape[1] :], continued)


def test_the_loss_is_the_cross_entropy_of_the_next_token(decoder_only, target):
    model = tiny_causal_model(decoder_only)
    labels = target.masked_fill(torch.tensor([[0] * 3 + [1] * 6, [1] * 9, [1] * 5 + [0] * 4]) == 0, -100)
    outputs = model(target, labels=labels)
    nll = nn.functional.cross_entropy(
        outputs.logits[:, :-1].float().flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100, reduction="sum"
    )
    torch.testing.assert_close(outputs.loss, nll / 18, rtol=1e-6, atol=1e-6)
    shifted = nn.functional.pad(labels, (0, 1), value=-100)[:, 1:]
    assert torch.equal(model(target, shift_labels=shifted).loss, outputs.loss)
    given = model(target, labels=labels, num_items_in_batch=torch.tensor(100)).loss
    torch.testing.assert_close(given, nll / 100, rtol=1e-6, atol=1e-6)


@torch.no_grad()
def test_logits_are_kept_of_the_last_tokens_or_at_indices(target):
    model = tiny_causal_model("relative")
    full = model(target).logits
    torch.testing.assert_close(model(target, logits_to_keep=2).logits, full[:, -2:], **EXACT)
    kept = torch.tensor([0, 4])
    torch.testing.assert_close(model(target, logits_to_keep=kept).logits, full[:, kept], **EXACT)


@pytest.mark.capability("sdpa = eager", model="decoder-only")
@pytest.mark.parametrize("norm_first", [False, True])
def test_eager_equals_sdpa_in_values_and_gradients(decoder_only, norm_first, target):
    model = tiny_causal_model(decoder_only, norm_first=norm_first)
    follows_padding = (
        nn.functional.pad(HOLES, (1, 0))[:, :-1] == 0
    )  # the label of a masked query, whatever it attends to
    labels = target.masked_fill((HOLES == 0) | follows_padding, -100)
    inputs = {"input_ids": target, "attention_mask": HOLES, "labels": labels}
    assert model.config._attn_implementation == "sdpa"
    fast, fast_gradients = model(**inputs).logits, gradients(model, **inputs)
    model.set_attn_implementation("eager")
    slow, slow_gradients = model(**inputs).logits, gradients(model, **inputs)
    torch.testing.assert_close(fast[HOLES == 1], slow[HOLES == 1], **EXACT)
    torch.testing.assert_close(fast_gradients, slow_gradients, **EXACT)
    assert all(gradient is not None for gradient in fast_gradients.values())


@pytest.mark.capability("gradient checkpointing", model="decoder-only")
def test_gradient_checkpointing_gives_the_same_gradients(decoder_only, target):
    model = tiny_causal_model(decoder_only, dropout=0.0).train()
    calls = []
    model.model.layers[-1].fc1.register_forward_hook(lambda *_: calls.append(1))
    plain = gradients(model, input_ids=target, labels=target)
    # The first name is that of transformers 5.23, which deprecates the second.
    (getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable)()
    torch.testing.assert_close(gradients(model, input_ids=target, labels=target), plain, **EXACT)
    assert len(calls) == 1 + 2, "a layer runs once forward and once more on the way back"


@pytest.mark.full
@torch.no_grad()
def test_long_inputs_in_linear_memory_equal_eager_attention(decoder_only):
    model, ids = tiny_causal_model(decoder_only, num_hidden_layers=1), sentences(1, 600)
    if any(entry.max_length_field for entry in entries(decoder_only)):
        pytest.skip("its table is shorter")
    linear = model(ids, use_cache=False).logits
    weighed = model(ids, use_cache=False, output_attentions=True)  # weights are those of all keys at once
    torch.testing.assert_close(linear, weighed.logits, rtol=1e-8, atol=1e-8)


@pytest.mark.full
@torch.no_grad()
def test_a_window_bounds_the_cache(target):
    model = tiny_causal_model("relative+window")
    cache, window = causal_cache(model, "dynamic"), model.model.positions.hiding_distance
    decode_causal(model, sentences(2, 200), [1] * 200, cache)
    assert cache.get_seq_length() == 200
    assert all(layer.keys.shape[2] < 2 * (window + EVICTION_SLACK) for layer in cache.layers)


@pytest.mark.capability("bfloat16", model="decoder-only")
@torch.no_grad()
def test_bfloat16_is_near_float32(decoder_only, target):
    exact = tiny_causal_model(decoder_only, dtype=torch.float32)
    logits = exact(target).logits
    half = exact.to(torch.bfloat16)(target).logits
    assert half.dtype == torch.bfloat16
    assert (half.float() - logits).square().mean().sqrt() < 0.06 * logits.std()
