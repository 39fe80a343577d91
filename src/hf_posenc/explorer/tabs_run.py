"""The explorer's tabs *Translate* and *Compare*: a run's models on a sentence, and its table and figures."""

import json
from html import escape
from typing import Any

import gradio as gr

from .choice import MOST_HEADS, MOST_LAYERS, checked_number
from .controls import pairs_of, slider
from .html import figure_html, is_narrow, note, problem, table_html, translation_html
from .live import RAW, live, offered, readable
from .runs import (
    KINDS,
    MOST_BEAMS,
    MOST_SENTENCES,
    MOST_TIMES,
    WRITTEN,
    WRITTEN_NARROW,
    Run,
    attention,
    head_figure,
    joined,
    kept_sentence,
    kept_translations,
    run_figures,
    scored_on,
    sentence,
    table,
    translate,
)


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
            _, german, english = kept_sentence(drawn)
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
            if not (pairs := kept_translations(run, done)):
                return [gr.skip()] * 5
            chosen = system if system in list(pairs) else next(iter(pairs))
            maps = attention(run, chosen, *pairs[chosen])
            if not maps:
                raise ValueError(f"{chosen} has no attention; choose another system.")
            which = kind if kind in KINDS and kind in maps else list(maps)[-1]
            layers, heads = maps[which].weights.shape[:2]
            at = min(checked_number("The layer", layer or 1, 1, MOST_LAYERS), layers)
            of = min(checked_number("The head", head or 1, 1, MOST_HEADS), heads)
            written = WRITTEN_NARROW if is_narrow(narrow) else WRITTEN
            figure = head_figure(maps, chosen, which, at, of, written=written)
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
        def made() -> list:
            number = (kept_sentence(drawn)[0] + 1) % MOST_SENTENCES
            pair = sentence(number)
            return [json.dumps([number, *pair]), pair[0], gr.skip()]

        return readable(made, lambda text: [gr.skip(), gr.skip(), text])

    given, look = [text, times, beams, systems, drawn], [done, *looks, viewport]
    for event in (go.click, text.submit):
        event(translated, given, [results, done, attending], preprocess=False, concurrency_id="translate").then(
            attended, look, [*looks, shown], **RAW
        )
    another.click(next_sentence, drawn, [drawn, text, results], **RAW)
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
            figures = run_figures(run, at)
            kind = which if which in list(figures) else next(kind for kind, one in figures.items() if one.test_set)
            one = figures[kind]
            html = table_html(table(run, at)) + figure_html(one.draw(), one.look_for, one.name, narrow)
            return [
                offered(test, at, choices=pairs_of(tests), visible=len(tests) > 1),
                offered(which, kind, choices=pairs_of(figures), visible=True),
                html,
            ]

        return readable(made, lambda text: [gr.skip(), gr.skip(), text])

    live(compared, inputs, outputs, [], [test, which])
    return {"fn": compared, "inputs": inputs, "outputs": outputs} | RAW
