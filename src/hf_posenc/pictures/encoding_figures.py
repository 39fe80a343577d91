"""The figures of an encoding: every one that its hooks have something to show in, as PNG and SVG.

Which ones is decided by what an instance answers (`embed`, `rotate`, `score_bias`, `value_bias`), and by whether
`embed` adds by position or reads its neighbours; never by a name.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from ..config.files import merge, parse_override
from .distance_figures import alike, influence_figure, score_figure, turning_figure, vector_figure
from .encoding_values import added_vectors, biases, influence, key_vectors, normal, turned_products, value_vectors
from .encoding_values import wavelengths as wavelengths_of
from .style import save_figure
from .subjects import Extent, Subject, new_subjects, trained_subjects
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

FORMATS = ("png", "svg")
Drawings = dict[str, Callable[[], Figure]]
# Waves are recognised in so many positions, however many are drawn, and measured in so many more.
RECOGNISED, LISTENED = 200, 1000
# Two marks on a logarithmic scale stand apart by this factor, or the second is left out.
APART = 1.5


def draw(
    words: Iterable[str],
    to: Path,
    *,
    checkpoint: Path | None = None,
    side: str = "encoder",
    extent: Extent | None = None,
    formats: Iterable[str] = FORMATS,
) -> Iterator[Path]:
    """Draw encodings, named in `words` beside knob=value, or that of a checkpoint; yields the files it has written.

    A ValueError for what cannot be drawn, before anything is.
    """
    words, extent = list(words), extent or Extent()
    names = [word for word in words if "=" not in word]
    settings: dict[str, Any] = {}
    for word in words:
        settings = merge(settings, parse_override(word)) if "=" in word else settings
    if checkpoint is not None:
        subjects = [of_checkpoint(checkpoint, names, settings, side, extent)]
    elif names:
        subjects = [new_subjects(name, settings, side, extent) for name in dict.fromkeys(names)]
    else:
        raise ValueError("Figures are of an encoding, but none is named; name one or more, or give --checkpoint.")
    for of in (one["vectors"] for one in subjects):
        if not of.answers:
            raise ValueError(f"A figure shows what hooks answer, but `{of.name}` answers none; name another encoding.")
    to.mkdir(parents=True, exist_ok=True)
    for one in subjects:
        for name, figure in figures(one):
            for suffix in formats:
                save_figure(figure, path := to / f"{name}.{suffix}")
                yield path


def of_checkpoint(
    folder: Path, names: list[str], settings: Mapping[str, Any], side: str, extent: Extent
) -> dict[str, Subject]:
    """A checkpoint's encoding, refused if another one or knobs are asked for."""
    subjects = trained_subjects(folder, side, extent)
    trained = next(iter(subjects.values())).name
    if settings:
        raise ValueError(
            f"A checkpoint has its own knobs, but {', '.join(settings)} would replace them; leave them out."
        )
    if others := [name for name in names if name != trained]:
        raise ValueError(
            f"A checkpoint shows the encoding it was trained with, {trained!r} in its {side}, but {folder} is asked "
            f"for {', '.join(others)}; leave the name out, or name a checkpoint of that encoding."
        )
    return subjects


def figures(subjects: Mapping[str, Subject]) -> Iterator[tuple[str, Figure]]:
    """Every figure and its name, one after the other: they are large."""
    one = subjects["vectors"]
    prefix = "-".join(
        [one.name, *(["trained"] if one.trained else []), *(["decoder"] if one.side == "decoder" else [])]
    )
    for name, draw_it in drawings(subjects).items():
        yield f"{prefix}-{name}", draw_it()


def drawings(subjects: Mapping[str, Subject]) -> Drawings:
    """What can be drawn, by name, and not drawn yet; nothing of an encoding that answers no hook."""
    vectors, attention = subjects["vectors"], subjects["attention"]
    made: Drawings = {}
    if "embed" in vectors.answers and subjects["influence"].adds_by_position:
        made |= of_vectors(vectors, subjects.get("narrower vectors", vectors))
    elif "embed" in vectors.answers:
        made |= of_reading(subjects["influence"])
    if {"rotate_queries", "rotate_keys"} & set(attention.answers):
        made |= of_turning(attention)
    if "score_bias" in attention.answers:
        made |= of_scores(attention)
    if {"score_bias", "value_bias"} & set(attention.answers):
        made |= of_tables(attention)
    return made


def of_vectors(subject: Subject, narrower: Subject) -> Drawings:
    """What is added by position."""
    positions, width, extent, name = subject.positions, subject.width, subject.extent, subject.in_words

    def first(subject: Subject) -> np.ndarray:
        return added_vectors(subject.positions, subject.width, extent.positions)

    def listened(number: int) -> np.ndarray:
        number = max(3, min(number, extent.many, subject.longest or number))
        return wavelengths_of(added_vectors(positions, width, number))

    def widths() -> Figure:
        both = {narrower.width: first(narrower), width: first(subject)}
        return widths_compared(both, title=f"{name}: two widths D")

    def waves() -> Figure:
        marks: dict[str, float] = {}
        lines = {f"{number} positions": number for number in (extent.many, extent.positions)}
        if (rows := rows_step(extent.many)) > 1:
            lines |= {f"{2 * rows} positions (two rows)": 2 * rows}
        for what, at in lines.items():
            if all(max(at, other) > APART * min(at, other) for other in marks.values()):
                marks[what] = at
        return wavelength_figure(listened(LISTENED), marks, title=f"{name}: wavelength by channel, D = {width}")

    def many() -> Figure:
        title = f"{name}: added to the first {extent.many} positions, D = {width}"
        return many_positions(added_vectors(positions, width, extent.many), listened(LISTENED), title=title)

    def lengths() -> Figure:
        vectors = added_vectors(positions, width, extent.many)
        return norms(vectors, title=f"{name}: lengths of the vectors added, D = {width}")

    def near() -> Figure:
        vectors = added_vectors(positions, width, 2 * extent.distances + 1)
        return products(vectors, title=f"{name}: products of the vectors added, D = {width}")

    first_title = f"{name}: added to the first {extent.positions} positions, D = {width}"
    made: Drawings = {"positions": lambda: first_positions(first(subject), title=first_title), "many": many}
    if narrower.width != width:
        made["widths"] = widths
    made["channels"] = lambda: channel_curves(first(subject), title=f"{name}: single channels, D = {width}")
    if np.isfinite(listened(RECOGNISED)).any():
        made["wavelengths"] = waves
    made["products"] = near
    if subject.parameters:
        made["lengths"] = lengths
    return made


def of_reading(subject: Subject) -> Drawings:
    """What is read token by token."""

    def drawn() -> Figure:
        told = influence(subject.positions, subject.sentences())
        title = f"{subject.in_words}: influence of token j on what becomes of token i, D = {subject.width}"
        return influence_figure(told, title=title)

    return {"influence": drawn}


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

    layers = range(subject.layers)
    if alike(np.stack([turned(random_NHK[:1], layer) for layer in layers])):
        return {"turning": partial(drawn, 0, subject.in_words)}
    named = {layer: f"{subject.in_words}, layer {layer + 1}" for layer in layers}
    return {f"turning-layer-{layer + 1}": partial(drawn, layer, where) for layer, where in named.items()}


def of_scores(subject: Subject) -> Drawings:
    """What is added to scores, for queries with channels of deviation 1, the same ones in every head."""

    def drawn() -> Figure:
        q_NHK = normal(subject.extent.queries, 1, subject.head_width).expand(-1, subject.heads, -1)
        scores = [biases(subject.positions, q_NHK, subject.distances, layer) for layer in range(subject.layers)]
        title = f"{subject.in_words}: score added by distance, K = {subject.head_width}{standing(subject)}"
        return score_figure(np.stack(scores), subject.distances, title=title)

    return {"scores": drawn}


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
    return {"vectors": lambda: vector_figure(tables, subject.distances, title=title)} if tables else {}


def standing(subject: Subject) -> str:
    """Where the query stands, if that matters."""
    return "" if subject.attention_is_shift_invariant else f", query at position {-int(subject.distances.min())}"
