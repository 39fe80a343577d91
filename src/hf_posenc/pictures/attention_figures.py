"""Attention weights to figures: a picture for each layer, a panel for each head, with the tokens on its axes.

Pure functions from the maps of attention_maps.py to matplotlib figures.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .attention_maps import AttentionMap, attention_maps
from .style import AMOUNTS, FONT_SIZE, WIDTH_INCHES, colour_bar, save_figure, titled

CELL = 0.145  # inches: what a label of FONT_SIZE needs


def draw_attention(
    model: Any, tokenizer: Any, sentence: str, to: Path, *, layer: int | None = None, formats: Iterable[str] = ("png",)
) -> Iterator[str]:
    """Translate a sentence and draw each attention; yields the translation, then the files it has written."""
    layers = max(model.config.encoder_layers, model.config.decoder_layers)
    if layer is not None and not 1 <= layer <= layers:
        raise ValueError(f"--layer must be one of the model's, 1 to {layers}, but it is {layer}; choose one of them.")
    translation, maps = attention_maps(model, tokenizer, sentence)
    yield translation
    to.mkdir(parents=True, exist_ok=True)
    for name, figure in attention_figures(maps, layer):
        for suffix in formats:
            save_figure(figure, path := to / f"{name}.{suffix}")
            yield str(path)


def attention_figures(maps: Mapping[str, AttentionMap], layer: int | None = None) -> Iterator[tuple[str, Figure]]:
    """A figure and its name for each attention and layer, or for the one layer of this number, which counts from 1."""
    for name, one in maps.items():
        for number in range(1, len(one.weights) + 1):
            if layer in (None, number):
                yield f"attention-{name}-layer-{number}", attention_figure(one, name, number)


def attention_figure(one: AttentionMap, name: str, layer: int) -> Figure:
    """One attention of one layer: a row for each query, whose weights sum to 1, a column for each key."""
    weights_HQS = one.weights[layer - 1]
    wide, high = (max(1.2, CELL * len(labels)) for labels in (one.keys, one.queries))
    longest_label = 0.075 * max(map(len, one.queries + one.keys))
    columns = max(1, min(len(weights_HQS), int((WIDTH_INCHES - 0.9 - longest_label) / wide)))
    rows = -(-len(weights_HQS) // columns)
    size = max(WIDTH_INCHES, wide + 0.9 + longest_label), 0.9 + longest_label + rows * (high + 0.3)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    limit = float(weights_HQS.max())
    for head, (axes, weights_QS) in enumerate(zip(grid.flat, weights_HQS, strict=False), 1):
        image = axes.imshow(weights_QS, cmap=AMOUNTS, vmin=0, vmax=limit, interpolation="nearest", aspect="auto")
        axes.set_title(f"head {head}", fontsize=FONT_SIZE)
        label_tokens(axes, one)
    for axes in grid.flat[len(weights_HQS) :]:
        axes.set_axis_off()
    for axes in grid[:, 0]:
        axes.set_ylabel(one.queries_are, fontsize=FONT_SIZE + 1)
    for axes in grid[-1]:
        axes.set_xlabel(one.keys_are, fontsize=FONT_SIZE + 1)
    colour_bar(figure, image, list(grid.flat), "weight")
    kind = "cross-attention" if name == "cross" else f"{name} self-attention"
    return titled(figure, f"{kind}, layer {layer}")


def label_tokens(axes: Axes, one: AttentionMap) -> None:
    """The tokens, as they are: a dollar sign in one begins no formula."""
    axes.set_xticks(np.arange(len(one.keys)), one.keys, fontsize=FONT_SIZE - 0.5, rotation=90)
    axes.set_yticks(np.arange(len(one.queries)), one.queries, fontsize=FONT_SIZE - 0.5)
    axes.tick_params(length=2)
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set_parse_math(False)
