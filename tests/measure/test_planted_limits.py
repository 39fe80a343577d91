"""Models whose limits are planted are measured as what they are."""

import math

import pytest
import torch
from support.measured import (
    LENGTHS,
    character_tokenizer,
    copy_model,
    induction_model,
    periodic_texts,
    vocabulary,
)
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from hf_posenc import PosEncCausalConfig, PosEncForCausalLM, replace_positions
from hf_posenc.measure.measure import measure_length
from hf_posenc.measure.parts import wavelengths
from hf_posenc.measure.report import LengthReport, reach

LONGER = pytest.param(128, marks=pytest.mark.full)
TEXTS = periodic_texts(LENGTHS[-1])
SMALL = {"vocab_size": vocabulary(), "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


def measured(model: PreTrainedModel) -> LengthReport:
    return measure_length(model, character_tokenizer(), TEXTS, LENGTHS, max_blocks=16, trials=1, progress=False)


@pytest.mark.parametrize("window", [64, LONGER])
def test_a_model_that_copies_within_a_window_by_construction(window: int) -> None:
    report = measured(copy_model(window))
    assert report.numbers["useful_length"] == window
    expected = ["claimed 128", f"loss stops falling at {window}", f"copying above 90 % up to {window}"]
    if window == 64:  # too short for the needle and its question
        expected.append("needle below 90 % at 128 already, 40 % at best")
    else:
        expected.append(f"needle above 90 % up to {window}")
    assert report.verdict == "; ".join([*expected, f"key-value above 90 % up to {window}"])


@pytest.mark.parametrize("window", [64, LONGER])
def test_a_model_of_ours_with_a_window(window: int) -> None:
    """Its second layer copies from tokens of the window."""
    report = measured(induction_model("t5+window", window_size=window))
    assert report.numbers["useful_length"] == reach(report.numbers["accuracies"]["copying"]) == window
    record = report.numbers["attention"][LENGTHS[-1]]
    outside = [edge > window for edge in record["from_distance"]]
    assert sum(mass for mass, is_outside in zip(record["mass"], outside, strict=True) if is_outside) < 1e-6
    assert record["first_tokens"] < 1e-6


@pytest.mark.full
def test_a_model_of_ours_without_a_window() -> None:
    report = measured(induction_model("t5"))
    assert report.numbers["useful_length"] == reach(report.numbers["accuracies"]["copying"]) == LENGTHS[-1]
    assert "loss is still falling at 256, the longest" in report.verdict


@pytest.mark.parametrize("architecture", ["ours", "GPT-2"])
def test_a_learned_table_ends(architecture: str) -> None:
    if architecture == "ours":
        config = PosEncCausalConfig(**SMALL, position_encoding_type="learned", learned_max_positions=100)
        model = PosEncForCausalLM(config)
    else:
        model = GPT2LMHeadModel(GPT2Config(vocab_size=vocabulary(), n_embd=16, n_layer=1, n_head=2, n_positions=100))
    report = measured(model)
    assert report.numbers["readable_length"] == 64
    assert report.verdict.startswith("claimed 100; reads up to 64; ")
    assert "100" in report.numbers["failures"]["context at 128"]
    assert "| 128 | - | - | - |" in report.to_markdown()


def test_no_positions() -> None:
    """A layer without positions, and without a difference between tokens, attends to all of them alike."""
    model = PosEncForCausalLM(PosEncCausalConfig(**SMALL, position_encoding_type="none"))
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight.zero_()
    report = measured(model)
    assert report.numbers["rope_wavelengths"] == []
    assert all(reach(accuracy) is None for accuracy in report.numbers["accuracies"].values())
    record = report.numbers["attention"][256]
    assert record["first_tokens"] == pytest.approx(4 / 248.5, rel=0.01)
    assert record["mass"][6:8] == pytest.approx([32 / 248.5, 64 / 248.5], rel=0.01)  # distances 32-63, 64-127


@pytest.mark.full
def test_replaced_positions() -> None:
    """A model of transformers with a window in place of its rotation."""
    sizes = SMALL | {"num_key_value_heads": 1, "intermediate_size": 8}
    model = replace_positions(LlamaForCausalLM(LlamaConfig(**sizes)), "window", window_size=16)
    report = measured(model)
    record = report.numbers["attention"][256]
    assert sum(record["mass"]) == pytest.approx(1, abs=1e-4)
    assert sum(record["mass"][6:]) == 0  # distances of 32 and more
    assert report.numbers["rope_wavelengths"] == []
    assert model.config._attn_implementation == "posenc_sdpa"


@pytest.mark.parametrize("architecture", ["ours", "Llama"])
def test_wavelengths_of_rope(architecture: str) -> None:
    if architecture == "ours":
        model = PosEncForCausalLM(PosEncCausalConfig(**SMALL, position_encoding_type="rotary"))
    else:
        model = LlamaForCausalLM(LlamaConfig(**SMALL, intermediate_size=8, max_position_embeddings=512))
    report = measured(model)
    assert report.numbers["rope_wavelengths"] == pytest.approx(
        [2 * math.pi * 10000 ** (channel / 8) for channel in (0, 2, 4, 6)]
    )
    if architecture == "Llama":
        assert "2 of 4 exceed the claimed length" in report.to_markdown()


def test_wavelengths_of_a_scaled_rope_are_not_those_of_the_host() -> None:
    model = LlamaForCausalLM(LlamaConfig(**SMALL, intermediate_size=8))
    own = wavelengths(model)
    scaled = replace_positions(model, "rotary", rope_parameters={"rope_type": "linear", "factor": 2.0})
    assert wavelengths(scaled) == pytest.approx([2 * wavelength for wavelength in own], rel=1e-5)
