"""Other encodings for a trained model: which weights are kept, which are initialized to identity, which are refused."""

import json
from dataclasses import fields

import pytest
import torch
from support.causal import tiny_causal_model
from support.marian_models import tiny_marian
from support.models import REGISTERED, gradients_after_a_step, sentences, tiny_model, zero_init_parameters
from torch import Tensor, nn
from transformers import AutoModelForSeq2SeqLM

from hf_posenc import (
    POSITION_ENCODINGS,
    PosEncCausalConfig,
    PosEncConfig,
    PosEncForCausalLM,
    PosEncForConditionalGeneration,
    convert_encodings,
)
from hf_posenc.convert.encodings import (
    CAUSAL_ENCODING_FIELDS,
    CAUSAL_FIELDS,
    DESCRIPTIVE_FIELDS,
    ENCODING_FIELDS,
    FAMILY_FIELDS,
    STRUCTURAL_FIELDS,
    TUNABLE_FIELDS,
)

SMALL = {"relative_clip": 3, "learned_max_positions": 64, "window_size": 2}
ALIGNED = {"cross_position_encoding_type": "relative", "alignment_type": "length_ratio"}
EXACT = {"rtol": 1e-10, "atol": 1e-10}


def batch() -> dict[str, Tensor]:
    ids = sentences(3, 7)
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    return {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": sentences(3, 6, seed=2)}


@torch.no_grad()
def logits(model: PosEncForConditionalGeneration) -> Tensor:
    return model.eval()(**batch()).logits


def own_fields(config_class: type) -> list[str]:
    """The fields that a config class and its base classes of this package have, in alphabetical order."""
    own_classes = [cls for cls in config_class.__mro__ if cls.__module__.startswith("hf_posenc")]
    annotated = {"dtype"}.union(*(vars(cls).get("__annotations__", {}) for cls in own_classes))
    return sorted(annotated & {field.name for field in fields(config_class)})


def test_every_config_field_is_in_one_group_of_conversion():
    """A new field that is in none would be lost, or changed, without a word."""
    groups = (STRUCTURAL_FIELDS, FAMILY_FIELDS, TUNABLE_FIELDS, ENCODING_FIELDS, DESCRIPTIVE_FIELDS)
    assert sorted(field for group in groups for field in group) == own_fields(PosEncConfig)
    descriptive = [field for field in DESCRIPTIVE_FIELDS if field != "is_encoder_decoder"]
    grouped = [*CAUSAL_FIELDS, *TUNABLE_FIELDS, *CAUSAL_ENCODING_FIELDS, *descriptive]
    assert sorted(grouped) == own_fields(PosEncCausalConfig)


# The same encodings, and such as join them


def test_with_the_same_encodings_it_is_the_same_model(sides):
    model = tiny_model(sides)
    again = convert_encodings(model)
    assert again.config.to_dict() == model.config.to_dict()
    torch.testing.assert_close(again.state_dict(), model.state_dict(), rtol=0, atol=0)
    assert torch.equal(logits(again), logits(model))
    assert not {w.data_ptr() for w in again.parameters()} & {w.data_ptr() for w in model.parameters()}


def test_conversion_keeps_an_alignment_and_the_encodings_that_use_it():
    for name in ("length_ratio", "recurrent"):
        parameters = {
            "cross_position_encoding_type": "rotary+relative",
            "alignment_type": name,
            "cross_relative_clip": 2,
        }
        model = tiny_model("none", **parameters)
        torch.testing.assert_close(convert_encodings(model).state_dict(), model.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("silent", [name for name, entry in POSITION_ENCODINGS.items() if entry.zero_init_is_identity])
def test_a_zero_initialized_encoding_changes_nothing_on_any_side(silent):
    before = tiny_model("sinusoidal")
    crossing = ALIGNED if POSITION_ENCODINGS[silent].modifies_attention else {}
    named = "sinusoidal" if silent == "none" else f"sinusoidal+{silent}"
    after = convert_encodings(before, named, **crossing, **SMALL)
    torch.testing.assert_close(logits(after), logits(before), **EXACT)
    found = gradients_after_a_step(after.train(), input_ids=sentences(3, 7), labels=sentences(3, 6, seed=2))
    assert all(gradient.any() for name, gradient in found.items() if "positions." in name)


def test_an_encoding_keeps_its_parameters_at_any_index_of_a_combination():
    before = tiny_model("relative")
    joined = convert_encodings(before, "learned+rotary+relative", learned_max_positions=64)
    back = convert_encodings(joined, "relative")
    torch.testing.assert_close(back.state_dict(), before.state_dict(), rtol=0, atol=0)
    assert torch.equal(joined.model.encoder.positions[2].keys, before.model.encoder.positions[0].keys)
    assert torch.equal(logits(back), logits(before))


def test_a_parameter_that_changes_no_size_keeps_the_weights_of_an_alignment():
    before = tiny_model("none", **ALIGNED | {"alignment_type": "recurrent"})
    after = convert_encodings(before, recurrent_step=1.7)
    assert after.config.recurrent_step == 1.7
    torch.testing.assert_close(after.state_dict(), before.state_dict(), rtol=0, atol=0)


def test_an_encoding_of_another_size_is_initialized_anew():
    before = tiny_model("sinusoidal+relative")
    after = convert_encodings(before, relative_clip=5)
    for stack in (after.model.encoder, after.model.decoder):
        assert all(torch.equal(table, torch.zeros_like(table)) for table in stack.positions.parameters())
    torch.testing.assert_close(logits(after), logits(convert_encodings(before, "sinusoidal")), **EXACT)


def test_a_parameter_of_cross_attention_converts_independently():
    """The decoder's tables are not the cross-attention's, whose own parameter may change alone."""
    before = tiny_model("relative", cross_position_encoding_type="relative")
    after = convert_encodings(before, cross_relative_clip=2)
    assert torch.equal(after.model.decoder.positions[0].keys, before.model.decoder.positions[0].keys)
    assert after.model.decoder.cross_positions[0].keys.shape[1] == 5
    assert not after.model.decoder.cross_positions[0].keys.any()


# Others in their place


@pytest.mark.full
@pytest.mark.parametrize("encodings", [*REGISTERED, "rotary to gru"])
def test_another_encoding_replaces_the_old_and_nothing_else(encodings):
    encoder, _, decoder = encodings.partition(" to ")
    before = tiny_model("lstm to sinusoidal")
    torch.manual_seed(3)
    after = convert_encodings(before, encoder, decoder or None, "relative", "recurrent", **SMALL)
    assert (after.config.position_encoding_type, after.config.decoder_position_encoding_type) == (
        encoder, decoder or encoder,
    )  # fmt: skip
    torch.manual_seed(3)
    fresh, kept = PosEncForConditionalGeneration(after.config).double().state_dict(), before.state_dict()
    if encoder == "lstm":
        fresh |= {name: weight for name, weight in kept.items() if ".encoder.positions." in name}
    at_zero = zero_init_parameters(after)
    for name, weight in after.state_dict().items():
        new = "positions." in name or "alignment." in name
        expected = fresh[name] if new else kept[name]
        if name in at_zero:
            expected = torch.zeros_like(weight)
        assert torch.equal(weight, expected), name


def test_a_position_encoding_by_itself_is_for_both_sides_and_one_that_is_not_named_stays():
    before = tiny_model("relative to learned", cross_position_encoding_type="rotary", alignment_type="length_ratio")
    for given, expected in (
        ({}, ("relative", "learned", "rotary", "length_ratio")),
        ({"position_encoding_type": "rotary"}, ("rotary", "rotary", "rotary", "length_ratio")),
        ({"decoder_position_encoding_type": "rotary"}, ("relative", "rotary", "rotary", "length_ratio")),
        ({"alignment_type": "none"}, ("relative", "learned", "rotary", "none")),
        ({"cross_position_encoding_type": "none", "alignment_type": "none"}, ("relative", "learned", "none", "none")),
    ):
        config = convert_encodings(before, **given).config
        assert (
            config.position_encoding_type, config.decoder_position_encoding_type,
            config.cross_position_encoding_type, config.alignment_type,
        ) == expected  # fmt: skip


def test_precision_mode_and_the_way_of_generating_are_kept_and_dropout_can_be_set():
    before = tiny_model("sinusoidal", dtype=torch.bfloat16).train()
    before.generation_config.update(num_beams=3, bad_words_ids=[[5]])
    after = convert_encodings(before, "relative+window", dropout=0.25, window_size=4)
    assert {weight.dtype for weight in after.parameters()} == {torch.bfloat16}
    assert after.training and not convert_encodings(before.eval()).training
    assert (after.config.dropout, after.config.window_size) == (0.25, 4)
    assert after.generation_config.to_dict() == before.generation_config.to_dict()
    assert after.generation_config is not before.generation_config
    assert convert_encodings(before.to("meta"), "rotary").device.type == "meta"


@pytest.mark.full
def test_a_folder_is_read_as_well_and_what_is_saved_is_a_whole_checkpoint(tmp_path):
    before = tiny_model("sinusoidal", dtype=torch.float32)
    before.save_pretrained(tmp_path / "before")
    after = convert_encodings(tmp_path / "before", "relative+window", **ALIGNED)
    torch.testing.assert_close(after.state_dict(), convert_encodings(before, "relative+window", **ALIGNED).state_dict())
    after.save_pretrained(tmp_path / "after")
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "after")
    assert torch.equal(logits(again), logits(after))


# What is refused


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"d_model": 32}, "`d_model` must be the trained model's, 16, but d_model=32 was given; leave it out"),
        ({"hidden_size": 32}, "`hidden_size` must be the trained model's, 16"),
        ({"dtype": torch.bfloat16}, "`dtype` must be the trained model's"),
        ({"norm_first": True}, "`norm_first` .* False, but norm_first=True"),
        ({"pad_token_id": 3}, "`pad_token_id`"),
        ({"relative_clop": 3}, "'relative_clop' is no field of PosEncConfig; the nearest one is 'relative_clip'"),
        ({"position_encoding_type": "rotry"}, "'rotry' is no registered position encoding .the nearest is 'rotary'"),
        ({"position_encoding_type": "RoPE"}, "'RoPE' is no registered position encoding .the nearest is 'rotary'"),
        ({"position_encoding_type": "shaw"}, "'shaw' is no registered position encoding .the nearest is 'relative'"),
        ({"cross_position_encoding_type": "sinusoidal"}, "acts on embedded tokens or on training positions"),
        ({"alignment_type": "length_ratios"}, "no registered alignment .the nearest is 'length_ratio'"),
        ({"alignment_type": "length_ratio"}, "alignment_type='length_ratio' cross_position_encoding_type is 'none'"),
        ({"position_encoding_type": "window", "window_size": 0}, "`window_size` must be"),
    ],
)
def test_what_cannot_be_is_refused_before_any_weight_is_read(given, said, tmp_path):
    tiny_model("sinusoidal").save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=said):
        convert_encodings(tmp_path, **given)


# Decoder-only models


@torch.no_grad()
def next_token_logits(model: PosEncForCausalLM) -> Tensor:
    return model(input_ids=sentences(2, 7)).logits


def test_a_decoder_only_model_with_the_same_encodings_is_the_same_model(decoder_only):
    model = tiny_causal_model(decoder_only)
    again = convert_encodings(model)
    assert again.config.to_dict() == model.config.to_dict()
    assert torch.equal(next_token_logits(again), next_token_logits(model))


@pytest.mark.full
def test_a_decoder_only_model_keeps_its_weights_under_another_encoding(tmp_path):
    """A scaled rotation acts at once; relative vectors start at zero, so that a sum with them changes nothing."""
    model = tiny_causal_model("rotary")
    yarn = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 8}
    scaled = convert_encodings(model, rope_parameters=yarn)
    torch.testing.assert_close(scaled.state_dict(), model.state_dict(), rtol=0, atol=0)
    expected = tiny_causal_model("rotary", rope_parameters=yarn)
    expected.load_state_dict(model.state_dict())
    assert torch.equal(next_token_logits(scaled), next_token_logits(expected))
    assert not torch.allclose(next_token_logits(scaled), next_token_logits(model))
    far = tiny_causal_model("rotary", rope_parameters={"rope_theta": 5e5, "partial_rotary_factor": 0.5})
    linear = convert_encodings(far, rope_parameters={"rope_type": "linear", "factor": 4.0}).config.rope_parameters
    assert (linear["rope_theta"], linear["partial_rotary_factor"]) == (5e5, 0.5)
    joined = convert_encodings(model, "rotary+relative", **SMALL)
    torch.testing.assert_close(next_token_logits(joined), next_token_logits(model), **EXACT)
    model.save_pretrained(tmp_path)
    loaded = convert_encodings(tmp_path, "rotary+window", window_size=2)
    assert isinstance(loaded, PosEncForCausalLM) and loaded.config.position_encoding_type == "rotary+window"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"alignment_type": "length_ratio"}, "decoder-only model, .* but alignment_type is given; leave it out"),
        ({"hidden_size": 32}, "`hidden_size` must be the trained model's, 16"),
        ({"d_model": 32}, "`d_model` must be the trained model's, 16"),
    ],
)
def test_what_a_decoder_only_model_lacks_is_refused(given, said):
    with pytest.raises(ValueError, match=said):
        convert_encodings(tiny_causal_model("rotary"), **given)


def test_a_field_at_its_default_is_no_change():
    assert convert_encodings(tiny_model("sinusoidal"), "rotary", d_model=16).config.d_model == 16


def test_other_families_are_refused_by_name(tmp_path):
    tiny_model("rnn_nmt").save_pretrained(tmp_path / "rnn")
    tiny_marian().save_pretrained(tmp_path / "marian")
    with pytest.raises(ValueError, match=r"posenc or posenc_causal, but .*rnn .*`posenc_rnn_nmt`.*; use"):
        convert_encodings(tmp_path / "rnn", "rotary")
    with pytest.raises(ValueError, match=r"holds a `marian` model; .*from_transformers"):
        convert_encodings(tmp_path / "marian", "rotary")
    for other in (tiny_model("rnn_nmt"), tiny_model("sinusoidal").model, tiny_marian()):
        with pytest.raises(TypeError, match=f"but .* {type(other).__name__};"):
            convert_encodings(other, "rotary")


def test_a_missing_folder_and_one_without_a_model_are_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"d_model": 8}), encoding="utf-8")
    for folder in (tmp_path / "missing", tmp_path):
        with pytest.raises(ValueError, match=r"none can be read from .*; name a folder"):
            convert_encodings(folder)


def test_an_adapter_is_refused():
    model = tiny_model("sinusoidal")
    model.model.encoder.adapter = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"2 too many, .* model\.encoder\.adapter\.bias;"):
        convert_encodings(model, "rotary")
