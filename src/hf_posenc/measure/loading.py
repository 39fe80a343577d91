"""Loading of any language model or encoder-decoder, refused before loading if it cannot run here."""

from typing import Any

import psutil
import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoTokenizer,
    PreTrainedConfig,
)

from ..convert.folders import auto_from_pretrained, auto_model_class

GIB = 2**30
ROOM = 1.2  # of the weights' size: activations and the cache need some memory too


def load_for_measuring(
    name: str, *, device: str | None = None, dtype: str | None = None, gguf_file: str | None = None
) -> tuple[Any, Any]:
    """The model and the tokenizer of a folder or a name on the Hub, in evaluation mode on its device.

    `device` is the first GPU by default, if there is one. `dtype` is that of the checkpoint by default, on a CPU
    float32. `gguf_file` is the name of a GGUF file in the folder, whose weights are dequantized.

    Raises a ValueError, before weights are read, for a model that needs its own code, that has no output projection on
    a vocabulary, or that does not fit into memory.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):  # by the kind of device
        raise ValueError(
            f"device must be one of torch's that is here, but it is {device!r}; choose another, or leave it out."
        ) from None
    options = {} if gguf_file is None else {"gguf_file": gguf_file}
    try:
        config = auto_from_pretrained(AutoConfig, name, **options)
    except OSError as error:
        raise ValueError(
            "MODEL must be the folder of a saved model, or a name on the Hub that can be reached, but there is none at "
            f"{name!r} ({' '.join(str(error).split())}); name another."
        ) from None
    mapping = MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING if config.is_encoder_decoder else MODEL_FOR_CAUSAL_LM_MAPPING
    if type(config) not in mapping:
        raise ValueError(
            f"MODEL must be a language model or an encoder-decoder of transformers or hf_posenc, but {name} has "
            f"model_type={config.model_type!r}, which AutoModelForCausalLM does not load; name another."
        )
    if dtype is None:
        dtype = "float32" if device == "cpu" else "auto"
    validate_memory(name, config, device, dtype)
    model = auto_from_pretrained(auto_model_class(config), name, dtype=dtype, **options)
    return model.to(device).eval(), auto_from_pretrained(AutoTokenizer, name, **options)


def validate_memory(name: str, config: PreTrainedConfig, device: str, dtype: str) -> None:
    """Raise a ValueError if the weights do not fit into the free memory of the device.

    The size of weights that are quantized by a package is not known before they are read, and not checked.
    """
    if getattr(config, "quantization_config", None) is not None:
        return
    with torch.device("meta"):
        model = auto_model_class(config).from_config(config)
    loaded_dtype = (config.dtype or torch.float32) if dtype == "auto" else getattr(torch, dtype)
    needed = ROOM * sum(weight.numel() for weight in model.parameters()) * loaded_dtype.itemsize
    free = free_bytes(device)
    if needed > free:
        raise ValueError(
            f"The weights of {name} must fit into memory, but in {loaded_dtype} they need {needed / GIB:.1f} GiB and "
            f"{device} has {free / GIB:.1f} GiB free; choose a larger device, or another --dtype such as bfloat16."
        )


def free_bytes(device: str) -> int:
    """The free memory of a device, in bytes; of a device that is neither a CPU nor a GPU of CUDA, that of the CPU."""
    return torch.cuda.mem_get_info(device)[0] if device.startswith("cuda") else psutil.virtual_memory().available
