# SPDX-License-Identifier: Apache-2.0
"""Configs of transformers' models whose position encoding is replaced: the host's own fields, and what was changed.

The config of each host is a class made on demand: PosEncLlamaConfig inherits LlamaConfig, and its model type is
`posenc_llama`. Programs that load models by their type or architecture then refuse the checkpoint, where they would
else compute the host's own positions in silence.
"""

from collections.abc import Callable, Mapping
from copy import copy
from functools import cache
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import transformers
from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from ..encodings.base import StackSpec
from ..encodings.registry import POSITION_ENCODINGS, parse_sum

CLASS_PREFIX = "PosEnc"
TYPE_PREFIX = "posenc_"
# In `position_encoding_type`, the encoding that a layer had before.
OWN = "host"
DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 10000.0}


class HostConfig:
    """What the config of a host has in addition to the host's own fields and methods.

    It is no dataclass, whose fields would replace the host's defaults: `host_config_class` adds the fields.

    `position_encoding_type`: the encoding of all layers, or a list with that of each; "host" for the host's own.
    `position_encoding_parameters`: the parameters of these encodings by name, and `rope_parameters` of another scaling.
    """

    # What saves the code of a checkpoint. The package sets it; None in code that came with a checkpoint.
    write_code: ClassVar[Callable[[Path, "HostConfig"], None] | None] = None

    position_encoding_type: str | list
    position_encoding_parameters: dict | None
    num_hidden_layers: int
    push_to_hub: Callable[..., object]

    @property
    def layer_encodings(self) -> list[str]:
        """The encoding of each layer, a name or a sum of names; "host" for the host's own."""
        encodings = self.position_encoding_type
        return encodings if isinstance(encodings, list) else [encodings] * self.num_hidden_layers

    def save_pretrained(self, save_directory: str | PathLike[str], push_to_hub: bool = False, **kwargs: Any) -> None:
        """transformers' saving, with the code that loads the model where this package is not installed."""
        super().save_pretrained(save_directory)  # type: ignore[misc]  # the host's
        write_code = type(self).write_code
        if write_code is not None:
            write_code(Path(save_directory), self)
        if push_to_hub:  # transformers' save_pretrained would push before the code is written
            self.push_to_hub(kwargs.pop("repo_id", Path(save_directory).name), **kwargs)


def host_class_of(name: str, base: type) -> Any:
    """The class of transformers, a subclass of `base`, that this name has after the prefix; else an AttributeError."""
    host_class: Any = getattr(transformers, name.removeprefix(CLASS_PREFIX), None)
    if not (name.startswith(CLASS_PREFIX) and isinstance(host_class, type) and issubclass(host_class, base)):
        raise AttributeError(f"hf_posenc has no attribute {name!r}")
    return host_class


@cache
def host_config_class(name: str) -> type[HostConfig]:
    """The config class of this name, such as PosEncLlamaConfig; an AttributeError if transformers has no such host."""
    host_class = host_class_of(name, PreTrainedConfig)
    namespace = {
        "__module__": __name__,
        "__doc__": f"{host_class.__name__}, with the fields of HostConfig.",
        "__annotations__": {"position_encoding_type": str | list, "position_encoding_parameters": dict | None},
        "model_type": TYPE_PREFIX + host_class.model_type,
        "position_encoding_type": OWN,
        "position_encoding_parameters": None,
    }
    return strict(type(name, (HostConfig, host_class), namespace))


def __getattr__(name: str) -> type[HostConfig]:
    """The class of a host by its name, for transformers' loading and for pickle."""
    return host_config_class(name)


class EncodingParameters:
    """The config that encodings read: their parameters, and the sizes of a host under the names of EncodingConfig."""

    initializer = "xavier"

    def __init__(self, config: PreTrainedConfig, parameters: Mapping[str, Any]) -> None:
        self.d_model = config.hidden_size
        self.host_config, self.rope_parameters = copy(config), parameters.get("rope_parameters", DEFAULT_ROPE)
        if "rope_parameters" in parameters:
            self.host_config.rope_parameters = self.rope_parameters
        for entry in POSITION_ENCODINGS.values():
            for parameter in entry.config_parameters:
                setattr(self, parameter.name, parameters.get(parameter.name, parameter.default))

    if TYPE_CHECKING:  # the parameters

        def __getattr__(self, name: str) -> Any: ...

    def get_text_config(self, **kwargs: bool) -> PreTrainedConfig:
        """The host's config with these `rope_parameters`, for transformers' functions of frequencies."""
        return self.host_config


def host_side(config: PreTrainedConfig, encoding: str, is_causal: bool) -> StackSpec:
    """Sizes and encodings of the host's attention; a ValueError for an invalid `encoding`, a name or a sum."""
    encodings = {name: POSITION_ENCODINGS[name].encoding for name in parse_sum(encoding)}
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    ffn_dim, name = getattr(config, "intermediate_size", None) or 0, "decoder" if is_causal else "encoder"
    return StackSpec(name, encoding, config.num_hidden_layers, heads, ffn_dim, config.vocab_size, head_dim, encodings)


__all__ = ["HostConfig"]
