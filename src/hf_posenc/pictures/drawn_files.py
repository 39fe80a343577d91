"""The figures of encodings as files: `python -m hf_posenc figures`."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..config.files import merge, parse_override
from .encoding_figures import figures
from .style import save_figure
from .subjects import Extent, Subject, new_subjects, trained_subjects

FORMATS = ("png", "svg")


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
    for of in (one["vectors"] for one in subjects):
        if not of.answers:
            raise ValueError(f"A figure shows what hooks answer, but `{of.name}` answers none; name another encoding.")
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
