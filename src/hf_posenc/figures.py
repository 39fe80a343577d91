"""The figures of an encoding: every one that its hooks have something to show in, as PNG and SVG.

Which ones is decided by what an instance answers (`embed`, `rotate`, `score_bias`, `value_bias`), and by whether
`embed` adds by position or reads its neighbours; never by a name.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from .config_files import merge, parse_override
from .distance_plots import alike, influence_figure, score_figure, turning_figure, vector_figure
from .encoding_plots import (
    channel_curves,
    first_positions,
    many_positions,
    norms,
    products,
    rows_step,
    wavelength_figure,
    widths_compared,
)
from .encoding_values import added_vectors, biases, influence, key_vectors, normal, turned_products, value_vectors
from .encoding_values import wavelengths as wavelengths_of
from .figure_subjects import QUERIES, Extent, Subject, new_subjects, trained_subjects
from .plots import save_figure

FORMATS = ("png", "svg")
Made = Iterator[tuple[str, Figure]]
# Waves are recognised in so many positions, however many are drawn.
LISTENED = 1000


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


def figures(subjects: Mapping[str, Subject]) -> Made:
    """Every figure and its name, one after the other: they are large."""
    vectors, attention = subjects["vectors"], subjects["attention"]
    prefix = "-".join([vectors.name, *(["trained"] if vectors.trained else []),
                       *(["decoder"] if vectors.side == "decoder" else [])])  # fmt: skip
    made: list[Made] = []
    if "embed" in vectors.answers and vectors.adds_by_position:
        made.append(of_vectors(vectors, subjects["narrower vectors"]))
    elif "embed" in vectors.answers:
        made.append(of_reading(subjects["influence"]))
    if "rotate" in attention.answers:
        made.append(of_turning(attention))
    if "score_bias" in attention.answers:
        made.append(of_scores(attention))
    if {"score_bias", "value_bias"} & set(attention.answers):
        made.append(of_tables(attention))
    for name, figure in (pair for pairs in made for pair in pairs):
        yield f"{prefix}-{name}", figure


def of_vectors(subject: Subject, narrower: Subject) -> Made:
    """What is added by position."""
    positions, width, extent, name = subject.positions, subject.width, subject.extent, subject.in_words
    first = added_vectors(positions, width, extent.positions)
    yield "positions", first_positions(first, title=f"{name}: added to the first {len(first)} positions, D = {width}")
    if narrower.width != width:
        small = added_vectors(narrower.positions, narrower.width, extent.positions)
        yield "widths", widths_compared({narrower.width: small, width: first}, title=f"{name}: two widths D")
    yield "channels", channel_curves(first, title=f"{name}: single channels, D = {width}")
    many = added_vectors(positions, width, extent.many)
    waves = wavelengths_of(many[:LISTENED])
    if np.isfinite(waves).any():
        rows = 2 * rows_step(len(many))
        marks: dict[str, float] = {f"{len(first)} positions": len(first), f"{len(many)} positions": len(many)}
        marks |= {f"{rows} positions (two rows)": rows}
        yield "wavelengths", wavelength_figure(waves, marks, title=f"{name}: wavelength by channel, D = {width}")
    yield "many", many_positions(many, waves, title=f"{name}: added to the first {len(many)} positions, D = {width}")
    near = added_vectors(positions, width, 2 * extent.distances + 1)
    yield "products", products(near, title=f"{name}: products of the vectors added, D = {width}")
    if subject.has_parameters:
        yield "lengths", norms(many, title=f"{name}: lengths of the vectors added, D = {width}")


def of_reading(subject: Subject) -> Made:
    """What is read token by token."""
    told = influence(subject.positions, subject.sentences())
    title = f"{subject.in_words}: influence of token j on what becomes of token i, D = {subject.width}"
    yield "influence", influence_figure(told, title=title)


def of_turning(subject: Subject) -> Made:
    """What `rotate` makes of products; each layer's, where layers differ."""
    heads, width, distances = subject.heads, subject.head_width, subject.distances
    random_NHK = normal(QUERIES, 1, width).expand(-1, heads, -1)
    queries = {
        "even": torch.ones(1, heads, width, dtype=torch.float64),
        "random": random_NHK,
        "channels": torch.eye(width, dtype=torch.float64)[:, None].expand(-1, heads, -1),
    }
    products_of = [
        {
            name: turned_products(subject.positions, q_NHK / q_NHK.norm(dim=-1, keepdim=True), distances, layer)
            for name, q_NHK in queries.items()
        }
        for layer in range(subject.layers)
    ]
    same = alike(np.stack([one["random"] for one in products_of]))
    for layer, one in enumerate(products_of[:1] if same else products_of, 1):
        where = f"{subject.in_words}{'' if same else f', layer {layer}'}"
        title = f"{where}: product of a query and an equal key, K = {width}{standing(subject)}"
        drawn = turning_figure(one["even"][0], one["random"], one["channels"][:, 0], distances, title=title)
        yield "turning" if same else f"turning-layer-{layer}", drawn


def of_scores(subject: Subject) -> Made:
    """What is added to scores, for queries with channels of deviation 1, the same ones in every head."""
    q_NHK = normal(QUERIES, 1, subject.head_width).expand(-1, subject.heads, -1)
    scores = [biases(subject.positions, q_NHK, subject.distances, layer) for layer in range(subject.layers)]
    title = f"{subject.in_words}: score added by distance, K = {subject.head_width}{standing(subject)}"
    yield "scores", score_figure(np.stack(scores), subject.distances, title=title)


def of_tables(subject: Subject) -> Made:
    """The vectors that are as good as added to keys and values, where there are any."""
    sizes = subject.heads, subject.head_width, subject.distances
    asked = {"score_bias": ("keys", key_vectors), "value_bias": ("values", value_vectors)}
    found = {
        name: [vectors(subject.positions, *sizes, layer) for layer in range(subject.layers)]
        for hook, (name, vectors) in asked.items()
        if hook in subject.answers
    }
    whole = {name: [one for one in table if one is not None] for name, table in found.items()}
    if tables := {name: np.stack(table) for name, table in whole.items() if len(table) == subject.layers}:
        title = f"{subject.in_words}: vectors by distance, K = {subject.head_width}{standing(subject)}"
        yield "vectors", vector_figure(tables, subject.distances, title=title)


def standing(subject: Subject) -> str:
    """Where the query stands, if that matters."""
    return "" if subject.attention_is_shift_invariant else f", query at position {-int(subject.distances.min())}"
