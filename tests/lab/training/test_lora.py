"""LoRA: adapters do not change a model at first, train with the encodings, and merge exactly."""

import sys

import pytest
import torch
from support.models import tiny_model
from transformers import PreTrainedModel

from hf_posenc.convert.encodings import NEW_WEIGHT_PREFIXES
from hf_posenc.lab.training.arguments import training_arguments
from hf_posenc.lab.training.distributed import materialize
from hf_posenc.lab.training.lora import add_lora, describe_lora, merge_lora

SYSTEMS = ["relative", "sinusoidal", "relative+window by length_ratio"]


def batch() -> dict[str, torch.Tensor]:
    ids = torch.arange(4, 24).reshape(2, 10) % 20 + 4
    return {"input_ids": ids, "labels": ids.flip(1)[:, :7]}


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(**batch()).logits


def adapted_model(system: str) -> tuple[PreTrainedModel, dict[str, torch.Tensor], torch.Tensor]:
    """A float64 model whose adapters were trained for two steps, its weights before, and its logits before."""
    model = tiny_model(system, dropout=0.0).double()
    before, before_logits = {name: weight.clone() for name, weight in model.state_dict().items()}, logits(model)
    add_lora(model, 2)
    torch.testing.assert_close(logits(model), before_logits, rtol=0, atol=0)
    optimizer = torch.optim.SGD([weight for weight in model.parameters() if weight.requires_grad], lr=0.5)
    for _ in range(2):  # B is zero at first: A has gradients from the second step on
        optimizer.zero_grad()
        model.train()(**batch()).loss.backward()
        optimizer.step()
    return model, before, before_logits


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_merged_model_equals_the_adapted_one_and_has_its_own_layers_alone(system):
    model, before, before_logits = adapted_model(system)
    adapted = logits(model)
    assert (adapted - before_logits).abs().max() > 1e-3
    merge_lora(model)
    torch.testing.assert_close(logits(model), adapted, rtol=0, atol=1e-12)
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(weight.requires_grad for weight in model.parameters())
    changed = {name for name in before if not torch.equal(after[name], before[name])}
    linear = {name for name in before if name.endswith(("proj.weight", "fc1.weight", "fc2.weight"))}
    new = {name for name in before if name.startswith(NEW_WEIGHT_PREFIXES)}
    assert linear <= changed <= linear | new
    assert (system == "sinusoidal") == (not new & changed)


def test_saved_weights_with_adapters_become_the_merged_model():
    model, _, _ = adapted_model("relative")
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    merged = materialize(model, weights, 2)
    torch.testing.assert_close(logits(merged), logits(model), rtol=0, atol=1e-12)
    assert not any("lora" in name for name in merged.state_dict())


def test_the_number_of_trained_parameters_is_described():
    model = tiny_model("sinusoidal")
    total = model.num_parameters()
    add_lora(model, 2)
    linear = [weight for name, weight in model.named_parameters() if name.endswith("base_layer.weight")]
    trained = sum(2 * sum(weight.shape) for weight in linear)
    assert describe_lora(model).startswith(f"LoRA trains {trained:,} of {total + trained:,} parameters")


def test_lora_is_refused_without_peft(tmp_path, monkeypatch):
    assert training_arguments({"lora_rank": 4, "use_cpu": True}, tmp_path).lora_rank == 4
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ValueError, match=r"needs the package peft, but .*; run `pip install 'hf-posenc\[lora\]'`"):
        training_arguments({"lora_rank": 4, "use_cpu": True}, tmp_path)
