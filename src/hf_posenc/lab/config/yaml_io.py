"""YAML input and output: bounded, without Python objects, with errors that name the file.

PyYAML reads YAML 1.1, in which `010` is 8, `1:30` is 90, `no` is False, `3e-4` is text and `2020-13-45` raises. Here
scalars are those of YAML 1.2's core schema: `010` is 10, `3e-4` a number, dates and `no` are text. Keys are text as
typed. `<<` still merges. A duplicate key is an error. Sizes are bounded; aliases count each time they are used.

ruamel.yaml was tried (2026-11, version 0.19). It reads all 68 configs alike and refuses duplicate keys. But dates,
`1_000` and keys such as `1` do not remain text, and it has no bounds. It would replace 25 of these lines.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import yaml
from yaml.constructor import ConstructorError

from ...utils.text_io import JsonObject

MAX_BYTES = 2**22
MAX_NODES = 50_000  # keys and values, those behind an alias counted each time
MAX_DEPTH = 50
MAX_DIGITS = 40

TAG = "tag:yaml.org,2002:"
BOOLEANS = {"true": True, "false": False}
# The core schema of YAML 1.2 (https://yaml.org/spec/1.2.2/#103-core-schema): pattern, first characters, value.
CORE_SCHEMA: dict[str, tuple[str, str, Callable[[str], object]]] = {
    "null": (r"~|null|Null|NULL|", "~nN", lambda text: None),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF", lambda text: BOOLEANS[text.lower()]),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789", lambda text: parse_int(text)),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
        lambda text: float(text.lower().replace(".inf", "inf").replace(".nan", "nan")),
    ),
}


def parse_int(text: str) -> int:
    base = {"0o": 8, "0x": 16}.get(text[:2], 10)
    return int(text[2:] if base != 10 else text, base)


class Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, list[Any]] = {}
    yaml_constructors: ClassVar[dict[str | None, Any]] = {
        tag: yaml.SafeLoader.yaml_constructors[tag] for tag in (f"{TAG}str", f"{TAG}seq", f"{TAG}map", None)
    }
    nodes = depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node:
        """A node with `expanded_size`: its number of nodes and levels with aliases expanded, both within bounds."""
        mark, is_alias = self.peek_event().start_mark, self.check_event(yaml.AliasEvent)
        self.nodes, self.depth = self.nodes + 1, self.depth + 1
        if self.depth > MAX_DEPTH:
            raise ConstructorError(None, None, f"it is nested more than {MAX_DEPTH} deep", mark)
        node: Any = super().compose_node(parent, index)
        self.depth -= 1
        if is_alias and not hasattr(node, "expanded_size"):
            raise ConstructorError(None, None, "an alias stands in what it names", mark)
        if not is_alias:
            children = [] if isinstance(node, yaml.ScalarNode) else node.value
            child_nodes = [child for part in children for child in (part if isinstance(part, tuple) else (part,))]
            sizes = [getattr(child, "expanded_size", (1, 1)) for child in child_nodes]
            node.expanded_size = 1 + sum(size for size, _ in sizes), 1 + max((levels for _, levels in sizes), default=0)
        if max(node.expanded_size[0], self.nodes) > MAX_NODES:
            raise ConstructorError(None, None, f"it unfolds to more than {MAX_NODES:,} keys and values", mark)
        if node.expanded_size[1] > MAX_DEPTH:
            raise ConstructorError(None, None, f"its aliases nest more than {MAX_DEPTH} deep", mark)
        return node

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

    def construct_core_scalar(self, node: yaml.Node) -> object:
        """The value of a scalar of the core schema. An explicit tag (`!!int x`) may contradict the text."""
        pattern, _, value = CORE_SCHEMA[type_name := node.tag.removeprefix(TAG)]
        if not isinstance(node, yaml.ScalarNode) or not re.fullmatch(pattern, node.value):
            raise ConstructorError(None, None, f"this is no {type_name}", node.start_mark)
        if type_name == "int" and len(node.value) > MAX_DIGITS:
            raise ConstructorError(None, None, f"found a number of {len(node.value)} digits", node.start_mark)
        return value(node.value)


for type_name, (pattern, first_characters, _) in CORE_SCHEMA.items():
    Loader.add_implicit_resolver(
        f"{TAG}{type_name}", re.compile(f"^(?:{pattern})$"), [*first_characters, *([""] * (type_name == "null"))]
    )
    Loader.add_constructor(f"{TAG}{type_name}", Loader.construct_core_scalar)
Loader.add_implicit_resolver(f"{TAG}merge", re.compile("^<<$"), ["<"])


class CommandLineLoader(Loader):
    """Loader for values of the command line. A comment is an error."""

    def scan_to_next_token(self) -> None:
        offset = 0
        while self.peek(offset) in " \n":
            offset += 1
        if self.peek(offset) == "#":
            raise ConstructorError(None, None, "here a comment would begin; write # inside of quotes", self.get_mark())
        super().scan_to_next_token()


class Dumper(yaml.SafeDumper):
    """Quotes text that PyYAML or the loader above would read as another type."""


for type_name, (pattern, first_characters, _) in CORE_SCHEMA.items():
    Dumper.add_implicit_resolver(f"{TAG}{type_name}", re.compile(f"^(?:{pattern})$"), list(first_characters))


def read_yaml(path: Path, file_description: str) -> JsonObject:
    """The mapping in a YAML file, empty for an empty file. Errors begin with `file_description`, such as "A config
    file", and name the file."""
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(
            f"{file_description} has at most {MAX_BYTES // 2**20} MiB, but {path} has more; name another file."
        )
    try:
        with one_line_errors():
            data = Loader(content.decode("utf-8-sig")).get_single_data()
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
            return CommandLineLoader(text).get_single_data()
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
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # an invalid character, a %YAML version of 5000 digits
        raise ValueError(" ".join(str(error).split())) from None


def dump_yaml(content: object) -> str:
    """Text that `read_yaml` and PyYAML read alike, keys in their order."""
    return yaml.dump(content, Dumper=Dumper, sort_keys=False, allow_unicode=True)
