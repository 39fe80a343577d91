"""Figures of encodings and of attention as files: `hf-posenc figures` and `attention`.

Of attention there is a picture for each layer, with a panel for each head and the tokens on its axes.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..analysis.attention_maps import MAX_TOKENS, AttentionMap, translate_with_attention
from ..analysis.probes import EncodingProbe, PlotExtent, trained_probes, untrained_probes
from ..config.composition import merge, parse_override
from .encoding_plots import named_figures
from .style import AMOUNT_COLORMAP, FONT_SIZE, WIDTH_INCHES, add_colorbar, save_figure, with_title

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
    if not model.config.is_encoder_decoder:
        raise ValueError(
            "Attention must be that of an encoder-decoder to be drawn, but this model is decoder-only "
            f"({model.config.model_type}); choose another, or call the model with output_attentions=True."
        )
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
