"""Errors of one line for content that pydantic refuses: the key, the rule, the value and the remedy.

`parse` validates the content of a file by a model, a subclass of `Keys`. What a key must be is described by its
annotation, here and in the docs. A `Field(description=...)` takes the place of the words for type and bounds. An error
is, for example:

    train.max_steps must be a whole number from 1 on, but it is 0; correct it, or leave it out for 5.
"""

import math
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, ErrorDetails, PydanticUndefined, core_schema

from ...hub.errors import closest_name

T = TypeVar("T")
MAX_INT = 2**32 - 1  # a seed of numpy's
MAX_LISTED = 16  # names
TYPE_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "text", NoneType: "null"}
UNUSABLE_CHARACTER = re.compile("[\0\ud800-\udfff]")
SHORT_REPR = reprlib.Repr()
SHORT_REPR.maxstring = SHORT_REPR.maxother = SHORT_REPR.maxlong = 80


class Keys(BaseModel):
    """Base class of mappings whose keys are the fields. Types are not converted, and other keys are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


@dataclass(frozen=True)
class OneOf:
    """Metadata of an annotation: the value is one of the names, which are a Literal that is known at run time only."""

    names: tuple[str, ...]

    def __init__(self, names: Iterable[str]) -> None:
        object.__setattr__(self, "names", tuple(names))

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.literal_schema(list(self.names))


@dataclass(frozen=True)
class KeysOf:
    """Metadata of an annotation: the value is a mapping with the keys of the model, and stays as it was given."""

    model: type[BaseModel]

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler.generate_schema(self.model)
        as_given = core_schema.plain_serializer_function_ser_schema(dict)
        return core_schema.no_info_wrap_validator_function(validate_and_keep, schema, serialization=as_given)


def validate_and_keep(value: T, validate: Callable[[T], object]) -> T:
    validate(value)
    return value


Text = Annotated[str, Field(min_length=1)]
PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, le=MAX_INT)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]


class Violation(NamedTuple):
    """What is wrong at a path in some content, and the remedy, empty where `problem` has it."""

    problem: str
    remedy: str = ""
    path: tuple[int | str, ...] = ()

    def __str__(self) -> str:
        return f"{self.problem}; {self.remedy}." if self.remedy else self.problem


class Place(NamedTuple):
    """A value in the content, with its dotted key, its annotation, its default, and the path to it."""

    key: str
    annotation: Any
    value: object
    default: object = PydanticUndefined
    path: tuple[int | str, ...] = ()


def parse(annotation: type[T], content: object, key: str = "") -> T:
    """Validate content by an annotation, such as a model. A ValueError of one line names the key below `key`."""
    hashable: Any = annotation
    try:
        return validator(hashable).validate_python(content)
    except ValidationError as error:
        raise ValueError(str(find_violation(error, annotation, content, key))) from None


@cache
def validator(annotation: Any) -> TypeAdapter[Any]:
    return TypeAdapter(annotation)


def find_violation(error: ValidationError, annotation: object, content: object, key: str = "") -> Violation:
    """The violation of the content that says most. A misspelt key comes first, because it is also a missing one."""
    root = Place(key, annotation, content)
    errors = error.errors(include_url=False)
    for details in errors:
        if details["type"] == "extra_forbidden":
            return unknown_key(follow(root, details["loc"][:-1]), str(details["loc"][-1]))
    missing = [details for details in errors if details["type"] in ("missing", "missing_argument")]
    if missing:
        parent = missing[0]["loc"][:-1]
        names = [str(details["loc"][-1]) for details in missing if details["loc"][:-1] == parent]
        return missing_keys(follow(root, parent), names)
    return invalid_value(root, errors)


def unknown_key(place: Place, name: str) -> Violation:
    known = list(model_fields(place.annotation))
    owner = place.key or "a config file"
    return Violation(
        f"{owner} has no key {name!r}", f"the nearest one is {closest_name(name, known)!r}", (*place.path, name)
    )


def missing_keys(place: Place, names: Sequence[str]) -> Violation:
    section = place.key.split()[-1] if place.key else ""
    where = f" under `{section}:`" if section else ""
    return Violation(
        f"{place.key or 'a config file'} needs {', '.join(names)}", f"add what is missing{where}", place.path
    )


def invalid_value(root: Place, errors: Sequence[ErrorDetails]) -> Violation:
    """The first value that is refused. Of a value that fits no member of a union, the item that is refused."""
    for details in errors:
        if details["loc"] and details["loc"][-1] == "[key]":
            return invalid_name(follow(root, details["loc"][:-2]), details["loc"][-2])
    places = [follow(root, details["loc"]) for details in errors]
    inside = [place for place in places if place.key.startswith(places[0].key)]
    place = max(inside, key=lambda candidate: len(candidate.path))  # the first one of those that stand deepest
    details = errors[places.index(place)]
    if details["type"] == "value_error":  # of a validator that says it all
        message = str(details["ctx"]["error"])
        is_complete = message.startswith(place.key)  # with its key
        return Violation(message if is_complete else f"{place.key}: {message}", path=place.path)
    remedy = find_remedy(place)
    if place.default is not PydanticUndefined and place.value != place.default:
        remedy += ", or leave it out"
        remedy += "" if place.default is None else f" for {format_value(place.default)}"
    rule = describe(place.annotation)
    return Violation(f"{place.key} must be {rule}, but it is {format_value(place.value)}", remedy, place.path)


def find_unusable(content: object, key: str = "") -> Violation | None:
    """The first number or text of the content that no key can have, such as one too large for the libraries."""
    items: Iterable[tuple[str, object]] = ()
    if isinstance(content, dict):
        items = [(f"{key}.{name}" if key else str(name), item) for name, item in content.items()]
    elif isinstance(content, list):
        items = [(f"{key}[{number}]", item) for number, item in enumerate(content)]
    elif isinstance(content, str) and UNUSABLE_CHARACTER.search(content):
        rule = "text that a file in UTF-8 can hold, without the character NUL"
        return Violation(f"{key} must be {rule}, but it is {format_value(content)}", "correct it")
    elif is_unusable_number(content):
        rule = f"a finite number, and a whole one of at most {MAX_INT}"
        return Violation(f"{key} must be {rule}, but it is {format_value(content)}", "correct it")
    return next(filter(None, (find_unusable(item, name) for name, item in items)), None)


def is_unusable_number(value: object) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    return isinstance(value, int) and abs(value) > MAX_INT


def invalid_name(place: Place, name: object) -> Violation:
    """A key of a mapping whose names have a rule."""
    rules = [get_args(without_metadata(member)) for member in members(place.annotation)]
    rule = next(describe(arguments[0]) for arguments in rules if len(arguments) == 2)
    return Violation(f"a key of {place.key} must be {rule}, but it is {format_value(name)}", "rename it")


def find_remedy(place: Place) -> str:
    names = [str(choice) for member in members(place.annotation) for choice in choices(member)]
    if names and isinstance(place.value, str):
        return f"the nearest is {closest_name(place.value, names)!r}"
    takes_text = any(without_metadata(member) is str and not choices(member) for member in members(place.annotation))
    if takes_text and type(place.value) in (bool, int, float):
        return "write it in quotes"
    return "correct it"


def follow(place: Place, location: Sequence[int | str]) -> Place:
    """The place at pydantic's location of an error. Its steps that are no keys of the content name union members."""
    for step in location:
        value = place.value
        if isinstance(value, Mapping) and step in value:
            key = f"{place.key}.{step}" if place.key else str(step)
            annotation, default = annotation_inside(place.annotation, str(step))
            place = Place(key, annotation, value[step], default, (*place.path, step))
        elif isinstance(value, list | tuple) and isinstance(step, int) and step < len(value):
            annotation, _ = annotation_inside(place.annotation, step)
            place = Place(f"{place.key}[{step}]", annotation, value[step], path=(*place.path, step))
    return place


def annotation_inside(annotation: object, step: int | str) -> tuple[Any, object]:
    """The annotation and the default of an item of a model, of a mapping or of a list."""
    field = model_fields(annotation).get(str(step))
    if field is not None:
        default = PydanticUndefined if field.is_required() else field.get_default(call_default_factory=True)
        return Annotated[field.annotation, field], default
    containers = (list, tuple) if isinstance(step, int) else (dict, Mapping)
    for member in members(annotation):
        base = without_metadata(member)
        if isinstance(step, int) and hasattr(base, "_fields"):  # a NamedTuple, which a file has as a list
            return list(get_type_hints(base, include_extras=True).values())[step], PydanticUndefined
        arguments = [argument for argument in get_args(base) if argument is not Ellipsis]
        if arguments and issubclass(get_origin(base) or object, containers):
            return arguments[-1], PydanticUndefined
    return Any, PydanticUndefined


def model_fields(annotation: object) -> dict[str, FieldInfo]:
    """The fields of a pydantic model or dataclass by the names that a file has for them; of others none."""
    models: list[Any] = []
    for member in (annotation, *members(annotation)):
        models += [item.model for item in flat_metadata(member) if isinstance(item, KeysOf)]
        models.append(without_metadata(member))
    fields: dict[str, FieldInfo] = {}
    for model in models:
        for name, field in getattr(model, "__pydantic_fields__", {}).items():
            fields[field.alias or name] = field
    return fields


def describe(annotation: object) -> str:
    """The rule of an annotation in words, for messages and docs. It leaves out that a value may be null."""
    metadata = flat_metadata(annotation)
    for item in reversed(metadata):
        if isinstance(item, FieldInfo) and item.description:
            return item.description
    if names := choices(annotation):
        return format_choices(names)
    base = without_metadata(annotation)
    alternatives = [member for member in members(base) if member is not NoneType] or [NoneType]
    if len(alternatives) > 1 or alternatives[0] is not base:
        return " or ".join(dict.fromkeys(map(describe, alternatives)))
    return describe_type(base) + describe_bounds(metadata)


def describe_type(base: Any) -> str:
    if base in TYPE_NAMES:
        return TYPE_NAMES[base]
    origin = get_origin(base) or base
    if isinstance(origin, type) and issubclass(origin, (list, tuple)):
        arguments = get_args(base)
        return f"a list in which each is {describe(arguments[0])}" if arguments else "a list"
    return "keys and values"


def describe_bounds(metadata: Sequence[object]) -> str:
    """The bounds of a number, such as " from 1 to 1000"."""
    words = ""
    for item in metadata:
        if isinstance(item, Ge):
            words = f" from {item.ge} on"
        elif isinstance(item, Gt):
            words = f" above {item.gt}"
        elif isinstance(item, Le):
            words = words.removesuffix(" on") + f" to {item.le}"
        elif isinstance(item, Lt):
            words = words.removesuffix(" on") + f" to below {item.lt}"
    return words


def members(annotation: object) -> list[Any]:
    """The members of a union, and of unions in it."""
    base = without_metadata(annotation)
    if get_origin(base) not in (Union, UnionType):
        return [annotation]
    return [inner for member in get_args(base) for inner in members(member)]


def without_metadata(annotation: object) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def flat_metadata(annotation: object) -> list[object]:
    """The metadata of an annotation, with those that a Field holds."""
    found: list[object] = []
    for item in get_args(annotation)[1:] if get_origin(annotation) is Annotated else ():
        found += [item, *item.metadata] if isinstance(item, FieldInfo) else [item]
    return found


def choices(annotation: object) -> list[object]:
    """The values that an annotation lists, empty if it lists none."""
    for item in flat_metadata(annotation):
        if isinstance(item, OneOf):
            return list(item.names)
    base = without_metadata(annotation)
    return list(get_args(base)) if get_origin(base) is Literal else []


def format_choices(names: Sequence[object]) -> str:
    """The names, truncated to the first MAX_LISTED."""
    shown_names = ", ".join(name if isinstance(name, str) else format_value(name) for name in names[:MAX_LISTED])
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return f"one of {shown_names}{more}"


def format_value(value: object) -> str:
    """A value with null, true and false as in YAML and all else as in Python, shortened if it is long."""
    spelled = {None: "null", True: "true", False: "false"}
    return spelled[value] if value is None or isinstance(value, bool) else SHORT_REPR.repr(value)
