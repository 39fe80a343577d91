"""What `hf_posenc` exports: its names, its documentation, and the packages that it needs."""

import inspect
import json
import os
import pydoc
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest
from support.environments import LIGHT, ROOT, linked_environment
from transformers import PreTrainedConfig

import hf_posenc
from hf_posenc import PosEncCausalConfig, PosEncConfig, RnnNmtConfig

# Packages that training, scoring and exporting need, and that translating does without.
HEAVY = ("accelerate", "datasets", "evaluate", "pandas", "psutil", "pyarrow", "sacrebleu", "sentencepiece")
USE = f"""
import importlib.util, sys
present = [name for name in {HEAVY} if importlib.util.find_spec(name)]
assert not present, present

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import hf_posenc

folder = sys.argv[1]
tokenizer = hf_posenc.PosEncTokenizer.train(["Ein Hund.", "Zwei Kinder im Schnee"] * 2, 290)
config = hf_posenc.PosEncConfig(
    vocab_size=len(tokenizer), d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
    decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, position_encoding_type="rotary+window",
    cross_position_encoding_type="rotary", alignment_type="length_ratio",
)
hf_posenc.PosEncForConditionalGeneration(config).save_pretrained(folder)
tokenizer.save_pretrained(folder)
model = AutoModelForSeq2SeqLM.from_pretrained(folder)
tokenizer = AutoTokenizer.from_pretrained(folder)
assert type(model) is hf_posenc.PosEncForConditionalGeneration
assert type(tokenizer) is hf_posenc.PosEncTokenizer
[translation] = model.translate(["Ein Hund."], tokenizer, num_beams=2)
assert isinstance(translation, str)
batch = tokenizer(["Ein Hund."], return_tensors="pt")
assert model.generate(**batch, max_new_tokens=3).shape[0] == 1
assert model(**batch, labels=batch["input_ids"]).loss.isfinite()
converted = hf_posenc.convert_encodings(model, "alibi")
assert hf_posenc.to_transformers(hf_posenc.convert_encodings(model, "sinusoidal", None, "none", "none")) is not None
print("translated")
"""


def run_with(python: Path | str, script: str, *arguments: str) -> str:
    """What a script prints in a fresh process of another Python that finds this package, and no server."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HF_"))}
    environment = kept | {"PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [str(python), "-P", "-c", script, *arguments]
    child = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr[-4000:]
    return child.stdout


@pytest.mark.full
def test_torch_transformers_and_tokenizers_are_enough_to_translate(tmp_path: Path):
    python = linked_environment(tmp_path / "environment", LIGHT)
    assert run_with(python, USE, str(tmp_path / "model")) == "translated\n"


@pytest.mark.full
def test_importing_loads_no_module_that_a_marian_model_and_a_fast_tokenizer_do_not_load():
    """Counted in modules: no test depends on the speed of the machine."""
    listing = "\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    marian = "from transformers import AutoTokenizer, MarianMTModel, PreTrainedTokenizerFast"
    ours = set(json.loads(run_with(sys.executable, "import hf_posenc" + listing)))
    theirs = set(json.loads(run_with(sys.executable, marian + listing)))
    assert {name for name in ours - theirs if name.partition(".")[0] != "hf_posenc"} == set()


def test_dir_shows_the_public_names_and_packages():
    names = {name for name in dir(hf_posenc) if not (name.startswith("__") and name.endswith("__"))}
    others = names - set(hf_posenc.__all__)
    values = {name: getattr(hf_posenc, name) for name in others}
    packages = {name for name, value in values.items() if isinstance(value, ModuleType) and hasattr(value, "__path__")}
    assert others == packages
    assert set(hf_posenc.__all__) <= names | {"__version__"}


@pytest.mark.parametrize("config_class", [PosEncConfig, PosEncCausalConfig, RnnNmtConfig])
def test_help_lists_every_field_of_a_config_with_its_meaning(config_class: type[PreTrainedConfig]):
    documented = inspect.getdoc(config_class) or ""
    inherited = {field.name for field in fields(PreTrainedConfig)}
    wanted = {field.name for field in fields(config_class)} - inherited
    wanted |= set() if config_class is RnnNmtConfig else set(config_class.parameter_fields())
    for name in sorted(wanted):
        assert f"`{name}`" in documented, name
    assert documented.splitlines()[-1] in pydoc.render_doc(config_class)


def test_every_parameter_of_an_encoding_says_what_it_means():
    for name, parameter in PosEncConfig.parameter_fields().items():
        assert parameter.meaning.endswith("."), name


def test_every_public_name_is_documented():
    values = {name: getattr(hf_posenc, name) for name in hf_posenc.__all__}
    described = [name for name, value in values.items() if inspect.isclass(value) or inspect.isfunction(value)]
    assert [name for name in described if not values[name].__doc__] == []


def test_the_docstring_of_a_function_names_its_parameters_and_its_errors(subtests: pytest.Subtests):
    for name in (
        "CTranslate2Translator",
        "convert_encodings",
        "from_transformers",
        "lengthen_table",
        "load_length_buckets",
        "load_translation_audit",
        "measure_length",
        "to_ctranslate2",
        "to_onnx",
        "to_transformers",
    ):
        with subtests.test(name):
            value = getattr(hf_posenc, name)
            documented = inspect.getdoc(value) or ""
            assert [name for name in inspect.signature(value).parameters if name not in documented] == []
            assert "Raises a" in documented


def test_a_model_has_at_most_four_classes_of_our_own():
    models = [getattr(hf_posenc, name) for name in hf_posenc.__all__ if name.endswith(("Model", "LM", "Generation"))]
    own = {
        model.__name__: [ancestor for ancestor in model.__mro__ if ancestor.__module__.startswith("hf_posenc")]
        for model in models
    }
    assert {name: ancestors for name, ancestors in own.items() if len(ancestors) > 4} == {}
