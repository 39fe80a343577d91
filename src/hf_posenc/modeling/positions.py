# SPDX-License-Identifier: Apache-2.0
"""The registry: one import and one entry for every position encoding, with the facts the laws test.

`POSITION_ENCODINGS[name]` is callable like the class it stands for. A name, or names joined by "+", is what
`position_encoding_type` holds; the parts of a sum are applied from left to right.
"""

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from types import NoneType
from typing import Any

from .position import PositionEncoding, PositionEncodings
from .position_learned import Learned
from .position_recurrent import Recurrent
from .position_relative import Relative
from .position_rotary import Rotary
from .position_sinusoidal import Sinusoidal


@dataclass(frozen=True)
class Knob:
    """A config field that an encoding brings: its default says its type (None: a whole number or None), `rule` in words
    what `holds` tests."""

    name: str
    default: Any
    rule: str
    holds: Callable[[Any], bool] = lambda value: True

    def check(self, value: Any) -> None:
        kinds = {float: (float, int), NoneType: (int, NoneType)}.get(type(self.default), (type(self.default),))
        if type(value) not in kinds or not self.holds(value):
            raise ValueError(
                f"`{self.name}` must be {self.rule}, but it is {value!r}; its default is {self.default!r}."
            )


@dataclass(frozen=True, kw_only=True)
class PositionEncodingEntry:
    """What is registered under a name: the class, what sets this name apart from others of the class, and its facts.

    `shift_invariant`: adding a number to all positions changes nothing. `order_blind`: with attention in both
    directions, permuting the tokens permutes the outputs. `has_state`: decoding carries a state from token to token.
    `longest`: the knob that bounds the length, if one does.
    """

    encoding: type[PositionEncoding]
    summary: str
    shift_invariant: bool
    order_blind: bool = False
    has_state: bool = False
    longest: str | None = None
    knobs: tuple[Knob, ...] = ()
    preset: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, config: Any, **stack: Any) -> PositionEncoding:
        return self.encoding(config, **stack, **self.preset)

    @property
    def remembers(self) -> bool:
        """Whether cached decoding must keep more than keys and values: a state, or the positions of the keys."""
        return self.has_state or self.encoding.score_bias is not None or self.encoding.value_bias is not None


LENGTH = "a whole number of tokens, 1 or more"
WIDTH = "a whole number of units for each direction, 1 or more, or None for d_model"
BOTH_WAYS = "True (in the encoder it reads from both ends) or False"
RELATIVE_KNOBS = (Knob("relative_clip", 16, LENGTH, lambda value: value >= 1),)


POSITION_ENCODINGS: dict[str, PositionEncodingEntry] = {
    "none": PositionEncodingEntry(
        encoding=PositionEncoding,
        summary="No position information: the encoder sees a bag of words.",
        shift_invariant=True,
        order_blind=True,
    ),
    "sinusoidal": PositionEncodingEntry(
        encoding=Sinusoidal,
        summary="A fixed wave pattern for each position, added to the embeddings.",
        shift_invariant=False,
    ),
    "learned": PositionEncodingEntry(
        encoding=Learned,
        summary="A trained vector for each position, added to the embeddings.",
        shift_invariant=False,
        longest="learned_max_positions",
        knobs=(Knob("learned_max_positions", 1024, LENGTH, lambda value: value >= 1),),
    ),
    "relative": PositionEncodingEntry(
        encoding=Relative,
        summary="A trained vector for each clipped distance, added to keys and values.",
        shift_invariant=True,
        knobs=RELATIVE_KNOBS,
    ),
    "relative_key": PositionEncodingEntry(
        encoding=Relative,
        preset={"values": False},
        summary="A trained vector for each clipped distance, added to keys alone.",
        shift_invariant=True,
        knobs=RELATIVE_KNOBS,
    ),
    "relative_sinusoidal": PositionEncodingEntry(
        encoding=Relative,
        preset={"trained": False},
        summary="The sinusoid of each clipped distance, added to keys and values.",
        shift_invariant=True,
        knobs=RELATIVE_KNOBS,
    ),
    "rotary": PositionEncodingEntry(
        encoding=Rotary,
        summary="Queries and keys turned by an angle that grows with the position.",
        shift_invariant=True,
    ),
    "lstm": PositionEncodingEntry(
        encoding=Recurrent,
        preset={"cell": "lstm"},
        summary="An LSTM reads the embeddings in order, in the encoder from both ends, and its outputs replace them.",
        shift_invariant=True,
        has_state=True,
        knobs=(
            Knob("lstm_hidden_size", None, WIDTH, lambda value: value is None or value >= 1),
            Knob("lstm_bidirectional", True, BOTH_WAYS),
        ),
    ),
    "gru": PositionEncodingEntry(
        encoding=Recurrent,
        preset={"cell": "gru"},
        summary="A GRU reads the embeddings in order, and its outputs replace them.",
        shift_invariant=True,
        has_state=True,
        knobs=(
            Knob("gru_hidden_size", None, WIDTH, lambda value: value is None or value >= 1),
            Knob("gru_bidirectional", False, BOTH_WAYS),
        ),
    ),
}


def register_position_encoding(name: str, encoding: type[PositionEncoding], **facts: Any) -> None:
    """Add an encoding at run time, under a name that `position_encoding_type` then takes.

    `facts` are the fields of `PositionEncodingEntry`; `summary` and `shift_invariant` must be among them. Called at the
    foot of the file that defines the class, importing by `from hf_posenc import ...`, the file travels with every
    checkpoint that uses the encoding. Raises a ValueError for a name that is taken or not lower-case letters, digits
    and underscores, and a TypeError for a class that does not inherit PositionEncoding and nothing else.
    """
    if not (name.isidentifier() and name == name.lower()):
        raise ValueError(f"An encoding's name is made of lower-case letters, digits and underscores, not {name!r}.")
    if encoding.__bases__ != (PositionEncoding,):
        raise TypeError(
            f"An encoding inherits PositionEncoding and nothing else, but {encoding.__name__} inherits "
            f"{', '.join(base.__name__ for base in encoding.__bases__)}; derive it from hf_posenc.PositionEncoding."
        )
    taken = POSITION_ENCODINGS.get(name)
    same = taken is not None and (taken.encoding.__module__, taken.encoding.__qualname__) == (
        encoding.__module__,
        encoding.__qualname__,
    )
    if taken is not None and not same:
        raise ValueError(f"`{name}` is already the name of {taken.encoding.__name__}; choose another name.")
    POSITION_ENCODINGS[name] = PositionEncodingEntry(encoding=encoding, **facts)


def parts_of(position_encoding_type: str) -> list[str]:
    """The names in a sum, checked: each is known, and together they make sense."""
    names = position_encoding_type.split("+")
    for name in names:
        if name not in POSITION_ENCODINGS:
            nearest = difflib.get_close_matches(name, POSITION_ENCODINGS, n=1, cutoff=0)[0]
            raise ValueError(
                f"position_encoding_type={position_encoding_type!r}: {name!r} is no registered position encoding (the "
                f"nearest is {nearest!r}); choose from {', '.join(POSITION_ENCODINGS)}, or a sum such as "
                "'sinusoidal+relative'."
            )
    for first, second in combinations(names, 2):
        if reason := objection(first, second):
            raise ValueError(f"position_encoding_type={position_encoding_type!r}: {reason}; leave one of them out.")
    return names


def objection(first: str, second: str) -> str | None:
    """Why two encodings cannot be in one sum, if they cannot."""
    if first == second:
        return f"a sum holds each encoding once, but `{first}` is there twice"
    if "none" in (first, second):
        return f"`none` means that there is no encoding, but `{second if first == 'none' else first}` is there too"
    one, other = POSITION_ENCODINGS[first], POSITION_ENCODINGS[second]
    if one.has_state and other.has_state:
        return f"`{first}` and `{second}` both carry a state, and which of them reads the other would be a guess"
    if one.encoding is other.encoding:
        return f"`{first}` and `{second}` are presets of one encoding, {one.encoding.__name__}"
    return None


def all_knobs() -> Iterator[Knob]:
    """Every knob of every registered encoding, once."""
    seen = {knob.name: knob for entry in POSITION_ENCODINGS.values() for knob in entry.knobs}
    return iter(seen.values())


def longest_length(position_encoding_type: str, config: Any) -> int | None:
    """How many tokens a stack can take, None if its encodings are defined at every length."""
    knobs = [POSITION_ENCODINGS[name].longest for name in parts_of(position_encoding_type)]
    return min((getattr(config, knob) for knob in knobs if knob), default=None)


def build_position_encodings(
    position_encoding_type: str, config: Any, *, causal: bool, num_layers: int, num_heads: int
) -> PositionEncodings:
    """The encodings of one stack, encoder or decoder."""
    stack = {"causal": causal, "num_layers": num_layers, "num_heads": num_heads}
    stack["head_width"] = config.d_model // num_heads
    return PositionEncodings(POSITION_ENCODINGS[name](config, **stack) for name in parts_of(position_encoding_type))
