"""Distributed training: initialization, agreement of all ranks, and sharding by FSDP.

FSDP gathers the parameters of a sharded module before each `forward`. Every layer calls each hook of an encoding, so
that an encoding sharded by itself would be gathered as often. Its tables are small compared with a layer's weights.
Therefore layers are sharded one by one, and encodings with the whole model, which is gathered once. The embeddings and
the output projection are too, because they may be tied.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch
import transformers
from accelerate import FullyShardedDataParallelPlugin, PartialState
from accelerate.utils import gather_object, reduce
from torch import Tensor
from transformers import PreTrainedModel

from ...convert.folders import auto_model_class
from ...utils.atomic_io import first_difference, short_hash
from .arguments import TrainingArguments
from .lora import add_lora, merge_lora

TIMEOUT = timedelta(hours=2)  # the others wait while the first process encodes the data
# The first remedy for lack of memory.
FREE_MEMORY = "end other programs that hold some and give the same command again, which goes on from what is saved."


def init_distributed(use_cpu: bool) -> PartialState:
    """Initialize the processes that a launcher has started, or this one alone. A ValueError if `accelerate launch`
    started fewer than requested, or sets what only the config may set."""
    for variable, setting in (("mixed_precision", "train.bf16"), ("dynamo_backend", "train.torch_compile")):
        if (value := os.environ.get(f"ACCELERATE_{variable.upper()}", "no").lower()) != "no":
            raise ValueError(
                f"A run remembers its config and not how it was launched, but accelerate launch has "
                f"{variable}={value}; give it {variable}=no, and {setting}=true to train.py."
            )
    if use_cpu := use_cpu or not torch.accelerator.is_available():
        # Without the first the Trainer treats each process as a single one. Without the second the device is cpu:0, on
        # which transformers 5.17 cannot resume.
        os.environ |= {"ACCELERATE_USE_CPU": "true", "ACCELERATE_TORCH_DEVICE": "cpu"}
    processes = PartialState(cpu=use_cpu, timeout=TIMEOUT)
    is_multi_process_launch = {"ACCELERATE_MIXED_PRECISION", "MASTER_ADDR"} <= os.environ.keys()
    if processes.num_processes == 1 and is_multi_process_launch and "LOCAL_RANK" not in os.environ:
        raise ValueError(
            "accelerate launch starts several processes on several GPUs only, but on this machine, or with --cpu, it "
            "has started 1 whatever --num_processes says; start as many as you want on CPUs by torchrun "
            "--nproc_per_node NUMBER train.py CONFIG, or one by python train.py CONFIG."
        )
    return processes


def any_rank(flag: bool) -> bool:
    """Whether the flag is true in any process. All processes must call it."""
    processes = PartialState()
    if processes.num_processes == 1:
        return flag
    return bool(reduce(torch.tensor(float(flag), device=processes.device), "sum") > 0)


def validate_same_on_all_ranks(values: Mapping[str, object]) -> None:
    """Raise a ValueError in every process if the `values` of one differ from those of the first. All processes must
    call it."""
    first, *others = gather_object([values])
    for number, other in enumerate(others, start=1):
        if difference := first_difference(first, other):
            raise ValueError(
                "The processes of a run train one system on the same data, from the same checkpoint, by the same code, "
                f"but between process 0 and process {number} {difference}; give all of them the same command, the same "
                "installation, and an output folder on a file system that they share."
            )


def code_versions() -> dict[str, str]:
    """A hash of this package, and the versions of torch and transformers."""
    package = b"".join(file.read_bytes() for file in sorted(Path(__file__).parents[2].rglob("*.py")))
    return {"hf_posenc": short_hash(package), "torch": torch.__version__, "transformers": transformers.__version__}


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
