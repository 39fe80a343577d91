"""The explorer's tabs, their controls and events, and error messages on the page.

Each function of a tab builds it, and returns the event for the opening of the page if it has one.
"""

import ctypes
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import wraps
from html import escape
from itertools import chain
from typing import Any

import gradio as gr

from ...encodings.base import EncodingParameter, ParameterValue
from ...encodings.registry import POSITION_ENCODINGS, all_encoding_parameters, parse_sum
from ..analysis.probes import PlotExtent
from ..figures.encoding_plots import lazy_figures
from ..results.tables import TableRows, length_table
from .html import (
    NARROW_PIXELS,
    error_html,
    figure_html,
    is_narrow,
    note_html,
    table_html,
    translation_html,
)
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
    Probes,
    attention_of_pair,
    depends_on_heads,
    depends_on_side,
    describe_probe,
    head_figure,
    parameter_value,
    parameters_of_encodings,
    parse_sentence,
    parse_translations,
    probes_for,
    repeat_sentence,
    run_figures,
    scored_test_sets,
    translate,
    validate_choice,
    validate_choices,
    validate_number,
    validate_text,
)
from .views import (
    MAX_STREAM_CHARACTERS,
    Explanation,
    StreamRecord,
    default_system,
    encoding_views,
    explain_value,
    length_plot,
    stream_html,
    stream_record,
)

logger = logging.getLogger(__name__)
# glibc's function that returns freed memory to the system; else it keeps what the largest answers took.
TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None)

Handler = Callable[..., list]  # from the values of a page's controls to their updates
Event = dict[str, Any]  # keyword arguments of a gradio event

# Values are not preprocessed by gradio, which would compare them with the choices before or after a pending change; the
# page validates them and names the problem. Events are not queued, because the queue takes as long as some answers.
UNQUEUED: Event = {"preprocess": False, "show_progress": "hidden", "queue": False}

UNTRAINED, NO_SECOND, TRAINED_SUFFIX = "untrained", "nothing", ", as trained"


def shows_errors(fallback: Callable[[str], list]) -> Callable[[Handler], Handler]:
    """Decorator of a handler: on an error it returns `fallback` of the message. Memory that it freed is given back."""

    def decorate(handler: Handler) -> Handler:
        @wraps(handler)
        def handled(*values: Any) -> list:
            try:
                return handler(*values)
            except (ValueError, OSError) as error:
                return fallback(error_html(str(error)))
            except Exception as error:  # a page for others must not stop
                logger.exception("the explorer met an error of its own")
                message = f"This should not happen, and other choices still work: {type(error).__name__}: {error}"
                return fallback(error_html(message))
            finally:
                if TRIM is not None:
                    TRIM(0)

        return handled

    return decorate


def connect_events(fn: Handler, inputs: list, outputs: list, change_events: list, inputs_of_user: list) -> None:
    """Call `fn` on each event of `change_events`, and on a reader's input in `inputs_of_user`; the last event wins."""
    events = [*change_events, *(control.input for control in inputs_of_user)]
    gr.on(events, fn, inputs, outputs, trigger_mode="always_last", **UNQUEUED)


def update_unless_equal(current: object, value: object, **options: object) -> dict:
    """An update of a control to `value`, without a value if the control has it already.

    A reader may have changed the control since; an equal value would reset it.
    """
    return gr.update() | options | ({} if current == value else {"value": value})


def source_dropdown(run: ExplorerRun) -> gr.Dropdown:
    """The choice between untrained encodings and those of the run's systems."""
    trained = [(system + TRAINED_SUFFIX, system) for system in run.systems] if run.trained else []
    return gr.Dropdown([(UNTRAINED, UNTRAINED), *trained], value=UNTRAINED, label="Encodings of", visible=bool(trained))


def second_choices(run: ExplorerRun) -> list[str]:
    """What can be drawn next to an encoding: nothing, another one, or that of a system."""
    trained = [system + TRAINED_SUFFIX for system in run.systems] if run.trained else []
    return [NO_SECOND, *POSITION_ENCODINGS, *trained]


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


def see_tab(run: ExplorerRun, viewport: gr.Number) -> Event:
    first = default_encoding()
    with gr.Row():
        with gr.Column(scale=2, min_width=280):
            source = source_dropdown(run)
            encodings = gr.Dropdown(
                list(POSITION_ENCODINGS), value=[first], multiselect=True, label="Encoding, or several for their sum",
                info="A sum is applied in the order of your choice.",
            )  # fmt: skip
            second = gr.Dropdown(second_choices(run), value=NO_SECOND, label="Next to it")
            side = side_radio()
            width = slider(2, MAX_WIDTH, 50, label="D, the model's width")
            positions = slider(3, MAX_POSITIONS, 64, label="Positions")
            heads = slider(1, MAX_HEADS, 1, label="Heads, among which D is divided", visible=False)
            shown_first = parameters_of_encodings((first,))
            parameter_widgets = {
                parameter.name: parameter_widget(parameter, visible=parameter.name in shown_first)
                for parameter in all_encoding_parameters()
            }
        with gr.Column(scale=5, min_width=320):
            picture = gr.Radio([], label="Picture")
            output = gr.HTML(elem_id="see")
    inputs = [source, encodings, second, side, width, positions, heads, picture, viewport]
    inputs += parameter_widgets.values()

    @shows_errors(lambda text: [gr.skip(), text])
    def see(*values: Any) -> list:
        source, chosen, second, side, width, positions, heads, view, narrow, *parameters = values
        values_by_name = dict(zip(parameter_widgets, parameters, strict=True))

        def untrained(names: Any) -> Probes:
            return probes_for(encoding_choice(names, side, width, heads, values_by_name))

        shown = [untrained(chosen) if source == UNTRAINED else run.probes(source, side)]
        second = validate_choice("The encoding next to it", second, second_choices(run))
        if second in POSITION_ENCODINGS:
            shown.append(untrained([second]))
        elif second != NO_SECOND:
            shown.append(run.probes(second.removesuffix(TRAINED_SUFFIX), side))
        return show_views(shown, positions, view, narrow)

    @shows_errors(lambda _: [gr.skip()] * (4 + len(parameter_widgets)))  # `see` says what is wrong
    def follow(source: Any, chosen: Any, second: Any, *_: object) -> list:
        second = validate_choice("The encoding next to it", second, second_choices(run))
        is_new, names = source == UNTRAINED, validate_choices("The encodings", chosen, POSITION_ENCODINGS)
        untrained = (*(names if is_new else ()), *([second] if second in POSITION_ENCODINGS else []))
        has_trained = not is_new or second.endswith(TRAINED_SUFFIX)
        is_visible = [bool(untrained) or is_new, depends_on_heads(untrained)]
        is_visible += [has_trained or depends_on_side(untrained), is_new]
        is_visible += [parameter in parameters_of_encodings(untrained) for parameter in parameter_widgets]
        return [gr.update(visible=flag) for flag in is_visible]

    outputs, changes = [picture, output], [source.change, encodings.change, second.change]
    gr.on(changes, follow, inputs, [width, heads, side, encodings, *parameter_widgets.values()], **UNQUEUED)
    user_inputs = [side, width, positions, heads, picture, *parameter_widgets.values()]
    connect_events(see, inputs, outputs, changes, user_inputs)
    return {"fn": see, "inputs": inputs, "outputs": outputs, **UNQUEUED}


def encoding_choice(
    chosen: Any, side: Any, width: Any, heads: Any, values: Mapping[str, ParameterValue]
) -> EncodingChoice:
    """A reader's choice, with defaults for the controls that are hidden because they change nothing."""
    names = validate_choices("The encodings", chosen, POSITION_ENCODINGS)
    parameters = []
    for name, parameter in parameters_of_encodings(names).items():
        parameters.append((name, parameter_value(parameter, values.get(name, parameter.default))))
    if not depends_on_heads(names):
        heads = 1
    if not depends_on_side(names):
        side = SIDES[0]
    return EncodingChoice(encodings=names, width=width, heads=heads, side=side, parameters=tuple(parameters))


def show_views(shown: list[Probes], positions: Any, view: Any, narrow: Any) -> list:
    """The choice of figures, and the HTML of one figure of each of the encodings, side by side."""
    views = [encoding_views(probes, positions) for probes in shown]
    labels = list(dict.fromkeys(chain.from_iterable(views)))
    label = view if view in labels else next(iter(labels), None)
    parts = []
    for probes, figures in zip(shown, views, strict=True):
        probe = probes["attention"]
        part = f'<p class="facts">{escape(describe_probe(probe))}</p>'
        if label in figures:
            width = NARROW_PIXELS - 1 if len(shown) > 1 else narrow  # each has half of the page
            figure = figures[label]
            part += figure_html(figure.draw(), figure.look_for, f"{label} of {probe.name}", width)
        else:
            part += note_html(f"`{probe.name}` has nothing to draw" + (f" as {label}." if figures else "."))
        parts.append(f"<div>{part}</div>")
    html = f'<div class="columns">{"".join(parts)}</div>'
    if label is None:
        return [gr.update(visible=False), html]
    return [update_unless_equal(view, label, choices=dropdown_choices(labels), visible=True), html]


def step_tab(run: ExplorerRun, viewport: gr.Number) -> Event:
    with gr.Row():
        with gr.Column(scale=2, min_width=280):
            source = source_dropdown(run)
            standalone = [name for name, entry in POSITION_ENCODINGS.items() if not entry.is_modifier]
            encoding = gr.Dropdown(standalone, value=default_encoding(), label="Encoding")
            side = side_radio()
            layer = slider(1, 2, 1, label="Layer", visible=False)
            position = slider(0, MAX_POSITIONS - 1, 5, label="Position p, or distance in tokens")
            channel = slider(0, MAX_WIDTH - 1, 6, label="Channel, counted from 0")
            width = slider(2, MAX_WIDTH, 50, label="D, the model's width")
            other = slider(2, MAX_WIDTH, 20, label="Another D, to compare")
        with gr.Column(scale=5, min_width=320):
            output = gr.HTML(elem_id="step")
    inputs = [source, encoding, side, layer, position, channel, width, other, viewport]

    @shows_errors(lambda text: [text, *[gr.skip()] * 6])
    def stepped(*values: Any) -> list:
        source, name, side, layer, position, channel, width, other, narrow = values
        choice = None
        if source == UNTRAINED:
            name = validate_choice("The encoding", name, POSITION_ENCODINGS)
            choice = encoding_choice([name], side, width, 1, {})
            probe = probes_for(choice)["attention"]
        else:
            probe = run.probes(source, side)["attention"]
        layers = probe.layers if depends_on_heads(tuple(parse_sum(probe.name))) else 1
        layer = min(validate_number("The layer", layer or 1, 1, MAX_LAYERS), layers)
        explanation = explain_value(probe, position, channel, layer)
        html = explanation_html(explanation)
        compares = choice is not None and explanation.value is not None
        if choice is not None and compares:
            html += comparison_html(choice, replace(choice, width=other), position, channel, narrow)
        is_new = choice is not None
        return [
            html,
            gr.update(visible=is_new),
            gr.update(visible=not is_new or depends_on_side((name,))),
            gr.update(visible=layers > 1, maximum=max(2, layers)),
            gr.update(maximum=probe.width - 1),
            gr.update(visible=is_new),
            gr.update(visible=compares),
        ]

    outputs = [output, encoding, side, layer, channel, width, other]
    user_inputs = [side, layer, position, channel, width, other]
    connect_events(stepped, inputs, outputs, [source.change, encoding.change], user_inputs)
    return {"fn": stepped, "inputs": inputs, "outputs": outputs, **UNQUEUED}


def explanation_html(explanation: Explanation) -> str:
    """The formula, the number in large print, and the sentences on it."""
    parts = []
    if explanation.formula:
        parts.append(f'<pre class="formula">{escape(explanation.formula)}</pre>')
    if explanation.value is not None:
        parts.append(f'<p class="number" data-value="{explanation.value!r}">{explanation.value:.6f}</p>')
    return "".join([*parts, *map(note_html, explanation.lines)])


def comparison_html(choice: EncodingChoice, other: EncodingChoice, position: int, channel: int, narrow: Any) -> str:
    """The same position and channel at another width, and a figure of the first positions at both widths."""
    if channel < other.width:
        explanation = explain_value(probes_for(other)["attention"], position, channel)
        note = f"And with another width: {explanation.lines[0]}"
    else:
        note = f"With D = {other.width} there is no channel {channel}: they are 0 to {other.width - 1}."
    if choice.width == other.width:
        return note_html(note)
    narrower, wider = sorted((choice, other), key=lambda either: either.width)
    probes = {"narrower vectors": probes_for(narrower)["vectors"]} | probes_for(wider)
    first_positions = probes["vectors"].with_extent(PlotExtent(positions=FIRST_POSITIONS))
    figure = lazy_figures(probes | {"vectors": first_positions})["widths"]
    name = f"{first_positions.name} at two widths"
    return note_html(note) + figure_html(figure.draw(), figure.look_for, name, narrow)


NO_RUN = (
    "No run was given: these models are small and untrained, so what they write is noise. Start the page with a run of "
    "train.py, `hf-posenc explorer runs/quickstart`, for translations that mean something."
)
ATTENTION_CAPTION = (
    "A row has the weights of one token's attention, which sum to 1. Look for diagonals, which follow the order, for "
    "columns with high weights in every row, and for the length at which the diagonal is lost."
)


FIRST_REPEATS = 4  # a length beyond that of training


def translate_tab(run: ExplorerRun, viewport: gr.Number) -> tuple[Event, Event]:
    """Build the tab; returns the events for its opening, of which the second follows the first."""
    first_source, first_reference = run.example(0)
    if not run.trained:
        gr.HTML(note_html(NO_RUN))
    elif not run.systems:
        gr.HTML(error_html(f"A run's systems have a model each, but {run.folder} has none yet; run train.py first."))
    # The sampled sentence and its translations are stored in the reader's browser.
    sentence_state = gr.Textbox(json.dumps([0, first_source, first_reference]), visible=False)
    translation_state = gr.Textbox("{}", visible=False)
    text = gr.Textbox(first_source, label="Sentence to translate", lines=2, max_lines=8)
    with gr.Row():
        times = slider(1, MAX_REPEATS, FIRST_REPEATS, label="Repeat", min_width=260)
        beams = slider(1, MAX_BEAMS, 5, label="Beams", min_width=260)
    systems = gr.CheckboxGroup(run.systems, value=run.first_systems(), label="Systems")
    with gr.Row():
        translate_button = gr.Button("Translate", variant="primary")
        next_button = gr.Button("Another sentence")
    results = gr.HTML(elem_id="translations")
    with gr.Column(visible=False) as attention_column:
        attention = attention_controls(run, translation_state, viewport)

    @shows_errors(lambda text: [text, "{}", gr.update(visible=False)])
    def translated(text: Any, times: Any, beams: Any, systems: Any, sentence_state: Any) -> list:
        _, example, reference = parse_sentence(sentence_state)
        results_by_system = translate(run, systems, text, times, beams)
        source = repeat_sentence(text, times)
        parts = [translation_html(name, item) for name, item in results_by_system.items()]
        if source == repeat_sentence(example, times):
            repeated = escape(repeat_sentence(reference, times))
            parts.append(f'<div class="translation"><h4>reference</h4><p>{repeated}</p></div>')
        parts.append(
            note_html("Look at where a system stops, repeats itself, or leaves the order, as the input grows.")
        )
        successful = {name: (source, item.text) for name, item in results_by_system.items() if not item.problem}
        return ["".join(parts), json.dumps(successful), gr.update(visible=bool(successful))]

    def first_translated(*values: Any) -> list:
        *inputs, translation_state = values
        return translated(*inputs) if translation_state == "{}" else [gr.skip()] * 3

    @shows_errors(lambda text: [gr.skip(), gr.skip(), text])
    def next_sentence(sentence_state: Any) -> list:
        number = (parse_sentence(sentence_state)[0] + 1) % MAX_SENTENCE_NUMBER
        pair = run.example(number)
        return [json.dumps([number, *pair]), pair[0], gr.skip()]

    inputs = [text, times, beams, systems, sentence_state]
    outputs = [results, translation_state, attention_column]
    queued: Event = {"preprocess": False, "concurrency_id": "translate"}
    for event in (translate_button.click, text.submit):
        event(translated, inputs, outputs, **queued).then(**attention)
    next_button.click(next_sentence, sentence_state, [sentence_state, text, results], **UNQUEUED)
    first = {"fn": first_translated, "inputs": [*inputs, translation_state], "outputs": outputs, **queued}
    return first, attention


def attention_controls(run: ExplorerRun, translation_state: gr.Textbox, viewport: gr.Number) -> Event:
    """Build the controls of the attention of a translation; returns the event after a new translation."""
    with gr.Row():
        system = gr.Radio([], label="Attention of", min_width=260)
        kind = gr.Radio(list(ATTENTION_KINDS), label="Which attention", min_width=260)
    with gr.Row():
        layer = slider(1, 2, 1, label="Layer", min_width=260)
        head = slider(1, 2, 1, label="Head", min_width=260)
    output = gr.HTML(elem_id="attention")

    @shows_errors(lambda text: [gr.skip()] * 4 + [text])
    def attended(translation_state: Any, system: Any, kind: Any, layer: Any, head: Any, narrow: Any) -> list:
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
        name = f"{kind_shown} attention of {chosen}, layer {layer_shown}, head {head_shown}"
        kinds = [kind for kind in ATTENTION_KINDS if kind in maps]
        return [
            update_unless_equal(system, chosen, choices=dropdown_choices(pairs)),
            update_unless_equal(kind, kind_shown, choices=dropdown_choices(kinds)),
            update_unless_equal(layer, layer_shown, maximum=max(2, layers), visible=layers > 1),
            update_unless_equal(head, head_shown, maximum=max(2, heads), visible=heads > 1),
            figure_html(figure, ATTENTION_CAPTION, name, narrow),
        ]

    controls = [system, kind, layer, head]
    inputs, outputs = [translation_state, *controls, viewport], [*controls, output]
    connect_events(attended, inputs, outputs, [], controls)
    return {"fn": attended, "inputs": inputs, "outputs": outputs, **UNQUEUED}


NO_FIGURE = "none"
WHOLE_AXIS: list[float | None] = [None, None]


def length_tab(run: ExplorerRun, viewport: gr.Number) -> Event:
    """Build the tab; returns the event for the opening of the page."""
    test = gr.Dropdown([], label="Test set", visible=False)
    heading = gr.HTML(elem_id="length")
    plot = gr.LinePlot(
        x="length", y="score", color="system", color_title="", tooltip=["bucket", "interval"], height=360,
        visible=False, elem_id="length-plot",
    )  # fmt: skip
    table = gr.HTML(elem_id="length-table")
    figure_kind = gr.Dropdown([], label="Another figure of this run", visible=False)
    figure = gr.HTML(elem_id="length-figure")
    inputs, outputs = [test, figure_kind, viewport], [test, heading, plot, table, figure_kind, figure]

    @shows_errors(lambda text: [gr.skip(), text, *[gr.skip()] * 4])
    def compared(test: Any, figure_kind: Any, narrow: Any) -> list:
        tests = scored_test_sets(run)
        test_shown = test if test in tests else tests[0]
        rows = TableRows.of(run.results())
        title, note, plot_options = length_plot(rows, test_shown)
        figures = run_figures(run, test_shown)
        kind = figure_kind if figure_kind in list(figures) else NO_FIGURE
        drawn = figures.get(kind)
        kinds = dropdown_choices([NO_FIGURE, *figures])
        return [
            update_unless_equal(test, test_shown, choices=dropdown_choices(tests), visible=len(tests) > 1),
            f"<h3>{escape(title)}</h3>{note_html(note)}",
            gr.LinePlot(**plot_options, x_lim=WHOLE_AXIS, visible=True),
            table_html(length_table(rows, test_shown)),
            update_unless_equal(figure_kind, kind, choices=kinds, visible=True),
            figure_html(drawn.draw(), drawn.look_for, drawn.name, narrow) if drawn else "",
        ]

    def zoomed(event: gr.SelectData) -> dict:
        return gr.update(x_lim=event.index)

    def unzoomed() -> dict:
        return gr.update(x_lim=WHOLE_AXIS)

    plot.select(zoomed, None, plot, **UNQUEUED)
    plot.double_click(unzoomed, None, plot, **UNQUEUED)
    connect_events(compared, inputs, outputs, [], [test, figure_kind])
    return {"fn": compared, "inputs": inputs, "outputs": outputs, **UNQUEUED}


SECONDS_A_WORD = 0.5


def stream_tab(run: ExplorerRun) -> Event:
    """Build the tab; returns the event for its opening."""
    # Longer than the lookahead, so that the tab opens with a translation.
    first_text = "".join(f"{run.example(number)[0]} " for number in range(5))
    text = gr.Textbox(first_text, label="Text, as it is being written: type, or paste", lines=3, max_lines=8)
    system = gr.Radio(run.systems, value=default_system(run), label="System")
    read_button = gr.Button("Read it word by word", variant="primary")
    with gr.Row():
        words = slider(0, 1, 0, label="Words read; one more for the end", min_width=260)
        token = slider(1, 2, 1, label="Window of the target token", min_width=260)
    output = gr.HTML(elem_id="stream")
    gr.HTML(note_html("A translation that is written is final: no later word changes it."))
    timer = gr.Timer(SECONDS_A_WORD, active=False)
    outputs = [words, token, output, timer]
    shows_stream_errors = shows_errors(lambda message: [gr.skip(), gr.skip(), message, gr.Timer(active=False)])

    def record_of(text: Any, system: Any) -> StreamRecord:
        run.validate_system(system)
        return stream_record(run, system, validate_text("The text", text, MAX_STREAM_CHARACTERS))

    @shows_stream_errors
    def typed(text: Any, system: Any) -> list:
        record = record_of(text, system)
        return after_words(record, record.num_words)

    @shows_stream_errors
    def moved(text: Any, system: Any, words: Any) -> list:
        return after_words(record_of(text, system), validate_number("The number of words", words, 0, 10**6))

    @shows_stream_errors
    def started(text: Any, system: Any) -> list:
        return after_words(record_of(text, system), 0, reading=True)

    @shows_stream_errors
    def read_on(text: Any, system: Any, words: Any) -> list:
        num_words = validate_number("The number of words", words, 0, 10**6) + 1
        return after_words(record_of(text, system), num_words, reading=True)

    @shows_errors(lambda message: [message])
    def inspected(text: Any, system: Any, words: Any, token: Any) -> list:
        record = record_of(text, system)
        num_words = validate_number("The number of words", words, 0, record.num_words + 1)
        num_steps = record.num_steps(num_words)
        number = validate_number("The target token", token, 1, max(2, num_steps))
        return [stream_html(record, num_words, min(number, num_steps))]

    latest: Event = {"trigger_mode": "always_last", **UNQUEUED}
    # A pasted text is no `input` event.
    gr.on([text.change, system.input], typed, [text, system], outputs, **latest)
    words.input(moved, [text, system, words], outputs, **latest)
    read_button.click(started, [text, system], outputs, **UNQUEUED)
    timer.tick(read_on, [text, system, words], outputs, **UNQUEUED)
    token.input(inspected, [text, system, words, token], output, **latest)
    return {"fn": typed, "inputs": [text, system], "outputs": outputs, **UNQUEUED}


def after_words(record: StreamRecord, num_words: int, reading: bool = False) -> list:
    """The updates of the tab Stream after so many words; `reading` goes on with the next one."""
    last = record.num_words + 1
    num_words = min(num_words, last)
    num_steps = record.num_steps(num_words)
    return [
        gr.update(value=num_words, maximum=last),
        gr.update(value=max(1, num_steps), maximum=max(2, num_steps)),
        stream_html(record, num_words, num_steps),
        gr.Timer(active=reading and num_words < last),
    ]
