"""MarianMT, converted both ways: equal logits, losses, gradients and translations; the rest is refused."""

import json

import pytest
import torch
from support.family_models import at_labels, rearranged, with_exact_tables
from support.family_tokenizers import marian_tokenizer
from support.marian_models import EOS, PAD, SIZES, Words, tiny_marian
from support.models import (
    BEFORE_5_18,
    REGISTERED,
    gradients_after_a_step,
    padded,
    sentences,
    tiny_config,
    tiny_model,
    zero_init_parameters,
)
from torch import Tensor, nn
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    MarianMTModel,
)

from hf_posenc import PosEncForConditionalGeneration, from_transformers, to_transformers
from hf_posenc.generation.generate import pad_after_end_token
from hf_posenc.generation.model_inputs import CACHE_NAME, get_cache
from hf_posenc.generation.translate import validate_tokenizer

pytestmark = pytest.mark.full

EXACT = {"rtol": 1e-10, "atol": 1e-10}
SEPARATE = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 29 if BEFORE_5_18 else 31}
VARIANTS = {
    "all tied": {},
    "separate vocabularies, output tied": SEPARATE,
    "nothing tied": SEPARATE | {"tie_word_embeddings": False},
    "shared in name only": {"tie_word_embeddings": False},
    "odd width": {"d_model": 15, "encoder_attention_heads": 3, "decoder_attention_heads": 5},
    "gelu, unscaled": {"activation_function": "gelu", "scale_embedding": False},
    "relu": {"activation_function": "relu"},
}


def ragged_batch(target_size: int = 29) -> dict[str, Tensor]:
    """Sources of three lengths, padded on the right: on the left Marian counts the padding, so there they differ."""
    ids, mask = padded([sentences(length, seed=length, vocab_size=PAD) for length in (9, 4, 7)], "right")
    labels = sentences(3, 6, seed=2, vocab_size=min(target_size, PAD))
    labels[1, 4:] = -100
    return {"input_ids": ids.masked_fill(mask == 0, PAD), "attention_mask": mask, "labels": labels}


def state(model: nn.Module) -> dict[str, Tensor]:
    """All that a checkpoint holds, but for Marian's tables of positions, which are a formula's."""
    return {name: weight for name, weight in model.state_dict().items() if "embed_positions" not in name}


# The same function


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_the_converted_model_is_marian_in_values_and_gradients(variant):
    marian = with_exact_tables(tiny_marian(**variant))
    model = from_transformers(marian)
    batch = ragged_batch()
    ours, theirs = (m(**batch, output_hidden_states=True) for m in (model, marian))
    torch.testing.assert_close(*(at_labels(out.logits, batch) for out in (ours, theirs)), **EXACT)
    assert theirs.logits.std() > 0.5
    # transformers' loss for our family is a float32 one, so the gradients start from the logits.
    torch.testing.assert_close(ours.loss.double(), theirs.loss, rtol=1e-6, atol=1e-6)
    for out in (ours, theirs):
        nn.functional.cross_entropy(out.logits.transpose(1, 2), batch["labels"]).backward()
    theirs_by_name = dict(marian.named_parameters())
    compared = set()
    for name, weight in model.named_parameters():
        if name == "final_logits_bias":  # a constant in Marian, trained here
            assert weight.grad.abs().sum() > 0
            continue
        twin = theirs_by_name[name]
        torch.testing.assert_close(*rearranged(weight, twin, (weight.grad, twin.grad)), **EXACT)
        compared.add(name)
    rest = {name for name, weight in theirs_by_name.items() if name not in compared and weight.grad is not None}
    assert rest == set()


def test_in_float32_too_with_marians_own_tables():
    marian = tiny_marian(dtype=torch.float32)
    model = from_transformers(marian)
    assert model.dtype == torch.float32
    batch = ragged_batch()
    ours, theirs = (at_labels(m(**batch).logits, batch) for m in (model, marian))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_the_hidden_states_are_marians_in_another_order_of_channels():
    """Sine and cosine of one wavelength are neighbours here and half the width apart there."""
    marian = with_exact_tables(tiny_marian())
    batch = ragged_batch()
    ours, theirs = (m(**batch, output_hidden_states=True) for m in (from_transformers(marian), marian))
    order = torch.arange(16).view(2, 8).T.flatten()
    tokens = batch["attention_mask"] == 1  # padding stands at position 0 here, and is counted on in Marian
    for one, other in zip(ours.encoder_hidden_states, theirs.encoder_hidden_states, strict=True):
        torch.testing.assert_close(one[tokens], other[tokens][:, order], **EXACT)
    for one, other in zip(ours.decoder_hidden_states, theirs.decoder_hidden_states, strict=True):
        torch.testing.assert_close(at_labels(one, batch), at_labels(other, batch)[:, order], **EXACT)


def test_decoding_token_by_token_is_marians():
    marian = with_exact_tables(tiny_marian())
    batch = ragged_batch()
    batch.pop("labels")
    target, logits = sentences(3, 8, seed=3, vocab_size=PAD), []
    for model in (from_transformers(marian), marian):
        cache, steps = None, []
        for t in range(8):
            out = model(**batch, decoder_input_ids=target[:, t : t + 1], **{CACHE_NAME: cache}, use_cache=True)
            cache = get_cache(out)
            steps.append(out.logits)
        logits.append(torch.cat(steps, dim=1))
    torch.testing.assert_close(*logits, **EXACT)
    torch.testing.assert_close(logits[0], marian(**batch, decoder_input_ids=target).logits, **EXACT)


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_it_translates_like_marian(variant, num_beams):
    """No token comes twice, so that a random model says something."""
    marian = with_exact_tables(tiny_marian(seed=2, **variant))
    inputs = {"input_ids": sentences(6, 7, seed=5, vocab_size=PAD)}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    inputs["attention_mask"][1::2, 5:] = 0
    how = {"num_beams": num_beams, "no_repeat_ngram_size": 1, "min_length": 5, "max_length": 13}
    ours, theirs = (m.generate(**inputs, **how) for m in (from_transformers(marian), marian))
    assert torch.equal(ours, theirs)
    assert len({tuple(row.tolist()) for row in theirs}) > 2 and len(theirs[0].unique()) > 4
    assert (ours[:, 0] == PAD).all()


def test_how_marian_generates_goes_along():
    marian = tiny_marian()
    kept = from_transformers(marian).generation_config
    assert kept.to_dict() == marian.generation_config.to_dict()
    assert (kept.bad_words_ids, kept.num_beams, kept.max_length, kept.forced_eos_token_id) == ([[PAD]], 4, 24, EOS)
    assert kept is not marian.generation_config
    kept.num_beams = 1
    assert marian.generation_config.num_beams == 4


# Folders


def test_a_folder_is_read_as_well_and_what_is_saved_is_itself_a_whole_checkpoint(tmp_path):
    marian = tiny_marian(dtype=torch.float32)
    marian.save_pretrained(tmp_path / "marian")
    model = from_transformers(tmp_path / "marian")
    assert not model.training
    torch.testing.assert_close(model.state_dict(), from_transformers(marian).state_dict(), rtol=0, atol=0)
    model.save_pretrained(tmp_path / "ours")
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")
    assert isinstance(again, PosEncForConditionalGeneration)
    batch = ragged_batch()
    ours, theirs = (at_labels(m(**batch).logits, batch) for m in (again, marian))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert again.generation_config.bad_words_ids == [[PAD]]
    how = {"num_beams": 4, "no_repeat_ngram_size": 1}
    ids = {"input_ids": sentences(4, 7, seed=5, vocab_size=PAD)}
    assert torch.equal(again.generate(**ids, **how), marian.generate(**ids, **how))


def test_a_folder_as_opus_mt_left_it_is_read(tmp_path):
    """Beams and forbidden words stand in config.json, among fields that nobody reads; the weights are torch's file."""
    marian = tiny_marian(dtype=torch.float32)
    marian.save_pretrained(tmp_path)
    for name in ("generation_config.json", "model.safetensors"):
        (tmp_path / name).unlink()
    torch.save(marian.state_dict(), tmp_path / "pytorch_model.bin")
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    for name in ("share_encoder_decoder_embeddings", "tie_word_embeddings", "decoder_vocab_size"):
        config.pop(name)
    config |= {
        "num_beams": 6, "max_length": 30, "bad_words_ids": [[PAD]], "bos_token_id": 0, "num_hidden_layers": 2,
        "add_bias_logits": False, "add_final_layer_norm": False, "normalize_before": False, "_num_labels": 3,
        "normalize_embedding": False, "static_position_embeddings": True, "classif_dropout": 0.0,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    model = from_transformers(tmp_path)
    assert torch.equal(model.model.shared.weight, from_transformers(marian).model.shared.weight)
    assert torch.equal(model.final_logits_bias, marian.final_logits_bias)
    kept = model.generation_config
    assert (kept.num_beams, kept.max_length, kept.bad_words_ids, kept.eos_token_id) == (6, 30, [[PAD]], EOS)
    assert (kept.decoder_start_token_id, kept.forced_eos_token_id) == (PAD, EOS)


def test_the_config_says_what_marians_said():
    changes = {"dropout": 0.3, "attention_dropout": 0.2, "activation_dropout": 0.1, "bos_token_id": 5}
    marian = tiny_marian(**SEPARATE, **changes)
    config = from_transformers(marian).config
    same = set(SIZES | SEPARATE | changes) - {"forced_eos_token_id"}  # that one is the generation config's
    assert {name: getattr(config, name) for name in same} == {name: getattr(marian.config, name) for name in same}
    assert (config.norm_first, config.layer_norm_eps) == (False, 1e-5)


def test_an_output_bias_of_zeros_is_left_out():
    marian = tiny_marian()
    marian.final_logits_bias.zero_()
    model = from_transformers(marian)
    assert model.final_logits_bias is None and not model.config.output_bias
    assert from_transformers(tiny_marian()).config.output_bias


# Another encoding in place of Marian's


@pytest.mark.parametrize("encodings", [*REGISTERED, "sinusoidal+relative", "rotary to sinusoidal", "gru to learned"])
def test_another_encoding_replaces_the_positions_and_nothing_else(encodings):
    encoder, _, decoder = encodings.partition(" to ")
    marian = tiny_marian()
    torch.manual_seed(3)
    model = from_transformers(marian, encoder, decoder or None, relative_clip=3, learned_max_positions=64)
    assert model.config.position_encoding_type == encoder
    assert model.config.decoder_position_encoding_type == (decoder or encoder)
    torch.manual_seed(3)
    fresh = PosEncForConditionalGeneration(model.config).double().state_dict()
    kept = from_transformers(marian).state_dict()
    at_zero = zero_init_parameters(model)
    for name, weight in model.state_dict().items():
        expected = fresh[name] if ".positions." in name else kept[name]
        if name in at_zero:
            expected = torch.zeros_like(weight)  # as if it were not there, until it has learned something
        assert torch.equal(weight, expected), name
    found = gradients_after_a_step(model.train(), **ragged_batch())
    assert [name for name, gradient in found.items() if ".positions." in name and not gradient.any()] == []


def test_encodings_that_join_marians_own_leave_what_it_computes_until_they_have_learned():
    """On all sides, with an alignment: tables begin at zero."""
    marian = with_exact_tables(tiny_marian())
    joined = {"cross_position_encoding_type": "relative", "alignment_type": "length_ratio", "cross_relative_clip": 2}
    model = from_transformers(marian, "sinusoidal+relative", relative_clip=3, **joined)
    assert {name: getattr(model.config, name) for name in joined} == joined
    batch = ragged_batch()
    out = model(**batch)
    torch.testing.assert_close(*(at_labels(logits, batch) for logits in (out.logits, marian(**batch).logits)), **EXACT)
    out.loss.backward()
    tables = {name: weight.grad for name, weight in model.named_parameters() if "positions." in name}
    assert len(tables) == 6
    assert all(gradient.abs().sum() > 0 for gradient in tables.values())


def test_the_parameters_of_a_window_around_the_source_position_apply(tmp_path):
    marian = tiny_marian(dtype=torch.float32)
    marian.save_pretrained(tmp_path)
    cross = {"cross_position_encoding_type": "rotary+window", "alignment_type": "length_ratio", "cross_window_size": 1}
    model = from_transformers(tmp_path, "relative+window", window_size=2, **cross)
    assert (model.config.window_size, model.config.cross_window_size) == (2, 1)
    attentions = model(**ragged_batch(), output_attentions=True).cross_attentions
    assert all(((weights > 0).sum(-1) <= 3).all() for weights in attentions)
    assert model.generate(**{k: v for k, v in ragged_batch().items() if k != "labels"}, max_new_tokens=5).shape[0] == 3


def test_an_alignment_that_no_encoding_uses_is_refused():
    with pytest.raises(ValueError, match="alignment_type='length_ratio' cross_position_encoding_type is 'none'"):
        from_transformers(tiny_marian(), alignment_type="length_ratio")


def test_fields_of_a_converted_config_can_be_overridden():
    config = from_transformers(tiny_marian(), "learned", learned_max_positions=7, dropout=0.25).config
    assert (config.learned_max_positions, config.dropout) == (7, 0.25)


# And back


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_marian_comes_back_bit_for_bit(variant):
    marian = tiny_marian(**variant)
    back = to_transformers(from_transformers(marian))
    assert isinstance(back, MarianMTModel)
    weights = state(marian)
    if variant == VARIANTS["shared in name only"]:  # Marian keeps a table there that nothing reads
        weights.pop("model.shared.weight")
    torch.testing.assert_close(state(back), weights, rtol=0, atol=0)
    batch = ragged_batch()
    assert torch.equal(back(**batch).logits, marian(**batch).logits)
    mine, theirs = back.config.to_dict(), marian.config.to_dict()
    renamed = {"share_encoder_decoder_embeddings"} if variant == VARIANTS["shared in name only"] else set()
    assert {name for name in theirs if mine.get(name) != theirs[name]} - renamed == set()
    assert back.generation_config.to_dict() == marian.generation_config.to_dict()


OURS = {
    "all tied": {"share_encoder_decoder_embeddings": True, "tie_word_embeddings": True, "decoder_vocab_size": 29},
    "nothing tied": {},
    "output tied and biased": {"tie_word_embeddings": True, "output_bias": True},
    "odd width": {"d_model": 15, "encoder_attention_heads": 3, "decoder_attention_heads": 5, "scale_embedding": False},
}


@pytest.mark.parametrize("variant", OURS.values(), ids=OURS)
def test_a_sinusoidal_model_goes_to_marian_and_comes_back(variant, tmp_path):
    model = tiny_model("sinusoidal", dropout=0.0, **variant)
    marian = to_transformers(model)
    assert not marian.training
    assert marian.config.forced_eos_token_id is None  # a Marian's own default is 0
    batch = ragged_batch()
    ours, theirs = (at_labels(m(**batch).logits, batch) for m in (model, with_exact_tables(marian)))
    torch.testing.assert_close(ours, theirs, **EXACT)
    back = from_transformers(marian)
    torch.testing.assert_close(back.state_dict(), model.state_dict(), rtol=0, atol=0)
    assert back.config.to_dict() | {"dtype": None} == model.config.to_dict() | {"dtype": None}
    marian.save_pretrained(tmp_path)
    again = MarianMTModel.from_pretrained(tmp_path)
    how = {"num_beams": 4, "no_repeat_ngram_size": 1, "max_new_tokens": 12}
    ids = {"input_ids": sentences(4, 7)}
    ours, theirs = (m.generate(**ids, **how) for m in (model, again))
    theirs = pad_after_end_token(theirs, [2], 0, None)  # which Marian's beam search fills up with ends
    assert torch.equal(ours, theirs)
    assert len({tuple(row.tolist()) for row in theirs}) > 2


def test_the_copies_share_no_memory():
    marian = tiny_marian()
    model = from_transformers(marian)
    for copy_of, original in ((model, marian), (to_transformers(model), model)):
        mine, theirs = ({w.data_ptr() for w in m.parameters()} for m in (copy_of, original))
        assert not mine & theirs


# Tokenizers


def marians_translations(marian: MarianMTModel, tokenizer, texts: list[str], **how) -> list[str]:
    inputs = tokenizer(texts, return_tensors="pt", padding=True)
    ids = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    return tokenizer.batch_decode(marian.generate(**ids, **how), skip_special_tokens=True)


def test_text_is_translated_with_marians_numbers():
    marian, tokenizer = with_exact_tables(tiny_marian()), Words.tokenizer()
    texts = ["word3 word4 word5", "word7", "word9 word2 word9 word11 word5"]
    how = {"num_beams": 3, "no_repeat_ngram_size": 1}
    ours = from_transformers(marian).translate(texts, tokenizer, **how)
    assert ours == marians_translations(marian, tokenizer, texts, max_length=60, **how)
    assert len(set(ours)) == 3


def test_the_targets_vocabulary_is_counted_by_itself():
    """A MarianTokenizer with two vocabularies keeps the target's in `target_encoder`."""
    marian = tiny_marian(**SEPARATE | {"decoder_vocab_size": 31})
    config, tokenizer = from_transformers(marian).config, Words.tokenizer()
    for size in (5, 31):
        tokenizer.target_encoder = {str(i): i for i in range(size)}
        validate_tokenizer(config, tokenizer)
    tokenizer.target_encoder["one more"] = 31
    with pytest.raises(ValueError, match="32 target tokens and the model 31; load"):
        validate_tokenizer(config, tokenizer)
    config.decoder_vocab_size = 28
    tokenizer.target_encoder = dict.fromkeys("abc")
    validate_tokenizer(config, tokenizer)


SEPARATE_TOKENIZERS = {"one vocabulary": False, "more source than target tokens": True}


@pytest.mark.parametrize("separate", SEPARATE_TOKENIZERS.values(), ids=SEPARATE_TOKENIZERS)
@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_marians_own_tokenizer_goes_with_the_converted_model(separate, tmp_path):
    pytest.importorskip("sentencepiece", reason="MarianTokenizer needs it: pip install sentencepiece")
    tokenizer = marian_tokenizer(tmp_path, separate)
    target_size = len(tokenizer.target_encoder) if separate else len(tokenizer)
    changes = {"share_encoder_decoder_embeddings": not separate, "decoder_vocab_size": target_size}
    ids = {"pad_token_id": tokenizer.pad_token_id, "decoder_start_token_id": tokenizer.pad_token_id}
    marian = tiny_marian(vocab_size=len(tokenizer), dtype=torch.float32, **changes, **ids)
    marian.generation_config.bad_words_ids = [[tokenizer.pad_token_id]]
    marian.save_pretrained(tmp_path)
    model = from_transformers(tmp_path)
    texts, how = ["a dog sees a cat", "the cat", "a bird and the dog sing"], {"num_beams": 3, "no_repeat_ngram_size": 1}
    if separate and BEFORE_5_18:
        how["num_beams"] = 1
    expected = marians_translations(marian, tokenizer, texts, max_length=40, **how)
    assert model.translate(texts, AutoTokenizer.from_pretrained(tmp_path), **how) == expected
    assert len(set(expected)) > 1
    model.save_pretrained(tmp_path / "ours")
    tokenizer.save_pretrained(tmp_path / "ours")
    again = AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert type(again) is type(tokenizer)
    assert again(texts)["input_ids"] == tokenizer(texts)["input_ids"]


# What is refused


def test_a_folder_with_missing_or_surplus_weights_is_refused(tmp_path):
    marian = tiny_marian(dtype=torch.float32)
    marian.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    for layers, name in ((3, "encoder.layers.2"), (1, "encoder.layers.1")):
        (tmp_path / "config.json").write_text(json.dumps(config | {"encoder_layers": layers}), encoding="utf-8")
        with pytest.raises(ValueError, match=rf"{name}.*; "):
            from_transformers(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("normalize_before", True),
        ("normalize_embedding", True),
        ("add_final_layer_norm", True),
        ("static_position_embeddings", False),
    ],
)
def test_a_marian_with_what_this_family_lacks_is_refused(field, value):
    marian = tiny_marian()
    setattr(marian.config, field, value)
    with pytest.raises(ValueError, match=rf"{field}={value}.*; "):
        from_transformers(marian)


def test_a_marian_that_shares_a_table_of_two_sizes_is_refused():
    marian = tiny_marian(tie_word_embeddings=False, decoder_vocab_size=31)
    with pytest.raises(ValueError, match=r"vocab_size=29 and decoder_vocab_size=31; "):
        from_transformers(marian)


def test_a_marian_with_trained_positions_is_refused():
    marian = tiny_marian()
    marian.get_decoder().embed_positions.weight.data[3, 2] += 0.1
    with pytest.raises(ValueError, match=r"decoder's table of positions .*; "):
        from_transformers(marian)


def test_an_unknown_encoding_is_refused_before_any_weight_is_read(tmp_path):
    tiny_marian().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"'rotry' is no .*nearest is 'rotary'"):
        from_transformers(tmp_path, "rotry")


@pytest.mark.parametrize("field", ["d_model", "norm_first", "layer_norm_eps", "output_bias", "pad_token_id"])
def test_what_the_checkpoint_says_cannot_be_changed_on_the_way(field):
    with pytest.raises(ValueError, match=rf"`{field}` .*; leave it out"):
        from_transformers(tiny_marian(), **{field: 1})


def test_an_unknown_parameter_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match=r"'relative_clop' .*'relative_clip'"):
        from_transformers(tiny_marian(), "relative", relative_clop=3)


@pytest.mark.parametrize(
    ("encodings", "changes", "said"),
    [
        ("relative", {}, "position_encoding_type='relative'"),
        ("sinusoidal to learned", {}, "decoder_position_encoding_type='learned'"),
        ("sinusoidal+relative", {}, r"position_encoding_type='sinusoidal\+relative'"),
        ("sinusoidal", {"cross_position_encoding_type": "rotary"}, "cross_position_encoding_type='rotary'"),
        ("sinusoidal", {"norm_first": True}, "decoder_vocab_size=31"),  # Pegasus has such norms, and one vocabulary
        ("sinusoidal", {"layer_norm_eps": 1e-6}, "layer_norm_eps=1e-06"),
        (
            "sinusoidal",
            {"share_encoder_decoder_embeddings": True, "decoder_vocab_size": 29},
            "share_encoder_decoder_embeddings=True and tie_word_embeddings=False",
        ),
    ],
)
def test_what_marian_cannot_say_is_not_exported(encodings, changes, said):
    with pytest.raises(ValueError, match=rf"(Marian|Pegasus) .*{said}.*; "):
        to_transformers(PosEncForConditionalGeneration(tiny_config(encodings, **changes)))


def test_only_a_whole_transformer_is_exported():
    for other in (tiny_model("rnn_nmt"), tiny_model("sinusoidal").model, tiny_marian()):
        with pytest.raises(TypeError, match=f"PosEncForConditionalGeneration, but .*{type(other).__name__}"):
            to_transformers(other)


def test_an_adapter_is_refused():
    model = tiny_model("sinusoidal")
    model.model.encoder.adapter = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"2 too many, .* model\.encoder\.adapter\.bias;"):
        to_transformers(model)
