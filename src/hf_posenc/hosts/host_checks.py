# SPDX-License-Identifier: Apache-2.0
"""Checks of a host, by its code and by the outputs of a small copy: whether replaced positions have their effect."""

import re
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from ..generation.model_inputs import CACHE_NAME
from .attention import LostInputsError
from .configuration_posenc_host import HostConfig
from .encoding_changes import changed_config, with_config
from .modeling_posenc_host import attention_modules, own_encoding, stack_of

LAYERS = r"(num_hidden_layers|n_layers?|num_layers|decoder_layers|encoder_layers)"
# Sizes that some configs leave open, and that their models need.
SIZES_WITHOUT_DEFAULT = (
    r"pad_token_id|head_dim|(num_|n_)(local_|routed_)?experts|num_experts_per_tok|n_group|topk_group|n_shared_experts"
)
# Fields of configs by a pattern of their names, with the size in a small copy.
SMALL_SIZES = {
    r".*vocab_size(_per_layer_input)?": 64,
    r"(hidden_size|n_embd|d_model|embedding_size|word_embed_proj_dim|emb_dim|dim)(_per_layer_input)?": 32,
    r".*(intermediate_size|ffn_dim|n_inner|d_ff|ffn_hidden_size|ff_dim|inner_dim).*": 32,
    LAYERS: 4,
    r"(num_attention_heads|n_heads?|num_heads|attention_heads|(en|de)coder_attention_heads)": 4,
    r".*head_dim|kv_channels|attention_head_size": 8,
    r".*(lora_rank|_rank)": 8,
    r"rotary_dim": 4,
    r"(num_|n_)(local_|routed_)?experts|moe_num_experts": 4,
    r"(num_experts_per_tok|moe_topk|moe_k|top_k_experts|num_experts_per_token)": 2,
    r"n_group|topk_group|num_nextn_predict_layers|.*num_shared_experts|n_shared_experts": 1,
    r"(max_position_embeddings|n_positions|n_ctx|max_seq_len)": 64,
    r".*(sliding_window|attention_chunk_size|local_attention|window_size)": 8,
    r"(pad|bos|eos|sep|cls|mask)_token_id": 1,
}
NUM_TOKENS = 14
TOLERANCE = 1e-4  # of logits, in float32
checked: dict[tuple[str, str], str | None] = {}


def host_error(name: str, reason: str) -> ValueError:
    return ValueError(
        f"replace_positions needs a host whose attention takes other positions, but {name} {reason}; choose a model "
        "that docs/reference/hosts.md lists as supported."
    )


def objection_to_config(config: PreTrainedConfig) -> str | None:
    """Why a model with this config has no single stack of self-attentions; None if it may have one."""
    if config.is_encoder_decoder or getattr(config, "add_cross_attention", False):
        return "has cross-attention"
    if config.get_text_config() is not config:
        return "has several parts, each with its own config"
    needed = ("hidden_size", "num_attention_heads", "num_hidden_layers")
    if missing := [name for name in needed if not has_field(config, name)]:
        return f"has no {', '.join(missing)} of all layers in its config"
    return None


def has_field(config: PreTrainedConfig, name: str) -> bool:
    """Whether a config has a value that holds for all layers; one that differs by layer raises an error."""
    try:
        return getattr(config, name, None) is not None
    except Exception:
        return False


def objection_to_host(model: PreTrainedModel) -> str | None:
    """Why functions of ours cannot compute the attention of a model, as its code shows; None if they can."""
    num_attentions, num_layers = len(attention_modules(model)), model.config.num_hidden_layers
    if not num_attentions:
        return "does not call transformers' attention interface"
    if num_attentions > num_layers:
        return f"has {num_attentions} attentions in {num_layers} layers, such as cross-attention"
    if num_attentions < num_layers:
        return f"has layers without attention, {num_layers - num_attentions} of {num_layers}"
    return None


def require_checked(model: PreTrainedModel) -> None:
    """Raise a ValueError if a small copy of the model does not behave as its replaced positions require."""
    config, name = model.config, type(model).__name__
    if isinstance(config, HostConfig):
        return
    key = (name, str(sorted(small_fields(config).items(), key=str)))
    if key not in checked:
        checked[key] = objection_of_copy(type(model), config)
    if checked[key] is not None:
        raise host_error(name, str(checked[key]))


def small_fields(config: PreTrainedConfig) -> dict[str, Any]:
    """The fields of a config with small sizes; what is no size stays."""
    fields, num_layers, heads = config.to_dict(), config.num_hidden_layers, config.num_attention_heads
    layers = kept_layers(fields.get("layer_types") or [None] * num_layers)
    for name, value in fields.items():
        if isinstance(value, list) and len(value) == num_layers:
            fields[name] = [value[layer] for layer in layers]
        elif re.fullmatch(r".*(num_key_value_heads|num_kv_heads|multi_query_group_num)", name):
            fields[name] = min(heads, 4) if value in (None, heads) else min(value, 2)
        elif value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
            sizes = [size for pattern, size in SMALL_SIZES.items() if re.fullmatch(pattern, name)]
            if sizes and (value is not None or re.fullmatch(SIZES_WITHOUT_DEFAULT, name)):
                is_vocabulary = "vocab_size" in name  # the probes have tokens up to the small size
                fields[name] = sizes[0] if value is None or is_vocabulary else min(sizes[0], value)
    return {name: value for name, value in fields.items() if name not in ("architectures", "auto_map", "dtype")}


def kept_layers(layer_types: Sequence[str | None]) -> list[int]:
    """The layers of a small copy: four, with one of each type."""
    first_of_type = {layer_type: layer for layer, layer_type in reversed(list(enumerate(layer_types)))}
    others = [layer for layer in range(len(layer_types)) if layer not in first_of_type.values()]
    return sorted([*first_of_type.values(), *others][: SMALL_SIZES[LAYERS]])


def small_copy(model_class: type[PreTrainedModel], config: PreTrainedConfig) -> PreTrainedModel:
    """A model of a class with small sizes and random weights that make its outputs vary."""
    torch.manual_seed(0)
    model = model_class(type(config)(**small_fields(config))).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.25)
    return model


def objection_of_copy(model_class: type[PreTrainedModel], config: PreTrainedConfig) -> str | None:
    """Why a host cannot take other positions, from the outputs of a small copy; None if it can."""
    if (reason := objection_to_config(config)) is not None:
        return reason
    level, state = logging.get_verbosity(), torch.get_rng_state()
    logging.set_verbosity_error()
    try:
        with torch.no_grad():
            model = small_copy(model_class, config)
            return objection_to_host(model) or objection_by_probes(model)
    except LostInputsError:
        return "does not pass keywords on to its attention"
    except Exception as error:  # whatever the host raises
        reason = (str(error).splitlines() or [""])[0]
        return f"cannot be checked in a small copy, which raises a {type(error).__name__} ({reason[:120]})"
    finally:
        logging.set_verbosity(level)
        torch.set_rng_state(state)


def objection_by_probes(model: PreTrainedModel) -> str | None:
    """The first probe that fails, as a clause about the host; None if all succeed."""
    host = stack_of(model)
    own = own_encoding(host)
    tokens = torch.randint(3, 60, (2, NUM_TOKENS))
    padding = torch.ones_like(tokens)
    padding[0, :5] = 0
    if not torch.equal(outputs(replaced(model, own), tokens, padding), outputs(model, tokens, padding)):
        return "computes something else through another attention function"
    # All tokens see each other, so that no mask has an order.
    everything = torch.zeros(1, 1, NUM_TOKENS, NUM_TOKENS)
    order = torch.randperm(NUM_TOKENS)
    without = stack_of(replaced(model, "none"))
    if differs(outputs(without, tokens[:, order], everything), outputs(without, tokens, everything)[:, order]):
        return "has the order of tokens from elsewhere too"
    shuffled, straight = outputs(host, tokens[:, order], everything), outputs(host, tokens, everything)
    if own != "none" and not differs(shuffled, straight[:, order]):
        return "has no order of its own to replace"
    narrow = stack_of(replaced(model, "window", window_size=1))
    changed = tokens.clone()
    changed[:, 0] = (changed[:, 0] + 1) % 50 + 3
    last = host.config.num_hidden_layers + 1  # a token that the first one cannot reach in steps of one token
    change = outputs(narrow, changed) - outputs(narrow, tokens)
    if float(change[:, last:].abs().max()) > TOLERANCE:
        return "attends to tokens that a window hides"
    biased = stack_of(replaced(model, "alibi+window", window_size=5, window_sinks=1))
    whole = outputs(biased, tokens, padding)
    if differs(whole[0, 5:], outputs(biased, tokens[:1, 5:])[0]):
        return "depends on padding"
    if biased.posenc.is_causal and differs(cached_outputs(biased, tokens, padding)[:, 9:], whole[:, 9:]):
        return "has other outputs with a cache"
    return None


def replaced(model: PreTrainedModel, position_encoding_type: str, **parameters: Any) -> Any:
    """A copy of a model with other positions."""
    model = deepcopy(model)
    return with_config(model, changed_config(model, position_encoding_type, None, parameters))


def outputs(model: PreTrainedModel, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
    """The first output of a model or a stack (B, T, ...), without a cache."""
    options: dict[str, Any] = {"use_cache": False} if hasattr(model.config, "use_cache") else {}
    if mask is not None and mask.ndim == 4:  # some hosts count positions from a mask of two dimensions
        options["position_ids"] = torch.arange(tokens.shape[1])[None]
    return model(tokens, attention_mask=mask, **options)[0]


def cached_outputs(model: PreTrainedModel, tokens: Tensor, mask: Tensor) -> Tensor:
    """The hidden states of a causal stack (B, T, D), the last five tokens one by one with a cache."""
    cache, steps, end = DynamicCache(config=model.config), [], 0
    for piece in tokens.split([NUM_TOKENS - 5, *[1] * 5], dim=1):
        end += piece.shape[1]
        steps.append(model(piece, attention_mask=mask[:, :end], use_cache=True, **{CACHE_NAME: cache})[0])
    return torch.cat(steps, dim=1)


def differs(x: Tensor, y: Tensor) -> bool:
    """Whether outputs differ by more than rounding; those that are no numbers do."""
    return not torch.allclose(x, y, atol=TOLERANCE * float(y.abs().max()), rtol=TOLERANCE)
