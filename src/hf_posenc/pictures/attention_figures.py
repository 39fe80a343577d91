"""Attention weights to figures: a picture for each layer, a panel for each head, with the tokens on its axes.

Pure functions from the maps of attention_maps.py to matplotlib figures.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .attention_maps import MOST_TOKENS, AttentionMap, attention_maps
from .style import AMOUNTS, FONT_SIZE, WIDTH_INCHES, colour_bar, save_figure, titled

CELL = 0.145  # inches: what a label of FONT_SIZE needs
# A panel that stands alone is so many inches large, and its cells no larger than with so many tokens.
ALONE, FEWEST = 5.0, 12


def draw_attention(
    model: Any, tokenizer: Any, sentence: str, to: Path, *, layer: int | None = None, formats: Iterable[str] = ("png",)
) -> Iterator[str]:
    """Translate a sentence and draw each attention; yields the translation, then the files it has written."""
    check_layer(layer, max(model.config.encoder_layers, model.config.decoder_layers))
    translation, maps = attention_maps(model, tokenizer, sentence)
    check_layer(layer, max(len(one.weights) for one in maps.values()))  # a recurrent model has fewer with attention
    yield translation
    to.mkdir(parents=True, exist_ok=True)
    for name, figure in attention_figures(maps, layer):
        for suffix in formats:
            save_figure(figure, path := to / f"{name}.{suffix}")
            yield str(path)


def check_layer(layer: int | None, layers: int) -> None:
    if layer is not None and not 1 <= layer <= layers:
        raise ValueError(f"--layer must be one of those with attention, 1 to {layers}, but it is {layer}; choose one.")


def attention_figures(maps: Mapping[str, AttentionMap], layer: int | None = None) -> Iterator[tuple[str, Figure]]:
    """A figure and its name for each attention and layer, or for the one layer of this number, which counts from 1."""
    for name, one in maps.items():
        for number in range(1, len(one.weights) + 1):
            if layer in (None, number):
                yield f"attention-{name}-layer-{number}", attention_figure(one, name, number)


def attention_figure(
    one: AttentionMap, name: str, layer: int, *, head: int | None = None, written: int = MOST_TOKENS, of: str = ""
) -> Figure:
    """One attention of one layer, `of` a model, in a panel for each head or for the one of this number: a row for each
    query, whose weights sum to 1, a column for each key. More than `written` tokens are numbered, in as much space."""
    weights_HQS = one.weights[layer - 1] if head is None else one.weights[layer - 1, head - 1 : head]
    labels = [names for names in (one.keys, one.queries) if len(names) <= written]
    longest_label = 0.075 * max((len(name) for names in labels for name in names), default=3)
    shown = [min(len(names), written) for names in (one.keys, one.queries)]
    cell = CELL if len(weights_HQS) > 1 else max(CELL, ALONE / max(*shown, FEWEST))
    wide, high = (max(1.2, cell * number) for number in shown)
    columns = max(1, min(len(weights_HQS), int((WIDTH_INCHES - 0.9 - longest_label) / wide)))
    rows = -(-len(weights_HQS) // columns)
    size = max(WIDTH_INCHES, wide + 0.9 + longest_label), 0.9 + longest_label + rows * (high + 0.3)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    limit = float(weights_HQS.max())
    for number, (axes, weights_QS) in enumerate(zip(grid.flat, weights_HQS, strict=False), head or 1):
        image = axes.imshow(weights_QS, cmap=AMOUNTS, vmin=0, vmax=limit, interpolation="nearest", aspect="auto")
        axes.set_title(f"head {number}", fontsize=FONT_SIZE)
        label_tokens(axes, one, written)
    for axes in grid.flat[len(weights_HQS) :]:
        axes.set_axis_off()
    for axes in grid[:, 0]:
        axes.set_ylabel(one.queries_are, fontsize=FONT_SIZE + 1)
    for axes in grid[-1]:
        axes.set_xlabel(one.keys_are, fontsize=FONT_SIZE + 1)
    colour_bar(figure, image, list(grid.flat), "weight")
    kind = "cross-attention" if name == "cross" else f"{name} self-attention"
    return titled(figure, f"{of}: {kind}, layer {layer}" if of else f"{kind}, layer {layer}")


def label_tokens(axes: Axes, one: AttentionMap, written: int) -> None:
    """The tokens, as they are: a dollar sign in one begins no formula."""
    if len(one.keys) <= written:
        axes.set_xticks(np.arange(len(one.keys)), one.keys, rotation=90)
    if len(one.queries) <= written:
        axes.set_yticks(np.arange(len(one.queries)), one.queries)
    axes.tick_params(length=2, labelsize=FONT_SIZE - 0.5)
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set_parse_math(False)
