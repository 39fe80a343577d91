"""What readers raise for a damaged file is one ValueError of one line that names the folder and the file."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import tiny_model
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, BartConfig

from hf_posenc import (
    PosEncConfig,
    PosEncForConditionalGeneration,
    PosEncTokenizer,
    convert_encodings,
    from_transformers,
)
from hf_posenc.convert.folders import auto_from_pretrained, convert_folder
from hf_posenc.hub.errors import MODEL_FILES, explain_unreadable
from hf_posenc.inference.ctranslate2_engine import METADATA_FILE, read_metadata
from hf_posenc.lab.results.saved_files import read_json, read_translations
from hf_posenc.utils.manifest import read_manifest

DEEP = "[" * 100_000


def with_value(file: str, key: str, value: Any) -> Callable[[Path], None]:
    """A change of one value in a JSON file."""

    def change(folder: Path) -> None:
        content = json.loads((folder / file).read_text(encoding="utf-8"))
        (folder / file).write_text(json.dumps(content | {key: value}), encoding="utf-8")

    return change


def with_text(file: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / file).write_text(text, encoding="utf-8") and None


DAMAGED: dict[str, tuple[Callable[[Path], None], Callable[[Path], object], str]] = {
    "a config of other types": (with_value("config.json", "d_model", "w"), AutoConfig.from_pretrained, "config.json"),
    "a config that is a list": (with_text("config.json", "[]"), PosEncConfig.from_pretrained, "config.json"),
    "a deep config": (with_text("config.json", DEEP), PosEncConfig.from_pretrained, "config.json"),
    "a model type that is no text": (with_value("config.json", "model_type", {}), convert_encodings, "config.json"),
    "a generation config that is a number": (
        with_text("generation_config.json", "5"), AutoModelForSeq2SeqLM.from_pretrained, "generation_config.json",
    ),
    "cut weights": (
        lambda folder: os.truncate(folder / "model.safetensors", 1000), PosEncForConditionalGeneration.from_pretrained,
        "model.safetensors",
    ),
    "another tokenizer": (with_text("tokenizer.json", "{}"), PosEncTokenizer.from_pretrained, "tokenizer.json"),
    "a deep tokenizer": (with_text("tokenizer.json", DEEP), AutoTokenizer.from_pretrained, "tokenizer.json"),
    "special tokens of another type": (
        with_value("tokenizer_config.json", "extra_special_tokens", 0.5), PosEncTokenizer.from_pretrained,
        "tokenizer_config.json",
    ),
    "a tokenizer's class that is no text": (
        with_value("tokenizer_config.json", "tokenizer_class", {}),
        lambda folder: auto_from_pretrained(AutoTokenizer, folder), "tokenizer_config.json",
    ),
    "a tokenizer to convert": (
        with_text("tokenizer.json", "\N{NO-BREAK SPACE}"), lambda folder: convert_folder(folder, folder / "new"),
        "tokenizer.json",
    ),
}  # fmt: skip


@pytest.fixture
def saved(tokenizer: PosEncTokenizer, tmp_path: Path) -> Path:
    tiny_model("relative", dtype=torch.float32).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_checkpoint_is_refused_by_its_folder_and_file(saved: Path, what: str) -> None:
    change, load, file = DAMAGED[what]
    change(saved)
    with pytest.raises(ValueError) as refused:
        load(saved)
    said = str(refused.value)
    assert str(saved) in said and file in said and "\n" not in said and len(said) < 1000


def test_an_index_without_weights_is_refused(saved: Path) -> None:
    (saved / "model.safetensors").unlink()
    for index in ("{}", "[]", '{"weight_map": 5}', '{"weight_map": {"a": {}}}', DEEP):
        (saved / "model.safetensors.index.json").write_text(index)
        with pytest.raises((ValueError, OSError), match=r"^[^\n]*$") as refused:
            PosEncForConditionalGeneration.from_pretrained(saved)
        assert str(saved) in str(refused.value)


def test_a_damaged_checkpoint_of_transformers_is_refused(tmp_path: Path) -> None:
    BartConfig(d_model=16).save_pretrained(tmp_path)
    with_value("config.json", "dropout", [])(tmp_path)
    with pytest.raises(ValueError, match=rf"^[^\n]*config\.json of {tmp_path}[^\n]*$"):
        from_transformers(tmp_path)


@pytest.mark.parametrize(
    ("keywords", "error"), [({"typo": 3}, TypeError), ({"dropout": 3}, ValueError), ({"dtype": "flot32"}, ValueError)]
)
def test_an_error_of_the_caller_blames_no_file(saved: Path, keywords: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(keywords))) as refused:
        PosEncForConditionalGeneration.from_pretrained(saved, **keywords)
    assert "as they were saved" not in str(refused.value)


@pytest.mark.parametrize(
    "error",
    [ImportError("no package"), MemoryError(), torch.OutOfMemoryError("CUDA out of memory"), KeyboardInterrupt()],
)
def test_what_is_no_files_fault_stays_as_it_is(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)) as raised, explain_unreadable(tmp_path, MODEL_FILES):
        raise error
    assert raised.value is error


@pytest.mark.parametrize("change", [{"longest_source": "5"}, {"longest_target": 0.5}, {"search": []}])
def test_the_limits_of_an_export_are_numbers(tmp_path: Path, change: dict[str, Any]) -> None:
    metadata = {"longest_source": None, "longest_target": 4, "search": {}}
    (tmp_path / METADATA_FILE).write_text(json.dumps(metadata))
    assert read_metadata(tmp_path) == metadata
    (tmp_path / METADATA_FILE).write_text(json.dumps(metadata | change))
    with pytest.raises(ValueError, match=rf"{METADATA_FILE} of {tmp_path} .*{next(iter(change))}"):
        read_metadata(tmp_path)


# Runs


@pytest.mark.parametrize("text", [DEEP, "5", "[1", '{"a": 1', ""])
def test_saved_results_are_refused_by_their_name(tmp_path: Path, text: str) -> None:
    for file, read in (("scores.json", read_json), ("manifest.json", lambda path: read_manifest(path.parent))):
        (tmp_path / "manifest.json").unlink(missing_ok=True)
        (tmp_path / file).write_text(text)
        with pytest.raises(ValueError, match=rf"^[^\n]*{tmp_path / file}[^\n]*$"):
            read(tmp_path / file)


@pytest.mark.parametrize("line", ['{"text": [null], "truncated": false}', '{"text": "a", "truncated": 3}', "[]", DEEP])
def test_saved_translations_are_texts(tmp_path: Path, line: str) -> None:
    (path := tmp_path / "test.jsonl").write_text(f"{line}\n")
    with pytest.raises(ValueError, match=rf"^[^\n]*{path}[^\n]*$"):
        read_translations(path, 1)


# Modes


def test_weights_may_be_read_by_whom_the_other_files_may(tmp_path: Path, tokenizer: PosEncTokenizer) -> None:
    before = os.umask(0o027)
    try:
        tiny_model("relative").save_pretrained(tmp_path / "one")
        tiny_model("relative").save_pretrained(tmp_path / "shards", max_shard_size="10KB")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*.*")} == {0o640}
