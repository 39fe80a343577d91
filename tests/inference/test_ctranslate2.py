"""A model exported to CTranslate2 translates the same; other models are refused before anything is written."""

import copy
import json
from pathlib import Path

import pytest
import torch
from support.models import REGISTERED, TEXTS, TEXTS_VOCABULARY, tiny_model, translator

from hf_posenc import (
    CTranslate2Translator,
    PosEncTokenizer,
    PositionEncoding,
    register_position_encoding,
    to_ctranslate2,
)
from hf_posenc.inference.ctranslate2_engine import ACTIVATIONS
from hf_posenc.tokenizer.tokenization_posenc import SPECIAL_TOKENS
from hf_posenc.transformer.encoder_decoder import ConditionalGeneration

pytestmark = pytest.mark.full

SENTENCES = ["Ein Hund im Schnee.", "Zwei Kinder", "Zwei Kinder im Schnee. Ein Hund im Schnee.", "x"]
RUN = ["none", "sinusoidal", "learned", "relative", "relative_key", "relative_sinusoidal", "rotary", "shape", "cape"]
SUMS = ["relative+randomized", "sinusoidal+randomized"]
SIDES = ["none to relative", "rotary to sinusoidal", "relative_key to none"]
FIELDS = [
    {"norm_first": True},
    {"normalize_embedding": True},
    {"normalize_embedding": True, "norm_first": True},
    {"tie_word_embeddings": False, "share_encoder_decoder_embeddings": False},
    {"output_bias": True},
    {"scale_embedding": False},
    *({"activation_function": name} for name in ACTIVATIONS if name != "relu"),
]


def single(sides: str, **changes) -> ConditionalGeneration:
    """A tiny model in the precision of that engine."""
    sizes = {"vocab_size": TEXTS_VOCABULARY + 3, "decoder_vocab_size": TEXTS_VOCABULARY + 3}
    return tiny_model(sides, dtype=torch.float32, **(sizes | changes))


def assert_same(model: ConditionalGeneration, tokenizer: PosEncTokenizer, folder: Path) -> None:
    """Greedy translations, and which of them ran into their limits; untrained models make long ones."""
    made = CTranslate2Translator(to_ctranslate2(model, tokenizer, folder))
    expected = model.translations(SENTENCES, tokenizer, num_beams=1)
    assert len(set(expected.texts)) > 1
    assert made.translations(SENTENCES, num_beams=1, batch_size=2) == expected
    assert made.translate(SENTENCES[:2]) == made.translations(SENTENCES[:2], num_beams=5).texts


@pytest.mark.parametrize("name", [*RUN, *SUMS, *SIDES])
def test_it_translates_alike(name, tokenizer, tmp_path):
    assert_same(single(name), tokenizer, tmp_path / "engine")


@pytest.mark.full
@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_it_translates_alike_whatever_the_config_says(fields, tokenizer, tmp_path):
    assert_same(single("relative", **fields), tokenizer, tmp_path / "engine")


def test_a_rotary_encoding_of_some_channels_and_of_another_base(tokenizer, tmp_path):
    rope = {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}
    assert_same(single("rotary", d_model=32, rope_parameters=rope), tokenizer, tmp_path / "engine")


def test_sinusoids_of_another_offset_and_base(tokenizer, tmp_path):
    assert_same(single("sinusoidal", sinusoidal_offset=2, sinusoidal_base=100.0), tokenizer, tmp_path / "engine")


def test_what_the_generation_config_forbids_is_not_written(tokenizer, tmp_path):
    model = single("relative", output_bias=True)
    with torch.no_grad():
        model.final_logits_bias[0, [0, 7, 8]] = 50
    free = model.translations(SENTENCES, tokenizer, num_beams=1)
    model.generation_config.bad_words_ids = [[0], [7]]
    model.generation_config.suppress_tokens = [8]
    model.generation_config.no_repeat_ngram_size = 3
    assert model.translations(SENTENCES, tokenizer, num_beams=1) != free
    assert_same(model, tokenizer, tmp_path / "engine")
    model.generation_config.encoder_repetition_penalty = 1.0  # which changes nothing
    model.generation_config.bad_words_ids = [[model.config.eos_token_id], [7]]
    assert_same(model, tokenizer, tmp_path / "third")
    model.generation_config.min_new_tokens = 3
    with pytest.raises(ValueError, match=r"min_new_tokens, .*generation_config\.min_new_tokens=None"):
        to_ctranslate2(model, tokenizer, tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(("likely", "ends"), [(2, 2), (9, [2, 9])], ids=["at once", "at several tokens"])
@pytest.mark.parametrize("place", ["config", "generation_config"])
def test_a_translation_ends_where_it_does_in_torch(place, likely, ends, tokenizer, tmp_path):
    model = single("relative", output_bias=True, **({"eos_token_id": ends} if place == "config" else {}))
    with torch.no_grad():
        model.final_logits_bias[0, likely] = 50
    if place == "generation_config":
        model.generation_config.eos_token_id = ends
    made = CTranslate2Translator(to_ctranslate2(model, tokenizer, tmp_path / "engine"))
    expected = model.translations(SENTENCES, tokenizer, num_beams=1)
    assert made.translations(SENTENCES, num_beams=1) == expected
    assert expected.truncated == [False] * len(SENTENCES)
    assert max(map(len, expected.texts)) <= 1, "it ended with its first token"


def test_it_starts_where_the_generation_config_says(tokenizer, tmp_path):
    model = single("relative")
    model.generation_config.decoder_start_token_id = 7
    assert_same(model, tokenizer, tmp_path / "engine")
    config = json.loads((tmp_path / "engine/config.json").read_text(encoding="utf-8"))
    assert config["decoder_start_token"] == tokenizer.convert_ids_to_tokens(7)


def test_it_needs_an_end_token(tokenizer, tmp_path):
    model = single("relative")
    model.generation_config.eos_token_id = None
    with pytest.raises(ValueError, match=r"end token, .* set model\.generation_config\.eos_token_id"):
        to_ctranslate2(model, tokenizer, tmp_path / "engine")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("beams", [1, 4])
def test_the_limit_of_a_sentence_applies_in_any_batch(beams, tokenizer, tmp_path):
    """Cut afterwards, a beam that went on could have taken the place of one that ended."""
    model, long = single("relative", output_bias=True), "Zwei Kinder im Schnee. " * 8
    made = CTranslate2Translator(to_ctranslate2(model, tokenizer, tmp_path / "engine"))
    alone = [made.translations([text], num_beams=beams) for text in (*SENTENCES, long)]
    together = made.translations([*SENTENCES, long], num_beams=beams)
    assert together.texts == [one.texts[0] for one in alone]
    assert together.truncated == [one.truncated[0] for one in alone]
    assert True in together.truncated


def test_max_new_tokens_limits_every_translation(tokenizer, tmp_path):
    model = single("relative")
    made = CTranslate2Translator(to_ctranslate2(model, tokenizer, tmp_path / "engine"))
    expected = model.translations(SENTENCES, tokenizer, num_beams=1, max_new_tokens=3)
    assert made.translations(SENTENCES, num_beams=1, max_new_tokens=3) == expected
    assert True in expected.truncated


def test_a_vocabulary_without_a_token_for_the_unknown(tokenizer, tmp_path):
    bare = copy.deepcopy(tokenizer)
    bare.unk_token = None
    assert_same(single("relative"), bare, tmp_path / "engine")


def test_a_source_vocabulary_larger_than_the_targets(tmp_path):
    source, target = (PosEncTokenizer.train(TEXTS * 2, size).backend_tokenizer for size in (TEXTS_VOCABULARY, 280))
    two = PosEncTokenizer(
        tokenizer_object=source, target_tokenizer_object=target, split_special_tokens=True, **SPECIAL_TOKENS
    )
    sizes = {"vocab_size": len(two), "decoder_vocab_size": two.target_vocab_size}
    assert len(two) > two.target_vocab_size
    assert_same(single("relative", **sizes, share_encoder_decoder_embeddings=False), two, tmp_path / "engine")
    for side, known in (("source", two), ("target", two.target)):
        tokens = json.loads((tmp_path / "engine" / f"{side}_vocabulary.json").read_text(encoding="utf-8"))
        assert {token: id for id, token in enumerate(tokens)} == known.get_vocab()


def test_the_model_is_left_alone(tokenizer, tmp_path):
    """Its quantisation overwrites what it is given."""
    model = single("relative")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    to_ctranslate2(model, tokenizer, tmp_path / "engine", quantization="int8")
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)
    assert (tmp_path / "engine/model.bin").stat().st_size < 0.7 * sum(4 * one.numel() for one in model.parameters())


@pytest.mark.parametrize("name", sorted({*REGISTERED, "rnn_nmt", "sinusoidal+relative", "relative+log_n"} - {*RUN}))
def test_what_it_cannot_run_is_refused(name, tokenizer, tmp_path):
    model = translator(name)
    is_recurrent = any(isinstance(module, torch.nn.RNNBase) for module in model.modules())
    remedy = "`model.translate`" if is_recurrent else "`to_onnx`"
    with pytest.raises(ValueError, match=rf"^CTranslate2 (cannot run|needs a Transformer).*{remedy}"):
        to_ctranslate2(model, tokenizer, tmp_path / "engine")
    assert not list(tmp_path.iterdir())


REFUSED = [
    ("relative+window by length_ratio", {}, "has no positions in cross-attention"),
    ("rotary", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10.0, "factor": 2.0}}, "rope_type='default'"),
    ("relative", {"activation_function": "mish"}, "has the activations .* but activation_function='mish'"),
]


@pytest.mark.parametrize(("name", "fields", "why"), REFUSED)
def test_so_is_what_a_config_asks_for(name, fields, why, tokenizer, tmp_path):
    with pytest.raises(ValueError, match=rf"{why}.*--engine onnx"):
        to_ctranslate2(single(name, **fields), tokenizer, tmp_path / "engine")
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("unregistered_after")
def test_a_custom_encoding_is_not_exported(tokenizer, tmp_path):
    class Own(PositionEncoding):
        summary = "Nothing much."
        shift_invariant = True

        def embed(self, x_BTD, ctx):
            return 2 * x_BTD

    register_position_encoding("own", Own)
    with pytest.raises(ValueError, match="cannot run 'own' in the encoder"):
        to_ctranslate2(single("own"), tokenizer, tmp_path / "engine")


def test_bad_calls_are_refused(tokenizer, tmp_path, monkeypatch):
    model = single("relative")
    with pytest.raises(ValueError, match=r"`quantization` must be .*int8, .* 'int3'"):
        to_ctranslate2(model, tokenizer, tmp_path / "engine", quantization="int3")
    with pytest.raises(ValueError, match=r"must be new, but .* exists"):
        to_ctranslate2(model, tokenizer, tmp_path)
    with pytest.raises(ValueError, match="needs the tokenizer it was trained with"):
        to_ctranslate2(single("relative", vocab_size=50, decoder_vocab_size=50), tokenizer, tmp_path / "engine")
    with pytest.raises(ValueError, match=r"must have hf_posenc\.json, but .* has none"):
        CTranslate2Translator(tmp_path)
    assert not list(tmp_path.iterdir())
    monkeypatch.setitem(__import__("sys").modules, "ctranslate2.specs", None)
    with pytest.raises(ValueError, match=r"`pip install 'hf-posenc\[ctranslate2\]'`"):
        to_ctranslate2(model, tokenizer, tmp_path / "engine")


@pytest.mark.full
def test_a_source_longer_than_the_table_is_refused_and_one_as_long_is_not_cut(tokenizer, tmp_path):
    """CTranslate2 by itself cuts sources after 1024 tokens, and translations after 256, and says nothing."""
    text, long = "Ein Hund. " * 4, "Ein Hund im Schnee. " * 400
    few = CTranslate2Translator(to_ctranslate2(single("sinusoidal"), tokenizer, tmp_path / "few", positions=8))
    assert len(tokenizer(text)["input_ids"]) > 8
    with pytest.raises(ValueError, match=r"at most 8 tokens, .* but texts\[0\] has .* export with more `positions`"):
        few.translate([text])
    model = single("relative to learned", encoder_layers=1, decoder_layers=1, learned_max_positions=64)
    assert len(tokenizer(long)["input_ids"]) > 1100
    any_length = CTranslate2Translator(to_ctranslate2(model, tokenizer, tmp_path / "any"))
    assert any_length.translations([long], num_beams=1) == model.translations([long], tokenizer, num_beams=1)


def test_nothing_is_there_of_an_export_that_failed(tokenizer, tmp_path, monkeypatch):
    def fails(self, folder):
        raise OSError("no space left on device")

    monkeypatch.setattr(PosEncTokenizer, "save_pretrained", fails)
    with pytest.raises(OSError, match="no space"):
        to_ctranslate2(single("relative"), tokenizer, tmp_path / "engine")
    assert not list(tmp_path.iterdir())


def test_no_sentences_are_none_and_an_empty_one_is_an_empty_one(tokenizer, tmp_path):
    made = CTranslate2Translator(to_ctranslate2(single("relative"), tokenizer, tmp_path / "engine"))
    assert made.translate([]) == []
    assert made.translate(["", "x", " "]) == ["", *made.translate(["x"]), ""]
    with pytest.raises(TypeError, match="takes a list of sentences"):
        made.translate("Ein Hund.")
