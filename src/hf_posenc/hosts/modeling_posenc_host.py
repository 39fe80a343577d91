# SPDX-License-Identifier: Apache-2.0
"""Models of transformers whose position encoding is replaced: hooks on the host's own modules, and their classes.

No code of a host is changed or copied. The class of a host is made on demand: PosEncLlamaForCausalLM inherits
LlamaForCausalLM. Before a call of the base model a hook computes positions and biases; before each attention another
replaces the rotation; the attention function (attention.py) does the rest. The hooks are functions that read attributes
of their module, so that copies of a model work.
"""

import inspect
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import conversion_mapping as weight_conversions

from ..encodings.base import PositionEncoding
from ..encodings.registry import POSITION_ENCODINGS
from ..encodings.sum import PositionEncodingSum
from .attention import (
    IMPLEMENTATION_PREFIX,
    INPUTS,
    MASK_FUNCTIONS,
    HostInputs,
    argument_names,
    lost_inputs_error,
    named_arguments,
    new_host_call,
)
from .configuration_posenc_host import (
    CLASS_PREFIX,
    OWN,
    TYPE_PREFIX,
    EncodingParameters,
    HostConfig,
    host_class_of,
    host_config_class,
    host_side,
)

# The names of a host's table of absolute positions, trained or fixed.
TABLES = ("wpe", "position_embeddings", "embed_positions", "position_embedding")
ROTATION = "position_embeddings"  # the argument of an attention that has cosines and sines


class HostEncodings(nn.Module):
    """The encodings of a host's layers, in place of its own.

    `sums`: the encodings by the name of their sum, without the host's own. `rotary`: the host's rotary module with
    other `rope_parameters`; None for the host's own.
    """

    def __init__(self, base: PreTrainedModel, config: Any) -> None:
        super().__init__()
        self.own = own_encoding(base)
        self.is_causal = is_causal(base)
        # Types of tokens that are 0 where none are given, up to the end of the host's table.
        self.has_default_types = any(name.endswith("token_type_ids") for name, _ in base.named_buffers())
        parameters = config.position_encoding_parameters or {}
        layer_types = getattr(config, "layer_types", None) or ["full_attention"] * len(config.layer_encodings)
        self.layer_types = dict(enumerate(layer_types))
        # By layer, the names in its sum; layers that keep the host's own encoding have none.
        self.changed = {
            layer: encoding.split("+") for layer, encoding in enumerate(config.layer_encodings) if encoding != OWN
        }
        view = EncodingParameters(config, parameters)
        self.sums: Any = nn.ModuleDict()  # of PositionEncodingSum
        self.sum_of_layer: dict[int, str] = {}
        for layer, names in self.changed.items():
            added = [name for name in names if name not in (self.own, "none")]
            if not added:
                continue
            key = self.sum_of_layer[layer] = "+".join(added)
            if key not in self.sums:
                side = host_side(config, "+".join(names), self.is_causal)
                modules = {name: POSITION_ENCODINGS[name](view, side) for name in added}
                self.sums[key] = PositionEncodingSum(modules)
        self.rotary = None
        if self.own == "rotary" and "rope_parameters" in parameters:
            self.rotary = rotary_class(base)(config=view.host_config)

    @property
    def removes_table(self) -> bool:
        """Whether the host's table of positions is left out. It acts before the first layer, so in all or in none."""
        encodings = list(self.changed.values())
        return self.own == "learned" and bool(encodings) and not any("learned" in names for names in encodings)

    def init_weights(self) -> None:
        """Initialise the parameters of the encodings."""
        for module in self.modules():
            if isinstance(module, PositionEncoding):
                module.init_weights()

    def inputs(self, base: PreTrainedModel, arguments: dict[str, Any]) -> HostInputs:
        """What a call of the base model with these arguments gives to its layers."""
        call = new_host_call(base, arguments, self.is_causal)
        layers = call.layer_inputs(
            {layer: self.sums[key] for layer, key in self.sum_of_layer.items()}, self.layer_types
        )
        rotations: dict[int, Any] = {}
        if self.own == "rotary":
            scaled = None if self.rotary is None else self.rotary(call.like, call.default_position_ids)
            for layer, names in self.changed.items():
                if "rotary" not in names:
                    rotations[layer] = None
                elif self.rotary is not None:
                    rotations[layer] = scaled
        return HostInputs(layers, rotations)


class RemovedTable(nn.Module):
    """In place of a host's table of positions: it adds 0, at every position."""

    def forward(self, *args: object, **kwargs: object) -> Tensor:
        """A zero without dimensions, which takes the dtype and the device of what it is added to."""
        return torch.zeros(())


def stack_of(model: PreTrainedModel) -> PreTrainedModel:
    """The innermost model with all attentions of a host: its base model, or the decoder in it."""
    attentions = attention_modules(model)
    stacks = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    return [stack for stack in stacks if len(attention_modules(stack)) == len(attentions)][-1]


def attention_modules(base: nn.Module) -> list[Any]:
    """The modules whose forward calls transformers' attention interface, in the order of the layers."""
    return [module for module in base.modules() if "get_interface" in forward_code(module).co_names]


def forward_code(module: nn.Module) -> Any:
    """The code of a module's forward, without decorators."""
    return inspect.unwrap(type(module).forward).__code__


def is_causal(base: PreTrainedModel) -> bool:
    """Whether the attention of a host masks the future."""
    return bool(getattr(attention_modules(base)[0], "is_causal", True))


def rotary_class(base: PreTrainedModel) -> type:
    """The class of the module that gives cosines and sines to all layers of a host with a rotation."""
    return next(type(module) for name, module in base.named_modules() if "rotary" in name.rpartition(".")[2])


def table_name(base: PreTrainedModel) -> str | None:
    """The path of a host's table of absolute positions, None without one."""
    return next((name for name, _ in base.named_modules() if name.rpartition(".")[2] in TABLES), None)


def has_removed_table(base: PreTrainedModel) -> bool:
    """Whether a replacement has removed the host's table."""
    return any(isinstance(module, RemovedTable) for module in base.modules())


def own_encoding(base: PreTrainedModel) -> str:
    """What a host does by itself: "rotary", "learned" (a table), or "none"."""
    if any(ROTATION in argument_names(module) for module in attention_modules(base)):
        return "rotary"
    return "learned" if table_name(base) is not None else "none"


def install(model: PreTrainedModel) -> None:
    """Put the encodings of its config into a model, with the hooks that compute them."""
    base: Any = stack_of(model)
    is_new = not hasattr(base, "posenc")
    base.posenc_arguments = argument_names(base)
    base.posenc = HostEncodings(base, model.config)
    base.posenc.init_weights()
    for layer, module in enumerate(attention_modules(base)):
        module.posenc_layer, module.posenc_arguments = layer, argument_names(module)
        if is_new:
            module.register_forward_pre_hook(replace_rotation, with_kwargs=True)
    if base.posenc.removes_table and (name := table_name(base)) is not None:
        base.set_submodule(name, RemovedTable())
    if is_new:
        base.register_forward_pre_hook(add_inputs, with_kwargs=True)
        base.register_forward_hook(check_layers_reached, with_kwargs=True)


def add_inputs(base: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[()], dict[str, Any]]:
    """Before a base model's forward: compute the inputs of its layers, and pass them on as a keyword."""
    if not (implementation := str(base.config._attn_implementation)).startswith(IMPLEMENTATION_PREFIX):
        raise ValueError(
            f"A model with replaced positions must compute attention by a function of hf_posenc, but its config has "
            f"_attn_implementation={implementation!r}; set it by model.set_attn_implementation."
        )
    arguments = named_arguments(base, args, kwargs)
    tokens = arguments.get("input_ids")
    if base.posenc.has_default_types and arguments.get("token_type_ids") is None and tokens is not None:
        arguments["token_type_ids"] = torch.zeros_like(tokens)
    return (), arguments | {INPUTS: base.posenc.inputs(base, arguments)}


def replace_rotation(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[()], dict[str, Any]]:
    """Before an attention's forward: other cosines and sines, or no rotation."""
    arguments = named_arguments(module, args, kwargs)
    inputs = arguments.get(INPUTS)
    if inputs is None:
        raise lost_inputs_error(module)
    if module.posenc_layer in inputs.rotations:
        rotation = inputs.rotations[module.posenc_layer]
        arguments[ROTATION] = no_rotation(arguments[ROTATION]) if rotation is None else rotation
    return (), arguments


def no_rotation(rotation: Any) -> Any:
    """Cosines and sines of angle 0, or complex numbers of angle 0, in the form in which a host has them."""
    if rotation is None:
        return None
    if isinstance(rotation, Tensor):
        return torch.ones_like(rotation)
    cos, sin = rotation
    return torch.ones_like(cos), torch.zeros_like(sin)


def check_layers_reached(base: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: object) -> None:
    """After a base model's forward: a RuntimeError if a layer computed attention without its encodings."""
    if torch.compiler.is_compiling():
        return
    expected = {layer for layer in base.posenc.changed if layer < base.config.num_hidden_layers}
    if missing := sorted(expected - kwargs[INPUTS].reached):
        raise RuntimeError(
            f"Every layer with replaced positions must compute them, but {type(base).__name__} left out layers "
            f"{missing}; report it with the version of transformers, and load the model before the replacement."
        )


class HostModel:
    """What the class of a host has in addition to the host's own methods."""

    config: Any
    config_class: type[HostConfig]

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]  # the host's
        install(self)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, PositionEncoding):
            module.init_weights()
        else:
            super()._init_weights(module)  # type: ignore[misc]

    @classmethod
    def _can_set_attn_implementation(cls) -> bool:
        return True

    def get_correct_attn_implementation(self, requested_attention: str | None, is_init_check: bool = False) -> str:
        """transformers' choice of an attention function, in the form that computes the replaced positions."""
        requested = None if requested_attention is None else requested_attention.removeprefix(IMPLEMENTATION_PREFIX)
        if requested not in (None, *MASK_FUNCTIONS):
            raise ValueError(
                f"attn_implementation must be one of {', '.join(MASK_FUNCTIONS)} where positions are replaced, but it "
                f"is {requested!r}; leave it out, or choose one of them."
            )
        own = super().get_correct_attn_implementation(requested, is_init_check)  # type: ignore[misc]
        return IMPLEMENTATION_PREFIX + own


@cache
def host_model_class(name: str) -> type[PreTrainedModel]:
    """The model class of this name, such as PosEncLlamaForCausalLM; an AttributeError if there is no such host."""
    host_class = host_class_of(name, PreTrainedModel)
    config_class = host_config_class(CLASS_PREFIX + host_class.config_class.__name__)
    share_weight_conversions(host_class.config_class.model_type)
    namespace = {
        "__module__": __name__,
        "__doc__": f"{host_class.__name__} with the position encodings of its config.",
        "config_class": config_class,
    }
    return type(name, (HostModel, host_class), namespace)


def share_weight_conversions(host_type: str) -> None:
    """Read and write weights as transformers does for the host, such as those of experts."""
    own_type = TYPE_PREFIX + host_type
    conversions = weight_conversions.get_checkpoint_conversion_mapping(host_type)
    if conversions and weight_conversions.get_checkpoint_conversion_mapping(own_type) is None:
        weight_conversions.register_checkpoint_conversion_mapping(own_type, conversions)


def __getattr__(name: str) -> type[PreTrainedModel]:
    """The class of a host by its name, for transformers' loading and for pickle."""
    return host_model_class(name)


__all__ = ["HostModel"]
