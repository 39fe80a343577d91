"""What the explorer's tab *Step* shows: one position, one channel, the formula, and the number with which it is filled.

The formula is the encoding's own, the indented lines of its module's docstring; the numbers are its hooks' answers. A
channel that is a wave over the positions is recognised in those answers and written with its numbers put in.
"""

import math
import sys
from dataclasses import dataclass

import numpy as np
import torch

from ..encoding_values import added_vectors, adds_by_position, embedded, wavelengths
from ..modeling.position import PositionEncodings
from ..modeling.positions import POSITION_ENCODINGS, longest_length
from .choice import MOST_POSITIONS, Choice, checked_number, encodings_of, hooks_of
from .pictures import LISTENED

EXACT = 1e-6
# How many channels of an answer are written out.
SHOWN = 6


@dataclass(frozen=True)
class Wave:
    """amplitude x sin(p / divisor + phase)."""

    divisor: float
    amplitude: float
    phase: float

    def at(self, position: int) -> float:
        return self.amplitude * math.sin(position / self.divisor + self.phase)

    def written(self, position: int) -> str:
        """The formula with its numbers, up to the value."""
        factor = "" if abs(self.amplitude - 1) < EXACT else f"{self.amplitude:.4f} "
        angle = position / self.divisor
        if abs(self.phase) < EXACT:
            return f"{factor}sin({position} / {self.divisor:.6g}) = {factor}sin({angle:.6g})"
        if abs(self.phase - math.pi / 2) < EXACT:
            return f"{factor}cos({position} / {self.divisor:.6g}) = {factor}cos({angle:.6g})"
        return f"{factor}sin({position} / {self.divisor:.6g} {self.phase:+.4f}) = {factor}sin({angle + self.phase:.6g})"


@dataclass(frozen=True)
class Step:
    """`value` is what the hook adds there, None where no position has a number of its own; `lines` say how it comes."""

    formula: str
    lines: list[str]
    value: float | None = None


def formula_of(name: str) -> str:
    """The indented lines of the docstring of the module that defines an encoding; "" if it has none."""
    encoding = POSITION_ENCODINGS[name].encoding
    if not any(getattr(encoding, hook) is not None for hook in ("embed", "rotate", "score_bias", "value_bias")):
        return ""
    text = sys.modules[encoding.__module__].__doc__ or ""
    lines = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    return "\n".join(part.strip(", ") for line in lines for part in line.split(",    "))


def step(choice: Choice, position: int, channel: int) -> Step:
    """The number for one position and channel; a ValueError for one that the encoding does not have."""
    position = checked_number("The position", position, 0, MOST_POSITIONS)
    channel = checked_number(f"The channel (D = {choice.width})", channel, 0, choice.width - 1)
    hooks = hooks_of(choice)
    formula = "\n".join(filter(None, map(formula_of, choice.encodings)))
    longest = longest_length(choice.name, choice.config())
    if not hooks:
        return Step(formula, ["It answers no hook: nothing is added and nothing is turned, wherever a token stands."])
    positions = encodings_of(choice)
    if "embed" in hooks and adds_by_position(positions, choice.width, longest):
        return added(choice, positions, position, channel, formula)
    lines = []
    if "embed" in hooks:
        lines.append(
            "What stands here afterwards depends on the token and its neighbours, so no position has a number of its "
            "own: the tab See shows who moves whom."
        )
    return Step(formula, lines + answers(choice, positions, position, channel, hooks))


def added(choice: Choice, positions: PositionEncodings, position: int, channel: int, formula: str) -> Step:
    """Of what is added by position: read from `embed`, and from a wave if the channel is one."""
    number = value_added(positions, choice.width, position, channel)
    what = f"channel {channel} at position {position}, D = {choice.width}"
    wave = wave_of(positions, choice, channel)
    if wave is not None and abs(wave.at(position) - number) < EXACT:
        length = 2 * math.pi * wave.divisor
        lines = [
            f"{what}: {wave.written(position)} = {number:.6f}",
            f"Read off the answers: the position is divided by {wave.divisor:.6g}, and the wave is back after "
            f"{length:.6g} positions.",
        ]
        return Step(formula, lines, number)
    chance = any(True for _ in positions.parameters())
    source = "Drawn at random: the encoding is untrained." if chance else "This channel is no single wave."
    return Step(formula, [f"{what}: {number:.6f}", source], number)


@torch.no_grad()
def value_added(positions: PositionEncodings, width: int, position: int, channel: int) -> float:
    """What `embed` adds at one position, in one channel."""
    zeros_11D = torch.zeros(1, 1, width, dtype=torch.float64)
    return float(embedded(positions, zeros_11D, torch.tensor([[position]]))[0, 0, channel])


def wave_of(positions: PositionEncodings, choice: Choice, channel: int) -> Wave | None:
    """The wave that a channel is over the positions, None if it is none or never comes round."""
    listened = min(LISTENED, longest_length(choice.name, choice.config()) or LISTENED)
    values_P = added_vectors(positions, choice.width, listened)[:, channel]
    length = float(wavelengths(values_P[:, None])[0]) if listened > 2 else math.nan
    if not math.isfinite(length):
        return None
    divisor = length / (2 * math.pi)
    angles_P = np.arange(listened) / divisor
    (sine, cosine), *_ = np.linalg.lstsq(np.stack((np.sin(angles_P), np.cos(angles_P)), 1), values_P, rcond=None)
    wave = Wave(divisor, math.hypot(sine, cosine), math.atan2(cosine, sine))
    return wave if np.allclose(wave.amplitude * np.sin(angles_P + wave.phase), values_P, atol=EXACT) else None


@torch.no_grad()
def answers(choice: Choice, positions: PositionEncodings, position: int, channel: int, hooks: list[str]) -> list[str]:
    """What the hooks of attention answer to a unit vector: turned at the position, or looking so far ahead and back."""
    heads, width = choice.heads, choice.width // choice.heads
    head, within = divmod(channel, width)
    unit_1H1K = torch.zeros(1, heads, 1, width, dtype=torch.float64)
    unit_1H1K[0, head, 0, within] = 1
    here, lines = torch.tensor([[position]]), []
    query = f"A query that is 1 in channel {within}{f' of head {head}' if heads > 1 else ''} and 0 elsewhere"
    if "rotate" in hooks:
        turned_K = positions.rotate(unit_1H1K, unit_1H1K, here, 0)[0][0, head, 0]
        lines.append(f"{query} becomes at position {position}: {nonzero(turned_K)}.")
    ends = {f"{position} tokens ahead": (0, position), f"{position} tokens back": (position, 0)}
    for where, (own, other) in ends.items() if position else [("at its own position", (0, 0))]:
        asked, seen = torch.tensor([[own]]), torch.tensor([[other]])
        if "score_bias" in hooks:
            score = positions.score_bias(unit_1H1K, asked, seen, 0).expand(1, heads, 1, 1)[0, head, 0, 0]
            lines.append(f"{query} gives a key {where} {float(score):+.6f} in score.")
        if "value_bias" in hooks:
            alone = torch.ones(1, heads, 1, 1, dtype=torch.float64)
            value = positions.value_bias(alone, asked, seen, 0).expand(1, heads, 1, width)[0, head, 0, within]
            lines.append(f"Attention to a key {where} alone adds {float(value):+.6f} to that channel of the output.")
    return lines


def nonzero(vector_K: torch.Tensor) -> str:
    """The largest channels of a vector, in their order."""
    largest = sorted(vector_K.abs().topk(min(SHOWN, len(vector_K))).indices.tolist())
    return ", ".join(f"{float(vector_K[k]):+.6f} in channel {k}" for k in largest if abs(float(vector_K[k])) > EXACT)
