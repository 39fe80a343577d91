# SPDX-License-Identifier: Apache-2.0
"""Hosts with other positions and transformers' Auto classes: their types are registered when they are first needed."""

from typing import Any

from transformers import PreTrainedConfig
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

from .configuration_posenc_host import CLASS_PREFIX, TYPE_PREFIX, HostConfig, host_config_class
from .modeling_posenc_host import host_model_class

FILES = {"AutoConfig": "configuration_posenc_host"}
MODELING_FILE = "modeling_posenc_host"


class HostConfigs(dict):
    """transformers' table of registered configs, which makes those of hosts when their type is asked for.

    A private table of transformers (5.17 to 5.24 have it). All hosts at once would import all of transformers.
    """

    def __contains__(self, model_type: object) -> bool:
        if super().__contains__(model_type):
            return True
        host_type = str(model_type).removeprefix(TYPE_PREFIX)
        return str(model_type).startswith(TYPE_PREFIX) and host_type in CONFIG_MAPPING_NAMES

    def __missing__(self, model_type: str) -> type[HostConfig]:
        if model_type not in self:
            raise KeyError(model_type)
        host_class = CONFIG_MAPPING[model_type.removeprefix(TYPE_PREFIX)]
        config_class = self[model_type] = host_config_class(CLASS_PREFIX + host_class.__name__)
        register_models(config_class, host_class)
        return config_class


def register_hosts() -> None:
    """Let AutoConfig, and through it all Auto classes, find hosts with other positions."""
    if not isinstance(CONFIG_MAPPING._extra_content, HostConfigs):
        CONFIG_MAPPING._extra_content = HostConfigs(CONFIG_MAPPING._extra_content)


def host_models(host_class: type[PreTrainedConfig]) -> dict[str, type]:
    """The model class of each Auto class that has one for a host."""
    models = {}
    for name, auto_class in vars(modeling_auto).items():
        mapping = getattr(auto_class, "_model_mapping", None)
        if name.startswith("AutoModel") and mapping is not None and host_class in mapping:
            model_class = mapping[host_class]
            if isinstance(model_class, type):
                models[name] = model_class
    return models


def register_models(config_class: type[HostConfig], host_class: type[PreTrainedConfig]) -> None:
    """Register a host's classes with each Auto class, and with the tables of names that pipelines and Trainer read."""
    model_type: Any = vars(config_class)["model_type"]
    for auto_name, model_class in host_models(host_class).items():
        own_class, auto_class = host_model_class(CLASS_PREFIX + model_class.__name__), vars(modeling_auto)[auto_name]
        auto_class.register(config_class, own_class, exist_ok=True)
        auto_class._model_mapping._model_mapping[model_type] = own_class.__name__
    if (tokenizer := TOKENIZER_MAPPING_NAMES.get(host_class.model_type)) is not None:
        TOKENIZER_MAPPING_NAMES[model_type] = tokenizer


def host_auto_map(config: Any) -> dict[str, str]:
    """For each Auto class, the file and the class of a checkpoint that it loads."""
    host_class = type(config).__mro__[2]
    auto_map = {"AutoConfig": f"configuration_posenc_host.{type(config).__name__}"}
    for name, model_class in host_models(host_class).items():
        auto_map[name] = f"{MODELING_FILE}.{CLASS_PREFIX}{model_class.__name__}"
    return auto_map
