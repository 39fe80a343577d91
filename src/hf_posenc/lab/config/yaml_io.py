"""YAML files: read, merge over the files that they extend, change by overrides of the command line, and write.

PyYAML reads YAML 1.1, in which `010` is 8, `1:30` is 90, `no` is False, `3e-4` is text and `2020-13-45` raises. Here
scalars are those of YAML 1.2, with decimal numbers alone: `010` is 10, `3e-4` a number, dates and `no` are text. Keys
are text as typed. `<<` still merges. A duplicate key is an error.

ruamel.yaml (0.19) reads dates, `1_000` and keys such as `1` otherwise. OmegaConf reads `no` as False, merges corpora of
two types into one, and interprets `${` and `???` in values.

Composition does not use the meaning of keys, with two exceptions. A corpus or a model of another type replaces the one
below it. And `rope_parameters` of another `rope_type` keep what all types have of those below.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import yaml
from yaml.constructor import ConstructorError

from ...transformer.configuration_encodings import COMMON_ROPE_KEYS
from ...transformer.configuration_posenc import PosEncConfig
from ...utils.text_io import JsonObject
from ..data.corpus import CORPUS_TYPES
from ..data.readers import expand_home
from .errors import format_value

Section = JsonObject  # of a config file

TAG = "tag:yaml.org,2002:"
# Scalars of YAML 1.2 (https://yaml.org/spec/1.2.2/#103-core-schema): pattern and first characters.
SCALARS = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?[0-9]+", list("-+0123456789")),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
    "merge": ("<<", ["<"]),
}


class Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, list[Any]] = {}
    yaml_constructors: ClassVar[dict[str | None, Any]] = {
        tag: yaml.SafeLoader.yaml_constructors[tag]
        for tag in (None, *(f"{TAG}{kind}" for kind in ("str", "seq", "map", "null", "bool", "float")))
    }

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """A mapping node whose keys are texts as typed, without duplicates."""
        node = super().compose_mapping_node(anchor)
        seen, pairs = set(), []
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise ConstructorError(
                    None, None, "a key must be text, but here is a list or a mapping", key.start_mark
                )
            if key.value in seen:
                raise ConstructorError(None, None, f"found the key {key.value!r} twice", key.start_mark)
            seen.add(key.value)
            tag = key.tag if key.tag == f"{TAG}merge" else f"{TAG}str"
            pairs.append((yaml.ScalarNode(tag, key.value, key.start_mark, key.end_mark), value))
        node.value = pairs
        return node

    def construct_decimal(self, node: yaml.ScalarNode) -> int:
        return int(self.construct_scalar(node))


class Dumper(yaml.SafeDumper):
    """Quotes text that PyYAML or the loader above would read as another type."""


Loader.add_constructor(f"{TAG}int", Loader.construct_decimal)
for kind, (pattern, first_characters) in SCALARS.items():
    Loader.add_implicit_resolver(f"{TAG}{kind}", re.compile(f"^(?:{pattern})$"), first_characters)
Dumper.add_implicit_resolver(f"{TAG}float", re.compile(f"^(?:{SCALARS['float'][0]})$"), SCALARS["float"][1])


def read_yaml(path: Path, file_description: str) -> JsonObject:
    """The mapping in a YAML file, empty for an empty file. Errors begin with `file_description`, such as "A config
    file", and name the file."""
    try:
        with one_line_errors():
            data = Loader(path.read_bytes().decode("utf-8-sig")).get_single_data()
            json.dumps(data)  # a ValueError for a list that holds itself
    except ValueError as error:
        raise ValueError(f"{file_description} must be YAML in UTF-8, but {path} is not: {error}.") from None
    if not isinstance(data, dict | None):
        raise ValueError(
            f"{file_description} must hold keys and values, but {path} holds {type(data).__name__}; write key: value."
        )
    return data or {}


def parse_value(text: str) -> object:
    """The value of a command-line argument. In brackets, braces or quotes it is YAML. Otherwise it is a number, true,
    false, null or plain text, in which `#` and `:` have no meaning."""
    text = text.strip(" ")
    with one_line_errors():
        if text[:1] in ("[", "{", '"', "'"):
            return Loader(text).get_single_data()
        loader = Loader("")
        tag = loader.resolve(yaml.ScalarNode, text, (True, False))
        return text if tag == f"{TAG}merge" else loader.construct_object(yaml.ScalarNode(tag, text))


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Context manager: errors of PyYAML become a ValueError of one line."""
    try:
        yield
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        position = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ValueError(position + ", ".join(filter(None, (error.context, error.problem)))) from None
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except (yaml.YAMLError, ValueError, LookupError, OverflowError) as error:  # a bad character, `!!bool x`
        raise ValueError(" ".join(str(error).split())) from None


def dump_yaml(content: object) -> str:
    """Text that `read_yaml` and PyYAML read alike, keys in their order."""
    return yaml.dump(content, Dumper=Dumper, sort_keys=False, allow_unicode=True)


SECTIONS = ("data", "model", "train", "score")


def read_config_file(path: Path) -> Section:
    """A YAML file merged over the files that it `extends`. Of several, each is merged over the one before it."""
    return resolve_extends(path, {}, ())


def resolve_extends(path: Path, resolved_files: dict[Path, Section], extended_by: tuple[Path, ...]) -> Section:
    """Implements `read_config_file`. `resolved_files` caches files that have been read, and `extended_by` is the chain
    of files that extend this one."""
    if (resolved := path.resolve()) in resolved_files:
        return resolved_files[resolved]
    chain = (*extended_by, resolved)
    if resolved in extended_by:
        names = " extends ".join(str(file) for file in chain[-3:])
        raise ValueError(f"A config file must not extend itself, but {names}; take one of the `extends:` out.")
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
