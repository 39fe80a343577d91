"""The figures of an encoding: every one that its hooks have something to show in.

Which ones is decided by which hooks an instance answers, and by whether `embed` adds by position or reads its
neighbours; never by a name.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from matplotlib.figure import Figure

from ..modeling.position import HIDDEN
from .distance_figures import alike, influence_figure, score_figure, turning_figure, vector_figure
from .encoding_values import added_vectors, biases, influence, key_vectors, normal, turned_products, value_vectors
from .encoding_values import wavelengths as wavelengths_of
from .subjects import Subject
from .vector_figures import (
    channel_curves,
    first_positions,
    many_positions,
    norms,
    products,
    rows_step,
    wavelength_figure,
    widths_compared,
)

# Waves are recognised in so many positions, however many are drawn, and measured in so many more.
RECOGNISED, LISTENED = 200, 1000
# Two marks on a logarithmic scale stand apart by this factor, or the second is left out.
APART = 1.5


@dataclass(frozen=True)
class Drawing:
    """A figure that is not drawn yet: what a reader calls it, and what to look at in it."""

    label: str
    look_for: str
    draw: Callable[[], Figure]


Drawings = dict[str, Drawing]


def figures(subjects: Mapping[str, Subject]) -> Iterator[tuple[str, Figure]]:
    """Every figure and its name, one after the other: they are large."""
    one = subjects["vectors"]
    prefix = "-".join(
        [one.name, *(["trained"] if one.trained else []), *(["decoder"] if one.side == "decoder" else [])]
    )
    for name, drawing in drawings(subjects).items():
        yield f"{prefix}-{name}", drawing.draw()


def drawings(subjects: Mapping[str, Subject]) -> Drawings:
    """What can be drawn, by name; nothing of an encoding that answers no hook."""
    vectors, attention = subjects["vectors"], subjects["attention"]
    made: Drawings = {}
    if "embed" in vectors.answers and subjects["influence"].adds_by_position:
        made |= of_values(vectors, subjects.get("narrower vectors", vectors))
        made |= of_waves(vectors) | of_products(vectors)
    elif "embed" in vectors.answers:
        made |= of_reading(subjects["influence"])
    if {"rotate_queries", "rotate_keys"} & set(attention.answers):
        made |= of_turning(attention)
    if "score_bias" in attention.answers:
        made |= of_scores(attention)
    if {"score_bias", "value_bias"} & set(attention.answers):
        made |= of_tables(attention)
    return made


def of_values(subject: Subject, narrower: Subject) -> Drawings:
    """What is added by position, number by number."""
    width, extent, name = subject.width, subject.extent, subject.in_words
    added_to = f"{name}: added to the first {{}} positions, D = {width}".format
    first = extent.positions

    def many() -> Figure:
        waves_D = listened(subject, LISTENED)
        return many_positions(added(subject, extent.many), waves_D, title=added_to(extent.many))

    def widths() -> Figure:
        both = {one.width: added(one, first) for one in (narrower, subject)}
        return widths_compared(both, title=f"{name}: two widths D")

    columns = (
        "A row is a position, a column a channel, the colour the number added there. Look for columns that change from "
        "row to row and for columns that hardly change: a position is told by all of them together."
    )
    means = " One row in several can show waves that are not there; the means beside it cannot."
    made = {
        "positions": Drawing(
            "Heat map", columns, lambda: first_positions(added(subject, first), title=added_to(first))
        ),
        "many": Drawing("Heat map", columns + (means if rows_step(extent.many) > 1 else ""), many),
    }
    if narrower.width != width:
        look_for = (
            "Find a channel in both. Of waves, the first channels are alike, and the further right, the more the width "
            "decides how fast a channel changes; untrained vectors of two widths have nothing to do with each other."
        )
        made["widths"] = Drawing("Two widths", look_for, widths)
    look_for = (
        f"Single channels over the first {first} positions. Look at how fast low channels change and how "
        "slowly high ones do; the marks are the values, the lines only guide the eye."
    )
    title = f"{name}: single channels, D = {width}"
    return made | {"channels": Drawing("Curves", look_for, lambda: channel_curves(added(subject, first), title=title))}


def of_waves(subject: Subject) -> Drawings:
    """How long the waves are that channels are over the positions; nothing where none is a wave."""
    extent, title = subject.extent, f"{subject.in_words}: wavelength by channel, D = {subject.width}"

    def waves() -> Figure:
        marks: dict[str, float] = {}
        lines = {f"{number} positions": number for number in (extent.many, extent.positions)}
        if (rows := rows_step(extent.many)) > 1:
            lines |= {f"{2 * rows} positions (two rows)": 2 * rows}
        for what, at in lines.items():
            if all(max(at, other) > APART * min(at, other) for other in marks.values()):
                marks[what] = at
        return wavelength_figure(listened(subject, LISTENED), marks, title=title)

    look_for = (
        "After how many positions a channel is back where it was. Look at the lines: channels above one do not come "
        "round once within so many positions. Channels that are no single wave are left out."
    )
    there_are = np.isfinite(listened(subject, RECOGNISED)).any()
    return {"wavelengths": Drawing("Wavelengths", look_for, waves)} if there_are else {}


def listened(subject: Subject, number: int) -> np.ndarray:
    """The wavelengths found in so many positions, or in as many as there are."""
    number = max(3, min(number, subject.longest or number))
    return wavelengths_of(added(subject, number))


def added(subject: Subject, number: int) -> np.ndarray:
    return added_vectors(subject.positions, subject.width, number)


def of_products(subject: Subject) -> Drawings:
    """What becomes of the added vectors as a whole: their products and, where they are learned, their lengths."""
    width, name, near = subject.width, subject.in_words, 2 * subject.extent.distances + 1
    look_for = (
        f"The product of the vectors of two of the first {near} positions, for every pair and by their distance. Look "
        "at the right: where a line stands without a band, the distance alone decides the product."
    )
    title = f"{name}: products of the vectors added, D = {width}"
    made = {"products": Drawing("By distance", look_for, lambda: products(added(subject, near), title=title))}
    if subject.parameters:
        look_for = (
            "How long the vector of each position is. Look for positions that stand out: what training has never seen "
            "stays as it was drawn, and its length is chance."
        )
        long = f"{name}: lengths of the vectors added, D = {width}"
        made["lengths"] = Drawing("Lengths", look_for, lambda: norms(added(subject, subject.extent.many), title=long))
    return made


def of_reading(subject: Subject) -> Drawings:
    """What is read token by token."""

    def drawn() -> Figure:
        told = influence(subject.positions, subject.sentences())
        title = f"{subject.in_words}: influence of token j on what becomes of token i, D = {subject.width}"
        return influence_figure(told, title=title)

    look_for = (
        "What becomes of a token depends on its neighbours. Look along a row: how much each token that is read moves "
        "what becomes of this one; a triangle says that reading goes one way."
    )
    return {"influence": Drawing("Influence", look_for, drawn)}


def of_turning(subject: Subject) -> Drawings:
    """What `rotate` makes of products; each layer's, where layers differ."""
    heads, width, distances, most = subject.heads, subject.head_width, subject.distances, subject.extent.channels
    shown = ((np.arange(min(most, width)) + 0.5) * width / min(most, width)).astype(int)
    random_NHK = normal(subject.extent.queries, 1, width).expand(-1, heads, -1)
    even_1HK = torch.ones(1, heads, width, dtype=torch.float64)
    channels_CHK = torch.eye(width, dtype=torch.float64)[shown, None].expand(-1, heads, -1)

    def turned(q_NHK: torch.Tensor, layer: int) -> np.ndarray:
        return turned_products(subject.positions, q_NHK / q_NHK.norm(dim=-1, keepdim=True), distances, layer)

    def drawn(layer: int, where: str) -> Figure:
        title = f"{where}: product of a query and an equal key, K = {width}{standing(subject)}"
        even, random, channels = (turned(q_NHK, layer) for q_NHK in (even_1HK, random_NHK, channels_CHK))
        return turning_figure(even[0], random, channels[:, 0], distances, head_width=width, title=title)

    look_for = (
        "The product of a query with a key that was equal to it before both were turned, by their distance. Look at "
        "the black line: it falls as the key moves away; and on the right at the channels that turn fast and those "
        "that hardly turn."
    )
    layers = range(subject.layers)
    if alike(np.stack([turned(random_NHK[:1], layer) for layer in layers])):
        return {"turning": Drawing("Turning", look_for, partial(drawn, 0, subject.in_words))}
    draws = {layer + 1: partial(drawn, layer, f"{subject.in_words}, layer {layer + 1}") for layer in layers}
    return {f"turning-layer-{at}": Drawing(f"Turning, layer {at}", look_for, draw) for at, draw in draws.items()}


def of_scores(subject: Subject) -> Drawings:
    """What is added to scores, for queries with channels of deviation 1, the same ones in every head."""

    def drawn() -> Figure:
        q_NHK = normal(subject.extent.queries, 1, subject.head_width).expand(-1, subject.heads, -1)
        scores = [biases(subject.positions, q_NHK, subject.distances, layer) for layer in range(subject.layers)]
        title = f"{subject.in_words}: score added by distance, K = {subject.head_width}{standing(subject)}"
        return score_figure(np.stack(scores), subject.distances, title=title)

    look_for = (
        "What is added to the score of a key by its distance. Look at both ends: where a line is level, all keys that "
        "far away are treated alike."
    )
    return {"scores": Drawing("Scores", look_for, drawn)}


def of_tables(subject: Subject) -> Drawings:
    """The vectors that are as good as added to keys and values, where there are any."""
    sizes = subject.heads, subject.head_width, subject.distances
    asked = {"score_bias": ("keys", key_vectors), "value_bias": ("values", value_vectors)}
    found = {
        name: [vectors(subject.positions, *sizes, layer) for layer in range(subject.layers)]
        for hook, (name, vectors) in asked.items()
        if hook in subject.answers
    }
    whole = {name: [one for one in table if one is not None] for name, table in found.items()}
    tables = {name: np.stack(table) for name, table in whole.items() if len(table) == subject.layers}
    title = f"{subject.in_words}: vectors by distance, K = {subject.head_width}{standing(subject)}"
    look_for = (
        "The vector of each distance, channel by channel, and its length on the right. Look for the distances from "
        "which the columns repeat: there the encoding tells only before from after. Untrained, the vectors are chance."
    )
    hidden_S = np.zeros(len(subject.distances), dtype=bool)
    if "score_bias" in subject.answers:
        one_1HK = normal(1, subject.heads, subject.head_width)
        hidden_S = biases(subject.positions, one_1HK, subject.distances, 0)[0, 0] < HIDDEN / 2
    draw = partial(vector_figure, tables, subject.distances, hidden_S, title=title)
    return {"vectors": Drawing("Vectors", look_for, draw)} if tables else {}


def standing(subject: Subject) -> str:
    """Where the query stands, if that matters."""
    return "" if subject.attention_is_shift_invariant else f", query at position {-int(subject.distances.min())}"
