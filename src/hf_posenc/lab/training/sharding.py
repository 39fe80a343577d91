"""FSDP: layers are sharded one by one, and the rest with the whole model.

FSDP gathers the parameters of a sharded module before each `forward`. Every layer calls each hook of an encoding, so
that an encoding sharded by itself would be gathered as often. Its tables are small compared with a layer's weights.
Therefore encodings are sharded with the whole model, which is gathered once. The embeddings and the output projection
are too, because they may be tied.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from accelerate import FullyShardedDataParallelPlugin
from torch import Tensor
from transformers import PreTrainedModel

from ...convert.folders import auto_model_class
from ...utils.atomic_io import first_difference
from .arguments import TrainingArguments
from .lora import add_lora, merge_lora

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
    if args.lora_rank is not None:
        raise ValueError(
            f"A model that is sharded by FSDP trains all weights, but train.lora_rank is {args.lora_rank}; leave it "
            "out, or train without FSDP."
        )


def shard_by_layers(model: PreTrainedModel, plugin: FullyShardedDataParallelPlugin) -> None:
    """Let accelerate shard the layers one by one and the rest together. A ValueError for other settings."""
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
        # As without FSDP, the loss and the reduced gradients are float32.
        plugin.mixed_precision_policy = replace(policy, reduce_dtype=torch.float32, output_dtype=None)
    # accelerate shards the embeddings that these return by themselves; they must stay with the whole model.
    model.get_input_embeddings = model.get_output_embeddings = lambda: None


def materialize(model: PreTrainedModel, weights: Mapping[str, Tensor], lora_rank: int | None = None) -> PreTrainedModel:
    """An unsharded model like `model` with these weights. Sharding changes a model's class, which must not be saved.

    With `lora_rank`, the weights have adapters of that rank, which are merged.
    """
    with torch.device("meta"):
        unsharded = auto_model_class(model.config).from_config(model.config)
        if lora_rank is not None:
            add_lora(unsharded, lora_rank)
    unsharded.load_state_dict(weights, strict=False, assign=True)
    unsharded.tie_weights()
    if lora_rank is not None:
        merge_lora(unsharded)
    unsharded.generation_config = model.generation_config
    return unsharded
