"""Caches under both argument names, and unused keyword arguments."""

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from support.causal import tiny_causal_model
from support.models import tiny_config, tiny_model
from transformers import AutoModelForSeq2SeqLM, DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import Seq2SeqLMOutput
from transformers.trainer import Trainer

from hf_posenc.generation.model_inputs import CACHE_NAME, CACHE_NAMES, get_cache, rename_cache
from hf_posenc.hub.version import NEWEST_TESTED_TRANSFORMERS, untested_transformers_warning

FAMILIES = ["relative", "gru", "rnn_nmt"]
SOURCE, TARGET = torch.tensor([[5, 6, 7, 8, 2]]), torch.tensor([[2, 9, 4, 11]])


@pytest.fixture(params=FAMILIES)
def model(request):
    torch.manual_seed(0)
    return AutoModelForSeq2SeqLM.from_config(tiny_config(request.param)).eval()


def new_cache(model) -> EncoderDecoderCache:
    return EncoderDecoderCache(DynamicCache(config=model.config), DynamicCache(config=model.config))


def deprecation(name: str) -> AbstractContextManager:
    """A context that expects the warning for the old name, where transformers has a new one."""
    is_old = name == "past_key_values" != CACHE_NAME
    return pytest.warns(FutureWarning, match="`past_key_values` is deprecated") if is_old else nullcontext()


@pytest.mark.parametrize("name", CACHE_NAMES)
@torch.no_grad()
def test_a_cache_is_read_under_both_names(model, name):
    full = model(input_ids=SOURCE, decoder_input_ids=TARGET)
    base = model.model(input_ids=SOURCE, decoder_input_ids=TARGET)
    cache = new_cache(model)
    with deprecation(name):
        model(input_ids=SOURCE, decoder_input_ids=TARGET[:, :3], **{name: cache})
    assert cache.get_seq_length() == 3
    with deprecation(name):
        step = model(input_ids=SOURCE, decoder_input_ids=TARGET[:, 3:], **{name: cache})
    torch.testing.assert_close(step.logits, full.logits[:, 3:], rtol=1e-4, atol=1e-5)
    assert get_cache(step) is cache
    cache.crop(-1)
    with deprecation(name):
        step = model.model(input_ids=SOURCE, decoder_input_ids=TARGET[:, 3:], **{name: cache})
    torch.testing.assert_close(step.last_hidden_state, base.last_hidden_state[:, 3:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CACHE_NAMES)
def test_the_inputs_of_a_step_hold_the_cache_under_the_name_that_transformers_reads(model, name):
    cache = new_cache(model)
    model(input_ids=SOURCE, decoder_input_ids=TARGET[:, :3], cache=cache)
    step = model.prepare_inputs_for_generation(TARGET, next_sequence_length=1, **{name: cache, "use_cache": True})
    assert step[CACHE_NAME] is cache and step["decoder_input_ids"].shape == (1, 1)
    assert not any(other in step for other in CACHE_NAMES if other != CACHE_NAME)


def test_a_decoder_without_an_encoders_output_is_refused(model):
    with pytest.raises(ValueError, match="give encoder_hidden_states"):
        model.model.decoder(TARGET)


def test_two_caches_are_refused(model):
    both = dict.fromkeys(CACHE_NAMES, new_cache(model))
    with pytest.raises(ValueError, match="both cache and past_key_values"):
        model(input_ids=SOURCE, decoder_input_ids=TARGET, **both)
    assert rename_cache({"cache": None, "past_key_values": both["cache"], "x": 1}, "cache") == {
        "cache": both["cache"],
        "x": 1,
    }


@pytest.mark.parametrize("of", ["model", "base"])
@pytest.mark.parametrize(
    ("name", "nearest"), [("cache_params", "cache"), ("decoder_head_mask", "decoder_attention_mask"), ("labls", "")]
)
def test_a_keyword_that_nothing_reads_is_refused(model, of, name, nearest):
    called = model if of == "model" else model.model
    with pytest.raises(TypeError, match=rf"reads no input '{name}'.*nearest one is '{nearest}"):
        called(input_ids=SOURCE, decoder_input_ids=TARGET, **{name: torch.ones(1)})
    called(input_ids=SOURCE, decoder_input_ids=TARGET, **{name: None})


def test_what_back_ends_and_the_loss_read_is_passed_on(model):
    half = torch.cat((TARGET[:, :2], torch.full((1, 2), 7)), dim=1)
    plain = model(input_ids=SOURCE, labels=TARGET[:, :2]).loss
    assert torch.isclose(model(input_ids=SOURCE, labels=half, ignore_index=7).loss, plain)
    halved = model(input_ids=SOURCE, labels=TARGET[:, :2], num_items_in_batch=torch.tensor(4)).loss
    assert torch.isclose(halved * 2, plain)
    assert model(input_ids=SOURCE, decoder_input_ids=TARGET, return_dict=False)[0].shape[:2] == TARGET.shape


def test_a_cache_under_checkpointing_in_training_is_refused():
    model = AutoModelForSeq2SeqLM.from_config(tiny_config("relative")).train()
    (getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable)()
    with pytest.raises(ValueError, match="turn gradient checkpointing off"):
        model(input_ids=SOURCE, decoder_input_ids=TARGET, cache=new_cache(model))


def test_the_trainer_leaves_caches_out_of_predictions(model):
    """Trainer gathers every output of an evaluation step unless the config names it."""
    assert set(CACHE_NAMES) <= set(model.config.keys_to_ignore_at_inference)
    assert "keys_to_ignore_at_inference" in inspect.getsource(Trainer.prediction_step)
    assert CACHE_NAME in Seq2SeqLMOutput.__dataclass_fields__


@pytest.mark.parametrize(("later", "warned"), [((0, -1), False), ((0, 0), False), ((0, 1), True), ((1, -9), True)])
def test_a_transformers_newer_than_any_tested_is_one_warning(later, warned):
    version = [a + b for a, b in zip(NEWEST_TESTED_TRANSFORMERS, later, strict=True)]
    warning = untested_transformers_warning(f"{version[0]}.{version[1]}.0.dev0")
    assert bool(warning) == warned
    assert not warned or ("\n" not in warning and f"{version[0]}.{version[1]}" in warning)


def refuse(call: Callable[..., object], **options) -> None:
    with pytest.raises(ValueError, match=r"at least one token, but its shape is \((0, 5|3, 0).*; leave the call out"):
        call(**options)


def test_an_empty_batch_and_a_text_without_tokens_are_refused_in_one_line(family, source, target):
    model = tiny_model(family)
    embeds = torch.zeros(3, 0, 16, dtype=torch.float64)
    empty, none = torch.zeros(0, 5, dtype=torch.long), torch.zeros(3, 0, dtype=torch.long)
    refuse(model, input_ids=empty, decoder_input_ids=empty)
    for given in ({"input_ids": none}, {"inputs_embeds": embeds}, {"input_ids": none, "attention_mask": none}):
        refuse(model, decoder_input_ids=target, **given)
    for given in ({"decoder_input_ids": none}, {"decoder_inputs_embeds": embeds}, {"labels": none}):
        refuse(model, input_ids=source, **given)
    refuse(model, encoder_outputs=(embeds,), decoder_input_ids=target)
    for options in ({"max_new_tokens": 3}, {"num_beams": 2}):
        for inputs in (empty, none):
            refuse(model.generate, inputs=inputs, **options)
            refuse(model.generate, input_ids=inputs, **options)
        refuse(model.generate, inputs=source, decoder_input_ids=none, **options)


def test_an_empty_batch_of_a_decoder_only_model_is_refused_in_one_line(decoder_only):
    model = tiny_causal_model(decoder_only)
    for inputs in (torch.zeros(0, 5, dtype=torch.long), torch.zeros(3, 0, dtype=torch.long)):
        refuse(model, input_ids=inputs)
        refuse(model, input_ids=inputs, labels=inputs)
        refuse(model.generate, inputs=inputs, max_new_tokens=3)
