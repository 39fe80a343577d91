"""The explorer's tab *Stream*: a translation that is written while its source is typed or read."""

from collections.abc import Callable
from typing import Any

import gradio as gr

from .html import note_html
from .runs import ExplorerRun, generated_sentence
from .state import validate_number, validate_text
from .streaming_view import MAX_STREAM_CHARACTERS, StreamRecord, default_system, stream_html, stream_record
from .widgets import UNQUEUED, EventOptions, show_errors, slider

SECONDS_A_WORD = 0.5


def stream_tab(run: ExplorerRun) -> EventOptions:
    """Build the tab; returns the event for its opening."""
    text = gr.Textbox(
        f"{generated_sentence(0)[0]} {generated_sentence(1)[0]} ",
        label="Text, as it is being written: type, or paste",
        lines=3,
        max_lines=8,
    )
    system = gr.Radio(run.systems, value=default_system(run), label="System")
    read_button = gr.Button("Read it word by word", variant="primary")
    with gr.Row():
        words = slider(0, 1, 0, label="Words read; one more for the end", min_width=260)
        token = slider(1, 2, 1, label="Window of the target token", min_width=260)
    output = gr.HTML(elem_id="stream")
    gr.HTML(note_html("A translation that is written is final: no later word changes it."))
    timer = gr.Timer(SECONDS_A_WORD, active=False)
    outputs = [words, token, output, timer]

    def record_of(text: str, system: str) -> StreamRecord:
        run.validate_system(system)
        return stream_record(run, system, validate_text("The text", text, MAX_STREAM_CHARACTERS))

    def after_words(text: str, system: str, choose: Callable[[StreamRecord], int], reading: bool = False) -> list:
        """The page after the chosen number of words."""

        def compute() -> list:
            record = record_of(text, system)
            last = record.num_words + 1
            num_words = validate_number("The number of words", min(choose(record), last), 0, last)
            num_steps = record.num_steps(num_words)
            return [
                gr.update(value=num_words, maximum=last),
                gr.update(value=max(1, num_steps), maximum=max(2, num_steps)),
                stream_html(record, num_words, num_steps),
                gr.Timer(active=reading and num_words < last),
            ]

        return show_errors(compute, lambda message: [gr.skip(), gr.skip(), message, gr.Timer(active=False)])

    def typed(text: str, system: str) -> list:
        return after_words(text, system, lambda record: record.num_words)

    def moved(text: str, system: str, words: int) -> list:
        return after_words(text, system, lambda record: validate_number("The number of words", words, 0, 10**6))

    def started(text: str, system: str) -> list:
        return after_words(text, system, lambda record: 0, reading=True)

    def read_on(text: str, system: str, words: int) -> list:
        return after_words(
            text, system, lambda record: validate_number("The number of words", words, 0, 10**6) + 1, reading=True
        )

    def inspected(text: str, system: str, words: int, token: int) -> list:
        def compute() -> list:
            record = record_of(text, system)
            num_words = validate_number("The number of words", words, 0, record.num_words + 1)
            num_steps = record.num_steps(num_words)
            number = validate_number("The target token", token, 1, max(2, num_steps))
            return [stream_html(record, num_words, min(number, num_steps))]

        return show_errors(compute, lambda message: [message])

    latest: dict[str, Any] = {"trigger_mode": "always_last", **UNQUEUED}
    # A pasted text is no `input` event.
    gr.on([text.change, system.input], typed, [text, system], outputs, **latest)
    words.input(moved, [text, system, words], outputs, **latest)
    read_button.click(started, [text, system], outputs, **UNQUEUED)
    timer.tick(read_on, [text, system, words], outputs, **UNQUEUED)
    token.input(inspected, [text, system, words, token], output, **latest)
    return {"fn": typed, "inputs": [text, system], "outputs": outputs, **UNQUEUED}
