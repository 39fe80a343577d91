"""Bad input of replace_positions: one line with a rule and a remedy, and a model that is unchanged."""

import pytest
import torch
from hosts import host, tokens
from support.models import tiny_model
from torch import nn
from transformers import AutoModelForMaskedLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import hf_posenc


@pytest.mark.parametrize(
    ("arguments", "parameters", "message"),
    [
        (["alibbi"], {}, "nearest is 'alibi'"),
        (["learned"], {}, "changes embeddings"),
        (["forgetting"], {}, "keeps a state"),
        (["relative"], {}, "needs the attention weights"),
        (["rotary+fire"], {}, "queries before their rotation"),
        (["log_n"], {}, "only modifies"),
        (["pope"], {}, "keys for several heads"),
        (["alibi", [4]], {}, "indices from 0 to 3"),
        (["alibi", "every third"], {}, "every 4th"),
        (["alibi", []], {}, "leave it out"),
        (["rotary+window"], {"window_sizes": 3}, "nearest one is 'window_size'"),
        (["rotary+window"], {"window_size": 0}, "1 or more"),
        (["rotary"], {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "frequencies that do not change"),
        (["rotary"], {"rope_parameters": {"rope_type": "yarn"}}, "a factor"),
        (["rotary"], {"rope_parameters": {"factr": 2.0}}, "nearest one is 'factor'"),
    ],
)
def test_what_a_host_cannot_take_is_refused(arguments, parameters, message):
    model, ids = host("llama"), tokens(1, 9)
    before = model(ids).logits
    with pytest.raises(ValueError, match=message) as error:
        hf_posenc.replace_positions(model, *arguments, **parameters)
    assert "\n" not in str(error.value)
    assert type(model).__name__ == "LlamaForCausalLM" and torch.equal(model(ids).logits, before)


def test_other_models_are_refused():
    with pytest.raises(TypeError, match="a model of transformers"):
        hf_posenc.replace_positions(nn.Linear(2, 2), "none")
    with pytest.raises(ValueError, match="convert_encodings"):
        hf_posenc.replace_positions(tiny_model("rotary"), "none")
    with pytest.raises(ValueError, match="layers must be left out"):
        hf_posenc.replace_positions(host("gpt2"), "none", layers=[0])
    with pytest.raises(ValueError, match="has a window in layers"):
        hf_posenc.replace_positions(host("gemma3_text"), "rotary+log_n")
    with pytest.raises(ValueError, match="other rotations"):
        hf_posenc.replace_positions(
            host("gemma3_text"), "rotary", rope_parameters={"rope_type": "linear", "factor": 2.0}
        )


@pytest.mark.parametrize(("model_type", "reason"), [("bloom", "attention interface"), ("marian", "cross-attention")])
def test_unsupported_hosts_are_refused_with_the_reason(model_type, reason):
    from transformers import AutoModelForCausalLM

    config = CONFIG_MAPPING[model_type]()
    for name, size in {"hidden_size": 16, "n_layer": 1, "n_head": 2, "d_model": 16, "vocab_size": 32}.items():
        if hasattr(config, name):
            setattr(config, name, size)
    config.pad_token_id, config.num_attention_heads = 0, 2
    model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(ValueError, match=reason):
        hf_posenc.replace_positions(model, "none")


def test_a_removed_table_does_not_come_back():
    model = hf_posenc.replace_positions(host("gpt2"), "none")
    with pytest.raises(ValueError, match="load the host again"):
        hf_posenc.replace_positions(model, "learned")


def test_a_second_window_of_another_size_is_refused():
    model = hf_posenc.replace_positions(host("llama"), "rotary+window", [0], window_size=3)
    with pytest.raises(ValueError, match="share one window_size"):
        hf_posenc.replace_positions(model, "window", [1], window_size=4)


def test_a_layer_that_is_left_out_is_noticed():
    """Attention that is computed by another function than ours raises an error, whatever set it."""
    model = hf_posenc.replace_positions(host("llama"), "alibi")
    model.config._attn_implementation = "sdpa"
    with pytest.raises(ValueError, match="set_attn_implementation"):
        model(tokens(1, 5))
    with pytest.raises(ValueError, match="attn_implementation must be one of"):
        model.set_attn_implementation("flash_attention_2")


def test_encoders_refuse_what_is_not_theirs():
    with pytest.raises(ValueError, match="changes embeddings"):
        hf_posenc.replace_positions(host("bert", AutoModelForMaskedLM), "sinusoidal")
