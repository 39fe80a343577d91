"""Tiny decoder-only models for every registered encoding and for sums, and their cached decoding."""

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, StaticCache

from hf_posenc import PosEncCausalConfig, PosEncForCausalLM
from support.models import SMALL_PARAMETERS, entries


def tiny_causal_config(encoding: str, **changes) -> PosEncCausalConfig:
    """A config with sizes that all differ."""
    used = {parameter.name for entry in entries(encoding) for parameter in entry.config_parameters}
    fields = {
        "vocab_size": 29,
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 20,
        "position_encoding_type": encoding,
    }
    fields |= {name: value for name, value in SMALL_PARAMETERS.items() if name in used}
    return PosEncCausalConfig(**(fields | changes))


def tiny_causal_model(
    encoding: str, *, seed: int = 0, dtype: torch.dtype = torch.float64, **changes
) -> PosEncForCausalLM:
    """A model in evaluation mode, with noise added to every parameter, so that each has an effect."""
    torch.manual_seed(seed)
    model = PosEncForCausalLM(tiny_causal_config(encoding, **changes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    model.model.min_keys_to_prune = 0  # a window leaves hidden keys out however few are cached
    return model.to(dtype).eval()


def causal_cache(model: PosEncForCausalLM, kind: str, room: int = 12) -> Cache:
    """An empty cache of a kind, "static" or "dynamic"."""
    if kind == "static":
        return StaticCache(config=model.config, max_cache_len=room)
    return DynamicCache(config=model.config)


@torch.no_grad()
def decode_causal(
    model: PosEncForCausalLM, ids: Tensor, chunks: list[int], cache: Cache, *, mask: Tensor | None = None, start=0
) -> Tensor:
    """The logits of `ids` from `start` on, through a cache that holds what stands before."""
    logits = []
    for size in chunks:
        end = start + size
        step = model(
            input_ids=ids[:, start:end],
            attention_mask=None if mask is None else mask[:, :end],
            cache=cache,
            use_cache=True,
        )
        logits.append(step.logits)
        start = end
    return torch.cat(logits, dim=1)
