"""The explorer's four tabs: controls, and what happens when a reader touches them. Each returns, if it must be filled
when it is opened, what is to be done then.
"""

import json
from collections.abc import Iterable
from html import escape
from typing import Any

import gradio as gr

from ..encoding_plots import widths_compared
from ..encoding_values import added_vectors
from ..modeling.positions import POSITION_ENCODINGS, Knob, all_knobs
from .choice import (
    LARGEST_KNOB,
    MOST_HEADS,
    MOST_POSITIONS,
    WIDEST,
    Choice,
    encodings_of,
    in_words,
    knobs_of,
    needs_heads,
)
from .html import figure_html, note, problem, table_html, translation_html
from .live import RAW, live, offered, readable
from .pictures import pictures
from .runs import (
    KINDS,
    LOOK_FOR,
    MOST_BEAMS,
    MOST_TIMES,
    Run,
    attention,
    attention_figure,
    joined,
    run_figures,
    scored_on,
    sentence,
    table,
    translate,
)
from .steps import step

FIRST_POSITIONS = 20


def see_tab(viewport: gr.Number) -> dict[str, Any]:
    """Returns what is to be done when the page opens."""
    first = first_encoding()
    with gr.Row():
        with gr.Column(scale=2, min_width=280):
            encodings = gr.Dropdown(
                list(POSITION_ENCODINGS), value=[first], multiselect=True, label="Encoding, or several for their sum",
                info="A sum is applied in the order of your choice.",
            )  # fmt: skip
            width = slider(2, WIDEST, 50, label="D, the model's width")
            positions = slider(3, MOST_POSITIONS, 64, label="Positions")
            heads = slider(1, MOST_HEADS, 1, label="Heads, among which D is divided", visible=False)
            knobs = {knob.name: knob_control(knob, visible=knob.name in knobs_of((first,))) for knob in all_knobs()}
        with gr.Column(scale=5, min_width=320):
            picture = gr.Radio([], label="Picture")
            shown = gr.HTML(elem_id="see")
    inputs = [encodings, width, positions, heads, picture, viewport, *knobs.values()]

    def see(chosen: list[str], width: Any, positions: Any, heads: Any, name: str, narrow: Any, *values: Any) -> list:
        given = dict(zip(knobs, values, strict=True))

        def drawn() -> list:
            used = tuple((name, knob_value(knob, given[name])) for name, knob in knobs_of(tuple(chosen)).items())
            sizes: dict[str, Any] = {"width": width, "positions": positions}
            choice = Choice(
                encodings=tuple(chosen), heads=heads if needs_heads(tuple(chosen)) else 1, knobs=used, **sizes
            )
            facts = f'<p class="facts">{escape(in_words(choice))}</p>'
            if not (made := pictures(choice)):
                return [gr.update(visible=False), facts + note(f"`{choice.name}` has nothing to draw.")]
            at = name if name in made else next(iter(made))
            html = figure_html(made[at].draw(), made[at].caption, f"{at} of {choice.name}", narrow)
            return [offered(name, at, choices=pairs_of(made), visible=True), facts + html]

        return readable(drawn, lambda text: [gr.skip(), text])

    def follow(*values: Any) -> list:
        chosen = tuple(values[0])
        shows = knobs_of(chosen)
        return [gr.update(visible=needs_heads(chosen)), *(gr.update(visible=knob in shows) for knob in knobs)]

    outputs = [picture, shown]
    encodings.change(follow, inputs, [heads, *knobs.values()], **RAW)
    live(see, inputs, outputs, [encodings.change], [width, positions, heads, picture, *knobs.values()])
    return {"fn": see, "inputs": inputs, "outputs": outputs} | RAW


def step_tab(viewport: gr.Number) -> dict[str, Any]:
    """Returns what is to be done when the page opens."""
    with gr.Row():
        with gr.Column(scale=2, min_width=280):
            encoding = gr.Dropdown(list(POSITION_ENCODINGS), value=first_encoding(), label="Encoding")
            position = slider(0, MOST_POSITIONS - 1, 5, label="Position p, or distance in tokens")
            channel = slider(0, WIDEST - 1, 6, label="Channel, counted from 0")
            width = slider(2, WIDEST, 50, label="D, the model's width")
            other = slider(2, WIDEST, 20, label="Another D, to compare")
        with gr.Column(scale=5, min_width=320):
            shown = gr.HTML(elem_id="step")
    inputs = [encoding, position, channel, width, other, viewport]

    def stepped(name: str, position: Any, channel: Any, width: Any, other: Any, narrow: Any) -> list:
        def written() -> list:
            knobs = tuple((knob.name, knob.default) for knob in POSITION_ENCODINGS[name].knobs)
            choice = Choice(encodings=(name,), width=width, knobs=knobs)
            found = step(choice, position, channel)
            parts = [f'<pre class="formula">{escape(found.formula)}</pre>'] if found.formula else []
            if found.value is not None:
                parts.append(f'<p class="number" data-value="{found.value!r}">{found.value:.6f}</p>')
            parts += [note(line) for line in found.lines]
            if found.value is None:
                return ["".join(parts), gr.update(visible=False)]
            compared = Choice(encodings=(name,), width=other, knobs=knobs)
            if channel < other:
                there = step(compared, position, channel)
                parts.append(note(f"And with another width: {there.lines[0]}"))
            else:
                parts.append(note(f"With D = {other} there is no channel {channel}: they are 0 to {other - 1}."))
            if width != other:
                parts.append(both_widths(choice, compared, narrow))
            return ["".join(parts), gr.update(visible=True)]

        return readable(written, lambda text: [text, gr.skip()])

    live(stepped, inputs, [shown, other], [encoding.change], [position, channel, width, other])
    return {"fn": stepped, "inputs": inputs, "outputs": [shown, other]} | RAW


def both_widths(choice: Choice, compared: Choice, narrow: Any) -> str:
    """The same positions at two widths."""
    vectors = {
        one.width: added_vectors(encodings_of(one), one.width, FIRST_POSITIONS)
        for one in sorted((choice, compared), key=lambda one: one.width)
    }
    figure = widths_compared(vectors, title=f"{choice.name}: the first {FIRST_POSITIONS} positions at two widths")
    caption = (
        "Find your channel in both. Of waves, the first channels are alike, and the further right, the more the width "
        "decides how fast a channel changes; untrained vectors of two widths have nothing to do with each other."
    )
    return figure_html(figure, caption, f"{choice.name} at two widths", narrow)


def translate_tab(run: Run, viewport: gr.Number) -> None:
    german, english = sentence(0)
    if not run.trained:
        gr.HTML(note("No run was given: these models are small and untrained, so what they write is noise. Start the "
                     "page with a run of train.py, `python -m hf_posenc explorer runs/quickstart`, for translations "
                     "that mean something."))  # fmt: skip
    elif not run.systems:
        gr.HTML(problem(f"A run's systems have a model each, but {run.folder} has none yet; run train.py first."))
    # What a reader has drawn, and what was made of it, is kept in the reader's own browser.
    drawn = gr.Textbox(json.dumps([0, german, english]), visible=False)
    done = gr.Textbox("{}", visible=False)
    text = gr.Textbox(german, label="German sentence, or the source language of your models", lines=2, max_lines=8)
    with gr.Row():
        times = slider(1, MOST_TIMES, 1, label="Joined so many times", min_width=260)
        beams = slider(1, MOST_BEAMS, 5, label="Beams", min_width=260)
    systems = gr.CheckboxGroup(run.systems, value=run.systems[:4], label="Systems")
    with gr.Row():
        go = gr.Button("Translate", variant="primary")
        another = gr.Button("Another generated sentence")
    results = gr.HTML(elem_id="translations")
    with gr.Column(visible=False) as attending:
        with gr.Row():
            system = gr.Radio([], label="Attention of", min_width=260)
            kind = gr.Radio(list(KINDS), label="Which attention", min_width=260)
        with gr.Row():
            layer = slider(1, 2, 1, label="Layer", min_width=260)
            head = slider(1, 2, 1, label="Head", min_width=260)
        shown = gr.HTML(elem_id="attention")
    looks = [system, kind, layer, head]

    def translated(text: str, times: Any, beams: Any, systems: list[str], drawn: str) -> list:
        def made() -> list:
            _, german, english = json.loads(drawn)
            found = translate(run, systems, text, times, beams)
            source = joined(text, times)
            parts = [translation_html(name, one) for name, one in found.items()]
            if times == 1 and source == german:
                parts.append(f'<div class="translation"><h4>as the generator has it</h4><p>{escape(english)}</p></div>')
            parts.append(note("Look at where a system stops, repeats itself, or leaves the order, as the input grows."))
            good = {name: (source, one.text) for name, one in found.items() if not one.problem}
            return ["".join(parts), json.dumps(good), gr.update(visible=bool(good))]

        return readable(made, lambda text: [text, "{}", gr.update(visible=False)])

    def attended(done: str, system: str, kind: str, layer: Any, head: Any, narrow: Any) -> list:
        def made() -> list:
            if not (pairs := json.loads(done)):
                return [gr.skip()] * 5
            chosen = system if system in pairs else next(iter(pairs))
            maps = attention(run, chosen, *pairs[chosen])
            if not maps:
                raise ValueError(f"{chosen} has no attention; choose another system.")
            which = kind if kind in maps else list(maps)[-1]
            layers, heads = maps[which].weights.shape[:2]
            at, of = min(int(layer or 1), layers), min(int(head or 1), heads)
            figure = attention_figure(maps, chosen, which, at, of)
            caption = (
                "A row is what one token looks at, and its weights sum to 1. Look for diagonals, which follow the "
                "order, for columns that every row looks at, and for where the diagonal is lost as the input grows."
            )
            return [
                offered(system, chosen, choices=pairs_of(pairs)),
                offered(kind, which, choices=pairs_of(one for one in KINDS if one in maps)),
                offered(layer, at, maximum=max(2, layers), visible=layers > 1),
                offered(head, of, maximum=max(2, heads), visible=heads > 1),
                figure_html(figure, caption, f"{which} attention of {chosen}, layer {at}, head {of}", narrow),
            ]

        return readable(made, lambda text: [gr.skip()] * 4 + [text])

    def next_sentence(drawn: str) -> list:
        number = json.loads(drawn)[0] + 1
        pair = sentence(number)
        return [json.dumps([number, *pair]), pair[0]]

    given, look = [text, times, beams, systems, drawn], [done, *looks, viewport]
    for event in (go.click, text.submit):
        event(translated, given, [results, done, attending], preprocess=False, concurrency_id="translate").then(
            attended, look, [*looks, shown], **RAW
        )
    another.click(next_sentence, drawn, [drawn, text], **RAW)
    live(attended, look, [*looks, shown], [], looks)


def compare_tab(run: Run, viewport: gr.Number) -> dict[str, Any]:
    """Returns what is to be done when the tab is opened."""
    test = gr.Dropdown([], label="Test set", visible=False)
    which = gr.Dropdown([], label="Figure", visible=False)
    shown = gr.HTML(elem_id="compare")
    inputs, outputs = [test, which, viewport], [test, which, shown]

    def compared(test: str | None, which: str | None, narrow: Any) -> list:
        def made() -> list:
            tests = scored_on(run)
            at = test if test in tests else tests[0]
            figures = dict(run_figures(run, at))
            name = which if which in figures else next((one for one in figures if "length" in one), next(iter(figures)))
            html = table_html(table(run, at)) + figure_html(
                figures[name], LOOK_FOR.get(name, ""), f"{name} on {at}", narrow
            )
            return [
                offered(test, at, choices=pairs_of(tests), visible=len(tests) > 1),
                offered(which, name, choices=pairs_of(figures), visible=True),
                html,
            ]

        return readable(made, lambda text: [gr.skip(), gr.skip(), text])

    live(compared, inputs, outputs, [], [test, which])
    return {"fn": compared, "inputs": inputs, "outputs": outputs} | RAW


def first_encoding() -> str:
    """What the page begins with: the first registered that answers a hook."""
    return next(name for name, entry in POSITION_ENCODINGS.items() if entry.encoding.embed is not None)


def slider(least: int, most: int, value: int, **look: Any) -> gr.Slider:
    return gr.Slider(least, most, value, step=1, **look)


def pairs_of(names: Iterable[str]) -> list[tuple[str, str]]:
    """What a control offers, as gradio's updates want it: what is written, and what is meant."""
    return [(name, name) for name in names]


def knob_control(knob: Knob, *, visible: bool) -> Any:
    """The control of a config field, of the type that its default says."""
    look: dict[str, Any] = {"label": knob.name, "info": knob.rule, "visible": visible}
    if isinstance(knob.default, bool):
        return gr.Checkbox(knob.default, **look)
    if isinstance(knob.default, str):
        return gr.Textbox(knob.default, **look)
    if isinstance(knob.default, float):
        return gr.Number(knob.default, **look)
    look["info"] += f"; here at most {LARGEST_KNOB}" + ("; 0: None" if knob.default is None else "")
    return gr.Number(knob.default, **look)


def knob_value(knob: Knob, value: Any) -> Any:
    """What a control holds, as the config wants it: a browser has no number that is None."""
    return value or None if knob.default is None else value
