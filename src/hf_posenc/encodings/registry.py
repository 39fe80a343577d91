# SPDX-License-Identifier: Apache-2.0
"""The registry of position encodings: one import and one line for each.

`POSITION_ENCODINGS[name]` is callable like its class, and has the class's properties. `position_encoding_type` is one
name, or several joined by "+", which are applied from left to right.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from ..hub.errors import closest_name
from .alibi import Alibi
from .base import HOOKS, EncodingConfig, EncodingParameter, PositionEncoding, StackSpec, validate_registration
from .cape import Cape
from .cope import Cope
from .deberta import Deberta
from .fire import Fire
from .forgetting import Forgetting
from .kerple import Kerple
from .learned import Learned
from .log_n import LogN
from .pope import Pope
from .randomized import Randomized
from .recurrent import Recurrent
from .relative import Relative
from .rotary import Rotary
from .sandwich import Sandwich
from .shape import Shape
from .sinusoidal import Sinusoidal
from .sum import PositionEncodingSum
from .t5 import T5
from .transformer_xl import TransformerXL
from .window import Window

# The properties of an encoding, which PositionEncoding describes.
PROPERTIES = (
    "summary", "shift_invariant", "permutation_equivariant", "reversal_equivariant", "is_stateful", "is_modifier",
    "zero_init_is_identity", "max_length_field", "config_parameters", "formula", "references", "aliases",
)  # fmt: skip


@dataclass(frozen=True)
class PositionEncodingEntry:
    """A registered encoding: its class, and the `preset` of this name.

    A preset has properties that replace the class's, and arguments of its constructor in addition to config and side.
    An entry has all properties as attributes, and is callable like the class.
    """

    encoding: type[PositionEncoding]
    preset: Mapping[str, object]

    def __getattr__(self, name: str) -> Any:
        if name not in PROPERTIES:
            raise AttributeError(f"An entry of POSITION_ENCODINGS has no attribute {name!r}.")
        return self.preset[name] if name in self.preset else getattr(self.encoding, name)

    def __call__(self, config: EncodingConfig, side: StackSpec) -> PositionEncoding:
        """The encoding as a module."""
        options = {name: value for name, value in self.preset.items() if name not in PROPERTIES}
        return self.encoding(config, side, **options)

    @property
    def needs_state_cache(self) -> bool:
        """Whether cached decoding must keep more than keys and values: a state, or the positions of the keys."""
        return self.is_stateful or self.encoding.score_bias is not None or self.encoding.value_bias is not None

    @property
    def is_sequential(self) -> bool:
        """Whether it reads the embedded tokens in order, as recurrent layers do."""
        return self.is_stateful and self.encoding.embed is not None

    @property
    def modifies_attention(self) -> bool:
        """Whether it changes queries, keys, scores or values; cross-attention calls no other hook."""
        return any(getattr(self.encoding, hook) is not None for hook in HOOKS if hook != "embed")


def make_entry(encoding: type[PositionEncoding], **preset: object) -> PositionEncodingEntry:
    """The registry's entry of a class; a TypeError if neither it nor the preset states `summary` or
    `shift_invariant`."""
    required = ("summary", "shift_invariant")
    missing = [name for name in required if preset.get(name, getattr(encoding, name, None)) is None]
    if missing:
        raise TypeError(
            f"An encoding must state its properties, but {encoding.__name__} lacks {' and '.join(missing)}; write them "
            "into the class, as in summary = 'One sentence.'"
        )
    return PositionEncodingEntry(encoding, preset)


POSITION_ENCODINGS: dict[str, PositionEncodingEntry] = {
    "none": make_entry(PositionEncoding, **PositionEncoding.NONE),
    "sinusoidal": make_entry(Sinusoidal),
    "learned": make_entry(Learned),
    "relative": make_entry(Relative),
    "relative_key": make_entry(Relative, **Relative.KEY_ONLY),
    "relative_sinusoidal": make_entry(Relative, **Relative.SINUSOIDAL),
    "rotary": make_entry(Rotary),
    "lstm": make_entry(Recurrent, **Recurrent.LSTM),
    "gru": make_entry(Recurrent, **Recurrent.GRU),
    "window": make_entry(Window),
    "t5": make_entry(T5),
    "alibi": make_entry(Alibi),
    "alibi_symmetric": make_entry(Alibi, **Alibi.SYMMETRIC),
    "kerple": make_entry(Kerple),
    "kerple_power": make_entry(Kerple, **Kerple.POWER),
    "fire": make_entry(Fire),
    "sandwich": make_entry(Sandwich),
    "transformer_xl": make_entry(TransformerXL),
    "deberta": make_entry(Deberta),
    "xpos": make_entry(Rotary, **Rotary.XPOS),
    "pope": make_entry(Pope),
    "forgetting": make_entry(Forgetting),
    "cope": make_entry(Cope),
    "shape": make_entry(Shape),
    "cape": make_entry(Cape),
    "randomized": make_entry(Randomized),
    "log_n": make_entry(LogN),
    "log_n_learned": make_entry(LogN, **LogN.LEARNED),
}


def register_position_encoding(name: str, encoding: type[PositionEncoding], **preset: object) -> None:
    """Register an encoding at run time, under a name that `position_encoding_type` then accepts.

    Properties are attributes of the class. A `preset` replaces properties, and has arguments of the constructor in
    addition to `config` and `side`. Call it at the foot of the file that defines the class, with imports of the form
    `from hf_posenc import ...`: checkpoints that use the encoding then contain that file. Raises a ValueError for a
    name that is taken or not lower-case letters, digits and underscores. Raises a TypeError for a class that inherits
    anything but PositionEncoding, or lacks a property.
    """
    existing = POSITION_ENCODINGS.get(name)
    validate_registration("encoding", name, encoding, PositionEncoding, None if existing is None else existing.encoding)
    POSITION_ENCODINGS[name] = make_entry(encoding, **preset)


def parse_sum(position_encoding_type: str, field: str = "position_encoding_type") -> list[str]:
    """The names in a sum. A ValueError, which names the config's `field`, for an unknown name or an invalid sum."""
    names = position_encoding_type.split("+")
    for name in names:
        if name not in POSITION_ENCODINGS:
            raise ValueError(
                f"{field}={position_encoding_type!r}: {name!r} is no registered position encoding (the nearest is "
                f"{suggest_encoding(name)!r}); choose from {', '.join(POSITION_ENCODINGS)}, or a sum such "
                "as 'sinusoidal+relative'."
            )
    for first, second in combinations(names, 2):
        if why := incompatibility(first, second):
            raise ValueError(f"{field}={position_encoding_type!r}: {why}; leave one of them out.")
    return names


def default_encoding(name: str) -> str:
    """This name; "none" in the code of a checkpoint that does not use the encoding.

    There a config of defaults must be possible: transformers 5.17 makes one whenever it loads or prints a config.
    """
    return name if name in POSITION_ENCODINGS else "none"


def suggest_encoding(name: str) -> str:
    """The encoding whose name or alias is most like `name`."""
    known_names = {alias: known for known, entry in reversed(POSITION_ENCODINGS.items()) for alias in entry.aliases}
    known_names |= {known: known for known in POSITION_ENCODINGS}
    return known_names[closest_name(name.lower(), known_names)]


def incompatibility(first: str, second: str) -> str | None:
    """Why two encodings cannot be in one sum; None if they can."""
    if first == second:
        return f"a sum has each encoding once, but `{first}` occurs twice"
    if "none" in (first, second):
        return f"`none` means no encoding, but `{second if first == 'none' else first}` is in the sum too"
    entry, other_entry = POSITION_ENCODINGS[first], POSITION_ENCODINGS[second]
    if entry.is_sequential and other_entry.is_sequential:
        return f"`{first}` and `{second}` both read the embeddings in order, and their order in a sum is not defined"
    entries = {first: entry, second: other_entry}
    augmenting = [name for name, entry in entries.items() if entry.encoding.augment_positions is not None]
    bounded = [name for name, entry in entries.items() if entry.max_length_field is not None]
    if len(augmenting) == 2:
        return f"`{first}` and `{second}` both change training positions; combining them is not supported"
    if augmenting and bounded:
        return f"`{augmenting[0]}` gives training positions for which the table of `{bounded[0]}` has no rows"
    if entry.encoding is other_entry.encoding:
        return f"`{first}` and `{second}` are presets of one encoding, {entry.encoding.__name__}"
    return None


def all_encoding_parameters() -> Iterator[EncodingParameter]:
    """The config fields of all registered encodings, without duplicates."""
    by_name = {
        parameter.name: parameter for entry in POSITION_ENCODINGS.values() for parameter in entry.config_parameters
    }
    return iter(by_name.values())


def side_entries(side: StackSpec) -> dict[str, PositionEncodingEntry]:
    """The registry's entries of a side's encodings, by name."""
    return {name: POSITION_ENCODINGS[name] for name in side.encodings}


def build_position_encodings(config: EncodingConfig, side: StackSpec) -> PositionEncodingSum:
    """The encodings of one side: encoder, decoder or cross-attention."""
    side_config = config.config_for(side)
    return PositionEncodingSum({name: entry(side_config, side) for name, entry in side_entries(side).items()})
