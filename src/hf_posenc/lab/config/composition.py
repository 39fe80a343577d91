"""Composition of config files: `extends`, overrides of the command line, and merging of mappings.

The meaning of keys is not used, with two exceptions. A corpus or a model of another type replaces the one below it. And
`rope_parameters` of another `rope_type` keep what all types have of those below.

OmegaConf was tried. It needs as much code around it: it reads `no` as False and merges corpora of two types into one.
It also accepts an override without a value, and interprets `${` and `???` in values.
"""

from collections.abc import Mapping
from pathlib import Path

from ...transformer.configuration_encodings import COMMON_ROPE_KEYS
from ...transformer.configuration_posenc import PosEncConfig
from ..data.corpus import CORPUS_TYPES
from ..data.readers import expand_home
from .schema import Section, format_value
from .yaml_io import parse_value, read_yaml

SECTIONS = ("data", "model", "train", "score")
MAX_EXTENDS_DEPTH = 50  # files in a chain of `extends`


def read_config_file(path: Path) -> Section:
    """A YAML file merged over the files that it `extends`. Of several, each is merged over the one before it."""
    return resolve_extends(path, {}, ())


def resolve_extends(path: Path, resolved_files: dict[Path, Section], extended_by: tuple[Path, ...]) -> Section:
    """Implements `read_config_file`. `resolved_files` caches files that have been read, and `extended_by` is the chain
    of files that extend this one."""
    if (resolved := path.resolve()) in resolved_files:
        return resolved_files[resolved]
    chain = (*extended_by, resolved)
    if resolved in extended_by or len(chain) > MAX_EXTENDS_DEPTH:
        names = " extends ".join(str(file) for file in chain[-3:])
        raise ValueError(
            f"A config file must not extend itself, nor over more than {MAX_EXTENDS_DEPTH} files, but {names}; "
            "take one of the `extends:` out."
        )
    try:
        content = read_yaml(path, "A config file")
    except FileNotFoundError:
        raise FileNotFoundError(f"A config file must exist, but there is none at {path}; correct the path.") from None
    extends = content.pop("extends", None) or []
    parents = [extends] if isinstance(extends, str) else extends
    are_names = isinstance(parents, list) and all(isinstance(parent, str) for parent in parents)
    if not are_names or len(set(parents)) < len(parents):
        raise ValueError(
            f"`extends` must be a file's name or a list of such, each once, but in {path} it is "
            f"{format_value(extends)}; write the name of each file."
        )
    base: Section = {}
    for parent in parents:
        base = merge(base, resolve_extends(path.parent / expand_home(parent), resolved_files, chain))
    resolved_files[resolved] = merge(base, content)
    return resolved_files[resolved]


def merge(base: Section, override: Section) -> Section:
    """Merge two mappings key by key. A mapping of another type, and any value that is no mapping, replaces the old
    value. An empty section changes nothing, because all its lines may be commented out."""
    if is_different_type(base, override):
        return dict(override)
    if override.get("rope_type", base.get("rope_type")) != base.get("rope_type"):
        base = {key: base[key] for key in COMMON_ROPE_KEYS if key in base}
    merged = dict(base)
    for key, value in override.items():
        if value is None and key in SECTIONS and isinstance(merged.get(key), Mapping):
            continue
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def is_different_type(base: Section, override: Section) -> bool:
    """Whether `override` is a corpus or a model of another type than `base`, so that its keys do not apply."""
    if corpus_types := CORPUS_TYPES.keys() & override.keys():
        return not corpus_types & base.keys()
    return "model_type" in override and override["model_type"] != base.get("model_type", PosEncConfig.model_type)


def parse_override(override: str) -> Section:
    """The mapping of an override `dotted.key=value`, as a config file would contain it."""
    dotted, equals, value = override.partition("=")
    keys = dotted.split(".")
    if not equals or not all(keys):
        raise ValueError(
            f"An override is written dotted.key=value, but it is {override!r}; write for example num_parallel=2."
        )
    if keys[0] == "extends":
        raise ValueError(
            f"`extends` belongs in a config file, but it is given as {override!r}; write a file that holds `extends: "
            "[...]` and give that one's name."
        )
    try:
        nested: Section = {keys[-1]: parse_value(value)}
    except ValueError as error:
        raise ValueError(
            f"An override's value in brackets or quotes is YAML, but that of {override!r} is not: {error}."
        ) from None
    for key in reversed(keys[:-1]):
        nested = {key: nested}
    return nested
