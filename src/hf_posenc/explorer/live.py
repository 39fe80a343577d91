"""How the explorer's controls call what they change, and what the page says where that fails."""

import logging
from collections.abc import Callable
from typing import Any

import gradio as gr

from .html import problem

logger = logging.getLogger(__name__)


# Controls pass on whatever they hold: the page itself says what is wrong with it, and names it. (gradio would check an
# answer against the choices of before, or after, a change that is on its way.)
# They are answered at once and not in a queue, which would take as long as some of the answers.
RAW: dict[str, Any] = {"preprocess": False, "show_progress": "hidden", "queue": False}


def live(fn: Callable, inputs: list, outputs: list, changed: list, touched: list) -> None:
    """Call `fn` on each event of `changed`, and when a reader touches a control of `touched`: the last word counts."""
    events = [*changed, *(control.input for control in touched)]
    gr.on(events, fn, inputs, outputs, trigger_mode="always_last", **RAW)


def offered(now: Any, value: Any, **look: Any) -> dict:
    """A control's update to `value`, which says nothing of the value where the control holds it: a reader who has
    touched it since must not see it fall back."""
    return gr.update(**look) if now == value else gr.update(value=value, **look)


def readable(make: Callable[[], list], instead: Callable[[str], list]) -> list:
    """What `make` returns, or `instead` of the message that says why it could not."""
    try:
        return make()
    except (ValueError, OSError) as error:
        return instead(problem(str(error)))
    except Exception as error:  # a page that is shown to others must go on living
        logger.exception("the explorer met an error of its own")
        return instead(
            problem(f"This should not happen, and other choices still work: {type(error).__name__}: {error}")
        )
