"""Choices of the explorer's reader: an untrained encoding or sum, and its sizes."""

import reprlib
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

from ...encodings.base import EncodingParameter, ParameterValue
from ...encodings.registry import POSITION_ENCODINGS
from ..analysis.probes import EncodingProbe, PlotExtent, untrained_probes

MAX_WIDTH, MAX_HEADS, MAX_POSITIONS, MAX_PARAMETER_VALUE = 1024, 64, 4096, 4096
# The maximum width for sequential encodings, whose figures take a backward pass for each channel.
MAX_INFLUENCE_WIDTH = 24
MAX_MODEL_PARAMETERS = 20_000_000
MAX_LAYERS = 1000
SIDES = ("encoder", "decoder")
Probes = dict[str, EncodingProbe]


@dataclass(frozen=True, kw_only=True)
class EncodingChoice:
    """A reader's choice; a ValueError for sizes that are too large for a page."""

    encodings: tuple[str, ...]
    width: int = 50
    heads: int = 1
    side: str = SIDES[0]
    parameters: tuple[tuple[str, ParameterValue], ...] = ()

    def __post_init__(self) -> None:
        if not self.encodings:
            raise ValueError("A picture is of an encoding, but none is chosen; choose one, or several for their sum.")
        validate_choice("The side", self.side, SIDES)
        validate_number("D", self.width, 1, MAX_WIDTH)
        validate_number("The number of heads", self.heads, 1, MAX_HEADS)
        for name, value in self.parameters:
            if type(value) is int and value > MAX_PARAMETER_VALUE:
                raise ValueError(f"This page takes `{name}` up to {MAX_PARAMETER_VALUE}, but it is {value}; lower it.")


def parameter_value(parameter: EncodingParameter, value: ParameterValue) -> ParameterValue:
    """A control's value in the config's type: a browser has no None, and sends 10000.0 as 10000."""
    if isinstance(parameter.default, float) and type(value) is int:
        return float(value)
    return value or None if parameter.default is None else value


@lru_cache(maxsize=2)  # each may have MAX_MODEL_PARAMETERS in float64, in each of its uses
def probes_for(choice: EncodingChoice) -> Probes:
    """Probes of the untrained encodings of one stack, by use."""
    settings = dict(choice.parameters) | dict.fromkeys([f"{side}_attention_heads" for side in SIDES], choice.heads)
    widths = {"vectors": choice.width, "attention": choice.width, "influence": min(choice.width, MAX_INFLUENCE_WIDTH)}
    probes = untrained_probes("+".join(choice.encodings), settings, choice.side, PlotExtent(), widths)
    if (num_parameters := max(probe.parameters for probe in probes.values())) > MAX_MODEL_PARAMETERS:
        raise ValueError(
            f"This page makes encodings of up to {MAX_MODEL_PARAMETERS} parameters, but this one has "
            f"{num_parameters}; lower D or the encoding's own sizes."
        )
    return probes


def validate_number(name: str, value: object, minimum: int, maximum: int) -> int:
    """The value as an integer; a ValueError unless it is a whole number of that range."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value not in range(minimum, maximum + 1):
        shown = reprlib.repr(value)
        raise ValueError(f"{name} must be a whole number from {minimum} to {maximum}, but it is {shown}; change it.")
    return int(value)


def validate_choice(name: str, value: object, options: Collection[str]) -> str:
    """The value; a ValueError unless it is one of the options."""
    if not isinstance(value, str) or value not in options:
        raise ValueError(f"{name} must be one of {', '.join(options)}, but it is {reprlib.repr(value)}; choose one.")
    return value


def validate_choices(name: str, values: object, options: Collection[str]) -> tuple[str, ...]:
    """The values; a ValueError unless they are different options."""
    if not isinstance(values, list | tuple) or len(values) > len(options):
        raise ValueError(
            f"{name} must be a list, each of {', '.join(options)} once at most, but it is {reprlib.repr(values)}; "
            "choose from these."
        )
    chosen = tuple(validate_choice(f"Each of {name.lower()}", value, options) for value in values)
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"{name} must be different, but they are {', '.join(chosen)}; choose each once.")
    return chosen


def validate_text(name: str, value: object, max_characters: int) -> str:
    """The text; a ValueError if it is longer than `max_characters`."""
    if not isinstance(value, str) or len(value) > max_characters:
        problem = f"has {len(value)}" if isinstance(value, str) else f"is {reprlib.repr(value)}"
        raise ValueError(f"{name} must be a text of at most {max_characters} characters, but it {problem}; shorten it.")
    return value


def parameters_of_encodings(encodings: tuple[str, ...]) -> dict[str, EncodingParameter]:
    """The parameters of the chosen encodings, by name."""
    return {parameter.name: parameter for name in encodings for parameter in POSITION_ENCODINGS[name].config_parameters}


def depends_on_heads(encodings: tuple[str, ...]) -> bool:
    """Whether the number of heads matters: it does unless only embeddings are changed."""
    return any(POSITION_ENCODINGS[name].modifies_attention for name in encodings)


def depends_on_side(encodings: tuple[str, ...]) -> bool:
    """Whether the encodings differ between decoder and encoder, because a decoder has no future keys."""
    return depends_on_heads(encodings) or any(POSITION_ENCODINGS[name].is_stateful for name in encodings)


def describe_probe(probe: EncodingProbe) -> str:
    """The properties of the chosen encodings in one line."""
    is_shift_invariant = all(entry.shift_invariant for entry in probe.entries.values())
    is_stateful = any(entry.is_stateful for entry in probe.entries.values())
    properties = [
        f"hooks: {', '.join(probe.hooks) or 'none'}",
        "shift-invariant" if is_shift_invariant else "not shift-invariant",
        "stateful" if is_stateful else "no state",
        "any length" if probe.max_positions is None else f"at most {probe.max_positions} tokens",
    ]
    if probe.trained:
        sizes = f"D = {probe.width}, {probe.layers} layers, {probe.heads} heads"
        properties.append(f"{probe.name} in the {probe.side}, trained: {sizes}")
    return "; ".join(properties)
