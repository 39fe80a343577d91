"""Figures of encodings and of attention as files: `python -m hf_posenc figures` and `attention`."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..analysis.attention_maps import MAX_TOKENS, translate_with_attention
from ..analysis.probes import EncodingProbe, PlotExtent, trained_probes, untrained_probes
from ..config.composition import merge, parse_override
from .attention_plots import attention_figures
from .encoding_plots import named_figures
from .style import save_figure

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
