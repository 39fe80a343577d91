"""New parameters are sampled by the configured initializer."""

import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.models import tiny_config, tiny_model
from transformers import (
    AutoModelForSeq2SeqLM,
)

with warnings.catch_warnings():  # 5.17 compiles it in a way that torch deprecates
    warnings.simplefilter("ignore")
from support.reference import drawn

# First weights: the bounds of uniform ones, the deviation of normal ones, by whose formulas they are drawn

FAMILIES = ["lstm+learned+relative", "gru+relative_key to learned+gru", "rnn_nmt"]


@pytest.mark.parametrize("initializer", ["xavier", "torch"])
@pytest.mark.parametrize("where", FAMILIES)
def test_a_new_model_is_sampled_by_its_initializer(where, initializer):
    torch.manual_seed(0)
    config = tiny_config(where, d_model=64, initializer=initializer, output_bias=True)
    model = AutoModelForSeq2SeqLM.from_config(config)
    draws = drawn(model, initializer)
    assert set(draws) == {name for name, _ in model.named_parameters()}
    for name, p in model.named_parameters():
        kind, size = draws[name]
        if kind == "constant":
            assert (p == size).all(), name
        elif kind == "uniform":
            # The largest of a bias's few numbers may lie further below the bound than that of a matrix's many.
            assert (0.95 if p.ndim > 1 else 0.8) * size < p.abs().max() <= size, name
        else:
            rows = p[1:] if "embed_tokens" in name else p
            assert abs(rows.std() / size - 1) < 0.1, name
            assert abs(rows.mean()) < 0.1 * size, name
            assert "embed_tokens" not in name or not p[0].any(), name


@pytest.mark.full
@pytest.mark.parametrize("missing", [(), ("bias", "values")], ids=["whole", "in part"])
@pytest.mark.parametrize("initializer", ["xavier", "torch"])
@pytest.mark.parametrize("where", FAMILIES)
def test_loaded_parameters_are_not_initialized_again(where, initializer, missing, tmp_path):
    """Where a checkpoint lacks a bias or a table, transformers draws it, and must not draw its neighbours with it."""
    model = tiny_model(where, initializer=initializer, output_bias=True, dtype=torch.float32)
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    kept = {name: p for name, p in saved.items() if not any(part in name for part in missing)}
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    torch.manual_seed(5)
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, ignore_mismatched_sizes=bool(missing))
    assert again.config.initializer == initializer
    loaded = dict(again.named_parameters())
    assert set(loaded) == set(saved)
    assert [name for name in saved if not torch.equal(saved[name], loaded[name])] == [
        name for name in saved if name not in kept
    ]
    assert all(p.isfinite().all() and p.abs().max() < 5 for p in loaded.values())
