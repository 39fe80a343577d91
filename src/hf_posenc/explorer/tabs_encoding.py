"""The explorer's tabs *See* and *Step*: what an encoding, new or trained, adds or does, and one number of it. Each
returns what is to be done when the page opens.
"""

from dataclasses import replace
from html import escape
from typing import Any

import gradio as gr

from ..modeling.positions import POSITION_ENCODINGS, all_knobs, parts_of
from ..pictures.encoding_figures import drawings
from ..pictures.subjects import Extent
from .choice import (
    MOST_HEADS,
    MOST_LAYERS,
    MOST_POSITIONS,
    SIDES,
    WIDEST,
    Choice,
    checked_choice,
    checked_choices,
    checked_number,
    has_sides,
    in_words,
    knobs_of,
    needs_heads,
    subjects_of,
)
from .controls import NEW, first_encoding, knob_control, knob_value, of_control, pairs_of, side_control, slider
from .html import figure_html, note
from .live import RAW, live, offered, readable
from .pictures import pictures
from .runs import Run
from .steps import step

FIRST_POSITIONS = 20


def see_tab(run: Run, viewport: gr.Number) -> dict[str, Any]:
    first = first_encoding()
    with gr.Row():
        with gr.Column(scale=2, min_width=280):
            of = of_control(run)
            encodings = gr.Dropdown(
                list(POSITION_ENCODINGS), value=[first], multiselect=True, label="Encoding, or several for their sum",
                info="A sum is applied in the order of your choice.",
            )  # fmt: skip
            side = side_control()
            width = slider(2, WIDEST, 50, label="D, the model's width")
            positions = slider(3, MOST_POSITIONS, 64, label="Positions")
            heads = slider(1, MOST_HEADS, 1, label="Heads, among which D is divided", visible=False)
            knobs = {knob.name: knob_control(knob, visible=knob.name in knobs_of((first,))) for knob in all_knobs()}
        with gr.Column(scale=5, min_width=320):
            picture = gr.Radio([], label="Picture")
            shown = gr.HTML(elem_id="see")
    inputs = [of, encodings, side, width, positions, heads, picture, viewport, *knobs.values()]

    def see(
        of: str,
        chosen: list[str],
        side: str,
        width: Any,
        positions: Any,
        heads: Any,
        name: str,
        narrow: Any,
        *values: Any,
    ) -> list:
        given = dict(zip(knobs, values, strict=True))

        def drawn() -> list:
            if of != NEW:
                subjects = run.subjects(of, side)
            else:
                names = checked_choices("The encodings", chosen, POSITION_ENCODINGS)
                used = tuple((name, knob_value(knob, given[name])) for name, knob in knobs_of(names).items())
                sizes: dict[str, Any] = {"width": width, "heads": heads if needs_heads(names) else 1}
                where = side if has_sides(names) else SIDES[0]
                subjects = subjects_of(Choice(encodings=names, side=where, knobs=used, **sizes))
            one = subjects["attention"]
            facts = f'<p class="facts">{escape(in_words(one))}</p>'
            if not (made := pictures(subjects, positions)):
                return [gr.update(visible=False), facts + note(f"`{one.name}` has nothing to draw.")]
            at = name if name in list(made) else next(iter(made))
            html = figure_html(made[at].draw(), made[at].look_for, f"{at} of {one.name}", narrow)
            return [offered(name, at, choices=pairs_of(made), visible=True), facts + html]

        return readable(drawn, lambda text: [gr.skip(), text])

    def follow(of: str, chosen: list[str], *_: Any) -> list:
        def looks() -> list:
            new, names = of == NEW, checked_choices("The encodings", chosen, POSITION_ENCODINGS)
            shows = [new, new and needs_heads(names), not new or has_sides(names), new]
            shows += [new and knob in knobs_of(names) for knob in knobs]
            return [gr.update(visible=one) for one in shows]

        return readable(looks, lambda _: [gr.skip()] * (4 + len(knobs)))  # `see` says what is wrong

    outputs = [picture, shown]
    gr.on([of.change, encodings.change], follow, inputs, [width, heads, side, encodings, *knobs.values()], **RAW)
    touched = [side, width, positions, heads, picture, *knobs.values()]
    live(see, inputs, outputs, [of.change, encodings.change], touched)
    return {"fn": see, "inputs": inputs, "outputs": outputs} | RAW


def step_tab(run: Run, viewport: gr.Number) -> dict[str, Any]:
    first = first_encoding()
    with gr.Row():
        with gr.Column(scale=2, min_width=280):
            of = of_control(run)
            alone = [name for name, entry in POSITION_ENCODINGS.items() if not entry.needs_another]
            encoding = gr.Dropdown(alone, value=first, label="Encoding")
            side = side_control()
            layer = slider(1, 2, 1, label="Layer", visible=False)
            position = slider(0, MOST_POSITIONS - 1, 5, label="Position p, or distance in tokens")
            channel = slider(0, WIDEST - 1, 6, label="Channel, counted from 0")
            width = slider(2, WIDEST, 50, label="D, the model's width")
            other = slider(2, WIDEST, 20, label="Another D, to compare")
        with gr.Column(scale=5, min_width=320):
            shown = gr.HTML(elem_id="step")
    inputs = [of, encoding, side, layer, position, channel, width, other, viewport]

    def stepped(
        of: str, name: str, side: str, layer: Any, position: Any, channel: Any, width: Any, other: Any, narrow: Any
    ) -> list:
        def written() -> list:
            new = of == NEW
            if new:
                checked_choice("The encoding", name, POSITION_ENCODINGS)
                knobs = tuple((knob.name, knob.default) for knob in POSITION_ENCODINGS[name].knobs)
                where = side if has_sides((name,)) else SIDES[0]
                choice = Choice(encodings=(name,), width=width, side=where, knobs=knobs)
                one = subjects_of(choice)["attention"]
            else:
                one = run.subjects(of, side)["attention"]
            layers = one.layers if needs_heads(tuple(parts_of(one.name))) else 1
            found = step(one, position, channel, min(checked_number("The layer", layer or 1, 1, MOST_LAYERS), layers))
            parts = [f'<pre class="formula">{escape(found.formula)}</pre>'] if found.formula else []
            if found.value is not None:
                parts.append(f'<p class="number" data-value="{found.value!r}">{found.value:.6f}</p>')
            parts += [note(line) for line in found.lines]
            compares = new and found.value is not None
            if compares:
                compared = replace(choice, width=other)
                if channel < other:
                    there = step(subjects_of(compared)["attention"], position, channel)
                    parts.append(note(f"And with another width: {there.lines[0]}"))
                else:
                    parts.append(note(f"With D = {other} there is no channel {channel}: they are 0 to {other - 1}."))
                if width != other:
                    parts.append(both_widths(choice, compared, narrow))
            looks = [
                gr.update(visible=new),
                gr.update(visible=not new or has_sides((name,))),
                gr.update(visible=layers > 1, maximum=max(2, layers)),
                gr.update(maximum=one.width - 1),
                gr.update(visible=new),
                gr.update(visible=compares),
            ]
            return ["".join(parts), *looks]

        return readable(written, lambda text: [text, *[gr.skip()] * 6])

    outputs = [shown, encoding, side, layer, channel, width, other]
    live(stepped, inputs, outputs, [of.change, encoding.change], [side, layer, position, channel, width, other])
    return {"fn": stepped, "inputs": inputs, "outputs": outputs} | RAW


def both_widths(choice: Choice, compared: Choice, narrow: Any) -> str:
    """The same positions at two widths."""
    extent = Extent(positions=FIRST_POSITIONS)
    one, other = sorted((choice, compared), key=lambda one: one.width)
    subjects = {"narrower vectors": subjects_of(one)["vectors"]} | subjects_of(other)
    drawing = drawings(subjects | {"vectors": subjects["vectors"].showing(extent)})["widths"]
    return figure_html(drawing.draw(), drawing.look_for, f"{subjects['vectors'].name} at two widths", narrow)
