"""The explorer's tabs, their controls and events, and error messages on the page.

Each function of a tab builds it, and returns the event for the opening of the page if it has one.
"""

import ctypes
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from html import escape
from typing import Any, Literal, TypedDict

import gradio as gr
from gradio.components import Component

from ...encodings.base import EncodingParameter, ParameterValue
from ...encodings.registry import POSITION_ENCODINGS, all_encoding_parameters, parse_sum
from ..analysis.probes import PlotExtent
from ..figures.encoding_plots import lazy_figures
from .html import error_html, figure_html, is_narrow, note_html, table_html, translation_html
from .runs import (
    ATTENTION_KINDS,
    MAX_BEAMS,
    MAX_HEADS,
    MAX_LABELS,
    MAX_LABELS_NARROW,
    MAX_LAYERS,
    MAX_PARAMETER_VALUE,
    MAX_POSITIONS,
    MAX_REPEATS,
    MAX_SENTENCE_NUMBER,
    MAX_WIDTH,
    SIDES,
    EncodingChoice,
    ExplorerRun,
    attention_of_pair,
    depends_on_heads,
    depends_on_side,
    describe_probe,
    generated_sentence,
    head_figure,
    parameter_value,
    parameters_of_encodings,
    parse_sentence,
    parse_translations,
    probes_for,
    repeat_sentence,
    run_figures,
    score_table,
    scored_test_sets,
    translate,
    validate_choice,
    validate_choices,
    validate_number,
    validate_text,
)
from .views import (
    MAX_STREAM_CHARACTERS,
    StreamRecord,
    default_system,
    encoding_views,
    explain_value,
    stream_html,
    stream_record,
)

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


FIRST_POSITIONS = 20


def see_tab(run: ExplorerRun, viewport: gr.Number) -> EventOptions:
    first = default_encoding()
    with gr.Row():
        with gr.Column(scale=2, min_width=280):
            source = source_dropdown(run)
            encodings = gr.Dropdown(
                list(POSITION_ENCODINGS), value=[first], multiselect=True, label="Encoding, or several for their sum",
                info="A sum is applied in the order of your choice.",
            )  # fmt: skip
            side = side_radio()
            width = slider(2, MAX_WIDTH, 50, label="D, the model's width")
            positions = slider(3, MAX_POSITIONS, 64, label="Positions")
            heads = slider(1, MAX_HEADS, 1, label="Heads, among which D is divided", visible=False)
            parameter_widgets = {
                parameter.name: parameter_widget(parameter, visible=parameter.name in parameters_of_encodings((first,)))
                for parameter in all_encoding_parameters()
            }
        with gr.Column(scale=5, min_width=320):
            picture = gr.Radio([], label="Picture")
            output = gr.HTML(elem_id="see")
    inputs = [source, encodings, side, width, positions, heads, picture, viewport, *parameter_widgets.values()]

    def see(
        source: str,
        chosen: list[str],
        side: str,
        width: int,
        positions: int,
        heads: int,
        name: str,
        narrow: object,
        *values: ParameterValue,
    ) -> list:
        values_by_name = dict(zip(parameter_widgets, values, strict=True))

        def render() -> list:
            if source != UNTRAINED:
                probes = run.probes(source, side)
            else:
                names = validate_choices("The encodings", chosen, POSITION_ENCODINGS)
                parameters = tuple(
                    (name, parameter_value(parameter, values_by_name[name]))
                    for name, parameter in parameters_of_encodings(names).items()
                )
                choice = EncodingChoice(
                    encodings=names,
                    width=width,
                    heads=heads if depends_on_heads(names) else 1,
                    side=side if depends_on_side(names) else SIDES[0],
                    parameters=parameters,
                )
                probes = probes_for(choice)
            probe = probes["attention"]
            properties_html = f'<p class="facts">{escape(describe_probe(probe))}</p>'
            if not (views := encoding_views(probes, positions)):
                return [gr.update(visible=False), properties_html + note_html(f"`{probe.name}` has nothing to draw.")]
            view = name if name in list(views) else next(iter(views))
            html = figure_html(views[view].draw(), views[view].look_for, f"{view} of {probe.name}", narrow)
            return [
                update_unless_equal(name, view, choices=dropdown_choices(views), visible=True),
                properties_html + html,
            ]

        return show_errors(render, lambda text: [gr.skip(), text])

    def follow(source: str, chosen: list[str], *_: object) -> list:
        def visibility() -> list:
            is_new, names = source == UNTRAINED, validate_choices("The encodings", chosen, POSITION_ENCODINGS)
            is_visible = [is_new, is_new and depends_on_heads(names), not is_new or depends_on_side(names), is_new]
            is_visible += [is_new and parameter in parameters_of_encodings(names) for parameter in parameter_widgets]
            return [gr.update(visible=flag) for flag in is_visible]

        return show_errors(visibility, lambda _: [gr.skip()] * (4 + len(parameter_widgets)))  # `see` says what is wrong

    outputs = [picture, output]
    gr.on(
        [source.change, encodings.change],
        follow,
        inputs,
        [width, heads, side, encodings, *parameter_widgets.values()],
        **UNQUEUED,
    )
    user_inputs = [side, width, positions, heads, picture, *parameter_widgets.values()]
    connect_events(see, inputs, outputs, [source.change, encodings.change], user_inputs)
    return {"fn": see, "inputs": inputs, "outputs": outputs, **UNQUEUED}


def step_tab(run: ExplorerRun, viewport: gr.Number) -> EventOptions:
    first = default_encoding()
    with gr.Row():
        with gr.Column(scale=2, min_width=280):
            source = source_dropdown(run)
            standalone = [name for name, entry in POSITION_ENCODINGS.items() if not entry.is_modifier]
            encoding = gr.Dropdown(standalone, value=first, label="Encoding")
            side = side_radio()
            layer = slider(1, 2, 1, label="Layer", visible=False)
            position = slider(0, MAX_POSITIONS - 1, 5, label="Position p, or distance in tokens")
            channel = slider(0, MAX_WIDTH - 1, 6, label="Channel, counted from 0")
            width = slider(2, MAX_WIDTH, 50, label="D, the model's width")
            other = slider(2, MAX_WIDTH, 20, label="Another D, to compare")
        with gr.Column(scale=5, min_width=320):
            output = gr.HTML(elem_id="step")
    inputs = [source, encoding, side, layer, position, channel, width, other, viewport]

    def stepped(
        source: str,
        name: str,
        side: str,
        layer: int,
        position: int,
        channel: int,
        width: int,
        other: int,
        narrow: object,
    ) -> list:
        def render() -> list:
            is_new = source == UNTRAINED
            if is_new:
                validate_choice("The encoding", name, POSITION_ENCODINGS)
                defaults = tuple(
                    (parameter.name, parameter.default) for parameter in POSITION_ENCODINGS[name].config_parameters
                )
                effective_side = side if depends_on_side((name,)) else SIDES[0]
                choice = EncodingChoice(encodings=(name,), width=width, side=effective_side, parameters=defaults)
                probe = probes_for(choice)["attention"]
            else:
                probe = run.probes(source, side)["attention"]
            layers = probe.layers if depends_on_heads(tuple(parse_sum(probe.name))) else 1
            explanation = explain_value(
                probe, position, channel, min(validate_number("The layer", layer or 1, 1, MAX_LAYERS), layers)
            )
            html_parts = [f'<pre class="formula">{escape(explanation.formula)}</pre>'] if explanation.formula else []
            if explanation.value is not None:
                html_parts.append(f'<p class="number" data-value="{explanation.value!r}">{explanation.value:.6f}</p>')
            html_parts += [note_html(line) for line in explanation.lines]
            compares = is_new and explanation.value is not None
            if compares:
                other_choice = replace(choice, width=other)
                if channel < other:
                    other_explanation = explain_value(probes_for(other_choice)["attention"], position, channel)
                    html_parts.append(note_html(f"And with another width: {other_explanation.lines[0]}"))
                else:
                    html_parts.append(
                        note_html(f"With D = {other} there is no channel {channel}: they are 0 to {other - 1}.")
                    )
                if width != other:
                    html_parts.append(widths_html(choice, other_choice, narrow))
            updates = [
                gr.update(visible=is_new),
                gr.update(visible=not is_new or depends_on_side((name,))),
                gr.update(visible=layers > 1, maximum=max(2, layers)),
                gr.update(maximum=probe.width - 1),
                gr.update(visible=is_new),
                gr.update(visible=compares),
            ]
            return ["".join(html_parts), *updates]

        return show_errors(render, lambda text: [text, *[gr.skip()] * 6])

    outputs = [output, encoding, side, layer, channel, width, other]
    connect_events(
        stepped, inputs, outputs, [source.change, encoding.change], [side, layer, position, channel, width, other]
    )
    return {"fn": stepped, "inputs": inputs, "outputs": outputs, **UNQUEUED}


def widths_html(choice: EncodingChoice, other_choice: EncodingChoice, narrow: object) -> str:
    """A figure of the same positions at two widths."""
    extent = PlotExtent(positions=FIRST_POSITIONS)
    narrower, wider = sorted((choice, other_choice), key=lambda narrower: narrower.width)
    probes = {"narrower vectors": probes_for(narrower)["vectors"]} | probes_for(wider)
    figure = lazy_figures(probes | {"vectors": probes["vectors"].with_extent(extent)})["widths"]
    return figure_html(figure.draw(), figure.look_for, f"{probes['vectors'].name} at two widths", narrow)


def translate_tab(run: ExplorerRun, viewport: gr.Number) -> None:
    german, english = generated_sentence(0)
    if not run.trained:
        gr.HTML(
            note_html(
                "No run was given: these models are small and untrained, so what they write is noise. Start the "
                "page with a run of train.py, `hf-posenc explorer runs/quickstart`, for translations "
                "that mean something."
            )
        )
    elif not run.systems:
        gr.HTML(error_html(f"A run's systems have a model each, but {run.folder} has none yet; run train.py first."))
    # The sampled sentence and its translations are stored in the reader's browser.
    sentence_state = gr.Textbox(json.dumps([0, german, english]), visible=False)
    translation_state = gr.Textbox("{}", visible=False)
    text = gr.Textbox(german, label="German sentence, or the source language of your models", lines=2, max_lines=8)
    with gr.Row():
        times = slider(1, MAX_REPEATS, 1, label="Joined so many times", min_width=260)
        beams = slider(1, MAX_BEAMS, 5, label="Beams", min_width=260)
    systems = gr.CheckboxGroup(run.systems, value=run.systems[:4], label="Systems")
    with gr.Row():
        translate_button = gr.Button("Translate", variant="primary")
        next_button = gr.Button("Another generated sentence")
    results = gr.HTML(elem_id="translations")
    with gr.Column(visible=False) as attention_column:
        with gr.Row():
            system = gr.Radio([], label="Attention of", min_width=260)
            kind = gr.Radio(list(ATTENTION_KINDS), label="Which attention", min_width=260)
        with gr.Row():
            layer = slider(1, 2, 1, label="Layer", min_width=260)
            head = slider(1, 2, 1, label="Head", min_width=260)
        attention_output = gr.HTML(elem_id="attention")
    attention_controls = [system, kind, layer, head]

    def translated(text: str, times: int, beams: int, systems: list[str], sentence_state: str) -> list:
        def compute() -> list:
            _, german, english = parse_sentence(sentence_state)
            results_by_system = translate(run, systems, text, times, beams)
            source = repeat_sentence(text, times)
            parts = [translation_html(name, item) for name, item in results_by_system.items()]
            if times == 1 and source == german:
                parts.append(f'<div class="translation"><h4>as the generator has it</h4><p>{escape(english)}</p></div>')
            parts.append(
                note_html("Look at where a system stops, repeats itself, or leaves the order, as the input grows.")
            )
            successful = {name: (source, item.text) for name, item in results_by_system.items() if not item.problem}
            return ["".join(parts), json.dumps(successful), gr.update(visible=bool(successful))]

        return show_errors(compute, lambda text: [text, "{}", gr.update(visible=False)])

    def attended(translation_state: str, system: str, kind: str, layer: int, head: int, narrow: object) -> list:
        def compute() -> list:
            if not (pairs := parse_translations(run, translation_state)):
                return [gr.skip()] * 5
            chosen = system if system in list(pairs) else next(iter(pairs))
            maps = attention_of_pair(run, chosen, *pairs[chosen])
            if not maps:
                raise ValueError(f"{chosen} has no attention; choose another system.")
            kind_shown = kind if kind in ATTENTION_KINDS and kind in maps else list(maps)[-1]
            layers, heads = maps[kind_shown].weights.shape[:2]
            layer_shown = min(validate_number("The layer", layer or 1, 1, MAX_LAYERS), layers)
            head_shown = min(validate_number("The head", head or 1, 1, MAX_HEADS), heads)
            max_labels = MAX_LABELS_NARROW if is_narrow(narrow) else MAX_LABELS
            figure = head_figure(maps, chosen, kind_shown, layer_shown, head_shown, max_labels=max_labels)
            caption = (
                "A row has the weights of one token's attention, which sum to 1. Look for diagonals, which follow the "
                "order, for columns with high weights in every row, and for the length at which the diagonal is lost."
            )
            return [
                update_unless_equal(system, chosen, choices=dropdown_choices(pairs)),
                update_unless_equal(
                    kind, kind_shown, choices=dropdown_choices(name for name in ATTENTION_KINDS if name in maps)
                ),
                update_unless_equal(layer, layer_shown, maximum=max(2, layers), visible=layers > 1),
                update_unless_equal(head, head_shown, maximum=max(2, heads), visible=heads > 1),
                figure_html(
                    figure,
                    caption,
                    f"{kind_shown} attention of {chosen}, layer {layer_shown}, head {head_shown}",
                    narrow,
                ),
            ]

        return show_errors(compute, lambda text: [gr.skip()] * 4 + [text])

    def next_sentence(sentence_state: str) -> list:
        def compute() -> list:
            number = (parse_sentence(sentence_state)[0] + 1) % MAX_SENTENCE_NUMBER
            pair = generated_sentence(number)
            return [json.dumps([number, *pair]), pair[0], gr.skip()]

        return show_errors(compute, lambda text: [gr.skip(), gr.skip(), text])

    translate_inputs, attention_inputs = (
        [text, times, beams, systems, sentence_state],
        [translation_state, *attention_controls, viewport],
    )
    for event in (translate_button.click, text.submit):
        event(
            translated,
            translate_inputs,
            [results, translation_state, attention_column],
            preprocess=False,
            concurrency_id="translate",
        ).then(attended, attention_inputs, [*attention_controls, attention_output], **UNQUEUED)
    next_button.click(next_sentence, sentence_state, [sentence_state, text, results], **UNQUEUED)
    connect_events(attended, attention_inputs, [*attention_controls, attention_output], [], attention_controls)


def compare_tab(run: ExplorerRun, viewport: gr.Number) -> EventOptions:
    """Build the tab; returns the event for its opening."""
    test = gr.Dropdown([], label="Test set", visible=False)
    figure_kind = gr.Dropdown([], label="Figure", visible=False)
    output = gr.HTML(elem_id="compare")
    inputs, outputs = [test, figure_kind, viewport], [test, figure_kind, output]

    def compared(test: str | None, figure_kind: str | None, narrow: object) -> list:
        def compute() -> list:
            tests = scored_test_sets(run)
            test_shown = test if test in tests else tests[0]
            figures = run_figures(run, test_shown)
            kind = (
                figure_kind
                if figure_kind in list(figures)
                else next(kind for kind, lazy_figure in figures.items() if lazy_figure.test_set)
            )
            lazy_figure = figures[kind]
            html = table_html(score_table(run, test_shown)) + figure_html(
                lazy_figure.draw(), lazy_figure.look_for, lazy_figure.name, narrow
            )
            return [
                update_unless_equal(test, test_shown, choices=dropdown_choices(tests), visible=len(tests) > 1),
                update_unless_equal(figure_kind, kind, choices=dropdown_choices(figures), visible=True),
                html,
            ]

        return show_errors(compute, lambda text: [gr.skip(), gr.skip(), text])

    connect_events(compared, inputs, outputs, [], [test, figure_kind])
    return {"fn": compared, "inputs": inputs, "outputs": outputs, **UNQUEUED}


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
