"""A longer table of positions: its rows, and what the model computes with it before and after saving."""

import pytest
import torch
from hosts import host, tokens
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM

from hf_posenc import lengthen_table
from hf_posenc.hosts.modeling_posenc_host import table_name

HOSTS = {
    "bert": AutoModelForMaskedLM,
    "roberta": AutoModelForMaskedLM,
    "gpt2": AutoModelForCausalLM,
    "opt": AutoModelForCausalLM,
}
FIRST_ROW = {"roberta": 2, "opt": 2}  # of the table, that is a position; 0 in others


def rows(model):
    return model.get_submodule(table_name(model)).weight.detach()


@pytest.mark.parametrize("model_type", HOSTS)
def test_a_repeated_table_changes_no_input_up_to_the_old_length(model_type):
    model = host(model_type, HOSTS[model_type])
    ids = tokens(2, model.config.max_position_embeddings - 2)  # two rows of RoBERTa's table are no positions
    expected, old = model(ids).logits, rows(model)
    longer = lengthen_table(model, 150, "repeat")
    assert longer is model and model.config.max_position_embeddings == 150
    torch.testing.assert_close(model(ids).logits, expected, rtol=0, atol=0)
    offset = FIRST_ROW.get(model_type, 0)
    positions = len(old) - offset
    for number, row in enumerate(rows(model)[offset:]):
        assert torch.equal(row, old[offset + number % positions])
    assert torch.equal(rows(model)[:offset], old[:offset])
    assert model(tokens(1, 148)).logits.isfinite().all()


@pytest.mark.parametrize("model_type", HOSTS)
def test_interpolated_rows_lie_between_the_trained_ones(model_type):
    model = host(model_type, HOSTS[model_type])
    old = rows(model)
    lengthen_table(model, 160)
    offset = FIRST_ROW.get(model_type, 0)
    new, last = rows(model)[offset:], len(old) - offset - 1
    for number, row in enumerate(new):
        place = number * last / (len(new) - 1)
        below = min(int(place), last - 1)
        expected = old[offset + below] + (place - below) * (old[offset + below + 1] - old[offset + below])
        torch.testing.assert_close(row, expected, rtol=1e-4, atol=1e-4)


def test_a_longer_table_is_saved_under_the_hosts_own_type(tmp_path):
    model = lengthen_table(host("bert", AutoModel), 200)
    ids = tokens(2, 200)
    model.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path)
    assert type(loaded).__name__ == "BertModel" and loaded.config.model_type == "bert"
    torch.testing.assert_close(loaded(ids)[0], model(ids)[0], rtol=0, atol=0)
    torch.testing.assert_close(loaded(ids, position_ids=torch.arange(200)[None])[0], model(ids)[0], rtol=0, atol=0)


def test_a_table_that_cannot_be_lengthened_is_refused_and_unchanged():
    model = host("bert", AutoModel)
    for length in (64, 10):
        with pytest.raises(ValueError, match="max_position_embeddings must exceed 64"):
            lengthen_table(model, length)
    with pytest.raises(ValueError, match="method must be one of interpolate, repeat"):
        lengthen_table(model, 128, "copy")
    with pytest.raises(ValueError, match="LlamaModel must have a table of positions"):
        lengthen_table(host("llama", AutoModel), 128)
    assert len(rows(model)) == model.config.max_position_embeddings == 64
