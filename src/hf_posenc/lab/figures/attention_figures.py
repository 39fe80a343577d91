"""Attention of a sentence and its translation as figures: `hf-posenc attention`.

There is a picture for each layer, with a panel for each head and the tokens on its axes.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

from ...generation.translate import evaluation_view, validate_tokenizer
from ...hub.errors import is_blank, validate_utf8
from ...transformer.configuration_base import SharedConfig
from .style import AMOUNT_COLORMAP, FONT_SIZE, WIDTH_INCHES, add_colorbar, save_figure, with_title

# With more tokens the labels of a figure are illegible.
MAX_TOKENS = 100


@dataclass(frozen=True)
class AttentionMap:
    """The weights of one attention by layer (L, H, Q, S), with the labels of queries and keys."""

    weights: np.ndarray
    queries: list[str]
    keys: list[str]
    query_label: str
    key_label: str


@torch.no_grad()
def translate_with_attention(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentence: str,
    *,
    num_beams: int = 5,
    max_tokens: int = MAX_TOKENS,
) -> tuple[str, dict[str, AttentionMap]]:
    """The translation of a sentence by beam search, and the maps of the model's attentions, by name.

    Names are `encoder`, `decoder` and `cross`. The weights are those of one pass over the sentence and its translation.
    A decoder's row is the step that generates a token; its keys are the tokens read so far, from the start token on.
    Sentence and translation have at most `max_tokens` tokens; a longer translation is truncated. Raises a ValueError,
    before any compute, for a sentence without words or with too many tokens for model or figure.
    """
    validate_tokenizer(model.config, tokenizer)
    validate_utf8(sentence, "the sentence")
    inputs = tokenizer([sentence], return_tensors="pt", truncation=False)
    validate_length(sentence, inputs["input_ids"].shape[1], model.config, max_tokens)
    max_length = min(model.config.max_target_length or max_tokens + 1, max_tokens + 1)
    options = {"num_beams": num_beams, "do_sample": False, "max_length": max_length, "forced_eos_token_id": None}
    (output_ids,) = evaluation_view(model, "eager").generate(**inputs, **options)
    translation = tokenizer.decode(output_ids, skip_special_tokens=True)
    if int(output_ids[-1]) not in model.end_tokens()[0]:
        translation += f" ... (truncated at {len(output_ids) - 1} tokens, the maximum of the figure or the model)"
    return translation, compute_attention_maps(model, tokenizer, inputs, output_ids)


@torch.no_grad()
def compute_attention_maps(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, inputs: BatchEncoding, output_ids: torch.Tensor
) -> dict[str, AttentionMap]:
    """The maps of one pass over an encoded sentence, `inputs`, and the ids of its translation with the start token."""
    model = evaluation_view(model, "eager")
    outputs = model(**inputs, decoder_input_ids=output_ids[None, :-1], use_cache=False, output_attentions=True)
    source = token_labels([str(token) for token in tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])])
    # The text that each token adds to the translation; decoding a token alone would lose its spaces.
    ids = output_ids.tolist()
    texts = [tokenizer.decode(ids[:length], clean_up_tokenization_spaces=False) for length in range(len(ids) + 1)]
    target = token_labels([after[len(before) :] for before, after in pairwise(texts)])
    labels = {
        "encoder": (source, source, "source token", "source token attended to"),
        "decoder": (target[1:], target[:-1], "target token", "target token attended to"),
        "cross": (target[1:], source, "target token", "source token attended to"),
    }
    attentions = (outputs.encoder_attentions, outputs.decoder_attentions, outputs.cross_attentions)
    maps = {}
    for (name, labels_of_map), weights in zip(labels.items(), attentions, strict=True):
        if weights:
            maps[name] = AttentionMap(torch.stack(list(weights))[:, 0].cpu().double().numpy(), *labels_of_map)
    return maps


def validate_length(sentence: str, tokens: int, config: SharedConfig, max_tokens: int) -> None:
    """Raise a ValueError for a sentence without words, or with too many `tokens` for the figure or the encoder."""
    if is_blank(sentence):
        raise ValueError("An attention map needs a sentence, but this one has no words; write some.")
    limits = {"a figure has labels for": max_tokens, "the encoder's position encoding has": config.max_source_length}
    for holder, limit in limits.items():
        if limit is not None and tokens > limit:
            raise ValueError(
                f"A sentence must have at most as many tokens as {holder}, {limit}, but this one has {tokens} with "
                "</s>; shorten it."
            )


def token_labels(tokens: list[str]) -> list[str]:
    """Labels of tokens: no space before a word, a dot before a token inside a word, a bracket for a space token."""
    labels, in_word = [], False
    for token in tokens:
        printable = "".join(char if char.isprintable() else "\ufffd" for char in token)
        word = printable.replace("\u2581", " ")
        continues_word = in_word and word[:1].isalnum()
        labels.append(f"\u00b7{word}" if continues_word else word.strip() or "\u2423")
        in_word = word[-1:].isalnum()
    return labels


CELL_INCHES = 0.145  # inches: what a label of FONT_SIZE needs
# The size of a single panel in inches, and the number of tokens below which its cells grow no further.
SINGLE_PANEL_INCHES, MIN_CELLS = 5.0, 12


def attention_figures(maps: Mapping[str, AttentionMap], layer: int | None = None) -> Iterator[tuple[str, Figure]]:
    """A figure and its name for each attention and layer, or for the layer of this number only (from 1)."""
    for name, attention_map in maps.items():
        layers = range(1, len(attention_map.weights) + 1)
        for number in layers if layer is None else {layer}.intersection(layers):
            yield f"attention-{name}-layer-{number}", attention_figure(attention_map, name, number)


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
