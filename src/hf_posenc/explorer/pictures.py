"""What the explorer's tab *See* shows: of an encoding or a sum, newly made, one picture for each thing its hooks do.

Which pictures there are is decided by the hooks that the instance answers, and by whether `embed` adds by position or
reads its neighbours. Nothing here knows gradio, and nothing is drawn before it is asked for.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from ..distance_plots import influence_figure, score_figure, turning_figure, vector_figure
from ..encoding_plots import channel_curves, first_positions, many_positions, products, wavelength_figure
from ..encoding_values import (
    added_vectors,
    adds_by_position,
    biases,
    influence,
    key_vectors,
    normal,
    turned_products,
    value_vectors,
    wavelengths,
)
from ..modeling.position import PositionEncodings
from ..modeling.positions import longest_length
from .choice import Choice, encodings_of, hooks_of

# So many positions a curve shows with a mark for each, a matrix of products has, and distances lie on either side.
CURVE, PAIRS, REACH = 100, 256, 100
# Waves are recognised in so many positions, however many are drawn.
LISTENED = 1000
QUERIES = 32
# What is read token by token costs D backward passes a token: so many tokens, and so much work at most.
READ_TOKENS, MOST_WORK = 24, 2e10
# The rows of a picture up to which each position has one of its own, with space to see it.
ROWS = 60


@dataclass(frozen=True)
class Picture:
    """A figure not yet drawn, and what to look at in it."""

    caption: str
    draw: Callable[[], Figure]


def pictures(choice: Choice) -> dict[str, Picture]:
    """Every picture of a choice by its name; none for an encoding that answers no hook."""
    hooks, made = hooks_of(choice), dict[str, Picture]()
    if "embed" in hooks:
        longest = longest_length(choice.name, choice.config())
        few = encodings_of(choice, narrow=True)
        adds = adds_by_position(few, choice.config(narrow=True).d_model, longest)
        made |= of_vectors(choice, encodings_of(choice)) if adds else of_reading(choice)
    if set(hooks) <= {"embed"}:
        return made
    positions = encodings_of(choice)
    reach = min(choice.positions - 1, REACH)
    distances = np.arange(-reach, reach + 1)
    if "rotate" in hooks:
        made |= of_turning(choice, positions, distances)
    if "score_bias" in hooks:
        made |= of_scores(choice, positions, distances)
    if {"score_bias", "value_bias"} & set(hooks):
        made |= of_tables(choice, positions, distances, hooks)
    return made


def of_vectors(choice: Choice, positions: PositionEncodings) -> dict[str, Picture]:
    """Of what is added by position."""
    number, width = choice.positions, choice.width
    state = "untrained, " if any(True for _ in positions.parameters()) else ""
    title = f"{choice.name}: {state}D = {width}"

    def heat() -> Figure:
        values = added_vectors(positions, width, number)
        if number <= ROWS:
            return first_positions(values, title=f"{title}, the first {number} positions")
        return many_positions(values, wavelengths(values[:LISTENED]), title=f"{title}, the first {number} positions")

    def curves() -> Figure:
        values = added_vectors(positions, width, min(number, CURVE))
        return channel_curves(values, title=f"{title}, single channels")

    def by_distance() -> Figure:
        values = added_vectors(positions, width, min(number, PAIRS))
        return products(values, title=f"{title}, products of the vectors of two positions")

    def waves() -> Figure:
        heard = wavelengths(added_vectors(positions, width, min(max(number, 3), LISTENED)))
        return wavelength_figure(heard, {f"{number} positions": number}, title=f"{title}, wavelength by channel")

    made = {
        "Heat map": Picture(
            "A row is a position, a column a channel, the colour the number added there. Look for columns that change "
            "from row to row and for columns that hardly change: a position is told by all of them together. Of many "
            "positions, one row in several can show waves that are not there; the means beside it cannot.",
            heat,
        ),
        "Curves": Picture(
            f"Single channels over the positions (at most the first {CURVE}). Look at how fast low channels change and "
            "how slowly high ones do; the marks are the values, the lines only guide the eye.",
            curves,
        ),
        "By distance": Picture(
            f"The product of the vectors of two positions (at most the first {PAIRS}), for every pair and by their "
            "distance. Look at the right: where a line stands without a band, the distance alone decides the product.",
            by_distance,
        ),
    }
    listened = min(200, number, longest_length(choice.name, choice.config()) or number)
    if np.isfinite(wavelengths(added_vectors(positions, width, listened))).any():
        made["Wavelengths"] = Picture(
            "After how many positions a channel is back where it was. Look at the line: channels above it do not come "
            "round once within the positions chosen. Channels that are no single wave are left out.",
            waves,
        )
    return made


def of_reading(choice: Choice) -> dict[str, Picture]:
    """Of what `embed` reads token by token."""
    config = choice.config(narrow=True)
    tokens = min(choice.positions, READ_TOKENS)

    def drawn() -> Figure:
        positions = encodings_of(choice, narrow=True)
        work = sum(parameter.numel() for parameter in positions.parameters()) * config.d_model * tokens**2
        if work > MOST_WORK:
            raise ValueError(
                f"This picture needs {work:.0e} products, but the page has time for {MOST_WORK:.0e}; choose fewer "
                "positions, a smaller D, or a smaller hidden size."
            )
        told = influence(positions, normal(1, tokens, config.d_model))
        return influence_figure(told, title=f"{choice.name}: untrained, D = {config.d_model}, {tokens} tokens")

    caption = (
        "What becomes of a token depends on its neighbours. Look along a row: how much each token that is read moves "
        "what becomes of this one; a triangle says that reading goes one way."
    )
    if (config.d_model, tokens) != (choice.width, choice.positions):
        caption += f" It is costly, and so drawn at D = {config.d_model} and {tokens} tokens."
    return {"Influence": Picture(caption, drawn)}


def of_turning(choice: Choice, positions: PositionEncodings, distances: np.ndarray) -> dict[str, Picture]:
    """Of what `rotate` makes of the product of a query and an equal key."""
    heads, width = choice.heads, choice.width // choice.heads

    def drawn() -> Figure:
        queries = (
            torch.ones(1, heads, width, dtype=torch.float64),
            normal(QUERIES, 1, width).expand(-1, heads, -1),
            torch.eye(width, dtype=torch.float64)[:, None].expand(-1, heads, -1),
        )
        even, random, channels = (
            turned_products(positions, q_NHK / q_NHK.norm(dim=-1, keepdim=True), distances, 0) for q_NHK in queries
        )
        title = f"{choice.name}: a query and an equal key, turned; head width {width}"
        return turning_figure(even[0], random, channels[:, 0], distances, title=title)

    caption = (
        f"The product of a query with a key that was equal to it before both were turned, by their distance (at most "
        f"{REACH}). Look at the black line: it falls as the key moves away; and on the right at the channels that turn "
        "fast and those that hardly turn."
    )
    return {"Turning": Picture(caption, drawn)}


def of_scores(choice: Choice, positions: PositionEncodings, distances: np.ndarray) -> dict[str, Picture]:
    """Of the score added at each distance, to random queries, the same ones in every head."""
    heads, width = choice.heads, choice.width // choice.heads

    def drawn() -> Figure:
        q_NHK = normal(QUERIES, 1, width).expand(-1, heads, -1)
        scores = biases(positions, q_NHK, distances, 0)[None]
        return score_figure(scores, distances, title=f"{choice.name}: score added by distance, head width {width}")

    caption = (
        f"What is added to the score of a key by its distance (at most {REACH}). Look at both ends: where a line is "
        "level, all keys that far away are treated alike."
    )
    return {"Scores": Picture(caption, drawn)}


def of_tables(
    choice: Choice, positions: PositionEncodings, distances: np.ndarray, hooks: list[str]
) -> dict[str, Picture]:
    """Of the vectors that are as good as added to keys and values, where there are any."""
    sizes = choice.heads, choice.width // choice.heads, distances, 0
    asked: Mapping[str, Any] = {"score_bias": ("keys", key_vectors), "value_bias": ("values", value_vectors)}
    tables = {}
    for hook, (name, vectors) in asked.items():
        if hook in hooks:
            tables[name] = vectors(positions, *sizes)
    tables = {name: table[None] for name, table in tables.items() if table is not None and table.any()}
    if not tables:  # a bias that is not linear in the query, or that no query changes, has no such vectors
        return {}
    caption = (
        "The vector of each distance, channel by channel, and its length on the right. Look for the distances from "
        "which the columns repeat: there the encoding tells only before from after. Untrained, the vectors are chance."
    )
    title = f"{choice.name}: vectors by distance"
    return {"Vectors": Picture(caption, lambda: vector_figure(tables, distances, title=title))}
