# SPDX-License-Identifier: Apache-2.0
"""Base class of all models of both families: weight initialisation, strict loading, tied weights."""

import os
from typing import Any, Protocol

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init

from ..hub.foreign_files import MODEL_FILES, explain_unreadable
from .configuration_base import BaseConfig
from .strict_loading import LOADING_CHECK, load_strict, validate_weight_files
from .weight_files import NameOrPath, set_weights_mode


class LoadConfig(Protocol):
    """The field of transformers' private LoadStateDictConfig that is read here."""

    is_quantized: bool


class SharedPreTrainedModel(PreTrainedModel):
    """Base class of all models: weight initialisation, loading and saving."""

    config: BaseConfig
    base_model_prefix = "model"

    def __init__(self, config: BaseConfig, *args: object, **kwargs: object) -> None:
        if config.model_type != self.config_class.model_type:
            raise ValueError(
                f"{type(self).__name__} must be given a config of model_type={self.config_class.model_type!r}, but it "
                f"is given a {type(config).__name__} of model_type={config.model_type!r}; use the Auto class that the "
                "config's auto_map names."
            )
        super().__init__(config, *args, **kwargs)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: NameOrPath, *args: object, **kwargs: Any) -> Any:
        """transformers' loading, from safetensors only; a ValueError for files that cannot be read, and for weights
        that do not fit the config."""
        with explain_unreadable(pretrained_model_name_or_path, MODEL_FILES, kwargs):
            return load_strict(super().from_pretrained, pretrained_model_name_or_path, *args, **kwargs)

    @classmethod
    def is_remote_code(cls) -> bool:
        """transformers' answer, and True while weights are loaded: for a repository without safetensors it would else
        ask the Hub for a bot's conversion of a pickle."""
        return LOADING_CHECK.get() is not None or super().is_remote_code()

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: object, **options: object) -> None:
        """transformers' saving, with the ties that the modules have, and weights of the same mode as the config."""
        self.sync_tying_config()
        super().save_pretrained(save_directory, *args, **options)
        set_weights_mode(save_directory)

    def sync_tying_config(self) -> None:
        """Write the sharing of tables into the config, and into the lists that loading and saving read."""

    @staticmethod
    def _load_pretrained_model(
        model: PreTrainedModel,
        state_dict: object,
        checkpoint_files: list[str] | None,
        load_config: LoadConfig,
        *args: object,
        **kwargs: object,
    ) -> object:
        """transformers' loading of known files, after a check of their shapes while weights are on the meta device.

        A private hook of transformers (5.17 to 5.24 have it): `from_pretrained` calls it between the download and the
        allocation. If it is renamed, files are checked only after loading, and a wrong config allocates memory first.
        """
        validate_weight_files(model, checkpoint_files, is_quantized=load_config.is_quantized)
        return PreTrainedModel._load_pretrained_model(model, state_dict, checkpoint_files, load_config, *args, **kwargs)

    # All kinds of modules are initialised here, once, by this family's own rules. trf-ignore: TRF018
    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        torch_defaults = self.config.initializer == "torch"
        if isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=1.0 if torch_defaults else module.embedding_dim**-0.5)
            if module.padding_idx is not None and not getattr(module.weight, "_is_hf_initialized", False):
                init.zeros_(module.weight[module.padding_idx])
        elif isinstance(module, nn.LayerNorm) or (torch_defaults and isinstance(module, nn.Linear | nn.RNNBase)):
            module.reset_parameters()
        elif isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.RNNBase):
            for parameter in module.parameters():
                bound = (6 / (parameter.shape[-1] + module.hidden_size)) ** 0.5  # Xavier's, of one gate's matrix
                if parameter.ndim == 2:
                    init.uniform_(parameter, -bound, bound)
                else:
                    init.zeros_(parameter)
        elif getattr(module, "final_logits_bias", None) is not None:
            init.zeros_(module.final_logits_bias)

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """The ties of this instance. (The base class ties nothing unless the output projection is tied as well.)"""
        if all_submodels:
            return super().get_expanded_tied_weights_keys(all_submodels=True)
        return dict(self._tied_weights_keys or {})
