"""Controls shared by the explorer's tabs."""

from collections.abc import Iterable

import gradio as gr

from ..modeling.position_base import EncodingParameter, ParameterValue
from ..modeling.position_registry import POSITION_ENCODINGS
from .runs import ExplorerRun
from .state import MAX_PARAMETER_VALUE, SIDES

UNTRAINED = "newly made"


def source_dropdown(run: ExplorerRun) -> gr.Dropdown:
    """The choice between untrained encodings and those of the run's systems."""
    trained = [(f"{system}, as trained", system) for system in run.systems] if run.trained else []
    return gr.Dropdown([(UNTRAINED, UNTRAINED), *trained], value=UNTRAINED, label="Encodings of", visible=bool(trained))


def side_radio() -> gr.Radio:
    return gr.Radio(list(SIDES), value=SIDES[0], label="Side", visible=False)


def default_encoding() -> str:
    """The first registered encoding that changes embeddings, shown at first."""
    return next(name for name, entry in POSITION_ENCODINGS.items() if entry.encoding.embed is not None)


def slider(
    minimum: int, maximum: int, value: int, label: str, *, visible: bool = True, min_width: int = 160
) -> gr.Slider:
    return gr.Slider(minimum, maximum, value, step=1, label=label, visible=visible, min_width=min_width)


def dropdown_choices(names: Iterable[str]) -> list[tuple[str, str]]:
    """The choices of a control in gradio's form: label and value."""
    return [(name, name) for name in names]


def parameter_widget(parameter: EncodingParameter, *, visible: bool) -> gr.components.FormComponent:
    """The control of a config field, by the type of its default."""
    default, label, info = parameter.default, parameter.name, parameter.constraint
    if isinstance(default, bool):
        return gr.Checkbox(default, label=label, info=info, visible=visible)
    if not isinstance(default, float):
        info += f"; here at most {MAX_PARAMETER_VALUE}" + ("; 0: None" if default is None else "")
    return gr.Number(default, label=label, info=info, visible=visible)


def parameter_value(parameter: EncodingParameter, value: ParameterValue) -> ParameterValue:
    """A control's value in the config's type: a browser has no None, and sends 10000.0 as 10000."""
    if isinstance(parameter.default, float) and type(value) is int:
        return float(value)
    return value or None if parameter.default is None else value
