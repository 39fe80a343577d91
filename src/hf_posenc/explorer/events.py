"""How the explorer's controls call what they change, and what the page says where that fails."""

import logging
from collections.abc import Callable
from typing import Any

import gradio as gr

from .html import error_html

logger = logging.getLogger(__name__)

# Keyword arguments of a gradio event.
EventOptions = dict[str, Any]

# Controls pass on whatever they hold: the page itself says what is wrong with it, and names it. (gradio would check an
# answer against the choices of before, or after, a change that is on its way.)
# They are answered at once and not in a queue, which would take as long as some of the answers.
UNQUEUED: EventOptions = {"preprocess": False, "show_progress": "hidden", "queue": False}


def connect_events(fn: Callable, inputs: list, outputs: list, change_events: list, inputs_of_user: list) -> None:
    """Call `fn` on each event of `change_events`, and when a reader touches a control of `inputs_of_user`: the last
    word counts."""
    events = [*change_events, *(control.input for control in inputs_of_user)]
    gr.on(events, fn, inputs, outputs, trigger_mode="always_last", **UNQUEUED)


def update_unless_equal(current: object, value: object, **options: Any) -> dict:
    """A control's update to `value`, which says nothing of the value where the control holds it: a reader who has
    touched it since must not see it fall back."""
    return gr.update(**options) if current == value else gr.update(value=value, **options)


def show_errors(compute: Callable[[], list], fallback: Callable[[str], list]) -> list:
    """What `compute` returns, or `fallback` of the message that says why it could not."""
    try:
        return compute()
    except (ValueError, OSError) as error:
        return fallback(error_html(str(error)))
    except Exception as error:  # a page that is shown to others must go on living
        logger.exception("the explorer met an error of its own")
        return fallback(
            error_html(f"This should not happen, and other choices still work: {type(error).__name__}: {error}")
        )
