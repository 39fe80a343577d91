"""transformers' families, converted both ways: equal logits, gradients and generated tokens; the rest is refused."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from support.family_models import (
    TAG,
    at_labels,
    generation_options,
    named_gradients,
    ragged_batch,
    read_weights,
    rearranged,
    stacks,
    tiny_family,
    with_exact_tables,
)
from support.models import sentences, tiny_config, tiny_model
from torch import Tensor, nn
from transformers import AutoModelForSeq2SeqLM, T5Config, T5ForConditionalGeneration

from hf_posenc import PosEncForConditionalGeneration, convert_encodings, from_transformers, to_transformers
from hf_posenc.convert.checkpoints import FAMILIES

EXACT = {"rtol": 1e-10, "atol": 1e-10}
UNTIED = {"tie_word_embeddings": False}
VARIANTS = {
    "BART": ("bart", {}),
    "BART, nothing tied, scaled": ("bart", UNTIED | {"scale_embedding": True}),
    "M2M-100": ("m2m_100", {}),
    "M2M-100, nothing tied, gelu": ("m2m_100", UNTIED | {"activation_function": "gelu"}),
    "M2M-100, another padding token": ("m2m_100", {"pad_token_id": 5}),
    "mBART": ("mbart", {"scale_embedding": True}),
    "mBART, nothing tied": ("mbart", UNTIED),
    "Pegasus": ("pegasus", {"scale_embedding": True}),
    "Pegasus, odd width": (
        "pegasus",
        {"d_model": 15, "encoder_attention_heads": 3, "decoder_attention_heads": 5},
    ),
    "Pegasus, nothing tied, relu": ("pegasus", UNTIED | {"activation_function": "relu"}),
}
# One variant of each family for the fast tests.
FAST = ("BART", "M2M-100", "mBART", "Pegasus")
variants = pytest.mark.parametrize(
    ("model_type", "changes"),
    [pytest.param(*VARIANTS[name], id=name, marks=() if name in FAST else pytest.mark.full) for name in VARIANTS],
)
families = pytest.mark.parametrize("model_type", ["bart", "m2m_100", "mbart", "pegasus"])


def without_labels(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in batch.items() if name != "labels"}


# Weights that a tied model has once.
TABLES = ("embed_tokens.weight", "shared.weight", "lm_head.weight")

# The same function


@variants
def test_the_converted_model_is_theirs_in_values_and_gradients(model_type, changes):
    theirs = with_exact_tables(tiny_family(model_type, **changes))
    ours = from_transformers(theirs)
    batch = ragged_batch(theirs)
    outputs = [model(**batch, use_cache=False) for model in (ours, theirs)]
    torch.testing.assert_close(*(at_labels(out.logits, batch) for out in outputs), **EXACT)
    assert outputs[1].logits.std() > 0.5
    for out in outputs:
        nn.functional.cross_entropy(out.logits.transpose(1, 2), batch["labels"]).backward()
    their_weights = named_gradients(theirs)
    compared = set()
    for name, weight in ours.named_parameters():
        if name == "final_logits_bias":  # a constant there, trained here
            assert weight.grad.abs().sum() > 0
            continue
        twin, gradient = their_weights[name]
        torch.testing.assert_close(*rearranged(weight, twin, (weight.grad, gradient)), **EXACT)
        compared.add(name)
    assert set(their_weights) == compared


@variants
@pytest.mark.parametrize("num_beams", [1, pytest.param(4, marks=pytest.mark.full)])
def test_it_generates_the_same_tokens_after_a_language_tag(model_type, changes, num_beams):
    theirs = with_exact_tables(tiny_family(model_type, seed=2, **changes))
    options = generation_options(theirs, num_beams)
    inputs = without_labels(ragged_batch(theirs))
    expected = theirs.generate(**inputs, **options)
    assert torch.equal(from_transformers(theirs).generate(**inputs, **options), expected)
    assert (expected[:, 1] == TAG).all()
    assert len({tuple(row.tolist()) for row in expected}) > 1 and len(expected[0].unique()) > 4


@pytest.mark.full
@pytest.mark.parametrize("start", ["pad_token_id", "eos_token_id", "bos_token_id"])
@pytest.mark.parametrize("ends_in_padding", [False, True])
@pytest.mark.parametrize("model_type", FAMILIES)
@torch.no_grad()
def test_special_tokens_that_are_one_are_the_same_function_or_refused(model_type, start, ends_in_padding):
    """With every start token, and with an end token that is padding, as far as the family has positions for them."""
    tokens = {"pad_token_id": 1, "eos_token_id": 1 if ends_in_padding else 2, "bos_token_id": 0}
    tokens |= {"decoder_start_token_id": tokens[start], "forced_eos_token_id": None}
    theirs = with_exact_tables(tiny_family(model_type, **tokens))
    if model_type == "m2m_100" and (ends_in_padding or start == "pad_token_id"):
        with pytest.raises(ValueError, match=r"counts no padding tokens, so its .* must not be its pad_token_id"):
            from_transformers(theirs)
        return
    ours, ids = from_transformers(theirs), 6 + sentences(2, 7, vocab_size=20)
    ids[:, -1] = tokens["eos_token_id"]
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    targets = torch.cat((torch.full((2, 1), tokens[start]), 6 + sentences(2, 5, seed=2, vocab_size=20)), 1)
    found, expected = (model(**inputs, decoder_input_ids=targets).logits for model in (ours, theirs))
    torch.testing.assert_close(found, expected, **EXACT)
    how = {"max_new_tokens": 8, "num_beams": 2, "bad_words_ids": [[1]]}
    assert torch.equal(ours.generate(**inputs, **how), theirs.generate(**inputs, **how))


def test_a_start_token_that_m2m_100_does_not_count_is_refused_in_both_directions():
    theirs = tiny_family("m2m_100")
    ours = from_transformers(theirs)
    for model, convert in ((theirs, from_transformers), (ours, to_transformers)):
        model.generation_config.decoder_start_token_id = model.config.pad_token_id
        with pytest.raises(ValueError, match="decoder_start_token_id must not be its pad_token_id"):
            convert(model)
    ours.config.decoder_start_token_id = ours.config.pad_token_id
    with pytest.raises(ValueError, match="M2M-100 has decoder_start_token_id"):
        to_transformers(ours)


def test_padding_on_the_left_is_no_position_in_m2m_100_either():
    theirs = with_exact_tables(tiny_family("m2m_100"))
    batch = ragged_batch(theirs, "left")
    ours, expected = (at_labels(model(**batch).logits, batch) for model in (from_transformers(theirs), theirs))
    torch.testing.assert_close(ours, expected, **EXACT)


@pytest.mark.full
@families
def test_in_float32_with_their_own_tables(model_type):
    theirs = tiny_family(model_type, dtype=torch.float32)
    ours, batch = from_transformers(theirs), ragged_batch(theirs)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(*(at_labels(m(**batch).logits, batch) for m in (ours, theirs)), rtol=1e-4, atol=1e-4)


def test_the_saved_table_has_every_family_and_both_directions():
    page = Path(__file__).parents[2] / "docs" / "reference" / "compatibility.md"
    saved = page.read_text(encoding="utf-8").partition("made by tests/conversions.py -->\n")[2].partition("<!--")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in saved.splitlines()[2:]]
    directions = ("from transformers", "to transformers")
    expected = [[family.name, direction] for family in FAMILIES.values() for direction in directions]
    assert [row[:2] for row in rows] == expected
    for _, _, logits, gradients, generated, weights in rows:
        assert max(float(logits), float(gradients)) < 1e-10
        assert (generated, weights) == ("30 of 30", "equal")


# Lengths


@pytest.mark.parametrize("model_type", ["bart", "mbart"])
def test_learned_tables_have_the_same_maximum_length(model_type):
    theirs = tiny_family(model_type, max_position_embeddings=12)
    ours = from_transformers(theirs)
    assert ours.config.learned_max_positions == 12
    assert [stack.positions[0].table.shape for stack in stacks(ours)] == [(12, 16)] * 2
    inputs = {
        "input_ids": 6 + sentences(1, 12, vocab_size=20),
        "decoder_input_ids": 6 + sentences(1, 12, seed=3, vocab_size=20),
    }
    torch.testing.assert_close(ours(**inputs).logits, theirs(**inputs).logits, **EXACT)
    with pytest.raises(
        ValueError, match=r"positions 0 to 11 \(learned_max_positions=12\), but a token is at position 12"
    ):
        ours(**inputs | {"input_ids": 6 + sentences(1, 13, vocab_size=20)})


def test_sinusoids_of_m2m_100_continue_beyond_its_table():
    theirs = tiny_family("m2m_100", max_position_embeddings=8, dtype=torch.float32)
    inputs = {
        "input_ids": 6 + sentences(1, 30, vocab_size=20),
        "decoder_input_ids": 6 + sentences(1, 20, seed=3, vocab_size=20),
    }
    ours = from_transformers(theirs)
    torch.testing.assert_close(ours(**inputs).logits, theirs(**inputs).logits, rtol=1e-4, atol=1e-4)


# And back


@variants
def test_it_comes_back_bit_for_bit(model_type, changes):
    theirs = tiny_family(model_type, **changes)
    theirs.generation_config.update(num_beams=3, forced_bos_token_id=TAG)
    back = to_transformers(from_transformers(theirs))
    assert type(back) is type(theirs)
    torch.testing.assert_close(read_weights(back), read_weights(theirs), rtol=0, atol=0)
    batch = ragged_batch(theirs)
    assert torch.equal(back(**batch).logits, theirs(**batch).logits)
    mine, expected = back.config.to_dict(), theirs.config.to_dict()
    assert {name for name in expected if mine.get(name) != expected[name]} == set()
    assert back.generation_config.to_dict() == theirs.generation_config.to_dict()


OURS = {
    "bart": ("learned", {"normalize_embedding": True, "learned_max_positions": 30}),
    "m2m_100": (
        "sinusoidal", {"norm_first": True, "sinusoidal_offset": 1, "sinusoidal_base": 10000.0 ** (8 / 7)},
    ),
    "mbart": ("learned", {"normalize_embedding": True, "norm_first": True, "learned_max_positions": 30}),
    "pegasus": ("sinusoidal", {"norm_first": True}),
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("tied", [True, False])
@families
def test_a_model_of_ours_goes_there_and_comes_back(model_type, tied):
    encoding, changes = OURS[model_type]
    tables = {"share_encoder_decoder_embeddings": tied, "tie_word_embeddings": tied, "decoder_vocab_size": 29}
    # mBART takes a target's end as its start.
    model = tiny_model(encoding, dropout=0.0, decoder_start_token_id=2, **changes, **tables)
    theirs = to_transformers(model)
    assert theirs.config.model_type == model_type and not theirs.training
    batch = ragged_batch(theirs)
    ours, expected = (at_labels(m(**batch).logits, batch) for m in (model, with_exact_tables(theirs)))
    torch.testing.assert_close(ours, expected, **EXACT)
    back = from_transformers(theirs)
    torch.testing.assert_close(back.state_dict(), model.state_dict(), rtol=0, atol=0)
    mine, before = (m.config.to_dict() | {"dtype": None} for m in (back, model))
    # BART's and mBART's are the rows of their tables.
    assert {name for name in before if mine[name] != before[name]} <= {"max_position_embeddings"}


@pytest.mark.full
@families
def test_a_saved_folder_holds_safetensors_and_ties_in_both_directions(model_type, tmp_path):
    theirs = tiny_family(model_type, dtype=torch.float32)
    theirs.generation_config.forced_bos_token_id = TAG
    theirs.save_pretrained(tmp_path / "theirs")
    from_transformers(tmp_path / "theirs").save_pretrained(tmp_path / "ours")
    ours = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")
    to_transformers(ours).save_pretrained(tmp_path / "back")
    back = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "back")
    assert isinstance(ours, PosEncForConditionalGeneration) and type(back) is type(theirs)
    for folder, model in (("ours", ours), ("back", back)):
        suffixes = {path.suffix for path in (tmp_path / folder).iterdir()} - {".json", ".py"}
        assert suffixes == {".safetensors"}
        with safe_open(tmp_path / folder / "model.safetensors", "pt") as file:
            tables = [name for name in file.keys() if name.endswith(TABLES)]  # noqa: SIM118 (no iterator)
        assert tables == ["model.shared.weight"]
        assert model.lm_head.weight is model.model.shared.weight is model.model.encoder.embed_tokens.weight
        assert model.generation_config.forced_bos_token_id == TAG
    torch.testing.assert_close(read_weights(back), read_weights(theirs), rtol=0, atol=0)


# Other encodings


@pytest.mark.full
@families
def test_joined_encodings_leave_the_function_as_it_is_until_they_are_trained(model_type):
    theirs = with_exact_tables(tiny_family(model_type))
    own = from_transformers(theirs).config.position_encoding_type
    cross = {"cross_position_encoding_type": "relative", "alignment_type": "length_ratio", "cross_relative_clip": 2}
    ours, batch = from_transformers(theirs, f"relative+{own}", relative_clip=3, **cross), ragged_batch(theirs)
    assert {name: getattr(ours.config, name) for name in cross} == cross
    torch.testing.assert_close(*(at_labels(m(**batch).logits, batch) for m in (ours, theirs)), **EXACT)


@pytest.mark.full
@families
def test_another_encoding_is_what_convert_encodings_makes_of_the_exact_model(model_type):
    theirs = tiny_family(model_type)
    torch.manual_seed(3)
    ours = from_transformers(theirs, "relative+window", window_size=2, dropout=0.25)
    torch.manual_seed(3)
    expected = convert_encodings(from_transformers(theirs), "relative+window", window_size=2, dropout=0.25)
    torch.testing.assert_close(ours.state_dict(), expected.state_dict(), rtol=0, atol=0)
    assert ours.config.to_dict() == expected.config.to_dict()
    assert not any(name.endswith(".table") for name in ours.state_dict())


# What is refused


BAD_CONFIGS = {
    "quantized": ("bart", {"quantization_config": {"quant_method": "x"}}, "but the config has a quantization_config; "),
    "no start token": ("mbart", {"decoder_start_token_id": None}, r"decoder_start_token_id .*mBART model has none; "),
    "unknown activation": ("bart", {"activation_function": "gated-gelu"}, "activation_function must .*'gated-gelu'; "),
    "norm elsewhere": ("bart", {"normalize_before": True}, r"BART model must have normalize_before=False .*True; "),
    "trained positions": ("pegasus", {"static_position_embeddings": False}, "position_embeddings=True .*False; "),
    "odd width": ("m2m_100", {"d_model": 15, "encoder_attention_heads": 3}, "even d_model .*d_model=15; "),
    "experts": ("m2m_100", {"model_type": "nllb-moe"}, r"from_transformers needs .* holds a `nllb-moe` model; load"),
}  # fmt: skip


@pytest.mark.parametrize(("model_type", "fields", "said"), BAD_CONFIGS.values(), ids=BAD_CONFIGS)
def test_a_config_with_what_this_family_lacks_is_refused_before_any_weight_is_read(model_type, fields, said, tmp_path):
    config = tiny_family(model_type).config.to_dict() | fields
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ValueError, match=said):
        from_transformers(tmp_path)


def test_an_adapter_is_refused_before_any_weight_is_read(tmp_path):
    tiny_family("bart").config.save_pretrained(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match=r"no adapter to be converted, but .* has an adapter_config\.json; merge"):
        from_transformers(tmp_path)


def test_layerdrop_is_dropped_with_a_warning():
    theirs = with_exact_tables(tiny_family("m2m_100"))
    theirs.config.encoder_layerdrop = 0.05
    with pytest.warns(UserWarning, match=r"encoder_layerdrop=0\.05, .* the converted model leaves out none"):
        ours = from_transformers(theirs)
    batch = ragged_batch(theirs)
    torch.testing.assert_close(*(at_labels(m(**batch).logits, batch) for m in (ours, theirs)), **EXACT)


def test_other_families_are_refused_by_name(tmp_path):
    t5 = T5ForConditionalGeneration(T5Config(vocab_size=20, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2))
    t5.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"checkpoint of bart, m2m_100, marian, .* holds a `t5` model; load"):
        from_transformers(tmp_path)
    for other in (t5, tiny_family("bart").model):
        with pytest.raises(TypeError, match=rf"it was given a {type(other).__name__}; load one of these"):
            from_transformers(other)


@pytest.mark.full
def test_missing_and_surplus_weights_are_refused(tmp_path):
    theirs = tiny_family("mbart", dtype=torch.float32)
    theirs.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    for layers, name in ((3, "encoder.layers.2"), (1, "encoder.layers.1")):
        (tmp_path / "config.json").write_text(json.dumps(config | {"encoder_layers": layers}), encoding="utf-8")
        with pytest.raises(ValueError, match=rf"{name}.*; "):
            from_transformers(tmp_path)


@pytest.mark.parametrize(
    ("encodings", "changes", "said"),
    [
        ("relative", {}, "position_encoding_type='relative'"),
        ("learned", {}, "BART has normalize_embedding=True, but this model has normalize_embedding=False"),
        ("sinusoidal", {"cross_position_encoding_type": "rotary"}, "cross_position_encoding_type='rotary'"),
        ("sinusoidal", {"norm_first": True, "layer_norm_eps": 1e-6}, "layer_norm_eps=1e-06"),
        ("sinusoidal", {"norm_first": True, "sinusoidal_offset": 1}, "sinusoidal_base=10000.0"),
        (
            "sinusoidal",
            {
                "norm_first": True,
                "d_model": 15,
                "encoder_attention_heads": 3,
                "decoder_attention_heads": 5,
                "sinusoidal_offset": 1,
                "sinusoidal_base": 100.0,
            },
            "M2M-100 has d_model=16, but this model has d_model=15",
        ),
        ("sinusoidal", {"norm_first": True, "decoder_vocab_size": 31}, "Pegasus has decoder_vocab_size=29"),
        ("sinusoidal", {"norm_first": True, "tie_word_embeddings": True}, "share_encoder_decoder_embeddings=False"),
        (
            "sinusoidal",
            {"norm_first": True, "share_encoder_decoder_embeddings": True},
            "share_encoder_decoder_embeddings=True and tie_word_embeddings=False",
        ),
    ],
)
def test_what_no_family_can_represent_is_not_converted(encodings, changes, said):
    config = tiny_config(encodings, **{"decoder_vocab_size": 29} | changes)
    with pytest.raises(ValueError, match=rf"{said}.*; save it with its own save_pretrained"):
        to_transformers(PosEncForConditionalGeneration(config))


def test_a_bias_of_the_logits_is_not_dropped_for_m2m_100():
    encoding, changes = OURS["m2m_100"]
    tied = {"share_encoder_decoder_embeddings": True, "tie_word_embeddings": True, "decoder_vocab_size": 29}
    model = tiny_model(encoding, output_bias=True, **changes, **tied)
    with pytest.raises(ValueError, match=r"M2M-100 has output_bias=False, but this model has output_bias=True"):
        to_transformers(model)


def test_an_unknown_family_is_refused():
    with pytest.raises(ValueError, match=r"model_type must be one of bart, .*, but it is 't5'; leave"):
        to_transformers(tiny_model("sinusoidal"), "t5")
    with pytest.raises(ValueError, match="BART has position_encoding_type='learned'"):
        to_transformers(tiny_model("sinusoidal"), "bart")
