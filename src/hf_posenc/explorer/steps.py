"""What the explorer's tab *Step* shows: one position, one channel, the formula, and the number with which it is filled.

The formula is the encoding's own, and the numbers are its hooks' answers. A
channel that is a wave over the positions is recognised in those answers and written with its numbers put in.
"""

import math
from dataclasses import dataclass
from inspect import cleandoc

import numpy as np
import torch

from ..modeling.position import PositionEncodings
from ..pictures.encoding_figures import LISTENED
from ..pictures.encoding_values import added_vectors, asked_at, embedded, reads_tokens, score_biases, wavelengths
from ..pictures.subjects import Subject
from .choice import MOST_POSITIONS, checked_number

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


def step(subject: Subject, position: int, channel: int, layer: int = 1) -> Step:
    """The number for one position and channel, in a layer counted from 1; a ValueError for what there is not."""
    position = checked_number("The position", position, 0, MOST_POSITIONS)
    channel = checked_number(f"The channel (D = {subject.width})", channel, 0, subject.width - 1)
    layer = checked_number("The layer", layer, 1, subject.layers) - 1
    formula = "\n".join(cleandoc(entry.formula) for entry in subject.entries.values() if entry.formula)
    if not subject.answers:
        return Step(formula, ["It answers no hook: nothing is added and nothing is turned, wherever a token stands."])
    lines = []
    if "embed" in subject.answers:
        if subject.adds_by_position:
            return added(subject, position, channel, formula)
        lines.append(
            "What stands here afterwards depends on the token and its neighbours, so no position has a number of its "
            "own: the tab See shows who moves whom."
        )
    return Step(formula, lines + answers(subject, position, channel, layer))


def added(subject: Subject, position: int, channel: int, formula: str) -> Step:
    """Of what is added by position: read from `embed`, and from a wave if the channel is one."""
    number = value_added(subject.positions, subject.width, position, channel)
    what = f"channel {channel} at position {position}, D = {subject.width}"
    wave = wave_of(subject, channel)
    if wave is not None and abs(wave.at(position) - number) < EXACT:
        length = 2 * math.pi * wave.divisor
        lines = [
            f"{what}: {wave.written(position)} = {number:.6f}",
            f"Read off the answers: the position is divided by {wave.divisor:.6g}, and the wave is back after "
            f"{length:.6g} positions.",
        ]
        return Step(formula, lines, number)
    chance = (
        "Learned: the table of a trained model has it."
        if subject.trained
        else ("Drawn at random: the encoding is untrained.")
    )
    return Step(formula, [f"{what}: {number:.6f}", chance if subject.parameters else "This channel is no single wave."],
                number)  # fmt: skip


@torch.no_grad()
def value_added(positions: PositionEncodings, width: int, position: int, channel: int) -> float:
    """What `embed` adds at one position, in one channel."""
    zeros_11D = torch.zeros(1, 1, width, dtype=torch.float64)
    return float(embedded(positions, zeros_11D, torch.tensor([[position]]))[0, 0, channel])


def wave_of(subject: Subject, channel: int) -> Wave | None:
    """The wave that a channel is over the positions, None if it is none or never comes round."""
    listened = min(LISTENED, subject.longest or LISTENED)
    values_P = added_vectors(subject.positions, subject.width, listened)[:, channel]
    length = float(wavelengths(values_P[:, None])[0]) if listened > 2 else math.nan
    if not math.isfinite(length):
        return None
    divisor = length / (2 * math.pi)
    angles_P = np.arange(listened) / divisor
    (sine, cosine), *_ = np.linalg.lstsq(np.stack((np.sin(angles_P), np.cos(angles_P)), 1), values_P, rcond=None)
    wave = Wave(divisor, math.hypot(sine, cosine), math.atan2(cosine, sine))
    return wave if np.allclose(wave.amplitude * np.sin(angles_P + wave.phase), values_P, atol=EXACT) else None


@torch.no_grad()
def answers(subject: Subject, position: int, channel: int, layer: int) -> list[str]:
    """What the hooks of attention answer to a unit vector: turned at the position, or looking so far back and ahead."""
    positions, heads, width = subject.positions, subject.heads, subject.head_width
    head, within = divmod(channel, width)
    unit_1H1K = torch.zeros(1, heads, 1, width, dtype=torch.float64)
    unit_1H1K[0, head, 0, within] = 1
    lines = []
    query = f"A query that is 1 in channel {within}{f' of head {head + 1}' if heads > 1 else ''} and 0 elsewhere"
    if "rotate_queries" in subject.answers:
        own_11 = torch.tensor([[position]])
        turned_K = positions.rotate_queries(unit_1H1K, asked_at(positions, own_11, own_11, layer))[0, head, 0]
        lines.append(f"{query} becomes at position {position}: {nonzero(turned_K)}.")
    if read := reads_tokens(positions):
        lines.append(
            "What a key gains depends on the tokens between it and the query, so no distance has a number of its own: "
            "the tab See shows it for random tokens."
        )
    ends = {f"{position} tokens back": (position, 0)}
    if subject.side == "encoder":  # a decoder's query sees nothing ahead
        ends = {f"{position} tokens ahead": (0, position)} | ends
    for where, (own, other) in ends.items() if position else [("at its own position", (0, 0))]:
        asked, seen = torch.tensor([[own]]), torch.tensor([[other]])
        if "score_bias" in subject.answers and not read:
            scores = score_biases(positions, unit_1H1K[:, :, 0], asked, seen, layer)
            score = scores.expand(1, heads, 1, 1)[0, head, 0, 0]
            lines.append(f"{query} gives a key {where} {float(score):+.6f} in score.")
        if "value_bias" in subject.answers:
            alone = torch.ones(1, heads, 1, 1, dtype=torch.float64)
            values = positions.value_bias(alone, asked_at(positions, asked, seen, layer))
            value = values.expand(1, heads, 1, width)[0, head, 0, within]
            lines.append(f"Attention to a key {where} alone adds {float(value):+.6f} to that channel of the output.")
    return lines


def nonzero(vector_K: torch.Tensor) -> str:
    """The largest channels of a vector, in their order."""
    largest = sorted(vector_K.abs().topk(min(SHOWN, len(vector_K))).indices.tolist())
    return ", ".join(f"{float(vector_K[k]):+.6f} in channel {k}" for k in largest if abs(float(vector_K[k])) > EXACT)
