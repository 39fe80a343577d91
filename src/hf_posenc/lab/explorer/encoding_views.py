"""Figures of the explorer's tab *See*: one for each effect of an encoding's or sum's hooks, untrained or trained.

They are the figures of `python -m hf_posenc figures`, for the positions that a reader has chosen. This module does not
use gradio, and figures are drawn on request.
"""

from dataclasses import replace
from math import isqrt

from ..analysis.probes import EncodingProbe, PlotExtent
from ..figures.encoding_plots import lazy_figures
from ..figures.style import LazyFigure
from .state import MAX_POSITIONS, Probes, validate_number

# The maximum number of positions of a heat map with one row for each position.
MAX_SINGLE_ROWS = 60
# The maximum number of positions of a curve with marks, of positions of a product matrix, of distances to either side.
MAX_CURVE_POSITIONS, MAX_PRODUCT_POSITIONS, MAX_DISTANCE = 100, 256, 64
MAX_QUERIES, MAX_CHANNELS = 16, 32
# A figure of influences takes D backward passes a token: its minimum and maximum tokens, and its maximum products.
MIN_TOKENS, MAX_TOKENS, MAX_WORK = 4, 16, 2e10


def encoding_views(probes: Probes, positions: int) -> dict[str, LazyFigure]:
    """The figures of that many positions by label; empty for an encoding without hooks."""
    positions = validate_number("The number of positions", positions, 3, MAX_POSITIONS)
    vectors, attention, reading = probes["vectors"], probes["attention"], probes["influence"]
    pairs = (min(positions, MAX_PRODUCT_POSITIONS) - 1) // 2
    probes_shown = {
        "vectors": vectors.with_extent(
            PlotExtent(positions=min(positions, MAX_CURVE_POSITIONS), max_positions=positions, distances=pairs)
        ),
        "attention": attention.with_extent(
            PlotExtent(distances=min(positions - 1, MAX_DISTANCE), queries=MAX_QUERIES, channels=MAX_CHANNELS)
        ),
        "influence": reading,
    }
    cost_note = ""
    if "embed" in reading.hooks and not reading.is_additive:
        tokens = affordable_tokens(reading, positions)
        probes_shown["influence"] = reading.with_extent(PlotExtent(tokens=tokens))
        if (reading.width, tokens) != (vectors.width, positions):
            cost_note = f" It is costly, and so drawn at D = {reading.width} and {tokens} tokens."
    by_label = {}
    for name, drawing in lazy_figures(probes_shown).items():
        if name != ("positions" if positions > MAX_SINGLE_ROWS else "many"):
            look_for = drawing.look_for + (cost_note if name == "influence" else "")
            by_label[drawing.label] = replace(drawing, look_for=look_for)
    return by_label


def affordable_tokens(probe: EncodingProbe, positions: int) -> int:
    """The number of tokens of an influence figure that the page has time for; a ValueError if it is too small."""
    work_per_pair = max(1, probe.parameters) * probe.width
    tokens = min(positions, MAX_TOKENS, isqrt(int(MAX_WORK / work_per_pair)))
    if tokens < min(positions, MIN_TOKENS):
        raise ValueError(
            f"A picture of {MIN_TOKENS} tokens needs {work_per_pair * MIN_TOKENS**2:.0e} products, but the page has "
            f"time for {MAX_WORK:.0e}; choose a smaller D or hidden size, or draw it with `python -m hf_posenc "
            "figures`."
        )
    return tokens
