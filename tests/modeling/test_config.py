"""Impossible configs are refused when they are made, with rule, value and remedy."""

import json
import re
from copy import deepcopy

import pytest
import torch
from huggingface_hub.errors import StrictDataclassClassValidationError, StrictDataclassFieldValidationError
from support.models import DEFAULTS_SUIT, SMALL_PARAMETERS, entries, tiny_config, tiny_model
from transformers import AutoConfig, PreTrainedConfig

from hf_posenc import (
    ALIGNMENTS,
    POSITION_ENCODINGS,
    PosEncCausalConfig,
    PosEncConfig,
    PosEncForConditionalGeneration,
    PosEncModel,
    RnnNmtConfig,
)
from hf_posenc.encodings.registry import all_encoding_parameters

ROPE = {"rope_theta": 10000.0, "factor": 2.0}
REFUSED = {
    "an unknown encoding": (
        {"position_encoding_type": "relativ"},
        r"position_encoding_type='relativ'.*nearest is 'relative'.*choose from none, sinusoidal",
    ),
    "an unknown encoding of the decoder": (
        {"decoder_position_encoding_type": "rotery"},
        r"'rotery'.*nearest is 'rotary'",
    ),
    "an unknown part of a sum": ({"position_encoding_type": "sinusoidal+larned"}, r"'larned'.*nearest is 'learned'"),
    "an empty part of a sum": ({"position_encoding_type": "sinusoidal+"}, r"sinusoidal\+.*'' is no registered"),
    "an encoding in capitals": ({"position_encoding_type": "Rotary"}, r"'Rotary' is no registered.*'rotary'"),
    "an encoding twice": (
        {"position_encoding_type": "rotary+rotary"},
        r"'rotary\+rotary'.*each encoding once.*`rotary` occurs twice; leave one",
    ),
    "none with another": (
        {"position_encoding_type": "none+rotary"},
        r"`none` means no encoding, but `rotary` is in the sum too; leave one",
    ),
    "another with none": ({"position_encoding_type": "rotary+none"}, r"`none` means.*`rotary` is in the sum too"),
    "two presets of one class": (
        {"position_encoding_type": "relative+relative_key"},
        r"`relative` and `relative_key` are presets of one encoding, Relative; leave one",
    ),
    "a bad sum of the decoder": ({"decoder_position_encoding_type": "none+learned"}, r"`none` means"),
    "encoder heads that do not divide the width": (
        {"encoder_attention_heads": 3},
        r"multiple of the number of heads.*d_model=16.*encoder_attention_heads=3; change",
    ),
    "decoder heads that do not divide the width": (
        {"decoder_attention_heads": 5},
        r"multiple of the number of heads.*d_model=16.*decoder_attention_heads=5; change",
    ),
    "no heads": ({"decoder_attention_heads": 0}, r"decoder_attention_heads must be from 1 to 1000, but it is 0"),
    "an odd width of the encoder's heads": (
        {"position_encoding_type": "rotary", "decoder_position_encoding_type": "none", "encoder_attention_heads": 16},
        r"`rotary` needs an even width.*a width of 16 over 16 heads gives 1; change",
    ),
    "an odd width of the decoder's heads": (
        {"position_encoding_type": "none", "decoder_position_encoding_type": "rotary", "decoder_attention_heads": 16},
        r"`rotary` needs an even width.*a width of 16 over 16 heads gives 1; change",
    ),
    "angles that follow the length": (
        {"position_encoding_type": "rotary", "rope_parameters": {"rope_type": "dynamic", **ROPE}},
        r"do not change with the input's length.*rope_type='dynamic'; choose from default, linear",
    ),
    "angles that switch with the length": (
        {
            "position_encoding_type": "rotary", "max_position_embeddings": 64,
            "rope_parameters": {
                "rope_type": "longrope", **ROPE, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4,
                "original_max_position_embeddings": 32,
            },
        },
        r"rope_type='longrope'; choose from default, linear",
    ),
    "an unknown keyword": ({"relative_clipp": 4}, r"'relative_clipp' is no field.*nearest one is 'relative_clip'"),
    "an unknown keyword like a field": ({"d_modl": 4}, r"'d_modl' is no field.*nearest one is 'd_model'"),
    "shared embeddings of two vocabularies": (
        {"share_encoder_decoder_embeddings": True, "decoder_vocab_size": 31},
        r"one vocabulary.*vocab_size=29.*decoder_vocab_size=31; make them equal",
    ),
    "two encodings with a state": (
        {"position_encoding_type": "lstm+gru"},
        r"'lstm\+gru': `lstm` and `gru` both read the embeddings in order.*leave one of them out",
    ),
    "a state of no width": (
        {"position_encoding_type": "gru", "gru_hidden_size": 0},
        r"`gru_hidden_size` must be a whole number of units for each direction, 1 or more, or None for d_model.*is 0",
    ),
    "a state of half a unit": ({"lstm_hidden_size": 2.5}, r"`lstm_hidden_size` must be a whole number.*is 2.5"),
    "a direction that is a number": ({"gru_bidirectional": 2}, r"`gru_bidirectional` must be True .* or False.*is 2"),
    "a clip of zero": (
        {"relative_clip": 0},
        r"`relative_clip` must be a whole number of tokens, 1 or more.*is 0;.*default is 16",
    ),
    "a clip that is a truth value": ({"relative_clip": True}, r"`relative_clip` must be.*is True"),
    "a clip that is a word": ({"relative_clip": "x"}, r"`relative_clip` must be.*is 'x'"),
    "a clip that is no whole number": ({"relative_clip": 2.5}, r"`relative_clip` must be.*is 2.5"),
    "a clip of nothing": ({"relative_clip": None}, r"`relative_clip` must be.*is None"),
    "no layers": ({"encoder_layers": 0}, r"encoder_layers must be from 1 to 1000, but it is 0; its default is 6"),
    "fewer units than none": ({"decoder_ffn_dim": -4}, r"decoder_ffn_dim must be from 1 to 16777216, but it is -4"),
    "no tokens": ({"vocab_size": 0}, r"vocab_size must be from 1 to"),
    "a dropout of all": ({"dropout": 1.0}, r"dropout must be a probability .* below 1, but it is 1.0.*default is 0.1"),
    "a negative dropout": ({"attention_dropout": -0.1}, r"attention_dropout must be a probability from 0 to below 1"),
    "an unknown activation": (
        {"activation_function": "gated_gelu"},
        r"activation_function must be a name of transformers' ACT2FN, but it is 'gated_gelu'; the nearest one is",
    ),
    "positions before the first": ({"sinusoidal_offset": -1}, r"`sinusoidal_offset` must be a whole .*, 0 or more.*-1"),
    "wavelengths that do not grow": ({"sinusoidal_base": 1.0}, r"`sinusoidal_base` must be a number above 1, but"),
    "no epsilon": ({"layer_norm_eps": 0.0}, r"layer_norm_eps must be above 0, but it is 0.0"),
    "no padding": ({"pad_token_id": None}, r"pad_token_id must be a token id, .*, but it is None; its default is 0"),
    "no beginning": ({"decoder_start_token_id": None}, r"decoder_start_token_id must be a token id"),
    "a window that tokens are spread out of": (
        {"position_encoding_type": "relative+window+randomized"},
        r"Randomized spreads positions in training, and a window .*; leave it or `window` out",
    ),
    "a count that a window bounds": (
        {"decoder_position_encoding_type": "window+log_n"},
        r"LogN counts the keys that the mask allows, and in a window .*; leave it or `window` out",
    ),
    "a table of nothing": ({"learned_max_positions": 0}, r"`learned_max_positions` must be.*is 0;.*default is 1024"),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_work_is_refused_with_rule_value_and_remedy(fields, message):
    with pytest.raises(ValueError, match=message) as raised:
        tiny_config("relative", **fields)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("d_model", "16"),
        ("dropout", "much"),
        ("norm_first", 1),
        ("position_encoding_type", 3),
        ("rope_parameters", "x"),
    ],
)
def test_a_field_of_the_wrong_type_is_refused_when_made_and_when_set(field, value):
    with pytest.raises(StrictDataclassFieldValidationError, match=field):
        tiny_config("relative", **{field: value})
    with pytest.raises(StrictDataclassFieldValidationError, match=field):
        setattr(tiny_config("relative"), field, value)


@pytest.mark.parametrize("config_class", [PosEncConfig, PosEncCausalConfig])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embedding": 8},
         "rope_type='yarn' has no key 'original_max_position_embedding'; .* 'original_max_position_embeddings'"),
        ({"rope_type": "default", "factor": 4.0}, "rope_type='default' has no key 'factor'"),
        ({"rope_type": "linear"}, "rope_type='linear' must have factor, but it has .*; add the rest"),
    ],
)  # fmt: skip
def test_rope_parameters_of_another_type_are_refused(config_class, given, message):
    with pytest.raises(StrictDataclassClassValidationError, match=message):
        config_class(rope_parameters=given)


@pytest.mark.parametrize("config_class", [PosEncConfig, PosEncCausalConfig, RnnNmtConfig])
def test_two_names_of_a_field_have_one_value(config_class):
    assert config_class(d_model=32).hidden_size == config_class(hidden_size=32).d_model == 32
    assert config_class(d_model=32, hidden_size=32).d_model == 32
    with pytest.raises(ValueError, match=r"is another name of .*, but .*=.* and .*=.* are given; leave one out"):
        config_class(d_model=32, hidden_size=64)


def test_the_decoder_has_the_encoders_encoding_unless_it_names_its_own(registered):
    config = PosEncConfig(position_encoding_type=registered)
    assert config.decoder_position_encoding_type == registered
    other = PosEncConfig(position_encoding_type=registered, decoder_position_encoding_type="none")
    assert (other.position_encoding_type, other.decoder_position_encoding_type) == (registered, "none")


def test_the_decoder_has_the_encoders_vocabulary_unless_it_names_its_own():
    assert PosEncConfig(vocab_size=50).decoder_vocab_size == 50
    assert PosEncConfig(vocab_size=50, decoder_vocab_size=60).decoder_vocab_size == 60


def test_a_config_survives_a_dictionary_and_a_file(sides, tmp_path):
    config = tiny_config(sides, dropout=0.3)
    assert PosEncConfig.from_dict(config.to_dict()).to_dict() == config.to_dict()
    assert PosEncConfig(**json.loads(config.to_json_string(use_diff=False))).to_dict() == config.to_dict()
    config.to_json_file(tmp_path / "config.json")
    assert PosEncConfig.from_pretrained(tmp_path).to_dict() == config.to_dict()


def test_a_config_saves_only_parameters_that_are_used_or_changed(sides):
    config = tiny_config(sides)
    used = {parameter.name for entry in entries(sides) for parameter in entry.config_parameters}
    unused = {parameter.name for parameter in all_encoding_parameters()} - used
    written = config.to_dict()
    assert used <= set(written)
    assert not unused & set(written)
    assert all(
        getattr(config, parameter.name) == parameter.default
        for parameter in all_encoding_parameters()
        if parameter.name in unused
    )
    for parameter in all_encoding_parameters():
        if parameter.name in unused:
            other = not parameter.default if isinstance(parameter.default, bool) else (parameter.default or 0) + 1
            other = SMALL_PARAMETERS.get(parameter.name, other)
            assert tiny_config(sides, **{parameter.name: other}).to_dict()[parameter.name] == other


def test_a_parameter_has_the_name_of_its_encoding_a_valid_default_and_a_described_constraint(subtests):
    for name, entry in POSITION_ENCODINGS.items():
        with subtests.test(name):
            for parameter in entry.config_parameters:
                assert name.startswith(parameter.name.split("_")[0])
                parameter.validate(parameter.default)
                assert parameter.constraint
                with pytest.raises(ValueError, match=re.escape(f"`{parameter.name}` must be {parameter.constraint}")):
                    PosEncConfig(**{parameter.name: object()})
            names = {parameter.name for parameter in entry.config_parameters}
            assert entry.max_length_field is None or entry.max_length_field in names


def test_a_copied_config_is_equal_and_its_own(sides):
    config = tiny_config(sides)
    copied = PosEncConfig(**config.to_dict())
    copied.d_model = 32
    assert config.d_model == 16


def test_the_decoders_view_has_the_decoders_sizes(sides):
    view = tiny_config(sides, decoder_vocab_size=31).get_text_config(decoder=True)
    assert (view.num_hidden_layers, view.num_attention_heads, view.vocab_size) == (3, 4, 31)
    assert len(view.layer_types) == 3


def test_a_view_is_transformers_own_and_leaves_the_config_alone(sides):
    config = tiny_config(sides)
    before = deepcopy(vars(config))
    for asked in ({}, {"decoder": True}, {"encoder": True}, {"decoder": True, "encoder": True}):
        view, theirs = config.get_text_config(**asked), PreTrainedConfig.get_text_config(config, **asked)
        own = {"layer_types": config.decoder_cache_layer_types(3)} if asked == {"decoder": True} else {}
        assert vars(view) == vars(theirs) | own
    assert vars(config) == before


VALUE_TERM = (
    r"attn_implementation='flex_attention' cannot compute `.*`.*attention weights.*leave.*or choose sdpa or eager"
)
ANY_BIAS = r"attn_implementation='.*flash.*' cannot compute `.*`.*bias on the attention scores.*leave.*or choose sdpa"


@pytest.mark.parametrize("model_class", [PosEncModel, PosEncForConditionalGeneration])
@pytest.mark.parametrize("where", ["relative", "none to relative", "relative_sinusoidal to none", "rotary+relative"])
def test_flex_attention_is_refused_for_a_value_term_however_it_is_asked_for(where, model_class, tmp_path):
    with pytest.raises(ValueError, match=VALUE_TERM):
        model_class._from_config(tiny_config(where), attn_implementation="flex_attention")
    model = model_class(tiny_config(where))
    assert model.config._attn_implementation == "sdpa"
    with pytest.raises(ValueError, match=VALUE_TERM):
        model.set_attn_implementation("flex_attention")
    model.set_attn_implementation("sdpa")
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=VALUE_TERM):
        model_class.from_pretrained(tmp_path, attn_implementation="flex_attention")


@pytest.mark.parametrize("where", ["relative", "relative_key", "relative_sinusoidal", "none to relative_key"])
def test_flash_attention_is_refused_for_a_bias_on_the_scores(where):
    """Asked of the check itself: where flash attention is not installed, transformers refuses it before us."""
    model = tiny_model(where).model
    stack = model.decoder if " to " in where else model.encoder
    stack.config._attn_implementation_internal = "flash_attention_2"
    with pytest.raises(ValueError, match=ANY_BIAS):
        stack.validate_attn_implementation()


def test_a_refused_back_end_leaves_the_model_as_it_was():
    model = tiny_model("relative")
    ids = torch.tensor([[4, 5, 6]])
    before = model(input_ids=ids, decoder_input_ids=ids).logits
    with pytest.raises(ValueError, match=VALUE_TERM):
        model.set_attn_implementation("flex_attention")
    assert model.config._attn_implementation == "sdpa"
    assert torch.equal(model(input_ids=ids, decoder_input_ids=ids).logits, before)


@pytest.mark.parametrize("where", ["relative", "rnn_nmt"])
def test_an_attribute_of_ones_own_is_saved_and_read_back_with_a_warning(where, tmp_path):
    config = tiny_config(where)
    config.my_note = "the one with the good seed"
    config.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match=r"'my_note' is no field of \w+ .* nearest"):
        again = AutoConfig.from_pretrained(tmp_path)
    assert again.my_note == config.my_note
    config._name_or_path = again._name_or_path
    assert again.to_dict() == config.to_dict()


def test_every_parameter_has_a_value_that_suits_tiny_inputs():
    """Otherwise the invariants never reach past a clip or a window, and a passing test says little."""
    registered = [*POSITION_ENCODINGS.values(), *ALIGNMENTS.values()]
    names = {parameter.name for entry in registered for parameter in entry.config_parameters}
    missing = names - {*SMALL_PARAMETERS, *DEFAULTS_SUIT}
    assert not missing, f"Give {missing} a small value in SMALL_PARAMETERS of tests/support/models.py."
