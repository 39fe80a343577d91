"""The figures of an encoding: one for each effect of its hooks; as files, `hf-posenc figures`.

They depend on the hooks that the encoding implements, and on whether `embed` adds vectors by position or reads
neighbouring tokens. They never depend on a name.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from ...encodings.base import MASK_VALUE
from ..analysis.probes import (
    EncodingProbe,
    PlotExtent,
    added_vectors,
    embed_influence,
    key_vectors,
    rotated_products,
    score_biases_by_distance,
    standard_normal,
    trained_probes,
    untrained_probes,
    value_vectors,
)
from ..analysis.probes import wavelengths as wavelengths_of
from ..config.yaml_io import merge, parse_override
from .style import LazyFigure, save_figure
from .vector_plots import (
    all_equal,
    channels_figure,
    influence_figure,
    many_positions_figure,
    norms_by_distance_figure,
    norms_figure,
    positions_figure,
    positions_per_row,
    products_figure,
    rotation_figure,
    score_bias_figure,
    vectors_by_distance_figure,
    wavelength_figure,
    widths_figure,
)

# The numbers of positions in which sinusoids are recognised and then measured, whatever number is drawn.
WAVE_DETECTION_POSITIONS, WAVELENGTH_POSITIONS = 200, 1000
# The smallest ratio of two marks on a logarithmic scale; a second mark that is closer is left out.
MIN_MARK_RATIO = 1.5


LazyFigures = dict[str, LazyFigure]
HEATMAP_HINT = (
    "A row is a position, a column a channel, the colour the number added there. Look for columns that change from row "
    "to row and for nearly constant columns: all columns together identify a position."
)
MEANS_NOTE = " Single rows out of several can show false waves (aliases); the means, on the right, cannot."
WIDTHS_HINT = (
    "Find a channel in both. Of waves, the first channels are alike, and the further right, the more the width decides "
    "how fast a channel changes; untrained vectors of two widths have nothing to do with each other."
)
CHANNELS_HINT = (
    "Single channels over the first {} positions. Look at how fast low channels change and how slowly high ones do; "
    "the marks are the values, the lines only guide the eye."
)
WAVELENGTHS_HINT = (
    "After how many positions a channel is back where it was. Look at the lines: channels above one do not come round "
    "once within so many positions. Channels that are no single wave are left out."
)
PRODUCTS_HINT = (
    "The product of the vectors of two of the first {} positions, for every pair and by their distance. Look at the "
    "right: where a line stands without a band, the distance alone decides the product."
)
LENGTHS_HINT = (
    "How long the vector of each position is. Look for positions that stand out: what training has never seen stays as "
    "it was drawn, and its length is chance."
)
INFLUENCE_HINT = (
    "The output of a token depends on its neighbours. Look along a row: how much each input token changes this output. "
    "A triangle shows that the layer reads in one direction."
)
ROTATION_HINT = (
    "The product of a query and an equal key after both are rotated, by their distance. Look at the black line, which "
    "decreases with the distance, and on the right at the channels that rotate fast and slowly."
)
SCORES_HINT = (
    "What is added to the score of a key by its distance. Look at both ends: where a line is level, all keys that far "
    "away are treated alike."
)
VECTORS_HINT = (
    "The vector of each distance, channel by channel. Look for the distances from which the columns repeat: there the "
    "encoding tells only before from after. Untrained tables are chance."
)
NORMS_BY_DISTANCE_HINT = (
    "The length of each distance's vector. A peak is a distance that queries can tell from all others. Look for the "
    "distances from which the line is flat: there the encoding tells only before from after."
)


def named_figures(probes: Mapping[str, EncodingProbe]) -> Iterator[tuple[str, Figure]]:
    """Every figure and its name. An iterator, because figures take much memory."""
    probe = probes["vectors"]
    prefix = probe.name
    if probe.trained:
        prefix += "-trained"
    if probe.side == "decoder":
        prefix += "-decoder"
    for name, drawing in lazy_figures(probes).items():
        yield f"{prefix}-{name}", drawing.draw()


def lazy_figures(probes: Mapping[str, EncodingProbe]) -> LazyFigures:
    """The figures that can be drawn, by name; empty for an encoding without hooks."""
    vectors, attention = probes["vectors"], probes["attention"]
    lazy: LazyFigures = {}
    if "embed" in vectors.hooks and probes["influence"].is_additive:
        lazy |= value_figures(vectors, probes.get("narrower vectors", vectors))
    elif "embed" in vectors.hooks:
        lazy["influence"] = LazyFigure("Influence", INFLUENCE_HINT, partial(draw_influence, probes["influence"]))
    if {"rotate_queries", "rotate_keys"} & set(attention.hooks):
        lazy |= rotation_figures(attention)
    if "score_bias" in attention.hooks:
        lazy |= score_bias_figures(attention)
    if {"score_bias", "value_bias"} & set(attention.hooks):
        lazy |= vectors_by_distance_figures(attention)
    return lazy


def value_figures(probe: EncodingProbe, narrower: EncodingProbe) -> LazyFigures:
    """Figures of the vectors added by position: values, wavelengths, products and norms."""
    extent, name, suffix = probe.extent, probe.label, f", D = {probe.width}"
    num_positions, max_positions = extent.positions, extent.max_positions
    num_products = 2 * extent.distances + 1
    has_means = positions_per_row(max_positions) > 1
    added, single = f"{name}: added to the first {{}} positions{suffix}", f"{name}: single channels{suffix}"
    products, norms = f"{name}: products of the vectors added{suffix}", f"{name}: lengths of the vectors added{suffix}"

    def draw_many() -> Figure:
        waves_D = probe_wavelengths(probe, WAVELENGTH_POSITIONS)
        return many_positions_figure(probe_vectors(probe, max_positions), waves_D, title=added.format(max_positions))

    def draw_widths() -> Figure:
        by_width = {each.width: probe_vectors(each, num_positions) for each in (narrower, probe)}
        return widths_figure(by_width, title=f"{name}: two widths D")

    def draw_vectors(figure: Callable[..., Figure], number: int, title: str) -> Callable[[], Figure]:
        return lambda: figure(probe_vectors(probe, number), title=title)

    lazy = {
        "positions": LazyFigure(
            "Heat map", HEATMAP_HINT, draw_vectors(positions_figure, num_positions, added.format(num_positions))
        ),
        "many": LazyFigure("Heat map", HEATMAP_HINT + (MEANS_NOTE if has_means else ""), draw_many),
    }
    if narrower.width != probe.width:
        lazy["widths"] = LazyFigure("Two widths", WIDTHS_HINT, draw_widths)
    lazy["channels"] = LazyFigure(
        "Curves", CHANNELS_HINT.format(num_positions), draw_vectors(channels_figure, num_positions, single)
    )
    if np.isfinite(probe_wavelengths(probe, WAVE_DETECTION_POSITIONS)).any():
        lazy["wavelengths"] = LazyFigure("Wavelengths", WAVELENGTHS_HINT, partial(draw_wavelengths, probe))
    lazy["products"] = LazyFigure(
        "By distance", PRODUCTS_HINT.format(num_products), draw_vectors(products_figure, num_products, products)
    )
    if probe.parameters:
        lazy["lengths"] = LazyFigure("Lengths", LENGTHS_HINT, draw_vectors(norms_figure, max_positions, norms))
    return lazy


def draw_wavelengths(probe: EncodingProbe) -> Figure:
    """The wavelength of each channel, with lines at the numbers of positions of the other figures."""
    extent = probe.extent
    lines = {f"{number} positions": number for number in (extent.max_positions, extent.positions)}
    step = positions_per_row(extent.max_positions)
    if step > 1:
        lines[f"{2 * step} positions (two rows)"] = 2 * step
    marks: dict[str, float] = {}
    for name, position in lines.items():
        if all(max(position, mark) > MIN_MARK_RATIO * min(position, mark) for mark in marks.values()):
            marks[name] = position
    title = f"{probe.label}: wavelength by channel, D = {probe.width}"
    return wavelength_figure(probe_wavelengths(probe, WAVELENGTH_POSITIONS), marks, title=title)


def probe_wavelengths(probe: EncodingProbe, num_positions: int) -> np.ndarray:
    """The wavelengths in that many positions, or in as many as the encoding has."""
    num_positions = max(3, min(num_positions, probe.max_positions or num_positions))
    return wavelengths_of(probe_vectors(probe, num_positions))


def probe_vectors(probe: EncodingProbe, num_positions: int) -> np.ndarray:
    return added_vectors(probe.positions, probe.width, num_positions)


def draw_influence(probe: EncodingProbe) -> Figure:
    """The influence of each token on each other token, for an `embed` that reads in order."""
    influence_TT = embed_influence(probe.positions, probe.sample_inputs())
    title = f"{probe.label}: influence of input token j on output token i, D = {probe.width}"
    return influence_figure(influence_TT, title=title)


def rotation_figures(probe: EncodingProbe) -> LazyFigures:
    """The products of rotated queries and keys; for each layer, if layers differ."""
    heads, width, distances, max_channels = probe.heads, probe.head_dim, probe.distances, probe.extent.channels
    channel_ids = ((np.arange(min(max_channels, width)) + 0.5) * width / min(max_channels, width)).astype(int)
    random_NHK = standard_normal(probe.extent.queries, 1, width).expand(-1, heads, -1)
    even_1HK = torch.ones(1, heads, width, dtype=torch.float64)
    channels_CHK = torch.eye(width, dtype=torch.float64)[channel_ids, None].expand(-1, heads, -1)

    def products_for(q_NHK: torch.Tensor, layer: int) -> np.ndarray:
        return rotated_products(probe.positions, q_NHK / q_NHK.norm(dim=-1, keepdim=True), distances, layer)

    def draw_layer(layer: int, what: str) -> Figure:
        title = f"{what}: product of a query and an equal key, K = {width}{query_position_note(probe)}"
        even, random, channels = (products_for(q_NHK, layer) for q_NHK in (even_1HK, random_NHK, channels_CHK))
        return rotation_figure(even[0], random, channels[:, 0], distances, head_dim=width, title=title)

    layers = range(probe.layers)
    if all_equal(np.stack([products_for(random_NHK[:1], layer) for layer in layers])):
        return {"rotation": LazyFigure("Rotation", ROTATION_HINT, partial(draw_layer, 0, probe.label))}
    lazy = {}
    for number, layer in enumerate(layers, 1):
        draw = partial(draw_layer, layer, f"{probe.label}, layer {number}")
        lazy[f"rotation-layer-{number}"] = LazyFigure(f"Rotation, layer {number}", ROTATION_HINT, draw)
    return lazy


def score_bias_figures(probe: EncodingProbe) -> LazyFigures:
    """The score biases, for standard normal queries that are the same in every head."""

    def draw() -> Figure:
        q_NHK = standard_normal(probe.extent.queries, 1, probe.head_dim).expand(-1, probe.heads, -1)
        scores = [
            score_biases_by_distance(probe.positions, q_NHK, probe.distances, layer) for layer in range(probe.layers)
        ]
        title = f"{probe.label}: score added by distance, K = {probe.head_dim}{query_position_note(probe)}"
        return score_bias_figure(np.stack(scores), probe.distances, title=title)

    return {"scores": LazyFigure("Scores", SCORES_HINT, draw)}


def vectors_by_distance_figures(probe: EncodingProbe) -> LazyFigures:
    """The vectors that are equivalent to additions to keys and to values, if there are any."""
    tables = {}
    for hook, name, read_vectors in (("score_bias", "keys", key_vectors), ("value_bias", "values", value_vectors)):
        if hook in probe.hooks:
            vectors = partial(read_vectors, probe.positions, probe.heads, probe.head_dim, probe.distances)
            by_layer = [vectors_HSK for layer in range(probe.layers) if (vectors_HSK := vectors(layer)) is not None]
            if len(by_layer) == probe.layers:
                tables[name] = np.stack(by_layer)
    title = f"{probe.label}: vectors by distance, K = {probe.head_dim}{query_position_note(probe)}"
    hidden_S = np.zeros(len(probe.distances), dtype=bool)
    if "score_bias" in probe.hooks:
        query_1HK = standard_normal(1, probe.heads, probe.head_dim)
        hidden_S = score_biases_by_distance(probe.positions, query_1HK, probe.distances, 0)[0, 0] < MASK_VALUE / 2
    figure, look_for = vectors_by_distance_figure, VECTORS_HINT
    if probe.trained:
        figure, look_for = norms_by_distance_figure, NORMS_BY_DISTANCE_HINT
    draw = partial(figure, tables, probe.distances, hidden_S, title=title)
    return {"vectors": LazyFigure("Vectors", look_for, draw)} if tables else {}


def query_position_note(probe: EncodingProbe) -> str:
    """The query's position, if the figure depends on it."""
    return "" if probe.has_shift_invariant_attention else f", query at position {-int(probe.distances.min())}"


FORMATS = ("png", "svg")


def save_encoding_figures(
    arguments: Iterable[str],
    folder: Path,
    *,
    checkpoint: Path | None = None,
    side: str = "encoder",
    extent: PlotExtent | None = None,
    formats: Iterable[str] = FORMATS,
) -> Iterator[Path]:
    """Draw encodings, or the encoding of a checkpoint; yields the paths of the written files.

    `arguments` are names of encodings, and parameters as name=value. Raises a ValueError, before anything is drawn, for
    an encoding without figures.
    """
    arguments, extent = list(arguments), extent or PlotExtent()
    names = [argument for argument in arguments if "=" not in argument]
    settings: dict[str, object] = {}
    for argument in arguments:
        settings = merge(settings, parse_override(argument)) if "=" in argument else settings
    if checkpoint is not None:
        probes = [checkpoint_probes(checkpoint, names, settings, side, extent)]
    elif names:
        probes = [untrained_probes(name, settings, side, extent) for name in dict.fromkeys(names)]
    else:
        raise ValueError("Figures are of an encoding, but none is named; name one or more, or give --checkpoint.")
    for probe in (probes_by_use["vectors"] for probes_by_use in probes):
        if not probe.hooks:
            raise ValueError(
                f"A figure shows what hooks answer, but `{probe.name}` answers none; name another encoding."
            )
    folder.mkdir(parents=True, exist_ok=True)
    for probes_by_use in probes:
        for name, figure in named_figures(probes_by_use):
            for suffix in formats:
                save_figure(figure, path := folder / f"{name}.{suffix}")
                yield path


def checkpoint_probes(
    folder: Path, names: list[str], settings: Mapping[str, object], side: str, extent: PlotExtent
) -> dict[str, EncodingProbe]:
    """Probes of a checkpoint's encoding; a ValueError if another encoding or parameters are given."""
    probes = trained_probes(folder, side, extent)
    trained_name = next(iter(probes.values())).name
    if settings:
        raise ValueError(
            f"A checkpoint has its own parameters, but {', '.join(settings)} would replace them; leave them out."
        )
    if others := [name for name in names if name != trained_name]:
        raise ValueError(
            f"A checkpoint shows the encoding it was trained with, {trained_name!r} in its {side}, but "
            f"{', '.join(others)} was given for {folder}; leave the name out, or name a checkpoint of that encoding."
        )
    return probes
