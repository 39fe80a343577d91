"""Frozen dataclasses from and to JSON: `parse` checks a value against a type hint, `to_json` writes it again.

`read_record` and `write_record` do so with a file: one reader and one writer for every record that a run saves.

A hint is a dataclass, a NamedTuple (saved as a list), `tuple[X, ...]`, `Mapping[K, V]`, `X | None`, or a scalar:
`Annotated[type, Rule(...)]`, whose rule says which values are valid. A field may say in its metadata:

    "key"   its name in the JSON, where that is another one
    OTHERS  it holds all keys of the object that are no field's
    OMIT    it is left out of the JSON where it is None; else None is written as null
    UNSAVED it is never in the JSON

A missing key and null are the same for a field whose default is None. Keys of no field must be plain values (a newer
version may have them), and are dropped.
"""

import json
import lzma
import re
import types
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from ...utils.manifest import verified, write_file
from ...utils.run_folder import NAME_RULE, is_valid_name
from ...utils.text_io import JsonObject

T = TypeVar("T")
FileRecordT = TypeVar("FileRecordT", bound="FileRecord")
LABEL = re.compile(r"all|beyond|\[\d+,\d+\]|>\d+")
OTHERS, OMIT, UNSAVED = {"others": True}, {"omit": True}, {"unsaved": True}


class ViolationError(ValueError):
    """A value does not match its type hint. The message has its location in the JSON."""


class FileRecord:
    """Base class of records that are a whole file. `violation` checks their values against each other."""

    def violation(self) -> str | None:
        """The contradiction between values, None without one."""
        return None


@dataclass(frozen=True)
class Rule:
    """The description of a valid scalar, and its test."""

    description: str
    is_valid: Callable[[object], bool]


def read_record(cls: type[FileRecordT], path: Path) -> FileRecordT:
    """Read and verify a saved JSON file. A ValueError names the file if its content has another form."""
    return parse_file(cls, read_json(path), path)


def write_record(path: Path, record: FileRecord, *, indent: int | None = None) -> None:
    """Write a record as JSON, with an entry in its folder's manifest."""
    write_file(path, json.dumps(to_json(record), indent=indent))


def read_json(path: Path) -> JsonObject:
    """The object in a saved JSON file, which is verified before. It may be compressed, with the suffix .xz."""
    with verified(path):
        content = path.read_bytes()
        return dict(json.loads(lzma.decompress(content) if path.suffix == ".xz" else content))


def parse_file(cls: type[FileRecordT], content: object, path: Path) -> FileRecordT:
    """Parse the content of a file. A ValueError names the file and the location of the invalid value."""
    try:
        record = parse(cls, content, path.stem)
        if violation := record.violation():
            raise ViolationError(violation)
    except ViolationError as error:
        raise violation_error(str(error), path) from None
    return record


def violation_error(violation: str, path: Path) -> ValueError:
    return ValueError(
        f"Saved files must be as train.py writes them, but in {path} {violation}. Restore the file, or delete it and "
        "run train.py CONFIG again."
    )


def parse(shape: type[T], value: object, location: str) -> T:
    """Parse a value by its type hint. A ViolationError with the `location` if it does not match."""
    parsed: T = parse_hint(shape, value, location)
    return parsed


def parse_hint(hint: Any, value: object, location: str, or_null: str = "") -> Any:
    """Implements `parse` for any hint. `or_null` is appended to the description of a valid value."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        rule = arguments[1]
        if not rule.is_valid(value):
            raise ViolationError(f"{location} must be {rule.description}{or_null}, but it is {value!r:.100}")
        return value
    if origin in (Union, types.UnionType):
        return None if value is None else parse_hint(arguments[0], value, location, " or null")
    if origin is tuple:
        items = enumerate(validate_list(value, location))
        return tuple(parse_hint(arguments[0], item, f"{location}[{index}]") for index, item in items)
    if issubclass(origin or hint, tuple):
        return parse_named_tuple(hint, value, location)
    if not isinstance(value, Mapping):
        raise ViolationError(f"{location} must have keys and values, but it is {value!r:.100}")
    if isinstance(hint, type) and is_dataclass(hint):
        return parse_record(hint, value, location)
    return parse_mapping(arguments, value, location)


def validate_list(value: object, location: str, length: int | None = None) -> list[object]:
    """The value, if it is a list of that length; else a ViolationError."""
    if not isinstance(value, list) or length not in (None, len(value)):
        size = "" if length is None else f" of {length}"
        raise ViolationError(f"{location} must be a list{size}, but it is {value!r:.100}")
    return value


def parse_named_tuple(hint: type, value: object, location: str) -> object:
    hints = type_hints(hint)
    items = zip(hints.items(), validate_list(value, location, len(hints)), strict=True)
    return hint(*(parse_hint(item_hint, item, f"{location}.{name}") for (name, item_hint), item in items))


def parse_mapping(arguments: tuple[object, ...], value: Mapping[str, object], location: str) -> JsonObject:
    """Parse a mapping, its keys by one hint and its values by another."""
    key_hint, value_hint = arguments
    for key in value:
        parse_hint(key_hint, key, f"a key of {location}")
    return {key: parse_hint(value_hint, item, f"{location}.{key}") for key, item in value.items()}


def parse_record(cls: type, value: Mapping[str, object], location: str) -> object:
    """An instance of a dataclass from the keys of an object."""
    hints, saved = type_hints(cls), dict(saved_fields(cls))
    required = [key for key, field in saved.items() if field.default is MISSING]
    if missing := [key for key in required if key not in value]:
        raise ViolationError(f"{location} lacks {', '.join(missing)}")
    values = {
        field.name: parse_hint(hints[field.name], value[key], f"{location}.{key}")
        for key, field in saved.items()
        if key in value
    }
    others = {key: item for key, item in value.items() if key not in saved}
    if others_field := field_of_others(cls):
        values[others_field] = parse_hint(hints[others_field], others, location)
    else:
        parse_hint(Mapping[Name, Plain], others, location)
    return cls(**values)


def to_json(value: object) -> Any:
    """The value as plain values for `json.dumps`, which `parse` reads."""
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    if not is_dataclass(value):
        return value
    items = {key: (getattr(value, field.name), field) for key, field in saved_fields(type(value))}
    content = {
        key: to_json(item) for key, (item, field) in items.items() if item is not None or not field.metadata.get("omit")
    }
    others_field = field_of_others(type(value))
    return content | (to_json(getattr(value, others_field)) if others_field else {})


def saved_fields(cls: type) -> Iterator[tuple[str, Field]]:
    """The fields that have a key of their own in the JSON, by that key."""
    for field in fields(cls):
        if not (field.metadata.get("others") or field.metadata.get("unsaved")):
            yield field.metadata.get("key", field.name), field


def field_of_others(cls: type) -> str | None:
    """The field that holds all other keys."""
    return next((field.name for field in fields(cls) if field.metadata.get("others")), None)


@cache
def type_hints(cls: Hashable) -> dict[str, Any]:
    return get_type_hints(cls, include_extras=True)


def is_number(value: object) -> bool:
    return type(value) in (int, float) and abs(value) < 2**63  # type: ignore[arg-type]


def is_line(value: object) -> bool:
    return isinstance(value, str) and len(value) <= 1000 and value.isprintable()


def is_label(value: object) -> bool:
    return isinstance(value, str) and bool(LABEL.fullmatch(value))


def is_plain(value: object) -> bool:
    """Whether it consists of numbers and lines, in nested lists and mappings whose keys are names."""
    if isinstance(value, Mapping):
        return all(map(is_valid_name, value)) and all(map(is_plain, value.values()))
    if isinstance(value, list):
        return all(map(is_plain, value))
    return value is None or type(value) in (bool, float) or is_number(value) or is_line(value)


Number = Annotated[float, Rule("a number", is_number)]
Count = Annotated[int, Rule("a number", is_number)]
Flag = Annotated[bool, Rule("true or false", lambda value: type(value) is bool)]
Name = Annotated[str, Rule(NAME_RULE, is_valid_name)]
Line = Annotated[str, Rule("a line of text", is_line)]
Label = Annotated[str, Rule("the label of a length group, such as [0,25] or >100", is_label)]
Text = Annotated[str, Rule("text", lambda value: isinstance(value, str))]
Plain = Annotated[object, Rule("numbers and lines of text", is_plain)]
Anything = Annotated[object, Rule("anything", lambda value: True)]
