"""The call and the command: what they refuse, what they save, how they resume, encoder-decoders."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from support.experiments import ROOT
from support.measured import LENGTHS, character_tokenizer, copy_model, periodic_texts, vocabulary
from support.models import TEXTS, translator
from transformers import AutoConfig, BertConfig, BertLMHeadModel, LlamaConfig, LlamaForCausalLM

from hf_posenc import PosEncTokenizer, measure_length
from hf_posenc.lab import cli
from hf_posenc.measure import loading, measure, parts
from hf_posenc.measure.loading import load_for_measuring

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
DOCUMENTS = periodic_texts(LENGTHS[-1], per_period=1)


def call(**changes: object) -> object:
    arguments = {"model": copy_model(64), "tokenizer": character_tokenizer(), "texts": DOCUMENTS, "lengths": LENGTHS}
    return measure_length(**(arguments | {"progress": False, "trials": 1} | changes))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"lengths": [64, 32]}, r"lengths must ascend from 16 tokens or more, but they are \[64, 32\]; give"),
        ({"lengths": [8, 32]}, "lengths must ascend from 16"),
        ({"lengths": []}, "lengths must ascend from 16"),
        ({"lengths": [32, 512]}, "at least 512 tokens, the longest of lengths, but the longest document has 256; give"),
        ({"texts": []}, "the longest document has 0"),
        ({"texts": "one string"}, "texts must be a list of documents"),
        ({"references": ["a"]}, "references are of an encoder-decoder"),
    ],
)
def test_bad_input_is_refused_before_any_compute(
    changes: dict[str, object], error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = copy_model(64)
    monkeypatch.setattr(model, "forward", None)
    with pytest.raises(ValueError, match=error):
        call(model=model, **changes)


def test_an_encoder_is_refused() -> None:
    model = BertLMHeadModel(BertConfig(vocab_size=vocabulary(), **SIZES))
    with pytest.raises(ValueError, match="must not read later tokens, but BertLMHeadModel does; give"):
        call(model=model)


@pytest.mark.full
def test_default_lengths() -> None:
    report = call(lengths=None)  # a claimed length of 128, and documents of 256 tokens
    assert report.numbers["lengths"] == [64, 128, 256]


@pytest.mark.full
def test_a_stopped_measurement_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is saved is not measured again; the report of a resumed call is that of one call."""
    calls: list[tuple[str, int]] = []

    def counted(name: str, job: parts.Job, length: int) -> parts.Record:
        if len(calls) == limits[-1]:
            raise KeyboardInterrupt
        calls.append((name, length))
        return parts.PARTS[name](job, length)

    limits = [6]
    monkeypatch.setattr(measure, "PARTS", {name: partial(counted, name) for name in parts.PARTS})
    with pytest.raises(KeyboardInterrupt):
        call(output=tmp_path)
    limits.append(10**9)
    report = call(output=tmp_path)
    assert len(calls) == len(set(calls)) == 5 * len(LENGTHS) + 1
    assert report.numbers == call().numbers
    saved = json.loads((tmp_path / "report.json").read_text())
    assert saved["verdict"] == str(report)
    assert (tmp_path / "report.md").read_text() == report.to_markdown()
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.full
@pytest.mark.parametrize("changes", [{"trials": 2}, {"model": copy_model(32)}, {"lengths": [32, 64]}])
def test_a_folder_of_another_measurement_is_refused(changes: dict[str, object], tmp_path: Path) -> None:
    call(output=tmp_path)
    with pytest.raises(
        ValueError, match=r"output must be a new folder or that of the same measurement, but .* has one of another"
    ):
        call(output=tmp_path, **changes)


def test_the_model_is_left_as_it_was() -> None:
    model = LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary(), **SIZES)).train()
    call(model=model)
    assert model.training
    assert model.config._attn_implementation == "sdpa"


def test_an_encoder_decoder_is_measured_by_source_length(tmp_path: Path, tokenizer: PosEncTokenizer) -> None:
    """Its table ends at 32 tokens; the loss is that of the model."""
    model = translator("learned", dtype=torch.float32, learned_max_positions=32)
    sources = ["Ein Hund. " * times for times in (1, 4, 4, 9)]
    report = measure_length(
        model, tokenizer, sources, [16, 32, 64], references=TEXTS[1:] * 4, output=tmp_path, progress=False
    )
    print(report)
    labels = tokenizer(text_target=TEXTS[1:], return_tensors="pt")["input_ids"]
    reference = model(**tokenizer(sources[:1], return_tensors="pt"), labels=labels).loss.item()
    assert report.numbers["loss"][16]["mean"] == pytest.approx(reference, abs=1e-5)
    assert "reads sources of up to 32" in report.verdict
    assert (tmp_path / "report.md").read_text() == report.to_markdown()
    assert (tmp_path / "report.png").exists()


def save_llama(folder: Path) -> Path:
    config = LlamaConfig(vocab_size=vocabulary(), max_position_embeddings=128, **SIZES)
    LlamaForCausalLM(config).save_pretrained(folder)
    character_tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.full
def test_the_command_prints_and_saves_the_report(tmp_path: Path) -> None:
    save_llama(tmp_path / "model")
    for number, text in enumerate(DOCUMENTS):
        (tmp_path / f"{number}.txt").write_text(text, encoding="utf-8")
    texts = [str(tmp_path / f"{number}.txt") for number in range(len(DOCUMENTS))]
    command = [sys.executable, "-m", "hf_posenc", "measure-length", str(tmp_path / "model"), *texts]
    options = ["--lengths", "32", "64", "--trials", "1", "--output", str(tmp_path / "report")]
    done = subprocess.run([*command, *options], capture_output=True, text=True, env={"PYTHONPATH": str(ROOT / "src")})
    assert done.returncode == 0, done.stderr
    assert done.stdout == (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert "**claimed 128; loss" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--lengths", "64", "32"], "ValueError: lengths must ascend"),
        (["--lengths", "32", "4096"], "ValueError: texts must have a document of at least 4096 tokens"),
        (["--device", "nowhere"], "ValueError: device must be one of torch's that is here, but it is 'nowhere'"),
    ],
)
def test_the_command_ends_with_one_line(arguments: list[str], error: str, tmp_path: Path) -> None:
    save_llama(tmp_path / "model")
    (tmp_path / "a.txt").write_text(DOCUMENTS[0], encoding="utf-8")
    with pytest.raises(SystemExit, match=error):
        cli.main(["measure-length", str(tmp_path / "model"), str(tmp_path / "a.txt"), *arguments])


def test_a_model_that_does_not_fit_is_refused_before_loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_llama(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    monkeypatch.setattr(loading, "free_bytes", lambda device: 100_000)
    with pytest.raises(ValueError, match=r"must fit into memory, but in torch.float32 they need 0.0 GiB and cpu has"):
        load_for_measuring(str(tmp_path))


def test_a_model_that_needs_its_own_code_is_refused(tmp_path: Path) -> None:
    config = {"model_type": "unheard_of", "auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.LM"}}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ValueError, match="needs code of its own"):
        load_for_measuring(str(tmp_path))


def test_an_unknown_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"MODEL must be the folder of a saved model, .* none at .*; name another\."):
        load_for_measuring(str(tmp_path / "none"))


def test_a_model_without_an_output_projection_is_refused(tmp_path: Path) -> None:
    AutoConfig.for_model("vit").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="model_type='vit', which AutoModelForCausalLM does not load; name another"):
        load_for_measuring(str(tmp_path))
