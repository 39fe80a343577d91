"""Attention weights to figures: a picture for each layer, a panel for each head, with the tokens on its axes.

Pure functions from the maps of attention_maps.py to matplotlib figures.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..analysis.attention_maps import MAX_TOKENS, AttentionMap, translate_with_attention
from .style import AMOUNT_COLORMAP, FONT_SIZE, WIDTH_INCHES, add_colorbar, save_figure, with_title

CELL_INCHES = 0.145  # inches: what a label of FONT_SIZE needs
# A panel that stands alone is so many inches large, and its cells no larger than with so many tokens.
SINGLE_PANEL_INCHES, MIN_CELLS = 5.0, 12


def save_attention_figures(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentence: str,
    folder: Path,
    *,
    layer: int | None = None,
    formats: Iterable[str] = ("png",),
    max_tokens: int = MAX_TOKENS,
) -> Iterator[str]:
    """Translate a sentence and draw each attention; yields the translation, then the paths of the written files.

    Sentence and translation have at most `max_tokens` tokens; see `translate_with_attention`.
    """
    validate_layer(layer, max(model.config.encoder_layers, model.config.decoder_layers))
    translation, maps = translate_with_attention(model, tokenizer, sentence, max_tokens=max_tokens)
    validate_layer(
        layer, max(len(attention_map.weights) for attention_map in maps.values())
    )  # a recurrent model has fewer with attention
    yield translation
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in attention_figures(maps, layer):
        for suffix in formats:
            save_figure(figure, path := folder / f"{name}.{suffix}")
            yield str(path)


def validate_layer(layer: int | None, num_layers: int) -> None:
    if layer is not None and not 1 <= layer <= num_layers:
        raise ValueError(
            f"--layer must be one of those with attention, 1 to {num_layers}, but it is {layer}; choose one."
        )


def attention_figures(maps: Mapping[str, AttentionMap], layer: int | None = None) -> Iterator[tuple[str, Figure]]:
    """A figure and its name for each attention and layer, or for the one layer of this number, which counts from 1."""
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
    """One attention of one layer, `model_name` a model, in a panel for each head or for the one of this number: a row
    for each query, whose weights sum to 1, a column for each key. More than `max_labels` tokens are numbered, in as
    much
    space."""
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
    """The tokens, as they are: a dollar sign in one begins no formula."""
    if len(attention_map.keys) <= max_labels:
        axes.set_xticks(np.arange(len(attention_map.keys)), attention_map.keys, rotation=90)
    if len(attention_map.queries) <= max_labels:
        axes.set_yticks(np.arange(len(attention_map.queries)), attention_map.queries)
    axes.tick_params(length=2, labelsize=FONT_SIZE - 0.5)
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set_parse_math(False)
