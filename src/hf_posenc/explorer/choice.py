"""What a reader of the explorer has chosen: an encoding or a sum, newly made, and its sizes."""

import reprlib
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..modeling.position import Knob
from ..modeling.positions import POSITION_ENCODINGS
from ..pictures.subjects import Extent, Subject, new_subjects

WIDEST, MOST_HEADS, MOST_POSITIONS, LARGEST_KNOB = 1024, 64, 4096, 4096
# How wide at most an encoding is made of what is costly to read.
READ_WIDTH = 24
MOST_PARAMETERS = 20_000_000
MOST_LAYERS = 1000
SIDES = ("encoder", "decoder")
Subjects = dict[str, Subject]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What a reader has chosen. A ValueError for sizes that no page should be asked to draw."""

    encodings: tuple[str, ...]
    width: int = 50
    heads: int = 1
    side: str = SIDES[0]
    knobs: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if not self.encodings:
            raise ValueError("A picture is of an encoding, but none is chosen; choose one, or several for their sum.")
        checked_choice("The side", self.side, SIDES)
        checked_number("D", self.width, 1, WIDEST)
        checked_number("The number of heads", self.heads, 1, MOST_HEADS)
        for name, value in self.knobs:
            if type(value) is int and value > LARGEST_KNOB:
                raise ValueError(f"This page takes `{name}` up to {LARGEST_KNOB}, but it is {value}; lower it.")


@lru_cache(maxsize=8)
def subjects_of(choice: Choice) -> Subjects:
    """The encodings of one side as training would begin, for each use of them."""
    settings = dict(choice.knobs) | dict.fromkeys([f"{side}_attention_heads" for side in SIDES], choice.heads)
    widths = {"vectors": choice.width, "attention": choice.width, "influence": min(choice.width, READ_WIDTH)}
    made = new_subjects("+".join(choice.encodings), settings, choice.side, Extent(), widths)
    if (number := max(one.parameters for one in made.values())) > MOST_PARAMETERS:
        raise ValueError(
            f"This page makes encodings of up to {MOST_PARAMETERS} parameters, but this one has {number}; lower D or "
            "the encoding's own sizes."
        )
    return made


def checked_number(what: str, value: Any, least: int, most: int) -> int:
    """A whole number of that range, as an integer."""
    if type(value) not in (int, float) or value not in range(least, most + 1):
        given = reprlib.repr(value)
        raise ValueError(f"{what} must be a whole number from {least} to {most}, but it is {given}; change it.")
    return int(value)


def checked_choice(what: str, value: Any, among: Collection[str]) -> str:
    """One of what the page offers."""
    if not isinstance(value, str) or value not in among:
        raise ValueError(f"{what} must be one of {', '.join(among)}, but it is {reprlib.repr(value)}; choose one.")
    return value


def checked_choices(what: str, values: Any, among: Collection[str]) -> tuple[str, ...]:
    """Some of what the page offers, each once."""
    if not isinstance(values, list | tuple) or len(values) > len(among):
        raise ValueError(
            f"{what} must be a list, each of {', '.join(among)} once at most, but it is {reprlib.repr(values)}; choose "
            "from these."
        )
    chosen = tuple(checked_choice(f"Each of {what.lower()}", value, among) for value in values)
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"{what} must be different, but they are {', '.join(chosen)}; choose each once.")
    return chosen


def checked_text(what: str, value: Any, most: int) -> str:
    """A text of at most so many characters."""
    if not isinstance(value, str) or len(value) > most:
        given = f"has {len(value)}" if isinstance(value, str) else f"is {reprlib.repr(value)}"
        raise ValueError(f"{what} must be a text of at most {most} characters, but it {given}; shorten it.")
    return value


def knobs_of(encodings: tuple[str, ...]) -> dict[str, Knob]:
    """The knobs of what is chosen, each once."""
    return {knob.name: knob for name in encodings for knob in POSITION_ENCODINGS[name].knobs}


def needs_heads(encodings: tuple[str, ...]) -> bool:
    """Whether the heads make a difference: they do not where only the embedded tokens are changed."""
    return any(POSITION_ENCODINGS[name].acts_in_attention for name in encodings)


def has_sides(encodings: tuple[str, ...]) -> bool:
    """Whether a decoder's differs from an encoder's: it does where keys or tokens to come are seen or not."""
    return needs_heads(encodings) or any(POSITION_ENCODINGS[name].has_state for name in encodings)


def in_words(subject: Subject) -> str:
    """The facts about what is chosen, as one line."""
    entries = subject.entries.values()
    facts = [
        f"hooks: {', '.join(subject.answers) or 'none'}",
        "shift-invariant" if all(entry.shift_invariant for entry in entries) else "not shift-invariant",
        "carries a state" if any(entry.has_state for entry in entries) else "no state",
        "any length" if subject.longest is None else f"at most {subject.longest} tokens",
    ]
    if subject.trained:
        sizes = f"D = {subject.width}, {subject.layers} layers, {subject.heads} heads"
        facts.append(f"{subject.name} in the {subject.side}, trained: {sizes}")
    return "; ".join(facts)
