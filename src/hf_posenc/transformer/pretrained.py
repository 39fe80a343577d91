# SPDX-License-Identifier: Apache-2.0
"""Base classes of all models and stacks: weight initialisation, strict loading, tied weights, token embeddings."""

import math
import os
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init

from ..generation.model_inputs import CACHE_NAMES, input_error
from ..hub.errors import MODEL_FILES, explain_unreadable
from .configuration_base import BaseConfig
from .loading import LOADING_CHECK, NameOrPath, load_strict, set_weights_mode, validate_weight_files


class PosEncPreTrainedModel(PreTrainedModel):
    """Base class of all models: initialisation, loading, saving, choice of the attention back end.

    Its flags are the Transformer's. The RNN-NMT baseline has its own.
    """

    config: BaseConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules: list[str] | None = ["PosEncEncoderLayer", "PosEncDecoderLayer"]
    _skip_keys_device_placement = [*CACHE_NAMES]
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_flash_attn = True
    _can_compile_fullgraph = True

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

    def tied_weight_keys(self) -> dict[str, str]:
        """The names of tied weights, and for each that of the weight that it is tied to."""
        return {}

    def sync_tying_config(self) -> None:
        """Write the sharing of tables into the config, and into the lists that loading and saving read."""
        self._tied_weights_keys = self.tied_weight_keys()
        self.all_tied_weights_keys = dict(self._tied_weights_keys)

    def set_attn_implementation(self, attn_implementation: str | dict, *args: object, **kwargs: object) -> None:
        """transformers' choice of a back end; a ValueError, and the old one, if it cannot compute an encoding."""
        before = self.config._attn_implementation
        super().set_attn_implementation(attn_implementation, *args, **kwargs)
        try:
            for stack in self.modules():
                if isinstance(stack, Stack):
                    stack.validate_attn_implementation()
        except ValueError:
            super().set_attn_implementation(before)
            raise

    @staticmethod
    def _load_pretrained_model(
        model: PreTrainedModel,
        state_dict: object,
        checkpoint_files: list[str] | None,
        load_config: Any,
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
        elif not isinstance(module, PreTrainedModel):
            init_weights = getattr(module, "init_weights", None)  # encodings and alignments have it
            if init_weights is not None:
                init_weights()

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """The ties of this instance. (The base class ties nothing unless the output projection is tied as well.)"""
        if all_submodels:
            return super().get_expanded_tied_weights_keys(all_submodels=True)
        return dict(self._tied_weights_keys or {})


# Its subclasses call post_init at the end of __init__, and differ in their vocabulary. trf-ignore: TRF013
class Stack(PosEncPreTrainedModel):
    """Base class of encoders and decoders: token embeddings, scaled and dropped out."""

    def __init__(self, config: BaseConfig, *, vocab_size: int) -> None:  # trf-ignore: TRF029
        super().__init__(config)
        self.embed_scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.embed_tokens = nn.Embedding(vocab_size, config.d_model, config.pad_token_id)
        self.dropout = nn.Dropout(config.dropout)

    def validate_attn_implementation(self) -> None:
        """Raise a ValueError for a back end that cannot compute an encoding; here there is none."""

    def embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        """Dropout of the scaled token embeddings (B, T, D)."""
        tokens = input_ids if inputs_embeds is None else inputs_embeds
        if tokens is None or 0 in tokens.shape[:2] or (input_ids is not None and inputs_embeds is not None):
            raise input_error(input_ids, inputs_embeds)
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        return self.dropout(inputs_embeds * self.embed_scale)
