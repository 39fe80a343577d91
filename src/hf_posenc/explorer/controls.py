"""Controls that the explorer's tabs share."""

from collections.abc import Iterable
from typing import Any

import gradio as gr

from ..modeling.positions import POSITION_ENCODINGS, Knob
from .choice import LARGEST_KNOB, SIDES
from .runs import Run

NEW = "newly made"


def of_control(run: Run) -> gr.Dropdown:
    """Whose encodings: new ones, or those of one of the run's systems."""
    trained = [(f"{system}, as trained", system) for system in run.systems] if run.trained else []
    return gr.Dropdown([(NEW, NEW), *trained], value=NEW, label="Encodings of", visible=bool(trained))


def side_control() -> gr.Radio:
    return gr.Radio(list(SIDES), value=SIDES[0], label="Side", visible=False)


def first_encoding() -> str:
    """What the page begins with: the first registered that changes embedded tokens."""
    return next(name for name, entry in POSITION_ENCODINGS.items() if entry.encoding.embed is not None)


def slider(least: int, most: int, value: int, **look: Any) -> gr.Slider:
    return gr.Slider(least, most, value, step=1, **look)


def pairs_of(names: Iterable[str]) -> list[tuple[str, str]]:
    """What a control offers, as gradio's updates want it: what is written, and what is meant."""
    return [(name, name) for name in names]


def knob_control(knob: Knob, *, visible: bool) -> Any:
    """The control of a config field, of the type that its default says."""
    look: dict[str, Any] = {"label": knob.name, "info": knob.rule, "visible": visible}
    if isinstance(knob.default, bool):
        return gr.Checkbox(knob.default, **look)
    if isinstance(knob.default, str):
        return gr.Textbox(knob.default, **look)
    if isinstance(knob.default, float):
        return gr.Number(knob.default, **look)
    look["info"] += f"; here at most {LARGEST_KNOB}" + ("; 0: None" if knob.default is None else "")
    return gr.Number(knob.default, **look)


def knob_value(knob: Knob, value: Any) -> Any:
    """What a control holds, as the config wants it: a browser has no None, and writes 10000.0 as 10000."""
    if isinstance(knob.default, float) and type(value) is int:
        return float(value)
    return value or None if knob.default is None else value
