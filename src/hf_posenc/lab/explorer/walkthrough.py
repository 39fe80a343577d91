"""Content of the explorer's tab *Step*: the formula of one position and channel, and its value.

The formula is the encoding's, and the values are outputs of its hooks. A channel that is a sinusoid over the positions
is recognized in these outputs, and its formula has the numbers filled in.
"""

import math
from dataclasses import dataclass
from inspect import cleandoc

import numpy as np
import torch

from ...encodings.sum import PositionEncodingSum
from ..analysis.probes import EncodingProbe
from ..analysis.probing import (
    added_vectors,
    bias_depends_on_tokens,
    embed_at,
    prepared_contexts,
    score_biases_at,
    wavelengths,
)
from ..figures.encoding_plots import WAVELENGTH_POSITIONS
from .state import MAX_POSITIONS, validate_number

TOLERANCE = 1e-6
# How many channels of an answer are written out.
MAX_CHANNELS_SHOWN = 6


@dataclass(frozen=True)
class Wave:
    """amplitude x sin(p / divisor + phase)."""

    divisor: float
    amplitude: float
    phase: float

    def value_at(self, position: int) -> float:
        return self.amplitude * math.sin(position / self.divisor + self.phase)

    def formula_at(self, position: int) -> str:
        """The formula with its numbers, before the value."""
        factor = "" if abs(self.amplitude - 1) < TOLERANCE else f"{self.amplitude:.4f} "
        angle = position / self.divisor
        if abs(self.phase) < TOLERANCE:
            return f"{factor}sin({position} / {self.divisor:.6g}) = {factor}sin({angle:.6g})"
        if abs(self.phase - math.pi / 2) < TOLERANCE:
            return f"{factor}cos({position} / {self.divisor:.6g}) = {factor}cos({angle:.6g})"
        return f"{factor}sin({position} / {self.divisor:.6g} {self.phase:+.4f}) = {factor}sin({angle + self.phase:.6g})"


@dataclass(frozen=True)
class Explanation:
    """`value` is what the hook adds there, None where no position has a number of its own; `lines` say how it comes."""

    formula: str
    lines: list[str]
    value: float | None = None


def explain_value(probe: EncodingProbe, position: int, channel: int, layer: int = 1) -> Explanation:
    """The number for one position and channel, in a layer counted from 1; a ValueError for what there is not."""
    position = validate_number("The position", position, 0, MAX_POSITIONS)
    channel = validate_number(f"The channel (D = {probe.width})", channel, 0, probe.width - 1)
    layer = validate_number("The layer", layer, 1, probe.layers) - 1
    formula = "\n".join(cleandoc(entry.formula) for entry in probe.entries.values() if entry.formula)
    if not probe.hooks:
        return Explanation(
            formula, ["It answers no hook: nothing is added and nothing is turned, wherever a token stands."]
        )
    lines = []
    if "embed" in probe.hooks:
        if probe.is_additive:
            return explain_added_value(probe, position, channel, formula)
        lines.append(
            "What stands here afterwards depends on the token and its neighbours, so no position has a number of its "
            "own: the tab See shows who moves whom."
        )
    return Explanation(formula, lines + explain_attention_hooks(probe, position, channel, layer))


def explain_added_value(probe: EncodingProbe, position: int, channel: int, formula: str) -> Explanation:
    """Of what is added by position: read from `embed`, and from a wave if the channel is one."""
    number = added_value(probe.positions, probe.width, position, channel)
    name = f"channel {channel} at position {position}, D = {probe.width}"
    wave = fit_wave(probe, channel)
    if wave is not None and abs(wave.value_at(position) - number) < TOLERANCE:
        length = 2 * math.pi * wave.divisor
        lines = [
            f"{name}: {wave.formula_at(position)} = {number:.6f}",
            f"Read off the answers: the position is divided by {wave.divisor:.6g}, and the wave is back after "
            f"{length:.6g} positions.",
        ]
        return Explanation(formula, lines, number)
    origin = (
        "Learned: the table of a trained model has it."
        if probe.trained
        else ("Drawn at random: the encoding is untrained.")
    )
    return Explanation(
        formula, [f"{name}: {number:.6f}", origin if probe.parameters else "This channel is no single wave."], number
    )


@torch.no_grad()
def added_value(positions: PositionEncodingSum, width: int, position: int, channel: int) -> float:
    """What `embed` adds at one position, in one channel."""
    zeros_11D = torch.zeros(1, 1, width, dtype=torch.float64)
    return float(embed_at(positions, zeros_11D, torch.tensor([[position]]))[0, 0, channel])


def fit_wave(probe: EncodingProbe, channel: int) -> Wave | None:
    """The sinusoid of a channel over the positions; None if it is not one, or has no full period."""
    num_positions = min(WAVELENGTH_POSITIONS, probe.max_positions or WAVELENGTH_POSITIONS)
    values_P = added_vectors(probe.positions, probe.width, num_positions)[:, channel]
    wavelength = float(wavelengths(values_P[:, None])[0]) if num_positions > 2 else math.nan
    if not math.isfinite(wavelength):
        return None
    divisor = wavelength / (2 * math.pi)
    angles_P = np.arange(num_positions) / divisor
    (sine, cosine), *_ = np.linalg.lstsq(np.stack((np.sin(angles_P), np.cos(angles_P)), 1), values_P, rcond=None)
    wave = Wave(divisor, math.hypot(sine, cosine), math.atan2(cosine, sine))
    return wave if np.allclose(wave.amplitude * np.sin(angles_P + wave.phase), values_P, atol=TOLERANCE) else None


@torch.no_grad()
def explain_attention_hooks(probe: EncodingProbe, position: int, channel: int, layer: int) -> list[str]:
    """Sentences on the attention hooks for a unit query: its rotation at `position`, the biases at that distance."""
    positions, heads, width = probe.positions, probe.heads, probe.head_dim
    head, head_channel = divmod(channel, width)
    unit_1H1K = torch.zeros(1, heads, 1, width, dtype=torch.float64)
    unit_1H1K[0, head, 0, head_channel] = 1
    lines = []
    query = f"A query that is 1 in channel {head_channel}{f' of head {head + 1}' if heads > 1 else ''} and 0 elsewhere"
    if "rotate_queries" in probe.hooks:
        own_11 = torch.tensor([[position]])
        turned_K = positions.rotate_queries(unit_1H1K, prepared_contexts(positions, own_11, own_11, layer))[0, head, 0]
        lines.append(f"{query} becomes at position {position}: {format_nonzero(turned_K)}.")
    if depends_on_tokens := bias_depends_on_tokens(positions):
        lines.append(
            "What a key gains depends on the tokens between it and the query, so no distance has a number of its own: "
            "the tab See shows it for random tokens."
        )
    query_and_key = {f"{position} tokens back": (position, 0)}
    if probe.side == "encoder":  # a decoder's query attends to no later key
        query_and_key = {f"{position} tokens ahead": (0, position)} | query_and_key
    for direction, (query_position, key_position) in (
        query_and_key.items() if position else [("at its own position", (0, 0))]
    ):
        query_11, key_11 = torch.tensor([[query_position]]), torch.tensor([[key_position]])
        if "score_bias" in probe.hooks and not depends_on_tokens:
            scores = score_biases_at(positions, unit_1H1K[:, :, 0], query_11, key_11, layer)
            score = scores.expand(1, heads, 1, 1)[0, head, 0, 0]
            lines.append(f"{query} gives a key {direction} {float(score):+.6f} in score.")
        if "value_bias" in probe.hooks:
            alone = torch.ones(1, heads, 1, 1, dtype=torch.float64)
            values = positions.value_bias(alone, prepared_contexts(positions, query_11, key_11, layer))
            value = values.expand(1, heads, 1, width)[0, head, 0, head_channel]
            lines.append(
                f"Attention to a key {direction} alone adds {float(value):+.6f} to that channel of the output."
            )
    return lines


def format_nonzero(vector_K: torch.Tensor) -> str:
    """The largest channels of a vector, in their order."""
    largest = sorted(vector_K.abs().topk(min(MAX_CHANNELS_SHOWN, len(vector_K))).indices.tolist())
    return ", ".join(
        f"{float(vector_K[k]):+.6f} in channel {k}" for k in largest if abs(float(vector_K[k])) > TOLERANCE
    )
