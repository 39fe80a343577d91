"""The explorer's tabs *See* and *Step*: figures and single values of an untrained or trained encoding.

Each function builds a tab and returns the event for the opening of the page.
"""

from dataclasses import replace
from html import escape

import gradio as gr

from ...encodings.base import ParameterValue
from ...encodings.registry import POSITION_ENCODINGS, all_encoding_parameters, parse_sum
from ..analysis.probes import PlotExtent
from ..figures.encoding_plots import lazy_figures
from .encoding_views import encoding_views
from .html import figure_html, note_html
from .runs import ExplorerRun
from .state import (
    MAX_HEADS,
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_WIDTH,
    SIDES,
    EncodingChoice,
    depends_on_heads,
    depends_on_side,
    describe_probe,
    parameter_value,
    parameters_of_encodings,
    probes_for,
    validate_choice,
    validate_choices,
    validate_number,
)
from .walkthrough import explain_value
from .widgets import (
    UNQUEUED,
    UNTRAINED,
    EventOptions,
    connect_events,
    default_encoding,
    dropdown_choices,
    parameter_widget,
    show_errors,
    side_radio,
    slider,
    source_dropdown,
    update_unless_equal,
)

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
