"""Controls shared by the explorer's tabs, their events, and error messages on the page."""

import ctypes
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypedDict

import gradio as gr
from gradio.components import Component

from ...encodings.base import EncodingParameter
from ...encodings.registry import POSITION_ENCODINGS
from .html import error_html
from .runs import ExplorerRun
from .state import MAX_PARAMETER_VALUE, SIDES

logger = logging.getLogger(__name__)
# glibc's function that returns freed memory to the system; else it keeps what the largest answers took.
TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None)


class UnqueuedOptions(TypedDict):
    """The types of UNQUEUED."""

    preprocess: bool
    show_progress: Literal["hidden"]
    queue: bool


class EventOptions(UnqueuedOptions):
    """Keyword arguments of a gradio event."""

    fn: Callable[..., list]
    inputs: Sequence[Component]
    outputs: Sequence[Component]


# Values are not preprocessed by gradio, which would compare them with the choices before or after a pending change; the
# page validates them and names the problem. Events are not queued, because the queue takes as long as some answers.
UNQUEUED: UnqueuedOptions = {"preprocess": False, "show_progress": "hidden", "queue": False}

UNTRAINED = "newly made"


def connect_events(fn: Callable, inputs: list, outputs: list, change_events: list, inputs_of_user: list) -> None:
    """Call `fn` on each event of `change_events`, and on a reader's input in `inputs_of_user`; the last event wins."""
    events = [*change_events, *(control.input for control in inputs_of_user)]
    gr.on(events, fn, inputs, outputs, trigger_mode="always_last", **UNQUEUED)


def update_unless_equal(current: object, value: object, **options: object) -> dict:
    """An update of a control to `value`, without a value if the control has it already.

    A reader may have changed the control since; an equal value would reset it.
    """
    return gr.update() | options | ({} if current == value else {"value": value})


def show_errors(compute: Callable[[], list], fallback: Callable[[str], list]) -> list:
    """The result of `compute`, or on an error `fallback` of its message. Memory that it freed is given back."""
    try:
        return compute()
    except (ValueError, OSError) as error:
        return fallback(error_html(str(error)))
    except Exception as error:  # a page for others must not stop
        logger.exception("the explorer met an error of its own")
        return fallback(
            error_html(f"This should not happen, and other choices still work: {type(error).__name__}: {error}")
        )
    finally:
        if TRIM is not None:
            TRIM(0)


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
