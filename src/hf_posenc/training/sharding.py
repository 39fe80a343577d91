"""FSDP: which modules are sharded, and how a whole model comes of the shards.

FSDP gathers the parameters of a sharded module before its `forward`. An encoding has one, which answers for its hooks,
but every layer calls it, for each of them: by itself it would be gathered as often, for a table that a layer's weights
dwarf. So its parameters are sharded with those of the whole model, which are gathered once. The tables of embeddings
and output projection must be, since two or three of them may be one. Only the layers are sharded by themselves.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from accelerate import FullyShardedDataParallelPlugin
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel

from ..utils.atomic_io import first_difference
from .arguments import TrainingArguments

REQUIRED_PLUGIN_SETTINGS = {
    "fsdp_version": 2,
    "fsdp_auto_wrap_policy": "transformer_auto_wrap_policy",
    "fsdp_state_dict_type": "FULL_STATE_DICT",
    "fsdp_cpu_ram_efficient_loading": False,
}


def validate_fsdp_arguments(args: TrainingArguments) -> None:
    """Refuse arguments that need the whole model, or its embeddings, in one process."""
    for argument in ("predict_with_generate", "neftune_noise_alpha"):
        if getattr(args, argument):
            raise ValueError(
                f"A model that is sharded by FSDP trains without train.{argument}, which needs it, or its "
                f"embeddings, in one piece; leave train.{argument} out, or train without FSDP."
            )


def shard_by_layers(model: PreTrainedModel, plugin: FullyShardedDataParallelPlugin) -> None:
    """Have accelerate shard the layers one by one and the rest together; a ValueError if it is set to do otherwise."""
    actual = {
        "fsdp_version": plugin.fsdp_version,
        "fsdp_auto_wrap_policy": getattr(plugin.auto_wrap_policy, "__name__", None),
        "fsdp_state_dict_type": plugin.state_dict_type.name,
        "fsdp_cpu_ram_efficient_loading": bool(plugin.cpu_ram_efficient_loading),
    }
    if difference := first_difference(REQUIRED_PLUGIN_SETTINGS, actual):
        raise ValueError(
            f"FSDP works as configs/accelerate/fsdp.yaml sets it and in no other way, but there {difference}; launch "
            "with that file."
        )
    if (policy := plugin.mixed_precision_policy) is not None:
        # As without FSDP the loss, and the gradients where they are summed up, have all their digits.
        plugin.mixed_precision_policy = replace(policy, reduce_dtype=torch.float32, output_dtype=None)
    # What accelerate is not shown it does not shard by itself.
    model.get_input_embeddings = model.get_output_embeddings = lambda: None


def materialize(model: PreTrainedModel, weights: Mapping[str, Tensor]) -> PreTrainedModel:
    """A whole model like `model` that holds `weights`. (A sharded one is of a class of torch's, and saved as such.)"""
    with torch.device("meta"):
        unsharded = AutoModelForSeq2SeqLM.from_config(model.config)
    unsharded.load_state_dict(weights, strict=False, assign=True)
    unsharded.tie_weights()
    unsharded.generation_config = model.generation_config
    return unsharded
