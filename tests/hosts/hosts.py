"""Small models of transformers with random weights that make their outputs vary."""

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from hf_posenc import replace_positions
from hf_posenc.hosts.host_checks import small_copy
from hf_posenc.hosts.modeling_posenc_host import stack_of

CAUSAL_HOSTS = [
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "smollm3",
    "olmo2",
    "phi",
    "phi3",
    "gpt_neox",
    "gpt2",
    "opt",
    "mixtral",
]
# Of the defaults, so that a small copy has two heads of keys for four of queries.
GROUPED = {"llama": {"num_key_value_heads": 8}}
EXACT = {"atol": 2e-5, "rtol": 1e-4}  # of logits, in float32


def host(model_type: str, auto_class: type = AutoModelForCausalLM) -> PreTrainedModel:
    """A host of this model type, in evaluation."""
    config = CONFIG_MAPPING[model_type](**GROUPED.get(model_type, {}))
    return small_copy(auto_class._model_mapping[type(config)], config)


def replaced(model_type: str, encoding: str, layers=None, **parameters) -> PreTrainedModel:
    """A host with another encoding, whose trained biases are not zero."""
    model = replace_positions(host(model_type), encoding, layers, **parameters)
    torch.manual_seed(3)
    for parameter in stack_of(model).posenc.sums.parameters():
        torch.nn.init.normal_(parameter)
    return model


def tokens(*shape: int, seed: int = 0) -> Tensor:
    """Random tokens that are not special."""
    return torch.randint(3, 60, shape, generator=torch.Generator().manual_seed(seed))
