"""YAML files that extend each other -> one mapping. Knows nothing of what the keys mean, but for corpora and models:
those of another kind replace what stands under them.

By hand, and not by OmegaConf, since it would be as much code around it: it reads `no` as False, merges corpora of two
kinds into one that has both, takes an override without a value, and reads `${` and `???` in a value as its own signs.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..data import KINDS as CORPUS_KINDS
from ..modeling.configuration_posenc import PosEncConfig
from ..whole_files import with_home
from .schema import shown
from .yaml_io import parse_value, read_yaml

SECTIONS = ("data", "model", "train", "score")
MAX_FILES = 50  # of which each extends the one before it


def read_config_file(path: Path) -> dict[str, Any]:
    """A YAML file over the file that it `extends`, or over several, each over those before it."""
    return with_parents(path, {}, ())


def with_parents(path: Path, merged: dict[Path, dict[str, Any]], below: tuple[Path, ...]) -> dict[str, Any]:
    """As `read_config_file`; `merged` are files that have been read, each once, and `below` those that extend this."""
    if (resolved := path.resolve()) in merged:
        return merged[resolved]
    chain = (*below, resolved)
    if resolved in below or len(chain) > MAX_FILES:
        names = " extends ".join(str(one) for one in chain[-3:])
        raise ValueError(
            f"A config file must not extend itself, nor over more than {MAX_FILES} files, but {names}; take one of the "
            "`extends:` out."
        )
    try:
        content = read_yaml(path, "A config file")
    except FileNotFoundError:
        raise FileNotFoundError(f"A config file must exist, but there is none at {path}; correct the path.") from None
    given = content.pop("extends", None) or []
    parents = [given] if isinstance(given, str) else given
    are_names = isinstance(parents, list) and all(isinstance(parent, str) for parent in parents)
    if not are_names or len(set(parents)) < len(parents):
        raise ValueError(
            f"`extends` must be a file's name or a list of such, each once, but in {path} it is {shown(given)}; write "
            "the name of each file."
        )
    under: dict[str, Any] = {}
    for parent in parents:
        under = merge(under, with_parents(path.parent / with_home(parent), merged, chain))
    merged[resolved] = merge(under, content)
    return merged[resolved]


def merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings merge key by key, unless the one over the other is of another kind; any other value replaces what was
    there. A section with nothing in it changes nothing: all that stood there may be commented out."""
    if another_kind(under, over):
        return dict(over)
    merged = dict(under)
    for key, value in over.items():
        if value is None and key in SECTIONS and isinstance(merged.get(key), Mapping):
            continue
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def another_kind(under: Mapping[str, Any], over: Mapping[str, Any]) -> bool:
    """Whether what stands under a mapping means nothing to it: pairs from elsewhere, or another type of model."""
    if sources := CORPUS_KINDS.keys() & over.keys():
        return not sources & under.keys()
    return "model_type" in over and over["model_type"] != under.get("model_type", PosEncConfig.model_type)


def parse_override(override: str) -> dict[str, Any]:
    """What `dotted.key=value` of the command line changes, as the mapping that a file would hold."""
    dotted, equals, value = override.partition("=")
    keys = dotted.split(".")
    if not equals or not all(keys):
        raise ValueError(f"An override is written dotted.key=value, but it is {override!r}; write for example jobs=2.")
    if keys[0] == "extends":
        raise ValueError(
            f"`extends` belongs in a config file, but it is given as {override!r}; write a file that holds `extends: "
            "[...]` and give that one's name."
        )
    try:
        nested: Any = parse_value(value)
    except ValueError as error:
        raise ValueError(
            f"An override's value in brackets or quotes is YAML, but that of {override!r} is not: {error}."
        ) from None
    for key in reversed(keys):
        nested = {key: nested}
    return nested
