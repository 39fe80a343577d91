"""Resized vocabularies: tokens that stay keep their logits, and the tables, biases and config are consistent."""

import pytest
import torch
from support.embeddings import EXACT, FAMILIES, OLD, TABLES, inputs, model_of
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForSeq2SeqLM

from hf_posenc.transformer.encoder_decoder import ConditionalGeneration

pytestmark = pytest.mark.full

SIZES = {"larger": 40, "smaller": 25, "the same": OLD}

of_tables = pytest.mark.parametrize("tables", TABLES.values(), ids=TABLES)
of_sizes = pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
of_families = pytest.mark.parametrize("where", FAMILIES)


def resized_target(model: ConditionalGeneration, size: int | None, **options) -> nn.Embedding:
    """By the one call that is for the target's vocabulary."""
    shared = model.config.share_encoder_decoder_embeddings
    return (model.resize_token_embeddings if shared else model.resize_decoder_token_embeddings)(size, **options)


def logits_and_gradients(model: ConditionalGeneration, kept: int) -> tuple[Tensor, dict[str, Tensor]]:
    """Of the first `kept` tokens: the logits, and the gradient of some function of them for each parameter."""
    model.zero_grad()
    logits = model(**inputs()).logits
    logits[..., :kept].sin().sum().backward()
    return logits.detach(), {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def check_sizes(model: ConditionalGeneration, source: int, target: int) -> None:
    """Everything that counts tokens agrees, and what was tied is tied."""
    config, body = model.config, model.model
    assert (config.vocab_size, config.decoder_vocab_size) == (source, target)
    assert body.config is config
    encoder, decoder = body.encoder.embed_tokens, body.decoder.embed_tokens
    assert (len(encoder.weight), encoder.num_embeddings) == (source, source)
    assert (len(decoder.weight), decoder.num_embeddings) == (target, target)
    assert (len(model.lm_head.weight), model.lm_head.out_features) == (target, target)
    assert model.final_logits_bias.shape == (1, target)
    assert (encoder.weight is decoder.weight) == config.share_encoder_decoder_embeddings
    assert (model.lm_head.weight is decoder.weight) == config.tie_word_embeddings
    assert model.get_input_embeddings().weight is encoder.weight
    assert model.get_output_embeddings() is model.lm_head


@of_families
@of_tables
@of_sizes
def test_the_tokens_that_stay_keep_their_logits_and_gradients_whatever_the_target_becomes(where, tables, size):
    model = model_of(where, tables)
    kept = min(size, OLD)
    expected, before = logits_and_gradients(model, kept)
    table = resized_target(model, size)
    assert table is model.model.decoder.embed_tokens or table.weight is model.model.decoder.embed_tokens.weight
    check_sizes(model, size if model.config.share_encoder_decoder_embeddings else OLD, size)
    logits, after = logits_and_gradients(model, kept)
    assert logits.shape == (3, 5, size)
    torch.testing.assert_close(logits[..., :kept], expected[..., :kept], **EXACT)
    assert before.keys() == after.keys()
    for name, old in before.items():
        new = after[name]
        if new.shape != old.shape:
            axis = 1 if name == "final_logits_bias" else 0
            assert not new.narrow(axis, kept, new.shape[axis] - kept).any(), name
            old, new = old.narrow(axis, 0, kept), new.narrow(axis, 0, kept)
        torch.testing.assert_close(new, old, **EXACT, msg=name)


@of_families
@of_sizes
@pytest.mark.parametrize("tied", [False, True])
def test_the_source_grows_and_shrinks_without_the_target(where, size, tied):
    model = model_of(where, {"tie_word_embeddings": tied})
    expected = model(**inputs()).logits
    table = model.resize_token_embeddings(size)
    assert table is model.model.encoder.embed_tokens is model.get_input_embeddings()
    check_sizes(model, size, OLD)
    torch.testing.assert_close(model(**inputs()).logits, expected, **EXACT)


@of_families
@of_tables
def test_new_tokens_can_be_read_learnt_and_said(where, tables):
    model = model_of(where, tables)
    model.resize_token_embeddings(40)
    if not model.config.share_encoder_decoder_embeddings:
        model.resize_decoder_token_embeddings(40)
    source = torch.full((2, 4), 39)
    model(input_ids=source, labels=torch.tensor([[38, 39, 5], [39, 4, 37]])).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.shape == parameter.shape, name
    assert model.model.encoder.embed_tokens.weight.grad[39].any()
    assert model.model.decoder.embed_tokens.weight.grad[39].any()
    assert model.lm_head.weight.grad[37:].any(dim=1).all()
    assert model.final_logits_bias.grad[0, 37:].all()
    only_new = {"suppress_tokens": list(range(37)), "min_new_tokens": 4, "max_new_tokens": 4}
    for beams in (1, 3):
        ids = model.generate(source, num_beams=beams, do_sample=False, **only_new)
        assert ids.shape == (2, 5) and (ids[:, 1:] >= 37).all()


@of_families
@of_tables
@torch.no_grad()
def test_a_resized_model_is_saved_and_loaded(where, tables, tmp_path):
    model = model_of(where, tables)
    resized_target(model, 40)
    if not model.config.share_encoder_decoder_embeddings:
        model.resize_token_embeddings(37)
    model.save_pretrained(tmp_path)
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype=torch.float64)
    check_sizes(again, model.config.vocab_size, 40)
    torch.testing.assert_close(again(**inputs(37)).logits, model(**inputs(37)).logits, **EXACT)
    base = AutoModel.from_pretrained(tmp_path, dtype=torch.float64)
    torch.testing.assert_close(
        base(**inputs(37)).last_hidden_state, model.model(**inputs(37)).last_hidden_state, **EXACT
    )


@of_families
@of_tables
@torch.no_grad()
def test_a_model_without_a_projection_is_resized_as_well(where, tables):
    model = model_of(where, tables).model
    expected = model(**inputs()).last_hidden_state
    table = resized_target(model, 40)
    shared = model.config.share_encoder_decoder_embeddings
    assert (model.config.vocab_size, model.config.decoder_vocab_size) == (40 if shared else OLD, 40)
    assert table.weight is model.decoder.embed_tokens.weight
    assert (model.encoder.embed_tokens.weight is table.weight) == shared
    torch.testing.assert_close(model(**inputs()).last_hidden_state, expected, **EXACT)


@of_families
@of_tables
def test_a_frozen_table_stays_frozen(where, tables):
    model = model_of(where, tables)
    frozen = {"lm_head.weight", "model.decoder.embed_tokens.weight", "model.shared.weight", "final_logits_bias"}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    before = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    resized_target(model, 40)
    assert {name: parameter.requires_grad for name, parameter in model.named_parameters()} == before


@of_tables
def test_no_number_of_tokens_gives_the_table_and_changes_nothing(tables):
    model = model_of("relative", tables)
    assert resized_target(model, None).weight is model.model.decoder.embed_tokens.weight
    assert model.resize_token_embeddings() is model.get_input_embeddings()
    check_sizes(model, OLD, OLD)


@of_tables
def test_a_size_is_rounded_up_to_a_multiple(tables):
    model = model_of("relative", tables)
    assert resized_target(model, 33, pad_to_multiple_of=16).num_embeddings == 48
    check_sizes(model, 48 if model.config.share_encoder_decoder_embeddings else OLD, 48)
    assert resized_target(model, None, pad_to_multiple_of=32).num_embeddings == 64


@pytest.mark.parametrize("mean", [True, False])
def test_new_tokens_begin_like_the_average_token_or_like_those_of_a_new_model(mean):
    model = model_of("relative", {})
    averages = [model.model.decoder.embed_tokens.weight.mean(0), model.lm_head.weight.mean(0)]
    bias = model.final_logits_bias.mean() if mean else torch.zeros((), dtype=torch.float64)
    model.resize_decoder_token_embeddings(OLD + 3, mean_resizing=mean)
    for table, average in zip((model.model.decoder.embed_tokens, model.lm_head), averages, strict=True):
        off = (table.weight[OLD:] - average).abs().max()
        assert off < 1e-3 if mean else off > 1e-2
    torch.testing.assert_close(model.final_logits_bias[0, OLD:], bias.expand(3))


def test_a_shared_table_has_no_target_size_of_its_own():
    model = model_of("relative", {"share_encoder_decoder_embeddings": True})
    with pytest.raises(ValueError, match=r"share_encoder_decoder_embeddings=True; call resize_token_embeddings"):
        model.resize_decoder_token_embeddings(40)
    check_sizes(model, OLD, OLD)


@of_families
def test_another_output_projection_can_be_set(where):
    model = model_of(where, {})
    other = nn.Linear(16, OLD, bias=False, dtype=torch.float64)
    model.set_output_embeddings(other)
    assert model.get_output_embeddings() is model.lm_head is other
    hidden = model.model(**inputs()).last_hidden_state
    torch.testing.assert_close(model(**inputs()).logits, other(hidden) + model.final_logits_bias, **EXACT)
