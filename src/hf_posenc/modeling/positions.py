# SPDX-License-Identifier: Apache-2.0
"""The registry: one import and one line for every position encoding.

`POSITION_ENCODINGS[name]` is callable like the class it stands for, and has its facts. A name, or names joined by "+",
is what `position_encoding_type` holds; the parts of a sum are applied from left to right.
"""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import combinations
from typing import Any

from .nearest import nearest
from .position import HOOKS, Knob, PositionEncoding, PositionEncodings
from .position_alibi import Alibi
from .position_cape import Cape
from .position_deberta import Deberta
from .position_fire import Fire
from .position_forgetting import Forgetting
from .position_kerple import Kerple
from .position_learned import Learned
from .position_log_n import LogN
from .position_pope import Pope
from .position_randomized import Randomized
from .position_recurrent import Recurrent
from .position_relative import Relative
from .position_rotary import Rotary
from .position_sandwich import Sandwich
from .position_shape import Shape
from .position_sinusoidal import Sinusoidal
from .position_t5 import T5
from .position_transformer_xl import TransformerXL
from .position_window import Window
from .registration import check_registration


@dataclass(frozen=True, kw_only=True)
class PositionEncodingEntry:
    """What is registered under a name: the class, its facts (those of PositionEncoding, which say what they mean), and
    in `options` what else its constructor is given."""

    encoding: type[PositionEncoding]
    summary: str
    shift_invariant: bool
    order_blind: bool
    reversal_blind: bool
    has_state: bool
    needs_another: bool
    silent_at_zero: bool
    longest: str | None
    knobs: tuple[Knob, ...]
    formula: str
    references: tuple[Any, ...]
    also_called: tuple[str, ...]
    options: dict[str, Any]

    def __call__(self, config: Any, side: Any) -> PositionEncoding:
        return self.encoding(config, side, **self.options)

    @property
    def remembers(self) -> bool:
        """Whether cached decoding must keep more than keys and values: a state, or the positions of the keys."""
        return self.has_state or self.encoding.score_bias is not None or self.encoding.value_bias is not None

    @property
    def reads_in_order(self) -> bool:
        """Whether it reads the embedded tokens one after the other, as recurrent layers do."""
        return self.has_state and self.encoding.embed is not None

    @property
    def acts_in_attention(self) -> bool:
        """Whether it changes queries, keys, scores or values, as it must to be of use in cross-attention."""
        return any(getattr(self.encoding, hook) is not None for hook in HOOKS if hook != "embed")


FACTS = [field.name for field in fields(PositionEncodingEntry) if field.name not in ("encoding", "options")]


def entry(encoding: type[PositionEncoding], **preset: Any) -> PositionEncodingEntry:
    """The class with its facts. Of a `preset`, what is a fact stands in place of the class's, and the rest goes to its
    constructor. A TypeError for a class that does not say what it is."""
    facts = {name: preset.pop(name) if name in preset else getattr(encoding, name, None) for name in FACTS}
    if missing := [name for name in ("summary", "shift_invariant") if facts[name] is None]:
        raise TypeError(
            f"An encoding states its facts, but {encoding.__name__} lacks {' and '.join(missing)}; write them into the "
            "class, as in summary = 'One sentence.'"
        )
    return PositionEncodingEntry(encoding=encoding, options=preset, **facts)


POSITION_ENCODINGS: dict[str, PositionEncodingEntry] = {
    "none": entry(PositionEncoding, **PositionEncoding.nothing),
    "sinusoidal": entry(Sinusoidal),
    "learned": entry(Learned),
    "relative": entry(Relative),
    "relative_key": entry(Relative, **Relative.keys_alone),
    "relative_sinusoidal": entry(Relative, **Relative.fixed),
    "rotary": entry(Rotary),
    "lstm": entry(Recurrent, **Recurrent.lstm),
    "gru": entry(Recurrent, **Recurrent.gru),
    "window": entry(Window),
    "t5": entry(T5),
    "alibi": entry(Alibi),
    "alibi_symmetric": entry(Alibi, **Alibi.symmetric),
    "kerple": entry(Kerple),
    "kerple_power": entry(Kerple, **Kerple.by_power),
    "fire": entry(Fire),
    "sandwich": entry(Sandwich),
    "transformer_xl": entry(TransformerXL),
    "deberta": entry(Deberta),
    "xpos": entry(Rotary, **Rotary.extrapolating),
    "pope": entry(Pope),
    "forgetting": entry(Forgetting),
    "shape": entry(Shape),
    "cape": entry(Cape),
    "randomized": entry(Randomized),
    "log_n": entry(LogN),
    "log_n_learned": entry(LogN, **LogN.learned),
}

# How a hook of hf_posenc 0.1 is written now: its first line, and what it begins with.
REWRITTEN = {
    "__init__": ("def __init__(self, config, side):", "super().__init__(config, side)"),
    "embed": ("def embed(self, x_BTD, at):  # -> x_BTD", "pos_BT, mask_BT = at.queries_BQ, at.tokens_BT"),
    "score_bias": (
        "def score_bias(self, q_BHQK, k_BHSK, at):",
        "pos_BQ, pos_BS, layer = at.queries_BQ, at.keys_BS, at.layer",
    ),
    "value_bias": ("def value_bias(self, p_BHQS, at):", "pos_BQ, pos_BS, layer = at.queries_BQ, at.keys_BS, at.layer"),
    "rotate": (
        "def rotate_queries(self, q_BHQK, at):  # and the same as rotate_keys(self, k_BHTK, at), at at.new_keys_BT",
        "pos_BT, layer = at.queries_BQ, at.layer",
    ),
}


def register_position_encoding(name: str, encoding: type[PositionEncoding], **preset: Any) -> None:
    """Add an encoding at run time, under a name that `position_encoding_type` then takes.

    Its facts are attributes of the class; a `preset` has facts in place of those, and what its constructor is given
    beside `config` and `side`. Called at the foot of the file that defines the class, importing by `from hf_posenc
    import ...`, the file travels with every checkpoint that uses the encoding. Raises a ValueError for a name that is
    taken or not lower-case letters, digits and underscores, and a TypeError for a class that does not inherit
    PositionEncoding and nothing else, lacks a fact, or has the hooks of hf_posenc 0.1.
    """
    taken = POSITION_ENCODINGS.get(name)
    check_registration("encoding", name, encoding, PositionEncoding, None if taken is None else taken.encoding)
    refuse_old_hooks(encoding)
    POSITION_ENCODINGS[name] = entry(encoding, **preset)


def refuse_old_hooks(encoding: type[PositionEncoding]) -> None:
    """A TypeError for a class whose hooks want positions and a layer one by one, with the two lines to change."""
    for hook, (head, first) in REWRITTEN.items():
        written = encoding.__dict__.get(hook)
        parameters = list(inspect.signature(written).parameters) if written else []
        if {"pos_BQ", "pos_BT", "layer", "causal"} & set(parameters):
            raise TypeError(
                f"Since hf_posenc 0.2 a hook is given `at`, a Place, and a constructor `side`, but "
                f"{encoding.__name__}.{hook} takes {', '.join(parameters)}; write `{head}` and begin it with `{first}`."
            )


def parts_of(position_encoding_type: str, field: str = "position_encoding_type") -> list[str]:
    """The names in a sum, checked: each is known, and together they make sense. `field` is where it stands."""
    names = position_encoding_type.split("+")
    for name in names:
        if name not in POSITION_ENCODINGS:
            raise ValueError(
                f"{field}={position_encoding_type!r}: {name!r} is no registered position encoding (the nearest is "
                f"{nearest_encoding(name)!r}); choose from {', '.join(POSITION_ENCODINGS)}, or a sum such "
                "as 'sinusoidal+relative'."
            )
    for first, second in combinations(names, 2):
        if reason := objection(first, second):
            raise ValueError(f"{field}={position_encoding_type!r}: {reason}; leave one of them out.")
    return names


def nearest_encoding(name: str) -> str:
    """The encoding whose name, or what else it is called, is most like `name`."""
    called = {also: known for known, one in reversed(POSITION_ENCODINGS.items()) for also in one.also_called}
    called |= {known: known for known in POSITION_ENCODINGS}
    return called[nearest(name.lower(), called)]


def objection(first: str, second: str) -> str | None:
    """Why two encodings cannot be in one sum, if they cannot."""
    if first == second:
        return f"a sum holds each encoding once, but `{first}` is there twice"
    if "none" in (first, second):
        return f"`none` means that there is no encoding, but `{second if first == 'none' else first}` is there too"
    one, other = POSITION_ENCODINGS[first], POSITION_ENCODINGS[second]
    if one.reads_in_order and other.reads_in_order:
        return f"`{first}` and `{second}` both carry a state, and which of them reads the other would be a guess"
    both = {first: one, second: other}
    schemes = [name for name, entry in both.items() if entry.encoding.training_positions is not None]
    tables = [name for name, entry in both.items() if entry.longest is not None]
    if len(schemes) == 2:
        return f"`{first}` and `{second}` both change the positions of training, and nobody compared what comes of both"
    if schemes and tables:
        return f"`{schemes[0]}` changes the positions of training, for which the table of `{tables[0]}` has no rows"
    if one.encoding is other.encoding:
        return f"`{first}` and `{second}` are presets of one encoding, {one.encoding.__name__}"
    return None


def all_knobs() -> Iterator[Knob]:
    """Every knob of every registered encoding, once."""
    seen = {knob.name: knob for one in POSITION_ENCODINGS.values() for knob in one.knobs}
    return iter(seen.values())


def build_position_encodings(config: Any, side: Any) -> PositionEncodings:
    """The encodings of one side: encoder, decoder or cross-attention."""
    view = config.seen_by(side)
    return PositionEncodings({name: entry(view, side) for name, entry in side.entries.items()})
