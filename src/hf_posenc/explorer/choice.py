"""What a reader of the explorer has chosen, an encoding or a sum and its sizes; and that encoding, newly made."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from ..figure_subjects import new_model
from ..modeling.configuration_posenc import PosEncConfig
from ..modeling.position import PositionEncodings
from ..modeling.positions import POSITION_ENCODINGS, Knob, build_position_encodings, longest_length
from ..tables import HOOKS

WIDEST, MOST_HEADS, MOST_POSITIONS, LARGEST_KNOB = 1024, 64, 4096, 4096
# How wide at most an encoding is made of what is costly to read.
READ_WIDTH = 32
MOST_PARAMETERS = 20_000_000


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What a reader has chosen. A ValueError for sizes that no page should be asked to draw."""

    encodings: tuple[str, ...]
    width: int = 50
    heads: int = 1
    positions: int = 64
    knobs: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if not self.encodings:
            raise ValueError("A picture is of an encoding, but none is chosen; choose one, or several for their sum.")
        for what, value, least, most in (
            ("D", self.width, 1, WIDEST),
            ("The number of heads", self.heads, 1, MOST_HEADS),
            ("The number of positions", self.positions, 3, MOST_POSITIONS),
        ):
            checked_number(what, value, least, most)
        for name, value in self.knobs:
            if type(value) is int and value > LARGEST_KNOB:
                raise ValueError(f"This page takes `{name}` up to {LARGEST_KNOB}, but it is {value}; lower it.")

    @property
    def name(self) -> str:
        return "+".join(self.encodings)

    def config(self, *, narrow: bool = False) -> PosEncConfig:
        """That of a model with nothing but this encoding in full size; `narrow` for what is costly to read."""
        sizes = {"vocab_size": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 1, "decoder_ffn_dim": 1}
        width, heads = (min(self.width, READ_WIDTH), 1) if narrow else (self.width, self.heads)
        sizes |= {"d_model": width, "encoder_attention_heads": heads, "decoder_attention_heads": heads}
        return PosEncConfig(position_encoding_type=self.name, **sizes, **dict(self.knobs))


def checked_number(what: str, value: Any, least: int, most: int) -> int:
    """A whole number of that range, as an integer."""
    if type(value) not in (int, float) or value not in range(least, most + 1):
        raise ValueError(f"{what} must be a whole number from {least} to {most}, but it is {value!r}; change it.")
    return int(value)


def knobs_of(encodings: tuple[str, ...]) -> dict[str, Knob]:
    """The knobs of what is chosen, each once."""
    return {knob.name: knob for name in encodings for knob in POSITION_ENCODINGS[name].knobs}


@lru_cache(maxsize=8)
def stack_of(choice: Choice, narrow: bool = False) -> PositionEncodings:
    """The encoder's encodings as training would begin, in float64. A picture of more positions makes none again."""
    config = choice.config(narrow=narrow)
    if (number := sum(parameter.numel() for parameter in outline_of(choice, narrow).parameters())) > MOST_PARAMETERS:
        raise ValueError(
            f"This page makes encodings of up to {MOST_PARAMETERS} parameters, but this one has {number}; lower D or "
            "the encoding's own sizes."
        )
    if number:  # which a model must fill, and that takes it longer than nothing does
        return new_model(config).get_encoder().positions.double().eval()
    return built(choice.name, config).double().eval()


@lru_cache(maxsize=64)
def outline_of(choice: Choice, narrow: bool = False) -> PositionEncodings:
    """The same without memory for its parameters: enough to tell which hooks there are."""
    with torch.device("meta"):
        return built(choice.name, choice.config(narrow=narrow))


def built(name: str, config: PosEncConfig) -> PositionEncodings:
    heads = config.encoder_attention_heads
    return build_position_encodings(name, config, causal=False, num_layers=1, num_heads=heads)


def sizes_of(choice: Choice) -> Choice:
    """What a choice asks of its encodings, whatever is drawn of them."""
    return replace(choice, positions=Choice.positions)


def encodings_of(choice: Choice, *, narrow: bool = False) -> PositionEncodings:
    return stack_of(sizes_of(choice), narrow)


def hooks_of(choice: Choice) -> list[str]:
    return [hook for hook in HOOKS if outline_of(sizes_of(choice)).answered(hook)]


def needs_heads(encodings: tuple[str, ...]) -> bool:
    """Whether the heads make a difference: they do not where only the embedded tokens are changed."""
    entries = [POSITION_ENCODINGS[name].encoding for name in encodings]
    return any(getattr(entry, hook) is not None for entry in entries for hook in HOOKS if hook != "embed")


def in_words(choice: Choice) -> str:
    """The facts about what is chosen, as one line."""
    hooks = hooks_of(choice)
    entries = [POSITION_ENCODINGS[name] for name in choice.encodings]
    longest = longest_length(choice.name, choice.config())
    facts = [
        f"hooks: {', '.join(hooks) or 'none'}",
        "shift-invariant" if all(entry.shift_invariant for entry in entries) else "not shift-invariant",
        "carries a state" if any(entry.has_state for entry in entries) else "no state",
        "any length" if longest is None else f"at most {longest} tokens",
    ]
    return "; ".join(facts)
