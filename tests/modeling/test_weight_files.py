"""Checkpoints are validated by their config and file headers: without pickles, code or memory for weights."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import tiny_model, translator
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel

from hf_posenc import PosEncForConditionalGeneration, PosEncModel, PosEncTokenizer
from hf_posenc.convert.folders import auto_from_pretrained
from hf_posenc.transformer.loading import expected_loading_info

SHARDED = {"max_shard_size": "10KB"}


def edited(path: Path, **fields: Any) -> None:
    """Change a JSON file; a field of None is taken out."""
    content = json.loads(path.read_text(encoding="utf-8")) | fields
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}), encoding="utf-8")


class Trap:
    """An object whose pickle leaves a trace when it is read."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return (open, (str(self.trace), "w"))


# What is read


@pytest.mark.full
@pytest.mark.parametrize("where", ["relative", "rnn_nmt"])
@pytest.mark.parametrize("options", [{}, SHARDED], ids=["one file", "an index"])
@pytest.mark.parametrize("tied", [False, True])
def test_the_files_headers_say_what_transformers_finds(tmp_path: Path, where: str, options: Any, tied: bool) -> None:
    sizes = {"vocab_size": 31, "decoder_vocab_size": 31}
    model = tiny_model(where, tie_word_embeddings=tied, share_encoder_decoder_embeddings=tied, **sizes)
    model.save_pretrained(tmp_path / "whole", **options)
    model.model.save_pretrained(tmp_path / "base", **options)
    for saved in ("whole", "base"):
        files = [str(file) for file in (tmp_path / saved).glob("*.safetensors")]
        assert (len(files) > 1) == bool(options)
        for auto, one in ((AutoModelForSeq2SeqLM, model), (AutoModel, model.model)):
            _, found = auto.from_pretrained(tmp_path / saved, output_loading_info=True)
            said = expected_loading_info(one, files)
            assert {kind: sorted(keys) for kind, keys in said.items()} == {kind: sorted(found[kind]) for kind in said}


@pytest.mark.full
def test_other_names_of_the_same_files_are_found(tmp_path: Path) -> None:
    model = tiny_model("relative")
    model.save_pretrained(tmp_path / "folder" / "below")
    model.save_pretrained(tmp_path / "folder" / "below", variant="fp64", **SHARDED)
    below = {"subfolder": "below"}
    for options in (below, below | {"variant": "fp64"}):
        loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "folder", dtype=torch.float64, **options)
        assert torch.equal(loaded.lm_head.weight, model.lm_head.weight)


# Pickles


@pytest.mark.parametrize(
    "named", ["pytorch_model.bin", "sub/model.safetensors", "../model.safetensors", "/x.safetensors", 3]
)
@pytest.mark.parametrize("dtype", ["auto", torch.float32])
def test_an_index_names_safetensors_beside_it_or_is_refused(tmp_path: Path, named: Any, dtype: Any) -> None:
    tiny_model("relative").save_pretrained(tmp_path / "model", **SHARDED)
    (tmp_path / "model" / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(tmp_path / "trace")))
    index = tmp_path / "model" / "model.safetensors.index.json"
    weights = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    edited(index, weight_map=dict.fromkeys(weights, named), metadata={})
    edited(tmp_path / "model" / "config.json", dtype=None)
    for options in ({}, {"ignore_mismatched_sizes": True}, {"weights_only": False}, {"trust_remote_code": True}):
        with pytest.raises(OSError, match=rf"safetensors .*, but .* names {named!r};"):
            AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model", dtype=dtype, **options)
    assert not (tmp_path / "trace").exists()


def test_a_file_by_its_own_name_is_no_pickle_either(tmp_path: Path) -> None:
    model = tiny_model("relative")
    file = tmp_path / "weights.bin"
    file.write_bytes(pickle.dumps(Trap(tmp_path / "trace")))
    with pytest.raises(OSError, match=r"safetensors .*weights\.bin .*; .*weights_only=True"):
        PosEncForConditionalGeneration.from_pretrained(file, config=model.config, weights_only=False)
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize("named", ["other.safetensors.index.json", "adapter_model.bin", "pytorch_model.bin"])
def test_a_config_names_no_weights(tmp_path: Path, named: str) -> None:
    tiny_model("relative").save_pretrained(tmp_path)
    edited(tmp_path / "config.json", transformers_weights=named)
    with pytest.raises(ValueError, match="transformers_weights must be left out"):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path)


# Sizes


HUGE: dict[str, tuple[str, dict[str, Any], str]] = {
    "vocabularies": ("sinusoidal", {"vocab_size": 9000, "decoder_vocab_size": 9000}, "of another shape"),
    "endless vocabularies": (
        "sinusoidal", {"vocab_size": 10**12, "decoder_vocab_size": 10**12}, "vocab_size must be from 1 to",
    ),
    "a width": ("sinusoidal", {"d_model": 2**40}, "d_model must be from 1 to"),
    "another width": ("sinusoidal", {"d_model": 32}, "of another shape"),
    "a feed-forward width": ("rotary", {"encoder_ffn_dim": 10**12}, "encoder_ffn_dim must be from 1 to"),
    "endless heads": ("alibi", {"d_model": 2**40, "encoder_attention_heads": 2**40}, "must be from 1 to"),
    "layers of its own size": ("sinusoidal", {"decoder_layers": 40}, "missing"),
    "layers without end": ("sinusoidal", {"encoder_layers": 10**15}, "encoder_layers must be from 1 to"),
    "a table of positions": ("learned", {"learned_max_positions": 10**12}, "of another shape"),
    "a new table": ("none", {"position_encoding_type": "learned", "learned_max_positions": 10**9}, "missing"),
    "an output projection": ("none", {"decoder_vocab_size": 9000}, "of another shape"),
    "recurrent layers": ("rnn_nmt", {"encoder_layers": 10**15}, "encoder_layers must be from 1 to"),
    "a recurrent width": ("rnn_nmt", {"d_model": 2**40}, "d_model must be from 1 to"),
}  # fmt: skip


@pytest.mark.parametrize("what", HUGE)
@pytest.mark.parametrize("auto", [AutoModelForSeq2SeqLM, pytest.param(AutoModel, marks=pytest.mark.full)])
def test_a_config_that_contradicts_its_weights_is_refused_before_memory_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, auto: Any, what: str
) -> None:
    where, fields, said = HUGE[what]
    tiny_model(where).save_pretrained(tmp_path)
    edited(tmp_path / "config.json", **fields)
    monkeypatch.setattr(PreTrainedModel, "_load_pretrained_model", lambda *_: pytest.fail("it was read"))
    with pytest.raises(ValueError, match=said):
        auto.from_pretrained(tmp_path)


# Code


CODE = """
open(__import__("os").environ["TRACE"], "w")
from transformers import PreTrainedTokenizerFast

def generate(model, *args, **kwargs):
    pass

class StrangeTokenizer(PreTrainedTokenizerFast):
    pass
"""


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRACE", str(tmp_path / "trace"))
    return tmp_path / "trace"


@pytest.mark.parametrize("where", ["relative", "rnn_nmt"])
@pytest.mark.parametrize("trust", [None, pytest.param(False, marks=pytest.mark.full), True])
def test_a_way_of_generating_that_lies_beside_the_weights_is_not_run(tmp_path, trace, where, trust) -> None:
    model, folder = tiny_model(where), tmp_path / "model"
    model.save_pretrained(folder)
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text(CODE)
    for load in (AutoModelForSeq2SeqLM.from_pretrained, type(model).from_pretrained):
        loaded = load(folder, trust_remote_code=trust)
        assert "generate" not in vars(loaded)
    assert not trace.exists()


@pytest.mark.parametrize("name", ["attn_implementation", "_attn_implementation", "experts_implementation"])
def test_a_config_names_no_kernel_of_the_hub(tmp_path: Path, name: str) -> None:
    tiny_model("relative").save_pretrained(tmp_path)
    edited(tmp_path / "config.json", **{name: "someone/kernel"})
    for auto in (AutoConfig, AutoModelForSeq2SeqLM):
        with pytest.raises(ValueError, match=rf"no code .*, but .*{name}='someone/kernel'"):
            auto.from_pretrained(tmp_path)


@pytest.mark.parametrize("named", ["StrangeTokenizer", None])
def test_a_strange_tokenizer_is_not_run_by_the_familys_own_class_nor_unasked(tmp_path, tokenizer, trace, named) -> None:
    translator("relative").save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "strange.py").write_text(CODE)
    strange = {"AutoTokenizer": ["strange.StrangeTokenizer", None]}
    edited(tmp_path / "tokenizer_config.json", auto_map=strange, tokenizer_class=named)
    for trust in (False, True):
        loaded = PosEncTokenizer.from_pretrained(tmp_path, trust_remote_code=trust)
        assert type(loaded) is PosEncTokenizer and loaded("Ein Hund.") == tokenizer("Ein Hund.")
    with pytest.raises(ValueError, match=r"must not run, but .* \(AutoTokenizer\)\. Name"):
        auto_from_pretrained(AutoTokenizer, tmp_path)
    assert type(AutoModel.from_pretrained(tmp_path, trust_remote_code=True)) is PosEncModel
    assert not trace.exists()
