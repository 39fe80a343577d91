"""Values against annotations: what each key of a config file may hold, in one place and by one rule.

A key is a field of a dataclass, and its annotation says what it may hold: bool, int, float, str, None, a Literal, an
Enum, list[...], dict[str, ...], a union of these; with `Annotated[int, at_least(1)]` what a type cannot say, and with
`Annotated[dict[str, Any], Keys(Corpus)]` keys of its own. A new key is one line. A refusal is one line, too: the key,
what it must be, what it is, what to do. No number is infinite, NaN or larger than LARGEST, no text unfit for a file.
"""

import math
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from ..modeling.nearest import nearest, refuse_unknown

LARGEST = 2**32 - 1  # a seed of numpy's
SCALARS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", NoneType: "null"}
MANY = 16  # names
SHORT = reprlib.Repr()
SHORT.maxstring = SHORT.maxother = SHORT.maxlong = 80


@dataclass(frozen=True)
class Rule:
    """What a value of the right type must be besides, and how that is said; `{}` stands for the type."""

    says: str
    holds: Callable[[Any], bool]
    names: tuple[str, ...] = ()  # that there are, where it must be one of them


@dataclass(frozen=True)
class Keys:
    """A mapping whose keys are the fields of a dataclass; of one that holds itself, `of` returns it."""

    of: Callable[..., Any]
    says: str = "keys and values"

    @property
    def dataclass(self) -> type:
        return self.of if isinstance(self.of, type) else self.of()


def at_least(least: int | float) -> Rule:
    return Rule(f"{{}} from {least} on", lambda value: value >= least)


def between(least: int | float, most: int | float) -> Rule:
    return Rule(f"{{}} from {least} to {most}", lambda value: least <= value <= most)


def one_of(names: Iterable[str]) -> Rule:
    names = list(names)
    return Rule(listed(names), tuple(names).__contains__, tuple(names))


above_zero = Rule("{} above 0", lambda value: value > 0)
below_one = Rule("{} from 0 to below 1", lambda value: 0 <= value < 1)
not_empty = Rule("{}", bool)
each_once = Rule("{}, each once", lambda values: len(set(values)) == len(values))

Text = Annotated[str, not_empty]
Count = Annotated[int, at_least(1)]
Seed = Annotated[int, between(0, LARGEST)]


def check(value: Any, kind: Any, key: str, *, partial: bool = False, default: Any = MISSING) -> None:
    """A ValueError if `value`, which stands under `key`, is not of that kind. In a `partial` mapping any key may lack,
    since another mapping stands under it."""
    base, rules = without_rules(kind)
    able = [one for one in alternatives(base) if fits(value, one)]
    if not able:
        refuse(value, kind, key, default)
    for number, one in enumerate(able, 1):
        try:
            check_inside(value, one, key, partial, default)
            break
        except ValueError:
            if number == len(able):
                raise
    for rule in rules:
        if isinstance(rule, Keys) and value is not None:
            check_fields(value, rule.dataclass, key, partial)
        elif isinstance(rule, Rule) and not rule.holds(value):
            refuse(value, kind, key, default, rule.names)


def check_inside(value: Any, kind: Any, key: str, partial: bool, default: Any) -> None:
    """The parts of a value whose outermost type is right."""
    if get_origin(kind) is Annotated:
        check(value, kind, key, partial=partial, default=default)
    elif get_origin(kind) is list:
        for number, part in enumerate(value):
            check(part, get_args(kind)[0], f"{key}[{number}]", partial=partial)
    elif get_origin(kind) is dict:
        for name, part in value.items():
            check(part, get_args(kind)[1], joined(key, name), partial=partial)
    elif is_choice(kind):
        if value not in choices(kind):
            refuse(value, kind, key, default, choices(kind))
    else:
        check_leaf(value, key, default)


def check_leaf(value: Any, key: str, default: Any) -> None:
    """What no text and no number may be, wherever it is."""
    if isinstance(value, str) and not is_writable(value):
        refuse(value, "text that a file in UTF-8 can hold, without the character NUL", key, default)
    elif type(value) is int and abs(value) > LARGEST:
        refuse(value, f"a number of at most {LARGEST}", key, default)
    elif isinstance(value, float) and not math.isfinite(value):
        refuse(value, "a number that is neither infinite nor NaN", key, default)
    elif isinstance(value, dict | list):  # of any content
        for name, part in value.items() if isinstance(value, dict) else enumerate(value):
            check_leaf(part, joined(key, str(name)), MISSING)


def check_fields(value: Mapping[str, Any], kind: Any, key: str, partial: bool = False) -> None:
    """As `check`, of a mapping whose keys are the fields of the dataclass `kind`."""
    known = {field.name: field for field in fields(kind)}
    refuse_unknown(value, known, key or "a config file")
    if not partial and (missing := [name for name, field in known.items() if needs(field) and not value.get(name)]):
        raise ValueError(f"{key} needs {', '.join(missing)}; add what is missing under `{key.split()[-1]}:`.")
    for name, part in value.items():
        check(part, kinds(kind)[name], joined(key, name), partial=partial, default=default_of(known[name]))


@cache
def kinds(kind: Any) -> dict[str, Any]:
    """The annotations of a dataclass's fields."""
    return get_type_hints(kind, include_extras=True)


def alternatives(kind: Any) -> list[Any]:
    """The kinds of a union. A text is no alternative to an Enum's names."""
    parts = list(get_args(kind)) if get_origin(kind) in (Union, UnionType) else [kind]
    has_enum = any(isinstance(part, type) and issubclass(part, Enum) for part in parts)
    return [part for part in parts if not (has_enum and part is str)]


def without_rules(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    return (get_args(kind)[0], get_args(kind)[1:]) if get_origin(kind) is Annotated else (kind, ())


def fits(value: Any, kind: Any) -> bool:
    """Whether the outermost type is right."""
    base, rules = without_rules(kind)
    if rules:
        return any(fits(value, one) for one in alternatives(base))
    if kind is Any:
        return True
    if kind is float:
        return type(value) in (int, float)
    if is_choice(kind):
        return type(value) in {type(one) for one in choices(kind)}
    return type(value) is (get_origin(kind) or kind)


def refuse(value: Any, kind: Any, key: str, default: Any, names: Iterable[Any] = ()) -> None:
    said = kind if isinstance(kind, str) else in_words(kind)
    remedy = "correct it"
    if names and isinstance(value, str):
        remedy = f"the nearest is {nearest(value, map(str, names))!r}"
    elif (
        type(value) in (bool, int, float)
        and not isinstance(kind, str)
        and any(fits("", one) for one in alternatives(without_rules(kind)[0]))
    ):
        remedy = "write it in quotes"
    if default is not MISSING and value != default:
        remedy += ", or leave it out" + ("" if default is None else f" for {shown(default)}")
    raise ValueError(f"{key} must be {said}, but it is {shown(value)}; {remedy}.")


def in_words(kind: Any) -> str:
    """What a value of that kind is, for a message and for the docs; that it may be null goes without saying."""
    base, rules = without_rules(kind)
    if rules:
        said = in_words(base)
        for rule in rules:
            said = rule.says.format(said)
        return said
    if kind in SCALARS:
        return SCALARS[kind]
    if is_choice(kind):
        return listed(choices(kind))
    if get_origin(kind) is list:
        return f"a list in which each is {in_words(get_args(kind)[0])}"
    if kind is list or (get_origin(kind) is not Union and not isinstance(kind, UnionType)):
        return "a list" if kind is list else "keys and values"
    parts = [part for part in alternatives(kind) if part is not NoneType] or [NoneType]
    return " or ".join(dict.fromkeys(map(in_words, parts)))


def is_choice(kind: Any) -> bool:
    return get_origin(kind) is Literal or (isinstance(kind, type) and issubclass(kind, Enum))


def choices(kind: Any) -> list[Any]:
    return list(get_args(kind)) or [one.value for one in kind]


def listed(names: list[Any]) -> str:
    """The names, or of many the first."""
    first = ", ".join(name if isinstance(name, str) else shown(name) for name in names[:MANY])
    return f"one of {first}" + (f" and {len(names) - MANY} more" if len(names) > MANY else "")


def needs(field: "Field[Any]") -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def default_of(field: "Field[Any]") -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def joined(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def is_writable(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def shown(value: Any) -> str:
    """A value as YAML spells null and truth, and as Python all others, cut where it is long."""
    spelled = {None: "null", True: "true", False: "false"}
    return spelled[value] if value is None or isinstance(value, bool) else SHORT.repr(value)
