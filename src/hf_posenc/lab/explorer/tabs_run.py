"""The explorer's tabs *Translate* and *Compare*: translations by a run's models, its table and figures."""

import json
from html import escape

import gradio as gr

from .html import error_html, figure_html, is_narrow, note_html, table_html, translation_html
from .runs import (
    ATTENTION_KINDS,
    MAX_BEAMS,
    MAX_LABELS,
    MAX_LABELS_NARROW,
    MAX_REPEATS,
    MAX_SENTENCE_NUMBER,
    ExplorerRun,
    attention_of_pair,
    generated_sentence,
    head_figure,
    parse_sentence,
    parse_translations,
    repeat_sentence,
    run_figures,
    score_table,
    scored_test_sets,
    translate,
)
from .state import MAX_HEADS, MAX_LAYERS, validate_number
from .widgets import (
    UNQUEUED,
    EventOptions,
    connect_events,
    dropdown_choices,
    show_errors,
    slider,
    update_unless_equal,
)  # fmt: skip


def translate_tab(run: ExplorerRun, viewport: gr.Number) -> None:
    german, english = generated_sentence(0)
    if not run.trained:
        gr.HTML(
            note_html(
                "No run was given: these models are small and untrained, so what they write is noise. Start the "
                "page with a run of train.py, `python -m hf_posenc explorer runs/quickstart`, for translations "
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
