"""Schema of config files: validates values against the annotations of dataclass fields.

A key is a field of a dataclass. Its annotation is bool, int, float, str, None, a Literal, an Enum, list[...], dict[str,
...] or a union of these. `Annotated[int, at_least(1)]` adds a constraint, and `Annotated[Section,
MappingOf(CorpusKeys)]` gives a mapping a schema. A new key is one line.

An error is one line with the key, the rule, the value and the remedy. Numbers must be finite and at most MAX_INT, and
text must be storable in a file.
"""

import math
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from ...hub.errors import closest_name, validate_names
from ...utils.text_io import JsonObject

MAX_INT = 2**32 - 1  # a seed of numpy's
SCALAR_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "text", NoneType: "null"}
MAX_LISTED = 16  # names
SHORT_REPR = reprlib.Repr()
SHORT_REPR.maxstring = SHORT_REPR.maxother = SHORT_REPR.maxlong = 80

Section = JsonObject  # of a config file


@dataclass(frozen=True)
class Constraint:
    """A condition on a value of the right type, and its description, in which `{}` is replaced by that of the type."""

    description: str
    is_valid: Callable[[Any], bool]
    valid_names: tuple[str, ...] = ()  # the allowed names, if the value is a name


@dataclass(frozen=True)
class MappingOf:
    """A mapping whose keys are the fields of a dataclass. For a recursive dataclass, `schema` is a function that
    returns it."""

    schema: type | Callable[[], type]
    description: str = "keys and values"

    @property
    def dataclass(self) -> type:
        return self.schema if isinstance(self.schema, type) else self.schema()


def at_least(minimum: int | float) -> Constraint:
    return Constraint(f"{{}} from {minimum} on", lambda value: value >= minimum)


def in_range(minimum: int | float, maximum: int | float) -> Constraint:
    return Constraint(f"{{}} from {minimum} to {maximum}", lambda value: minimum <= value <= maximum)


def one_of(names: Iterable[str]) -> Constraint:
    names = list(names)
    return Constraint(format_choices(names), tuple(names).__contains__, tuple(names))


above_zero = Constraint("{} above 0", lambda value: value > 0)
below_one = Constraint("{} from 0 to below 1", lambda value: 0 <= value < 1)
non_empty = Constraint("{}", bool)
each_once = Constraint("{}, each once", lambda values: len(set(values)) == len(values))

NonEmptyStr = Annotated[str, non_empty]
PositiveInt = Annotated[int, at_least(1)]
Seed = Annotated[int, in_range(0, MAX_INT)]


def validate(value: object, annotation: object, key: str, *, partial: bool = False, default: object = MISSING) -> None:
    """Raise a ValueError unless `value`, which is given under `key`, matches the annotation. In a `partial` mapping,
    required keys may be missing, because it is merged over another one."""
    base, metadata = split_annotated(annotation)
    candidates = [candidate for candidate in union_members(base) if matches_type(value, candidate)]
    if not candidates:
        raise_invalid(value, annotation, key, default)
    for number, candidate in enumerate(candidates, 1):
        try:
            validate_contents(value, candidate, key, partial, default)
            break
        except ValueError:
            if number == len(candidates):
                raise
    for constraint in metadata:
        if isinstance(constraint, MappingOf) and isinstance(value, Mapping):
            validate_fields(value, constraint.dataclass, key, partial)
        elif isinstance(constraint, Constraint) and not constraint.is_valid(value):
            raise_invalid(value, annotation, key, default, constraint.valid_names)


def validate_contents(value: object, annotation: object, key: str, partial: bool, default: object) -> None:
    """Validate the contents of a value whose outermost type is right."""
    if get_origin(annotation) is Annotated:
        validate(value, annotation, key, partial=partial, default=default)
    elif isinstance(value, list) and get_origin(annotation) is list:
        for number, item in enumerate(value):
            validate(item, get_args(annotation)[0], f"{key}[{number}]", partial=partial)
    elif isinstance(value, dict) and get_origin(annotation) is dict:
        for name, item in value.items():
            validate(item, get_args(annotation)[1], join_key(key, name), partial=partial)
    elif is_enumerated(annotation):
        if value not in choices(annotation):
            raise_invalid(value, annotation, key, default, choices(annotation))
    else:
        validate_leaf(value, key, default)


def validate_leaf(value: object, key: str, default: object) -> None:
    """Refuse texts and numbers that are invalid under every key."""
    if isinstance(value, str) and not is_valid_text(value):
        raise_invalid(value, "text that a file in UTF-8 can hold, without the character NUL", key, default)
    elif type(value) is int and abs(value) > MAX_INT:
        raise_invalid(value, f"a number of at most {MAX_INT}", key, default)
    elif isinstance(value, float) and not math.isfinite(value):
        raise_invalid(value, "a number that is neither infinite nor NaN", key, default)
    elif isinstance(value, dict | list):  # whose contents have no annotation
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            validate_leaf(item, join_key(key, str(name)), MISSING)


def validate_fields(value: Mapping[str, object], dataclass_type: type, key: str, partial: bool = False) -> None:
    """Validate a mapping whose keys are the fields of `dataclass_type`."""
    fields_by_name = {field.name: field for field in fields(dataclass_type)}
    validate_names(value, fields_by_name, key or "a config file")
    if not partial and (
        missing := [name for name, field in fields_by_name.items() if is_required(field) and not value.get(name)]
    ):
        raise ValueError(f"{key} needs {', '.join(missing)}; add what is missing under `{key.split()[-1]}:`.")
    for name, item in value.items():
        validate(
            item,
            field_types(dataclass_type)[name],
            join_key(key, name),
            partial=partial,
            default=default_value(fields_by_name[name]),
        )


@cache
def field_types(dataclass_type: type) -> dict[str, object]:
    """The annotations of a dataclass's fields."""
    return get_type_hints(dataclass_type, include_extras=True)


def union_members(annotation: object) -> list[object]:
    """The members of a union. Next to an Enum, str is left out: a text must be one of the Enum's values."""
    members = list(get_args(annotation)) if get_origin(annotation) in (Union, UnionType) else [annotation]
    has_enum = any(isinstance(item, type) and issubclass(item, Enum) for item in members)
    return [item for item in members if not (has_enum and item is str)]


def split_annotated(annotation: object) -> tuple[object, tuple[object, ...]]:
    return (
        (get_args(annotation)[0], get_args(annotation)[1:]) if get_origin(annotation) is Annotated else (annotation, ())
    )


def matches_type(value: object, annotation: object) -> bool:
    """Whether the outermost type of a value matches."""
    base, metadata = split_annotated(annotation)
    if metadata:
        return any(matches_type(value, candidate) for candidate in union_members(base))
    if annotation is Any:
        return True
    if annotation is float:
        return type(value) in (int, float)
    if is_enumerated(annotation):
        return type(value) in {type(candidate) for candidate in choices(annotation)}
    return type(value) is (get_origin(annotation) or annotation)


def raise_invalid(
    value: object, annotation: object, key: str, default: object, valid_names: Iterable[object] = ()
) -> None:
    requirement = annotation if isinstance(annotation, str) else describe(annotation)
    remedy = "correct it"
    if valid_names and isinstance(value, str):
        remedy = f"the nearest is {closest_name(value, map(str, valid_names))!r}"
    elif (
        type(value) in (bool, int, float)
        and not isinstance(annotation, str)
        and any(matches_type("", candidate) for candidate in union_members(split_annotated(annotation)[0]))
    ):
        remedy = "write it in quotes"
    if default is not MISSING and value != default:
        remedy += ", or leave it out" + ("" if default is None else f" for {format_value(default)}")
    raise ValueError(f"{key} must be {requirement}, but it is {format_value(value)}; {remedy}.")


def describe(annotation: object) -> str:
    """The description of an annotation, for messages and docs. It leaves out that a value may be null."""
    base, metadata = split_annotated(annotation)
    if metadata:
        requirement = describe(base)
        for constraint in metadata:
            assert isinstance(constraint, Constraint | MappingOf)
            requirement = constraint.description.format(requirement)
        return requirement
    if annotation in SCALAR_NAMES:
        return SCALAR_NAMES[annotation]
    if is_enumerated(annotation):
        return format_choices(choices(annotation))
    if get_origin(annotation) is list:
        return f"a list in which each is {describe(get_args(annotation)[0])}"
    if annotation is list or (get_origin(annotation) is not Union and not isinstance(annotation, UnionType)):
        return "a list" if annotation is list else "keys and values"
    members = [item for item in union_members(annotation) if item is not NoneType] or [NoneType]
    return " or ".join(dict.fromkeys(map(describe, members)))


def is_enumerated(annotation: object) -> bool:
    return get_origin(annotation) is Literal or (isinstance(annotation, type) and issubclass(annotation, Enum))


def choices(annotation: object) -> list[object]:
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return [member.value for member in annotation]
    return list(get_args(annotation))


def format_choices(names: Sequence[object]) -> str:
    """The names, truncated to the first MAX_LISTED."""
    shown_names = ", ".join(name if isinstance(name, str) else format_value(name) for name in names[:MAX_LISTED])
    return f"one of {shown_names}" + (f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else "")


def is_required(field: Field) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def default_value(field: Field) -> object:
    return field.default if field.default_factory is MISSING else field.default_factory()


def join_key(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def is_valid_text(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def format_value(value: object) -> str:
    """A value with null, true and false as in YAML and all else as in Python, shortened if it is long."""
    spelled = {None: "null", True: "true", False: "false"}
    return spelled[value] if value is None or isinstance(value, bool) else SHORT_REPR.repr(value)
