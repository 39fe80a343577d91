"""Events of the explorer's controls, and error messages on the page."""

import logging
from collections.abc import Callable, Sequence
from typing import Literal, TypedDict

import gradio as gr
from gradio.components import Component

from .html import error_html

logger = logging.getLogger(__name__)


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
    """The result of `compute`, or on an error `fallback` of its message."""
    try:
        return compute()
    except (ValueError, OSError) as error:
        return fallback(error_html(str(error)))
    except Exception as error:  # a page that is shown to others must go on living
        logger.exception("the explorer met an error of its own")
        return fallback(
            error_html(f"This should not happen, and other choices still work: {type(error).__name__}: {error}")
        )
