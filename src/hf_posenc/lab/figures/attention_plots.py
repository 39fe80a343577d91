"""Attention weights to figures: a picture for each layer, a panel for each head, with the tokens on its axes.

Pure functions from the maps of attention_maps.py to matplotlib figures.
"""

from collections.abc import Iterator, Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..analysis.attention_maps import MAX_TOKENS, AttentionMap
from .style import AMOUNT_COLORMAP, FONT_SIZE, WIDTH_INCHES, add_colorbar, with_title

CELL_INCHES = 0.145  # inches: what a label of FONT_SIZE needs
# The size of a single panel in inches, and the number of tokens below which its cells grow no further.
SINGLE_PANEL_INCHES, MIN_CELLS = 5.0, 12


def attention_figures(maps: Mapping[str, AttentionMap], layer: int | None = None) -> Iterator[tuple[str, Figure]]:
    """A figure and its name for each attention and layer, or for the layer of this number only (from 1)."""
    for name, attention_map in maps.items():
        for layer_number in range(1, len(attention_map.weights) + 1):
            if layer in (None, layer_number):
                yield f"attention-{name}-layer-{layer_number}", attention_figure(attention_map, name, layer_number)


def attention_figure(
    attention_map: AttentionMap,
    name: str,
    layer: int,
    *,
    head: int | None = None,
    max_labels: int = MAX_TOKENS,
    model_name: str = "",
) -> Figure:
    """One attention of one layer: a panel for each head, or for the head of this number (from 1).

    A row is a query, whose weights sum to 1, and a column is a key. More than `max_labels` tokens have numbers as
    labels. The title begins with `model_name`.
    """
    weights_HQS = (
        attention_map.weights[layer - 1] if head is None else attention_map.weights[layer - 1, head - 1 : head]
    )
    labels = [names for names in (attention_map.keys, attention_map.queries) if len(names) <= max_labels]
    longest_label = 0.075 * max((len(name) for names in labels for name in names), default=3)
    sizes = [min(len(names), max_labels) for names in (attention_map.keys, attention_map.queries)]
    cell_inches = (
        CELL_INCHES if len(weights_HQS) > 1 else max(CELL_INCHES, SINGLE_PANEL_INCHES / max(*sizes, MIN_CELLS))
    )
    width, height = (max(1.2, cell_inches * head_number) for head_number in sizes)
    columns = max(1, min(len(weights_HQS), int((WIDTH_INCHES - 0.9 - longest_label) / width)))
    rows = -(-len(weights_HQS) // columns)
    size = max(WIDTH_INCHES, width + 0.9 + longest_label), 0.9 + longest_label + rows * (height + 0.3)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    limit = float(weights_HQS.max())
    for head_number, (axes, weights_QS) in enumerate(zip(grid.flat, weights_HQS, strict=False), head or 1):
        image = axes.imshow(
            weights_QS, cmap=AMOUNT_COLORMAP, vmin=0, vmax=limit, interpolation="nearest", aspect="auto"
        )
        axes.set_title(f"head {head_number}", fontsize=FONT_SIZE)
        label_tokens(axes, attention_map, max_labels)
    for axes in grid.flat[len(weights_HQS) :]:
        axes.set_axis_off()
    for axes in grid[:, 0]:
        axes.set_ylabel(attention_map.query_label, fontsize=FONT_SIZE + 1)
    for axes in grid[-1]:
        axes.set_xlabel(attention_map.key_label, fontsize=FONT_SIZE + 1)
    add_colorbar(figure, image, list(grid.flat), "weight")
    kind = "cross-attention" if name == "cross" else f"{name} self-attention"
    return with_title(figure, f"{model_name}: {kind}, layer {layer}" if model_name else f"{kind}, layer {layer}")


def label_tokens(axes: Axes, attention_map: AttentionMap, max_labels: int) -> None:
    """Label the axes with the tokens; a dollar sign does not begin a formula."""
    if len(attention_map.keys) <= max_labels:
        axes.set_xticks(np.arange(len(attention_map.keys)), attention_map.keys, rotation=90)
    if len(attention_map.queries) <= max_labels:
        axes.set_yticks(np.arange(len(attention_map.queries)), attention_map.queries)
    axes.tick_params(length=2, labelsize=FONT_SIZE - 0.5)
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set_parse_math(False)
