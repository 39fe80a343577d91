# SPDX-License-Identifier: Apache-2.0
"""A model in eval mode that shares the weights of a model in any mode, and leaves that one as it is.

`training` and the attention back end are attributes of modules, which all threads share. A call that set and restored
them would change the calls that run at the same time, such as a step of training.
"""

import copy
from typing import TypeVar, cast

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

ModelT = TypeVar("ModelT", bound=PreTrainedModel)


def evaluation_view(model: ModelT, attn_implementation: str | None = None) -> ModelT:
    """The model in eval mode, with this attention back end if one is given: other objects, but the same parameters."""
    views: dict[int, nn.Module] = {}
    configs: dict[int, PreTrainedConfig] = {}

    def view_of(module: nn.Module) -> nn.Module:
        if id(module) in views:  # a module that stands in two places, such as shared embeddings
            return views[id(module)]
        view = views[id(module)] = object.__new__(type(module))
        for name, value in vars(module).items():
            # transformers adds hooks to the modules from which it collects outputs.
            vars(view)[name] = copy.copy(value) if "hooks" in name else value
            if isinstance(value, PreTrainedConfig):
                vars(view)[name] = configs.setdefault(id(value), copy.copy(value))
        children = {name: None if child is None else view_of(child) for name, child in module._modules.items()}
        vars(view).update(training=False, _modules=children)
        return view

    view = cast(ModelT, view_of(model))
    if attn_implementation is not None:
        view.set_attn_implementation(attn_implementation)
    return view
