"""LoRA: low-rank adapters of the linear layers are trained in place of their weights, and then merged into them.

    W' = W + 2 B A    A (rank, D_in), B (D_out, rank), B = 0 at first

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (ICLR 2022), https://arxiv.org/abs/2106.09685

Adapted are all linear layers of encoder and decoder: attention projections and feed-forward networks. Encodings and
alignment are trained in full, because a conversion makes them anew. Embeddings, norms, output projection and biases
stay as they are. peft implements adapters and merging.
"""

from torch import nn
from transformers import PreTrainedModel

from ...convert.encodings import NEW_WEIGHT_PREFIXES

SCALE = 2  # alpha / rank in the paper's symbols


def validate_lora_installed() -> None:
    """Raise a ValueError unless peft is installed."""
    try:
        import peft  # noqa: F401
    except ImportError:
        raise ValueError(
            "train.lora_rank needs the package peft, but it is not installed; run `pip install 'hf-posenc[lora]'`, in "
            "a clone `pip install '.[lora]'`, or leave train.lora_rank out, which trains all weights."
        ) from None


def add_lora(model: PreTrainedModel, rank: int) -> None:
    """Give the linear layers of a model new adapters of that rank, in place, and freeze all that LoRA does not train.

    The model's function does not change.
    """
    from peft import LoraConfig, inject_adapter_in_model

    targets = [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and ".layers." in name]
    config = LoraConfig(r=rank, lora_alpha=SCALE * rank, target_modules=targets)
    inject_adapter_in_model(config, model)
    for name, parameter in model.named_parameters():
        if name.startswith(NEW_WEIGHT_PREFIXES):
            parameter.requires_grad_(True)


def merge_lora(model: PreTrainedModel) -> None:
    """Add the adapters of `add_lora` to the weights, in place. Afterwards the model has its own layers alone."""
    from peft.tuners.lora import LoraLayer

    adapted = {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}
    for name, module in adapted.items():
        module.merge()
        model.set_submodule(name, module.get_base_layer())
    model.requires_grad_(True)


def describe_lora(model: PreTrainedModel) -> str:
    """The number of parameters that are trained, as a sentence."""
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    total = sum(parameter.numel() for parameter in model.parameters())
    return f"LoRA trains {trained:,} of {total:,} parameters: adapters, encodings and alignment."
