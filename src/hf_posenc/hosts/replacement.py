# SPDX-License-Identifier: Apache-2.0
"""The public call that replaces the position encoding of a host; all its checks come before the model is changed."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedModel

from ..transformer.configuration_base import BaseConfig
from .attention import IMPLEMENTATION_PREFIX, MASK_FUNCTIONS
from .configuration_posenc_host import HostConfig
from .encoding_changes import changed_config, with_config
from .host_checks import host_error, objection_to_config, objection_to_host, require_checked


def replace_positions(
    model: PreTrainedModel, position_encoding_type: str, layers: Sequence[int] | str | None = None, **parameters: Any
) -> PreTrainedModel:
    """Replace the position encoding of a model of transformers, in place.

    Args:
        model: a decoder-only or encoder-only model of transformers, such as LlamaForCausalLM. No code of it changes.
        position_encoding_type: a name of POSITION_ENCODINGS or a sum of names, as in PosEncConfig. The host's own
            rotation is "rotary", its own table "learned": "rotary+window" adds a window, "window" alone drops the
            rotation. "none" leaves attention without positions.
        layers: the layers that change, as indices from 0, or as "every 4th" (3, 7, 11 and so on) or "all but every
            4th"; None for all. Other layers keep what they have.
        **parameters: parameters of the encodings by their names in PosEncConfig, such as `window_size` and
            `window_sinks`, and `rope_parameters` for another scaling of the rotation.

    Returns the same model, whose class and config are now the host's own with the prefix PosEnc: it is saved under a
    model type such as `posenc_llama`. A second call changes further layers. New trained biases start at zero where that
    changes nothing, so that a model without a rotation needs training afterwards.

    Raises a TypeError for another kind of object. Raises a ValueError for a host whose attention cannot be reached, an
    encoding that the host cannot take, and layers or parameters that it does not have; the model is then unchanged.
    """
    validate_host(model)
    config = changed_config(model, position_encoding_type, layers, parameters)
    require_checked(model)
    return with_config(model, config)


def validate_host(model: PreTrainedModel) -> None:
    """Raise an error unless a model has one stack of layers, each with an attention that functions of ours compute."""
    if not isinstance(model, PreTrainedModel):
        raise TypeError(
            f"model must be a model of transformers, but it is a {type(model).__name__}; load one by an Auto class, "
            "and replace positions before it is wrapped, as by PEFT."
        )
    name, config = type(model).__name__, model.config
    if isinstance(config, BaseConfig):
        raise ValueError(f"{name} is a model of hf_posenc itself; use hf_posenc.convert_encodings.")
    if not (type(model).__module__.startswith("transformers.models.") or isinstance(config, HostConfig)):
        raise ValueError(f"{name} must be a class of transformers, but it is from {type(model).__module__}; take one.")
    implementation = str(config._attn_implementation).removeprefix(IMPLEMENTATION_PREFIX)
    if implementation not in MASK_FUNCTIONS:
        raise ValueError(
            f"{name} must compute attention by {', '.join(MASK_FUNCTIONS)}, but it is set to {implementation!r}; call "
            "model.set_attn_implementation('sdpa') first."
        )
    if (reason := objection_to_config(config) or objection_to_host(model)) is not None:
        raise host_error(name, reason)
