# SPDX-License-Identifier: Apache-2.0
"""Files of saved weights: their paths, and the shapes in their headers."""

import json
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict

from safetensors import safe_open
from transformers import PreTrainedModel
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, cached_file

from ..hub.foreign_files import explain_unreadable

SHARD_NAME = re.compile(r"[^/\\\\]+\.safetensors")
Shapes = dict[str, tuple[int, ...]]


class LoadingInfo(TypedDict):
    """transformers' loading info: names of weights; mismatched ones with their saved and their expected shape."""

    mismatched_keys: Iterable[tuple[str, tuple[int, ...], tuple[int, ...]]]
    missing_keys: Iterable[str]
    unexpected_keys: Iterable[str]


# The argument of `from_pretrained`: a folder, a name on the Hub, or None with a state dict.
NameOrPath = str | os.PathLike[str] | None


def weight_files(name: NameOrPath, *, variant: str | None = None, **hub_options: object) -> list[str]:
    """The files that transformers will read; empty if it will raise an error of its own.

    An OSError for a file that is not safetensors, and for an index that names files outside its folder.
    """
    if name is None:
        return []
    if os.path.isfile(name):
        validate_safetensors_only([str(name)])
        return [str(name)]
    single = cached_path(name, with_variant(SAFE_WEIGHTS_NAME, variant), hub_options)
    index = cached_path(name, with_variant(SAFE_WEIGHTS_INDEX_NAME, variant), hub_options)
    if single is not None or index is None:
        return [] if single is None else [single]
    with explain_unreadable(name, (Path(index).name,)):
        shards = sorted(set(json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"].values()), key=str)
    for shard in shards:
        if not (isinstance(shard, str) and SHARD_NAME.fullmatch(shard)):
            raise OSError(
                f"Weights of this family are safetensors only, next to their index, but that of {name} names "
                f"{shard!r}; save the model again by model.save_pretrained."
            )
    files = [cached_path(name, shard, hub_options) for shard in shards]
    found = [file for file in files if file is not None]
    return found if len(found) == len(files) else []


def with_variant(file: str, variant: str | None) -> str:
    """The file's name with the variant before its extension."""
    *stem, ending = file.split(".")
    return file if variant is None else ".".join([*stem, variant, ending])


def cached_path(name: NameOrPath, file: str, hub_options: dict[str, object]) -> str | None:
    """The local path of a checkpoint's file, downloaded if necessary; None if the checkpoint has no such file."""
    try:
        return cached_file(name, file, _raise_exceptions_for_missing_entries=False, **hub_options)
    except OSError:
        return None


def validate_safetensors_only(files: Iterable[str]) -> None:
    """Raise an OSError for a file that is not safetensors."""
    for file in files:
        if not str(file).endswith(".safetensors"):
            raise OSError(
                f"Weights of this family are safetensors only, but {file} is something else; if you trust it, "
                "model.load_state_dict(torch.load(FILE, weights_only=True)) on a model made from its config, and "
                "model.save_pretrained makes safetensors of it."
            )


def set_weights_mode(folder: str | os.PathLike[str]) -> None:
    """Give a saved model's weights the mode of its config: safetensors makes files that only their owner may read."""
    config = Path(folder, CONFIG_NAME)
    for file in Path(folder).glob("*.safetensors") if config.exists() else ():
        file.chmod(stat.S_IMODE(config.stat().st_mode))


def tensor_shapes(files: Iterable[str]) -> Shapes:
    """The shape of each tensor by name, from the files' headers."""
    shapes: Shapes = {}
    for file in files:
        path = Path(file)
        with explain_unreadable(path.parent, (path.name,)), safe_open(file, framework="pt") as weights:
            shapes |= {key: tuple(weights.get_slice(key).get_shape()) for key in weights.keys()}  # noqa: SIM118
    return shapes


def expected_loading_info(model: PreTrainedModel, file_shapes: Shapes) -> LoadingInfo:
    """transformers' loading info, before loading: missing, unexpected and mismatched keys.

    A model with an output projection reads the files of a model without one, and vice versa. A tied weight may be saved
    under any of its names.
    """
    model_shapes = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    prefix = f"{model.base_model_prefix}."
    saved_shapes = {}
    for key, shape in file_shapes.items():
        model_key = next((name for name in (key, prefix + key, key.removeprefix(prefix)) if name in model_shapes), key)
        saved_shapes[model_key] = shape
    tied = model._tied_weights_keys or {}
    saved_sources = {tied.get(key, key) for key in saved_shapes}
    shared = {key for key in model_shapes if tied.get(key, key) in saved_sources}
    return {
        "mismatched_keys": [
            (key, shape, model_shapes[key])
            for key, shape in saved_shapes.items()
            if shape != model_shapes.get(key, shape)
        ],
        "missing_keys": sorted(model_shapes.keys() - saved_shapes.keys() - shared),
        "unexpected_keys": sorted(saved_shapes.keys() - model_shapes.keys()),
    }
