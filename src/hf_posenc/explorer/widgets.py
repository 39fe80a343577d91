"""Controls that the explorer's tabs share."""

from collections.abc import Iterable
from typing import Any

import gradio as gr

from ..modeling.position_base import EncodingParameter, ParameterValue
from ..modeling.position_registry import POSITION_ENCODINGS
from .runs import ExplorerRun
from .state import MAX_PARAMETER_VALUE, SIDES

UNTRAINED = "newly made"


def source_dropdown(run: ExplorerRun) -> gr.Dropdown:
    """Whose encodings: new ones, or those of one of the run's systems."""
    trained = [(f"{system}, as trained", system) for system in run.systems] if run.trained else []
    return gr.Dropdown([(UNTRAINED, UNTRAINED), *trained], value=UNTRAINED, label="Encodings of", visible=bool(trained))


def side_radio() -> gr.Radio:
    return gr.Radio(list(SIDES), value=SIDES[0], label="Side", visible=False)


def default_encoding() -> str:
    """What the page begins with: the first registered that changes embedded tokens."""
    return next(name for name, entry in POSITION_ENCODINGS.items() if entry.encoding.embed is not None)


def slider(minimum: int, maximum: int, value: int, **options: Any) -> gr.Slider:
    return gr.Slider(minimum, maximum, value, step=1, **options)


def dropdown_choices(names: Iterable[str]) -> list[tuple[str, str]]:
    """What a control offers, as gradio's updates want it: what is written, and what is meant."""
    return [(name, name) for name in names]


def parameter_widget(parameter: EncodingParameter, *, visible: bool) -> gr.components.FormComponent:
    """The control of a config field, of the type that its default says."""
    options: dict[str, Any] = {"label": parameter.name, "info": parameter.constraint, "visible": visible}
    if isinstance(parameter.default, bool):
        return gr.Checkbox(parameter.default, **options)
    if isinstance(parameter.default, str):
        return gr.Textbox(parameter.default, **options)
    if isinstance(parameter.default, float):
        return gr.Number(parameter.default, **options)
    options["info"] += f"; here at most {MAX_PARAMETER_VALUE}" + ("; 0: None" if parameter.default is None else "")
    return gr.Number(parameter.default, **options)


def parameter_value(parameter: EncodingParameter, value: ParameterValue) -> ParameterValue:
    """What a control holds, as the config wants it: a browser has no None, and writes 10000.0 as 10000."""
    if isinstance(parameter.default, float) and type(value) is int:
        return float(value)
    return value or None if parameter.default is None else value
