"""The figures of encodings as files: `python -m hf_posenc figures`."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ..analysis.probes import EncodingProbe, PlotExtent, trained_probes, untrained_probes
from ..config.composition import merge, parse_override
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
    """Draw encodings, named in `arguments` beside knob=value, or that of a checkpoint; yields the files it has written.

    A ValueError for what cannot be drawn, before anything is.
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
    """A checkpoint's encoding, refused if another one or knobs are asked for."""
    probes = trained_probes(folder, side, extent)
    trained_name = next(iter(probes.values())).name
    if settings:
        raise ValueError(
            f"A checkpoint has its own knobs, but {', '.join(settings)} would replace them; leave them out."
        )
    if others := [name for name in names if name != trained_name]:
        raise ValueError(
            f"A checkpoint shows the encoding it was trained with, {trained_name!r} in its {side}, but {folder} is "
            f"asked for {', '.join(others)}; leave the name out, or name a checkpoint of that encoding."
        )
    return probes
