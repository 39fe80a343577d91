# SPDX-License-Identifier: Apache-2.0
"""Strict loading: weights come from safetensors alone and must fit the saved config.

transformers' `from_pretrained` only logs missing, unexpected and misshapen weights and initialises them at random. With
a wrong config that gives a model that translates into noise. Weights are checked before memory is allocated for them.
"""

import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import fields
from pathlib import Path
from typing import Any

from safetensors import safe_open
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import CONFIG_NAME, cached_file

from ..hub.errors import explain_unreadable
from .configuration_base import BaseConfig

# The argument of `from_pretrained`: a folder, a name on the Hub, or None with a state dict.
NameOrPath = str | os.PathLike[str] | None
# transformers' names of weights that are `missing_keys`, `unexpected_keys` and `mismatched_keys`, with both shapes.
LoadingInfo = Mapping[str, Iterable[Any]]

SHARD_NAME = re.compile(r"[^/\\\\]+\.safetensors")
# transformers' message for a missing file.
NO_SAFETENSORS = re.compile(r"(no|not appear to have a) file named model\S*\.safetensors")
# The names of a stack's weights, which must not be missing. An output projection may be.
STACKS = re.compile(r"(model\.)?(encoder|decoder|embed_tokens|positions|layers|layer_norm)\.")
# The check of the files that this thread loads, called before memory is allocated for any weight.
LOADING_CHECK: ContextVar[Callable[[PreTrainedModel, LoadingInfo], None] | None] = ContextVar(
    "LOADING_CHECK", default=None
)
HUB_OPTIONS = ("cache_dir", "local_files_only", "proxies", "revision", "subfolder", "token")
MAX_SHOWN_KEYS = 3  # names of weights of each kind in an error


def load_strict(
    load: Callable[..., tuple[PreTrainedModel, LoadingInfo]],
    name: NameOrPath,
    *args: object,
    ignore_mismatched_sizes: bool = False,
    output_loading_info: bool = False,
    use_safetensors: bool | None = None,
    **options: object,
) -> PreTrainedModel | tuple[PreTrainedModel, LoadingInfo]:
    """The result of transformers' `from_pretrained`, given as `load`, with checks of the weights.

    Raises an OSError for weights that are not safetensors, and a ValueError for missing, unexpected or misshapen ones.
    With `ignore_mismatched_sizes=True` nothing is checked. With `output_loading_info=True`, or if the caller changes
    the saved config by keywords or `config=`, only shapes are.

    No code of the checkpoint runs, even with `trust_remote_code=True`: it needs these classes only.
    """
    if use_safetensors is False:
        raise not_safetensors_error("use_safetensors=False", name)
    validate_file_names(name, options)
    saved = read_saved_config(name, options) if name is not None else {}

    def check(model: PreTrainedModel, loading_info: LoadingInfo) -> None:
        if not ignore_mismatched_sizes:
            shapes_only = output_loading_info or is_config_changed(model.config, saved)
            validate_loading_info(model, name, loading_info, shapes_only=shapes_only)
            is_untied = saved.get("tie_word_embeddings") and not model.config.tie_word_embeddings
            if is_untied and "lm_head.weight" in loading_info["missing_keys"]:
                raise ValueError(
                    f"An output projection must be saved to be loaded, but that of {name} is its embedding table, and "
                    "tie_word_embeddings=False was given; load it tied, and set model.lm_head.weight to a copy of the "
                    "table."
                )

    token = LOADING_CHECK.set(check)
    try:
        model, loading_info = load(
            name, *args, ignore_mismatched_sizes=True, output_loading_info=True, use_safetensors=True,
            **options | {"trust_remote_code": False},
        )  # fmt: skip
    except OSError as error:
        if not NO_SAFETENSORS.search(str(error)):
            raise
        raise not_safetensors_error(f"{name} has no model.safetensors", name) from None
    finally:
        LOADING_CHECK.reset(token)
    check(model, loading_info)
    return (model, loading_info) if output_loading_info else model


def not_safetensors_error(problem: str, name: NameOrPath) -> OSError:
    return OSError(
        f"Weights of this family are safetensors only, but {problem}; if {name} has a pytorch_model.bin that you "
        "trust, model.load_state_dict(torch.load(FILE, weights_only=True)) on a model made from its config, and "
        "model.save_pretrained makes safetensors of it."
    )


def validate_weight_files(model: PreTrainedModel, files: Iterable[str] | None, *, is_quantized: bool) -> None:
    """Check the files of a model whose weights are on the meta device, before they are read.

    A ValueError for weights that do not fit. Quantised weights have other shapes, and their names are checked after
    loading alone.
    """
    check = LOADING_CHECK.get()
    if check is not None and files and not is_quantized and all(parameter.is_meta for parameter in model.parameters()):
        check(model, expected_loading_info(model, files))


def read_saved_config(name: NameOrPath, options: Mapping[str, object]) -> dict[str, object]:
    """The saved config as a dictionary, empty if there is none."""
    try:
        return PreTrainedConfig.get_config_dict(name, **{key: options[key] for key in HUB_OPTIONS if key in options})[0]
    except OSError:
        return {}


def is_config_changed(config: BaseConfig, saved: Mapping[str, object]) -> bool:
    """Whether the caller has changed a field of the saved config; True without a saved config."""
    own_fields = config.known_keywords() - {field.name for field in fields(PreTrainedConfig)}
    own_fields.discard("max_position_embeddings")  # a table sets it, whatever was saved
    values = {key: value for key, value in saved.items() if key in own_fields and value is not None}
    return not saved or any(getattr(config, key) != value for key, value in values.items())


def validate_loading_info(
    model: PreTrainedModel, name: NameOrPath, loading_info: LoadingInfo, *, shapes_only: bool
) -> None:
    """Raise a ValueError if weights of a stack are missing, unexpected, or of another shape.

    The output projection may be missing or unexpected: a model with one loads from a model without, and vice versa. An
    output bias without its projection's model is unexpected.
    """
    kinds: dict[str, list[str]] = {"of another shape": []}
    for key, saved_shape, expected_shape in loading_info["mismatched_keys"]:
        kinds["of another shape"].append(f"{key} {tuple(saved_shape)} for {tuple(expected_shape)}")
    if not shapes_only:
        kinds["missing"] = list(filter(STACKS.match, loading_info["missing_keys"]))
        kinds["unexpected"] = list(filter(STACKS.match, loading_info["unexpected_keys"]))
        if hasattr(model, "lm_head") and "final_logits_bias" in loading_info["unexpected_keys"]:
            kinds["unexpected"].append("final_logits_bias")
    problems = []
    for kind, keys in kinds.items():
        if keys:
            more = f" and {len(keys) - MAX_SHOWN_KEYS} more" if len(keys) > MAX_SHOWN_KEYS else ""
            problems.append(f"{kind}: {', '.join(sorted(keys)[:MAX_SHOWN_KEYS])}{more}")
    if problems:
        raise ValueError(
            f"A checkpoint's weights must fit the config, but for {model.config.describe()} those of {name} do not; "
            f"{'; '.join(problems)}. Correct config.json, or the keyword that changes it; or give "
            "ignore_mismatched_sizes=True to initialise at random the weights that do not fit."
        )


# Files of saved weights: their names, and the shapes in their headers.


def validate_file_names(name: NameOrPath, options: Mapping[str, object]) -> None:
    """Raise an OSError for a file that is not safetensors, and for an index that names files outside its folder.

    transformers would read the first of them for its dtype, before it calls any hook.
    """
    if name is None:
        return
    if os.path.isfile(name):
        if not str(name).endswith(".safetensors"):
            raise not_safetensors_error(f"{name} is something else", name)
        return
    before_extension = f".{options['variant']}" if options.get("variant") else ""
    hub_options = {key: options[key] for key in HUB_OPTIONS if key in options}
    index = None
    with suppress(OSError):  # transformers raises it again, and says it better
        for file in (f"model{before_extension}.safetensors", f"model.safetensors.index{before_extension}.json"):
            index = index or cached_file(name, file, _raise_exceptions_for_missing_entries=False, **hub_options)
    if index is None or not index.endswith(".json"):
        return
    with explain_unreadable(name, (Path(index).name,)):
        shards = json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"].values()
    for shard in shards:
        if not (isinstance(shard, str) and SHARD_NAME.fullmatch(shard)):
            raise OSError(
                f"Weights of this family are safetensors only, next to their index, but that of {name} names "
                f"{shard!r}; save the model again by model.save_pretrained."
            )


def set_weights_mode(folder: str | os.PathLike[str]) -> None:
    """Give a saved model's weights the mode of its config: safetensors makes files that only their owner may read."""
    config = Path(folder, CONFIG_NAME)
    for file in Path(folder).glob("*.safetensors") if config.exists() else ():
        file.chmod(stat.S_IMODE(config.stat().st_mode))


def expected_loading_info(model: PreTrainedModel, files: Iterable[str]) -> LoadingInfo:
    """transformers' loading info, from the headers of files: missing, unexpected and mismatched keys.

    A model with an output projection reads the files of a model without one, and vice versa. A tied weight may be saved
    under any of its names.
    """
    expected = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    prefix = f"{model.base_model_prefix}."
    saved: dict[str, tuple[int, ...]] = {}
    for path in map(Path, files):
        with explain_unreadable(path.parent, (path.name,)), safe_open(path, framework="pt") as weights:
            for key in weights.keys():  # noqa: SIM118
                names = (key, prefix + key, key.removeprefix(prefix))
                model_key = next((name for name in names if name in expected), key)
                saved[model_key] = tuple(weights.get_slice(key).get_shape())
    tied = model._tied_weights_keys or {}
    saved_sources = {tied.get(key, key) for key in saved}
    missing = {key for key in expected.keys() - saved.keys() if tied.get(key, key) not in saved_sources}
    mismatched = [key for key in expected.keys() & saved.keys() if saved[key] != expected[key]]
    return {
        "mismatched_keys": [(key, saved[key], expected[key]) for key in sorted(mismatched)],
        "missing_keys": sorted(missing),
        "unexpected_keys": sorted(saved.keys() - expected.keys()),
    }
