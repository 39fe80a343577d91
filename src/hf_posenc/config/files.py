"""YAML files that extend each other -> one mapping. Knows nothing of what the keys mean, but for corpora and models:
those of another kind replace what stands under them.

By hand, and not by OmegaConf, since it would be as much code around it: it reads `no` as False, merges corpora of two
kinds into one that has both, takes an override without a value, and reads `${` and `???` in a value as its own signs.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ..data import KINDS as CORPUS_KINDS
from ..modeling.configuration_posenc import PosEncConfig


class Loader(yaml.SafeLoader):
    """YAML 1.1 as PyYAML reads it, but 3e-4 is a number, as everyone who writes a learning rate means it, and of the
    many spellings of Booleans only true and false are left: `no` is a strategy of the Trainer, and a language."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """A mapping as written, and an error for a key that stands in it twice, of which PyYAML takes the last."""
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if (key.tag, key.value) in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"found the key {key.value!r} twice", key.start_mark
                )
            seen.add((key.tag, key.value))
        return node


Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(true|false)$", re.IGNORECASE), list("tTfF"))
Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def read_config_file(path: Path) -> dict[str, Any]:
    """A YAML file over the file that it `extends`, or over several, each over those before it."""
    try:
        with path.open("rb") as file:  # by which an error names it
            content = yaml.load(file, Loader) or {}
    except FileNotFoundError:
        raise FileNotFoundError(f"A config file must exist, but there is none at {path}.") from None
    except yaml.YAMLError as error:
        raise ValueError(f"A config file must be YAML in UTF-8, but {path} is not: {error}") from None
    if not isinstance(content, Mapping):
        raise ValueError(f"A config file must hold keys and values, but {path} holds {type(content).__name__}.")
    given = content.get("extends") or []
    parents = [given] if isinstance(given, str) else given
    if not isinstance(parents, list) or not all(isinstance(parent, str) for parent in parents):
        raise ValueError(f"`extends` must be a file's name or a list of such, but in {path} it is {given!r}.")
    below: dict[str, Any] = {}
    for parent in parents:
        below = merge(below, read_config_file(path.parent / parent))
    return merge(below, content)


def merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings merge key by key, unless the one over the other is of another kind; any other value replaces what was
    there. A mapping of None is as if it were empty."""
    if another_kind(under, over):
        return dict(over)
    merged = dict(under)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def another_kind(under: Mapping[str, Any], over: Mapping[str, Any]) -> bool:
    """Whether what stands under a mapping means nothing to it: pairs from elsewhere, or another type of model."""
    if sources := CORPUS_KINDS.keys() & over.keys():
        return not sources & under.keys()
    return "model_type" in over and over["model_type"] != under.get("model_type", PosEncConfig.model_type)


def parse_override(override: str) -> dict[str, Any]:
    dotted, equals, value = override.partition("=")
    if not equals or not all(dotted.split(".")):
        raise ValueError(f"An override is written dotted.key=value, but it is {override!r}.")
    try:
        nested: Any = yaml.load(value, Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"An override's value is YAML, but that of {override!r} is not: {error}") from None
    for key in reversed(dotted.split(".")):
        nested = {key: nested}
    return nested
