"""The ONNX graphs of a model, run by onnxruntime, generate the same tokens."""

import copy
import json
import sys
from functools import partial

import pytest
import torch
from support.models import ALIGNED, EVERY_ENCODING, TEXTS_VOCABULARY, tiny_model, translator
from support.streams import OFFLINE, random_text, varied_translator
from support.threads import NUM_THREADS, together

from hf_posenc import PosEncOnnxModel, PosEncTokenizer, to_onnx
from hf_posenc.inference.onnx_engine import verify_outputs
from hf_posenc.transformer.encoder_decoder import ConditionalGeneration
from hf_posenc.translator.translation_job import TranslationJob

base = pytest.importorskip("transformers.exporters.base", reason="transformers has exporters from 5.17 on")
if not hasattr(base, "ExportedModel"):
    pytest.skip("transformers saves and loads what it exported from 5.23 on", allow_module_level=True)

SENTENCES = ["Ein Hund im Schnee.", "Zwei Kinder im Schnee. Ein Hund im Schnee."]
NEW_TOKENS = 12


def single(sides: str, **changes) -> ConditionalGeneration:
    sizes = {"vocab_size": TEXTS_VOCABULARY, "decoder_vocab_size": TEXTS_VOCABULARY}
    return tiny_model(sides, dtype=torch.float32, encoder_layers=1, decoder_layers=1, **(sizes | changes))


@torch.no_grad()
def prefer_end(model: ConditionalGeneration) -> None:
    """A model with an alignment would end before the source does, if it might."""
    if model.default_source_end_rule:
        model.final_logits_bias[:, model.config.eos_token_id] += 100


def assert_generates_the_same(
    exported: PosEncOnnxModel, model: ConditionalGeneration, tokenizer: PosEncTokenizer
) -> None:
    """Tokens of greedy and beam search and of sampling, texts, and truncation are those of the model in torch."""
    inputs = dict(tokenizer(SENTENCES, padding=True, return_tensors="pt"))
    tokens = {
        "max_new_tokens": NEW_TOKENS,
        "min_new_tokens": NEW_TOKENS,
        "bad_words_ids": [[model.config.pad_token_id]],
    }
    for search in ({"num_beams": 1}, {"num_beams": 3}, {"num_beams": 3, "num_return_sequences": 2}):
        options = tokens | {"do_sample": False} | search
        assert torch.equal(exported.generate(**inputs, **options), model.generate(**inputs, **options))
    sampled = []
    for either in (model, exported):
        torch.manual_seed(0)
        sampled.append(either.generate(**inputs, do_sample=True, top_k=5, max_new_tokens=NEW_TOKENS))
    assert torch.equal(*sampled)
    texts = [*SENTENCES, "", "Ein"]
    rules: list[dict[str, object]] = [{}]
    if exported.returns_source_positions:
        rules += [{"eos_requires_source_end": False}, {"max_tokens_per_source_position": 1}]
    for num_beams in (1, 3):
        expected = [model.translations(texts, tokenizer, num_beams=num_beams, **rule) for rule in rules]
        found = [exported.translations(texts, tokenizer, num_beams=num_beams, **rule) for rule in rules]
        assert found == expected
        assert all(expected[0] != other for other in expected[1:])  # each rule changes translations


# An export takes half a minute: scaled and turned keys of another width, and a state that accumulates.
EVICTED = ["pope+window to rotary+forgetting+window by length_ratio"]
KINDS = []
if EVERY_ENCODING:
    EVICTED += ["relative+window to rotary+window by length_ratio", "forgetting+window by length_ratio"]
    EVICTED += ["relative+window by fertility"]
    KINDS += ["pope+log_n to forgetting", "relative", "t5", "deberta", "forgetting", "pope", "relative+log_n", *ALIGNED]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_generated_tokens_are_those_of_generate(kind, tokenizer, tmp_path):
    """Of another batch and other lengths than the graphs were traced with."""
    model = single(kind, output_bias=True, length_ratio_step=0.4)
    prefer_end(model)
    exported = PosEncOnnxModel.from_pretrained(to_onnx(model, tokenizer, tmp_path / "graphs"))
    assert_generates_the_same(exported, model, tokenizer)


@pytest.mark.slow
@pytest.mark.parametrize("kind", EVICTED)
def test_generated_tokens_are_those_of_torch_after_eviction(kind, tokenizer, tmp_path):
    """Also after the first target tokens have left the cache in torch. A generation config changes no graph."""
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "dtype": torch.float32, "length_ratio_step": 0.4}
    model = varied_translator(kind, **sizes)
    prefer_end(model)
    plain = copy.deepcopy(model.generation_config)
    model.generation_config.update(num_beams=2, num_return_sequences=2, use_cache=False, eos_token_id=None)
    exported = PosEncOnnxModel.from_pretrained(to_onnx(model, tokenizer, tmp_path / "graphs"))
    assert exported.generation_config.num_return_sequences == 2
    model.generation_config, exported.generation_config = plain, copy.deepcopy(plain)
    assert_generates_the_same(exported, model, tokenizer)
    text = random_text(60)
    for num_beams in (1, 3):
        options = OFFLINE | {"num_beams": num_beams}
        assert exported.translations([text], tokenizer, **options) == model.translations([text], tokenizer, **options)
    model.lm_head.weight.data *= 2
    with pytest.raises(
        ValueError, match=r"^torch cannot export .*'pope\+window': its graphs are right for .* one size"
    ):
        verify_outputs(model, base.ExportedModel.from_pretrained(tmp_path / "graphs"))


@pytest.mark.slow
def test_a_folder_of_int8_graphs_translates(tokenizer, tmp_path):
    """By the command's function, after a prompt, and not with attention weights or a changed file."""
    model = single("relative")
    folder = to_onnx(model, tokenizer, tmp_path / "graphs", quantization="int8")
    assert json.loads((folder / "config.json").read_text())["model_type"] == model.config.model_type
    exported = PosEncOnnxModel.from_pretrained(folder)
    translate = partial(exported.translate, tokenizer=tokenizer, num_beams=2)
    made = TranslationJob(folder, num_beams=2).translator()(SENTENCES, SENTENCES)
    assert [translation.text for translation in made] == translate(SENTENCES)
    inputs = dict(tokenizer(SENTENCES, padding=True, return_tensors="pt"))
    whole = exported.generate(**inputs, max_new_tokens=6, min_new_tokens=6)
    prompted = exported.generate(**inputs, decoder_input_ids=whole[:, :4], max_new_tokens=3, min_new_tokens=3)
    assert torch.equal(prompted, whole)
    logits = exported(**inputs, decoder_input_ids=whole).logits
    torch.testing.assert_close(logits, model(**inputs, decoder_input_ids=whole).logits, rtol=0.2, atol=0.2)
    with pytest.raises(ValueError, match=r"not return .*, but output_attentions"):
        exported.generate(**inputs, output_attentions=True, return_dict_in_generate=True)
    with pytest.raises(ValueError, match=r"eos_requires_source_end must .*, but .* returns no source positions; leave"):
        exported.generate(**inputs, eos_requires_source_end=True)
    (folder / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="export the model again"):
        PosEncOnnxModel.from_pretrained(folder)


def test_another_folder_or_use_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"export\.json, but .* has none; run to_onnx"):
        PosEncOnnxModel.from_pretrained(tmp_path)
    (tmp_path / "elsewhere.onnx").touch()
    (tmp_path / "graphs").mkdir()
    components = {name: {"file": "../elsewhere.onnx"} for name in ("encoder", "prefill", "decode")}
    (tmp_path / "graphs" / "export.json").write_text(json.dumps({"components": components}))
    with pytest.raises(ValueError, match="graphs encoder, prefill, decode, but encoder, prefill, decode"):
        PosEncOnnxModel.from_pretrained(tmp_path / "graphs")
    (tmp_path / "export.json").write_text('{"components": {"model": {"file": "model.onnx"}}}')
    with pytest.raises(ValueError, match="graphs encoder, prefill, decode, but encoder, prefill, decode"):
        PosEncOnnxModel.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"folder of ONNX graphs, .*precision"):
        TranslationJob(tmp_path, quantize=True)


def test_a_quantization_other_than_int8_is_refused(tokenizer, tmp_path):
    with pytest.raises(ValueError, match=r"quantization must be int8 .* 'float16'"):
        to_onnx(single("relative"), tokenizer, tmp_path / "graphs", quantization="float16")
    assert not list(tmp_path.iterdir())


def test_graphs_are_refused_without_onnxruntime(tmp_path, monkeypatch):
    (tmp_path / "export.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ValueError, match=r"onnxruntime must be .*hf-posenc\[onnx\]"):
        PosEncOnnxModel.from_pretrained(tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["lstm", "relative to gru+relative"])
def test_recurrent_layers_are_refused(kind, tokenizer, tmp_path):
    with pytest.raises(
        ValueError, match=r"^torch exports recurrent .* model\.\w+\.positions\.0\.rnn; .*`model.translate`"
    ):
        to_onnx(single(kind), tokenizer, tmp_path / "graphs")
    assert not list(tmp_path.iterdir())


@pytest.mark.full
def test_what_torch_cannot_export_is_refused_with_its_reason(tokenizer, tmp_path):
    def fail(*_: object) -> None:
        if torch.compiler.is_exporting():
            raise RuntimeError("not in a graph")

    model = single("relative")
    model.model.encoder.register_forward_hook(fail)
    with pytest.raises(ValueError, match=r"^torch cannot export .*'relative': .* 'encoder' fails .*not in a graph"):
        to_onnx(model, tokenizer, tmp_path / "graphs")
    assert not list(tmp_path.iterdir())


@pytest.mark.full
def test_bad_calls_are_refused(tokenizer, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"must be new, but .* exists"):
        to_onnx(single("relative"), tokenizer, tmp_path)
    with pytest.raises(ValueError, match=r"Transformer .*, but got a RnnNmt"):
        to_onnx(translator("rnn_nmt"), tokenizer, tmp_path / "graphs")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ValueError, match=r"`pip install 'hf-posenc\[onnx\]'`"):
        to_onnx(single("relative"), tokenizer, tmp_path / "graphs")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_threads_that_share_graphs_write_what_each_writes_alone(tokenizer, tmp_path):
    model = varied_translator("relative+window by length_ratio", dtype=torch.float32)
    exported = PosEncOnnxModel.from_pretrained(to_onnx(model, tokenizer, tmp_path / "graphs"), threads=1)
    texts = [random_text(2 + number, seed=number) for number in range(NUM_THREADS)]

    def translate(text: str) -> list[list[str]]:
        return [exported.translate([text], tokenizer, num_beams=beams, max_new_tokens=8) for beams in (1, 3)]

    alone = [translate(text) for text in texts]
    assert together(exported, translate, texts) == alone
