"""Saved hosts with other positions: in a new process, by Auto classes, with this package and without it."""

import json
import os
import pickle
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from hosts import host, replaced, tokens
from support.environments import ROOT
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM
from transformers.quantizers.quantizer_gguf import GgufConfig, GgufHfQuantizer

import hf_posenc
from hf_posenc.hosts.modeling_posenc_host import stack_of

pytestmark = pytest.mark.decoding
LOAD = """
import sys, torch
from transformers import AutoModelForCausalLM
if sys.argv[2] == "package":
    import hf_posenc
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=sys.argv[2] == "code")
ids, logits = torch.load(sys.argv[1] + "/logits.pt")
with torch.no_grad():
    assert torch.equal(model(ids).logits, logits)
model.save_pretrained(sys.argv[1] + "/again")
again = AutoModelForCausalLM.from_pretrained(sys.argv[1] + "/again", trust_remote_code=sys.argv[2] == "code")
with torch.no_grad():
    assert torch.equal(again(ids).logits, logits)
assert ("hf_posenc" in sys.modules) == (sys.argv[2] == "package")
print(type(again).__name__)
"""


def load_in_new_process(folder: Path, way: str) -> subprocess.CompletedProcess:
    """Load a folder with the package ("package"), with the code in the folder ("code"), or with neither ("nothing")."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HF_"))}
    environment = kept | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "HF_MODULES_CACHE": str(folder / "modules")}
    if way == "package":
        environment["PYTHONPATH"] = str(ROOT / "src")
    command = [sys.executable, "-P", "-c", LOAD, str(folder), way]
    return subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)


@pytest.mark.parametrize(("model_type", "encoding"), [("llama", "rotary+window"), ("gpt2", "t5"), ("qwen3", "fire")])
@pytest.mark.full
def test_loads_in_a_new_process_and_refuses_without_any_code_of_ours(model_type, encoding, tmp_path):
    layers = None if model_type == "gpt2" else "every 2nd"
    model, ids = replaced(model_type, encoding, layers), tokens(2, 12)
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        torch.save((ids, model(ids).logits), tmp_path / "logits.pt")
    for way in ("package", "code"):
        child = load_in_new_process(tmp_path, way)
        assert child.returncode == 0, child.stderr[-2000:]
        assert child.stdout.strip() == type(model).__name__
    assert load_in_new_process(tmp_path, "nothing").returncode


def test_the_config_says_what_was_changed(tmp_path):
    model = replaced("llama", "rotary+window", "all but every 4th", window_size=5, window_sinks=1)
    model.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["model_type"] == "posenc_llama" and saved["architectures"] == ["PosEncLlamaForCausalLM"]
    assert saved["position_encoding_type"] == ["rotary+window", "rotary+window", "rotary+window", "host"]
    assert saved["position_encoding_parameters"] == {"window_size": 5, "window_lookahead": None, "window_sinks": 1}
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    for said in ("`rotary+window, host`", "vLLM, llama.cpp", "`posenc_llama`, and\nrefuse the checkpoint"):
        assert said in card
    (tmp_path / "README.md").write_text("mine", encoding="utf-8")
    model.save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == "mine"
    config = AutoConfig.from_pretrained(tmp_path)
    assert type(config).__name__ == "PosEncLlamaConfig" and config.layer_encodings == saved["position_encoding_type"]


@pytest.mark.parametrize("model_type", ["llama", "mixtral", "gpt2", "opt", "gemma3_text"])
@torch.no_grad()
def test_every_auto_class_loads_the_same_weights(model_type, tmp_path):
    """mixtral saves its experts in another form than it holds them."""
    model, ids = replaced(model_type, "kerple"), tokens(2, 12)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is type(model) and torch.equal(loaded(ids).logits, model(ids).logits)
    base, info = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert type(base).__name__.startswith("PosEnc") and not info["missing_keys"]
    assert torch.equal(base(ids)[0], model.base_model(ids)[0])
    assert torch.equal(
        AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="sdpa")(ids).logits, loaded(ids).logits
    )


def test_encoders_are_saved(tmp_path):
    model, ids = hf_posenc.replace_positions(host("bert", AutoModelForMaskedLM), "alibi"), tokens(1, 80)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model(ids).logits)


@torch.no_grad()
def test_a_scaled_rotation_is_saved(tmp_path):
    rope = {"rope_type": "linear", "factor": 2.0}
    model = hf_posenc.replace_positions(host("llama"), "rotary", "every 2nd", rope_parameters=rope)
    model.save_pretrained(tmp_path)
    loaded, ids = AutoModelForCausalLM.from_pretrained(tmp_path), tokens(1, 30)
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    assert not torch.equal(loaded(ids).logits, host("llama")(ids).logits)
    assert stack_of(loaded).posenc.rotary is not None


@torch.no_grad()
def test_a_pickled_or_moved_model_is_the_same():
    model, ids = replaced("llama", "t5+window", window_size=5), tokens(2, 12)
    again = pickle.loads(pickle.dumps(model))
    assert type(again) is type(model) and torch.equal(again(ids).logits, model(ids).logits)
    moved = deepcopy(model).double().float()
    assert torch.equal(moved(ids).logits, model(ids).logits)
    assert model.to(torch.bfloat16)(ids).logits.dtype == torch.bfloat16


def test_weights_that_were_dequantized_are_saved(tmp_path):
    """transformers marks a model from a GGUF file as quantized, and does not save it, though its weights are plain."""
    model, ids = host("llama"), tokens(2, 12)
    model.config.quantization_config = GgufConfig(dequantize=True)
    model.hf_quantizer = GgufHfQuantizer(model.config.quantization_config)
    with pytest.raises(ValueError, match="not serializable"):
        model.save_pretrained(tmp_path)
    model = hf_posenc.replace_positions(model, "rotary+window", window_size=5)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model(ids).logits)
