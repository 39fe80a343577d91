# SPDX-License-Identifier: Apache-2.0
"""Strict loading: weights come from safetensors alone and must fit the saved config.

transformers' own `from_pretrained` logs missing, unexpected and misshapen weights and goes on with random ones. A wrong
config then gives a model that translates into noise. torch's `load_state_dict(strict=True)` cannot replace this module:
transformers has a loader of its own, and the check must come before that allocates memory.
"""

import re
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import fields
from math import prod
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from .configuration_shared import SharedConfig
from .weight_files import (
    NameOrPath,
    Shapes,
    expected_loading_info,
    tensor_shapes,
    validate_safetensors_only,
    weight_files,
)

NO_SAFETENSORS = re.compile(r"(no|not appear to have a) file named model\S*\.safetensors")  # as transformers says it
# What judges the files of the model that this thread loads, before memory is taken for any weight.
LOADING_CHECK: ContextVar[Callable[[PreTrainedModel, dict[str, tuple[int, ...]]], None] | None] = ContextVar(
    "LOADING_CHECK", default=None
)
HUB_OPTIONS = ("cache_dir", "local_files_only", "proxies", "revision", "subfolder", "token")
FILE_OPTIONS = (*HUB_OPTIONS, "variant")
SIZE_SUFFIXES = ("_layers", "_heads", "_ffn_dim", "vocab_size")
MAX_SHOWN_KEYS = 3  # weights of a kind; as a rule one is enough to see what is wrong


def load_strict(
    load: Callable[..., Any],
    name: NameOrPath,
    *args: object,
    ignore_mismatched_sizes: bool = False,
    output_loading_info: bool = False,
    use_safetensors: bool | None = None,
    **options: Any,
) -> Any:
    """What transformers' `from_pretrained`, given as `load`, returns.

    Raises an OSError where there is a pickle in place of safetensors, and a ValueError for weights that do not fit;
    transformers by itself would report them in its log and start what is missing from random weights. That still
    happens with `ignore_mismatched_sizes=True`; where the caller has changed the saved config, by keywords or as
    `config=`; and with `output_loading_info=True`, who is told and may decide. Only shapes must agree even then.

    No code of the checkpoint runs, `trust_remote_code` or not: these classes are all that it needs.
    """
    if use_safetensors is False:
        raise OSError(
            f"Weights of this family are safetensors only, but use_safetensors=False; {safetensors_remedy(name)}"
        )

    def check(model: PreTrainedModel, loading_info: dict[str, Any]) -> None:
        if not ignore_mismatched_sizes:
            shapes_only = output_loading_info or name is None or is_config_changed(model.config, name, options)
            validate_loading_info(model, name, loading_info, shapes_only=shapes_only)

    files = weight_files(name, **{key: options[key] for key in FILE_OPTIONS if key in options})
    if not (ignore_mismatched_sizes or output_loading_info):
        validate_config_sizes(name, tensor_shapes(files), options)
    token = LOADING_CHECK.set(check)
    own_options = {"ignore_mismatched_sizes": True, "output_loading_info": True, "use_safetensors": True}
    try:
        model, loading_info = load(name, *args, **options | own_options | {"trust_remote_code": False})
    except OSError as error:
        if not NO_SAFETENSORS.search(str(error)):
            raise
        raise OSError(
            f"Weights of this family are safetensors only, but {name} has no model.safetensors; "
            f"{safetensors_remedy(name)}"
        ) from None
    finally:
        LOADING_CHECK.reset(token)
    check(model, loading_info)
    return (model, loading_info) if output_loading_info else model


def validate_weight_files(model: PreTrainedModel, files: Iterable[str] | None, *, is_quantized: bool) -> None:
    """What is done with a model whose weights have shapes and no memory yet, before its files are read: an OSError if
    one is no safetensors, a ValueError if they do not fit. Quantised weights have other shapes.
    """
    files, check = list(files or ()), LOADING_CHECK.get()
    validate_safetensors_only(files)
    if check is not None and files and not is_quantized and all(parameter.is_meta for parameter in model.parameters()):
        check(model, expected_loading_info(model, tensor_shapes(files)))


def validate_config_sizes(name: NameOrPath, shapes: Shapes, options: dict[str, Any]) -> None:
    """A ValueError if a saved config has more layers than there are weights, or is wider than all of them
    together. Even without memory for its weights, such a model takes for ever to make."""
    sizes = read_saved_config(name, options) if shapes else {}
    num_values = sum(map(prod, shapes.values()))
    for key, value in sizes.items():
        maximum = len(shapes) if key.endswith("_layers") else num_values
        if (key == "d_model" or key.endswith(SIZE_SUFFIXES)) and isinstance(value, int) and value > maximum:
            raise ValueError(
                f"A checkpoint's weights must fit the config, but config.json of {name} has {key}={value} and there "
                f"are {len(shapes)} weights of {num_values} numbers. Correct config.json."
            )


def read_saved_config(name: NameOrPath, options: dict[str, Any]) -> dict[str, Any]:
    """The config that was saved, empty if there is none."""
    try:
        return PreTrainedConfig.get_config_dict(name, **{key: options[key] for key in HUB_OPTIONS if key in options})[0]
    except OSError:
        return {}


def safetensors_remedy(name: NameOrPath) -> str:
    """How to convert a pickle of weights, for errors."""
    return (
        f"if {name} has a pytorch_model.bin that you trust, model.load_state_dict(torch.load(FILE, weights_only=True)) "
        "on a model made from its config, and model.save_pretrained makes safetensors of it."
    )


def is_config_changed(config: SharedConfig, name: NameOrPath, options: dict[str, Any]) -> bool:
    """Whether the caller wants another model than the one that was saved."""
    if not (saved := read_saved_config(name, options)):
        return True
    own_fields = config.known_keywords() - {field.name for field in fields(PreTrainedConfig)}
    return any(getattr(config, key) != value for key, value in saved.items() if key in own_fields and value is not None)


def validate_loading_info(
    model: PreTrainedModel, name: NameOrPath, loading_info: dict[str, Any], *, shapes_only: bool
) -> None:
    """A ValueError if weights of the encoder or the decoder are missing, not asked for, or of another shape.

    What stands behind them may come and go, a model with an output projection loads from one without, and back; but not
    an output bias by itself."""
    shapes = [
        f"{key} {tuple(saved_shape)} for {tuple(expected_shape)}"
        for key, saved_shape, expected_shape in loading_info["mismatched_keys"]
    ]
    kinds = {"of another shape": shapes}
    if not shapes_only:
        sides = re.compile(r"(model\.)?(encoder|decoder)\.")
        for kind, keys in (
            ("missing", loading_info["missing_keys"]),
            ("not asked for", loading_info["unexpected_keys"]),
        ):
            kinds[kind] = [key for key in keys if sides.match(key)]
        if hasattr(model, "lm_head"):
            kinds["not asked for"] += [key for key in loading_info["unexpected_keys"] if key == "final_logits_bias"]
    if problems := [f"{kind}: {first_keys(keys)}" for kind, keys in kinds.items() if keys]:
        raise ValueError(
            f"A checkpoint's weights must fit the config, but for {model.config.describe()} those of {name} do not; "
            f"{'; '.join(problems)}. Correct config.json, or the keyword that changes it; or give "
            "ignore_mismatched_sizes=True, and what does not fit starts from random weights."
        )


def first_keys(keys: list[str]) -> str:
    """The first names of a list, and the number of the rest."""
    more = f" and {len(keys) - MAX_SHOWN_KEYS} more" if len(keys) > MAX_SHOWN_KEYS else ""
    return ", ".join(sorted(keys)[:MAX_SHOWN_KEYS]) + more
