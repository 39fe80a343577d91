# SPDX-License-Identifier: Apache-2.0
"""Loading weights: from safetensors only, and none that do not fit the config they were saved with."""

import re
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import fields
from math import prod
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from .configuration_shared import SharedConfig
from .weight_files import Shapes, misfits, refuse_pickles, tensor_shapes, weight_files

NO_SAFETENSORS = re.compile(r"(no|not appear to have a) file named model\S*\.safetensors")  # as transformers says it
# What judges the files of the model that this thread loads, before memory is taken for any weight.
JUDGE: ContextVar[Callable[[PreTrainedModel, dict[str, tuple[int, ...]]], None] | None] = ContextVar(
    "JUDGE", default=None
)
WHERE = ("cache_dir", "local_files_only", "proxies", "revision", "subfolder", "token")
FILES = (*WHERE, "variant")
SIZES = ("_layers", "_heads", "_ffn_dim", "vocab_size")
SHOWN = 3  # weights of a kind; as a rule one is enough to see what is wrong


def load_fitting(
    load: Callable[..., Any],
    name: Any,
    *args: Any,
    ignore_mismatched_sizes: bool = False,
    output_loading_info: bool = False,
    use_safetensors: bool | None = None,
    **options: Any,
) -> Any:
    """What transformers' `from_pretrained`, given as `load`, returns.

    Raises an OSError where there is a pickle in place of safetensors, and a ValueError for weights that do not fit;
    transformers by itself would report them in its log and start what is missing from random weights. That still
    happens with `ignore_mismatched_sizes=True`; where the caller has changed the saved config, by keywords or as
    `config=`; and with `output_loading_info=True`, who is told and may judge. Only shapes must agree even then.

    No code of the checkpoint runs, `trust_remote_code` or not: these classes are all that it needs.
    """
    if use_safetensors is False:
        raise OSError(f"Weights of this family are safetensors only, but use_safetensors=False; {remedy(name)}")

    def judge(model: PreTrainedModel, found: dict[str, Any]) -> None:
        if not ignore_mismatched_sizes:
            shapes_only = output_loading_info or name is None or changed(model.config, name, options)
            refuse_misfit(model, name, found, shapes_only=shapes_only)

    files = weight_files(name, **{key: options[key] for key in FILES if key in options})
    if not (ignore_mismatched_sizes or output_loading_info):
        refuse_impossible_sizes(name, tensor_shapes(files), options)
    token = JUDGE.set(judge)
    own = {"ignore_mismatched_sizes": True, "output_loading_info": True, "use_safetensors": True}
    try:
        model, found = load(name, *args, **options | own | {"trust_remote_code": False})
    except OSError as error:
        if not NO_SAFETENSORS.search(str(error)):
            raise
        raise OSError(
            f"Weights of this family are safetensors only, but {name} has no model.safetensors; {remedy(name)}"
        ) from None
    finally:
        JUDGE.reset(token)
    judge(model, found)
    return (model, found) if output_loading_info else model


def judge_files(model: PreTrainedModel, files: Iterable[str] | None, *, packed: bool) -> None:
    """What is done with a model whose weights have shapes and no memory yet, before its files are read: an OSError if
    one is no safetensors, a ValueError if they do not fit. `packed` (quantised) weights have other shapes.
    """
    files, judge = list(files or ()), JUDGE.get()
    refuse_pickles(files)
    if judge is not None and files and not packed and all(one.is_meta for one in model.parameters()):
        judge(model, misfits(model, tensor_shapes(files)))


def refuse_impossible_sizes(name: Any, shapes: Shapes, options: dict[str, Any]) -> None:
    """A ValueError if a saved config has more layers than there are weights, or is wider than all of them
    together. Even without memory for its weights, such a model takes for ever to make."""
    sizes = saved_config(name, options) if shapes else {}
    numbers = sum(map(prod, shapes.values()))
    for key, value in sizes.items():
        most = len(shapes) if key.endswith("_layers") else numbers
        if (key == "d_model" or key.endswith(SIZES)) and isinstance(value, int) and value > most:
            raise ValueError(
                f"A checkpoint's weights must fit the config, but config.json of {name} has {key}={value} and there "
                f"are {len(shapes)} weights of {numbers} numbers. Correct config.json."
            )


def saved_config(name: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The config that was saved, empty if there is none."""
    try:
        return PreTrainedConfig.get_config_dict(name, **{key: options[key] for key in WHERE if key in options})[0]
    except OSError:
        return {}


def remedy(name: Any) -> str:
    return (
        f"if {name} has a pytorch_model.bin that you trust, model.load_state_dict(torch.load(FILE, weights_only=True)) "
        "on a model made from its config, and model.save_pretrained makes safetensors of it."
    )


def changed(config: SharedConfig, name: Any, options: dict[str, Any]) -> bool:
    """Whether the caller wants another model than the one that was saved."""
    if not (saved := saved_config(name, options)):
        return True
    own = config.known_keywords() - {field.name for field in fields(PreTrainedConfig)}
    return any(getattr(config, key) != value for key, value in saved.items() if key in own and value is not None)


def refuse_misfit(model: PreTrainedModel, name: Any, found: dict[str, Any], *, shapes_only: bool) -> None:
    """A ValueError if weights of the encoder or the decoder are missing, not asked for, or of another shape.

    What stands behind them may come and go, a model with an output projection loads from one without, and back; but not
    an output bias by itself."""
    shapes = [f"{key} {tuple(there)} for {tuple(here)}" for key, there, here in found["mismatched_keys"]]
    kinds = {"of another shape": shapes}
    if not shapes_only:
        sides = re.compile(r"(model\.)?(encoder|decoder)\.")
        for kind, keys in (("missing", found["missing_keys"]), ("not asked for", found["unexpected_keys"])):
            kinds[kind] = [key for key in keys if sides.match(key)]
        if hasattr(model, "lm_head"):
            kinds["not asked for"] += [key for key in found["unexpected_keys"] if key == "final_logits_bias"]
    if said := [f"{kind}: {first_of(keys)}" for kind, keys in kinds.items() if keys]:
        raise ValueError(
            f"A checkpoint's weights must fit the config, but for {model.config.in_words} those of {name} do not; "
            f"{'; '.join(said)}. Correct config.json, or the keyword that changes it; or give "
            "ignore_mismatched_sizes=True, and what does not fit starts from random weights."
        )


def first_of(keys: list[str]) -> str:
    more = f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
    return ", ".join(sorted(keys)[:SHOWN]) + more
