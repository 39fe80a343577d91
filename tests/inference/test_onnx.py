"""The ONNX graphs of a model, run by onnxruntime, generate the same tokens."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import ALIGNED, EVERY_ENCODING, TEXTS_VOCABULARY, tiny_model, translator

from hf_posenc import PosEncTokenizer, to_onnx
from hf_posenc.modeling.modeling_shared import ConditionalGeneration

base = pytest.importorskip("transformers.exporters.base", reason="transformers has exporters from 5.17 on")
if not hasattr(base, "ExportedModel"):
    pytest.skip("transformers saves and loads what it exported from 5.23 on", allow_module_level=True)

SENTENCES = ["Ein Hund im Schnee.", "Zwei Kinder im Schnee. Ein Hund im Schnee."]
NEW_TOKENS = 12


def single(sides: str, **changes) -> ConditionalGeneration:
    sizes = {"vocab_size": TEXTS_VOCABULARY, "decoder_vocab_size": TEXTS_VOCABULARY}
    return tiny_model(sides, dtype=torch.float32, encoder_layers=1, decoder_layers=2, **(sizes | changes))


def greedy(folder: Path, inputs: dict[str, Any], start: int, never: list[int]) -> torch.Tensor:
    """What the graphs write: so many tokens, of which some never."""
    run = base.ExportedModel.from_pretrained(folder).runners
    given = {"encoder_outputs": run["encoder"](**inputs), "attention_mask": inputs["attention_mask"]}
    written = torch.full((len(inputs["input_ids"]), 1), start)
    step, cache = run["prefill"], None
    for _ in range(NEW_TOKENS):
        known = given | {"decoder_input_ids": written[:, -1:]} | ({"past_key_values": cache} if cache else {})
        out = step(**{name: value for name, value in known.items() if name in step.metadata.kwargs})
        logits_BV, cache, step = out.logits[:, -1].clone(), out.past_key_values, run["decode"]
        logits_BV[:, never] = float("-inf")
        written = torch.cat((written, logits_BV.argmax(-1, keepdim=True)), 1)
    return written


def assert_same(model: ConditionalGeneration, tokenizer: PosEncTokenizer, folder: Path) -> None:
    inputs = dict(tokenizer(SENTENCES, padding=True, return_tensors="pt"))
    config = model.config
    options = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS, "num_beams": 1, "do_sample": False}
    expected = model.generate(**inputs, **options, bad_words_ids=[[config.pad_token_id]])
    never = [config.pad_token_id, config.eos_token_id]
    to_onnx(model, tokenizer, folder)
    assert torch.equal(greedy(folder, inputs, config.decoder_start_token_id, never), expected)


@pytest.mark.slow
def test_greedy_translations_are_those_of_generate(tokenizer, tmp_path):
    """Of another batch, and of other lengths, than the graphs were traced with."""
    assert_same(single("relative"), tokenizer, tmp_path / "graphs")


@pytest.mark.slow
def test_a_generation_config_changes_no_graph(tokenizer, tmp_path):
    model = single("relative")
    expected = {path.name for path in to_onnx(model, tokenizer, tmp_path / "graphs").iterdir()}
    model.generation_config.update(num_beams=2, num_return_sequences=2, use_cache=False, eos_token_id=None)
    assert {path.name for path in to_onnx(model, tokenizer, tmp_path / "other").iterdir()} == expected


# An export takes half a minute: scaled queries and keys of another width, a state, an alignment; or one of each kind.
KINDS = ["pope+log_n", "forgetting", "relative+window by length_ratio"]
if EVERY_ENCODING:
    KINDS = ["t5", "deberta", "forgetting", "pope", "relative+log_n", *ALIGNED]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_translations_under_other_encodings_are_those_of_generate(kind, tokenizer, tmp_path):
    assert_same(single(kind), tokenizer, tmp_path / "graphs")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_encodings_that_export_with_a_fixed_length_are_refused(name, tokenizer, tmp_path):
    reason = rf"^torch cannot export position_encoding_type='{name}'.*`model.translate`"
    with pytest.raises(ValueError, match=reason):
        to_onnx(single(name), tokenizer, tmp_path / "graphs")
    assert not list(tmp_path.iterdir())


@pytest.mark.full
def test_bad_calls_are_refused(tokenizer, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"must be a new one, but .* exists"):
        to_onnx(single("relative"), tokenizer, tmp_path)
    with pytest.raises(ValueError, match="needs a Transformer of this family, but got a RnnNmt"):
        to_onnx(translator("rnn_nmt"), tokenizer, tmp_path / "graphs")
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    with pytest.raises(ValueError, match=r"must be installed as an extra.* run `pip install 'hf-posenc\[onnx\]'`"):
        to_onnx(single("relative"), tokenizer, tmp_path / "graphs")
    assert not list(tmp_path.iterdir())
