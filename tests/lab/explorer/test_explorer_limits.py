"""Every request to the explorer stays within the limits of the page, or gets one clear error."""

import asyncio
import json
import logging
import math
from typing import Any

import numpy as np
import pytest
import torch
from support.models import TEXTS_VOCABULARY, tiny_model

from hf_posenc.lab.analysis import probes
from hf_posenc.lab.explorer import runs
from hf_posenc.lab.explorer.runs import (
    EncodingChoice,
    ExplorerRun,
    attention_of_pair,
    parse_sentence,
    parse_translations,
    probes_for,
    translate,
    validate_choice,
    validate_choices,
    validate_number,
    validate_text,
)

SENTENCE = "Ein Hund."
STRANGE: list[Any] = [None, True, -1, 10**400, 1e308, math.nan, "", "nobody", [], [[]], ["relative"] * 99, {}, {"a": 1}]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> ExplorerRun:
    folder = tmp_path_factory.mktemp("run")
    sizes = {"vocab_size": TEXTS_VOCABULARY, "decoder_vocab_size": TEXTS_VOCABULARY, "dtype": torch.float32}
    tiny_model("relative", **sizes).save_pretrained(folder / "relative" / "model")
    tokenizer.save_pretrained(folder / "relative" / "model")
    return ExplorerRun(folder)


@pytest.fixture(scope="module")
def calls(run: ExplorerRun) -> dict[str, tuple[Any, list[Any]]]:
    """Each handler of the page by its name, with what its controls hold when the page opens."""
    pytest.importorskip("gradio")  # here, because its import takes seconds
    from hf_posenc.lab.explorer.page import build_page

    async def made() -> Any:  # outside a loop gradio would open one for each lock, and close none
        return build_page(run)

    events = [event for event in asyncio.run(made()).fns.values() if event.fn is not None]
    calls = {event.fn.__name__: (event.fn, [control.value for control in event.inputs]) for event in events}
    del calls["zoomed"]  # which has the selection of a plot, and no control
    return calls


HANDLERS = {"see": 9, "follow": 9, "stepped": 9, "translated": 5, "first_translated": 6, "attended": 6,
            "next_sentence": 1, "compared": 3, "unzoomed": 0, "typed": 2, "moved": 3, "started": 2, "read_on": 3,
            "inspected": 4}  # fmt: skip


@pytest.mark.full
def test_these_are_all_handlers_of_the_page(calls: Any):
    assert calls.keys() == HANDLERS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("handler", HANDLERS)
def test_a_handler_answers_any_request(calls: Any, handler: str, caplog: pytest.LogCaptureFixture, monkeypatch):
    """Knobs are left to the config, whose fields have types and rules."""
    monkeypatch.setattr(runs, "generate_pairs", lambda **_: iter([(SENTENCE, "A dog.")]))
    fn, values = calls[handler]
    if handler == "attended":
        values[0] = json.dumps({"relative": [SENTENCE, "A dog."]})
    usual = fn(*values)
    for number in range(HANDLERS[handler]):
        for strange in (
            *STRANGE,
            "[" * 100_000,
            json.dumps([1, 2]),
            json.dumps({"relative": [SENTENCE, "Frau " * 2000]}),
        ):
            with caplog.at_level(logging.ERROR):
                answer = fn(*values[:number], strange, *values[number + 1 :])
            assert not caplog.records, (number, str(strange)[:80])
            assert len(answer) == len(usual)


@pytest.mark.parametrize("strange", STRANGE)
def test_what_is_no_choice_is_refused_and_named(strange: Any):
    among = ["relative", "rotary"]
    with pytest.raises(ValueError, match=r"system must be .*relative, rotary, but .*;"):
        validate_choice("The system", strange, among)
    if strange != []:
        with pytest.raises(ValueError, match="ystems must be"):
            validate_choices("The systems", strange, among)
    if strange != "" and strange != "nobody":
        with pytest.raises(ValueError, match=r"sentence must be .* 10 characters, but"):
            validate_text("The sentence", strange, 10)
    if strange != -1:
        with pytest.raises(ValueError, match=r"D must be .* -1 to 5, but it is .{1,100};"):
            validate_number("D", strange, -1, 5)


def test_a_message_does_not_repeat_a_long_input():
    for refused in (
        lambda: validate_choice("The system", "x" * 10**6, ["relative"]),
        lambda: validate_choices("The systems", ["x" * 10**6], ["relative"]),
        lambda: validate_choices("The systems", ["x"] * 10**5, ["relative"]),
        lambda: validate_text("The sentence", "x" * 10**6, 10),
        lambda: validate_number("D", "9" * 10**6, 1, 5),
    ):
        with pytest.raises(ValueError) as error:
            refused()
        assert len(str(error.value)) < 300


def test_a_system_translates_once_however_often_it_is_asked_for(run: ExplorerRun):
    for systems in (["relative"] * 1000, ["relative", "relative"], "relative", [["relative"]]):
        with pytest.raises(ValueError, match="ystems must be"):
            translate(run, systems, SENTENCE, 1, 1)


@pytest.mark.parametrize("words", [401, 5000])
def test_attention_has_the_limits_of_a_translation(run: ExplorerRun, words: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runs, "compute_attention_maps", lambda *_: pytest.fail("it was computed"))
    with pytest.raises(ValueError, match=r"up to 400 subwords|at most 20000 characters"):
        attention_of_pair(run, "relative", "Ein " * words, "A dog.")
    with pytest.raises(ValueError, match="at most 20000 characters"):
        attention_of_pair(run, "relative", SENTENCE, "Ein " * 5001)


def test_attention_is_plotted_up_to_the_maximum_target_length(run: ExplorerRun):
    model, tokenizer = run.load_model("relative")
    (most,) = model.max_target_lengths([len(tokenizer(SENTENCE)["input_ids"])])
    maps = attention_of_pair(run, "relative", SENTENCE, "Ein " * 2000)
    assert len(maps["decoder"].queries) == most + 1


@pytest.mark.parametrize(
    "text", [*STRANGE, "[1]", '{"nobody": ["a", "b"]}', '{"relative": "abc"}', '{"relative": []}', "[" * 10**5]
)
def test_what_a_page_has_kept_is_checked(run: ExplorerRun, text: Any):
    for read in (parse_sentence, lambda text: parse_translations(run, text)):
        with pytest.raises(ValueError, match=r"A page must send .*cannot be read"):
            read(text)


def test_what_a_page_has_kept_is_read():
    assert parse_sentence(json.dumps([3, "ä", "b"])) == (3, "ä", "b")


def test_many_queries_of_a_wide_head_are_computed_in_blocks(monkeypatch: pytest.MonkeyPatch):
    """All at once, the unit queries of one head of 1024 channels have keys of a gigabyte."""
    subject = probes_for(EncodingChoice(encodings=("deberta", "relative"), width=24, heads=2))["attention"]
    asked = []
    score_biases = probes.score_biases_at

    def counted(positions: Any, q_NHK: Any, pos_1Q: Any, pos_1S: Any, layer: int) -> Any:
        asked.append(q_NHK.numel() * pos_1S.shape[1])
        return score_biases(positions, q_NHK, pos_1Q, pos_1S, layer)

    monkeypatch.setattr(probes, "score_biases_at", counted)
    queries = probes.standard_normal(30, 2, 12)
    found = {}
    for most in (2**22, 2000):
        asked.clear()
        found[most] = probes.score_biases_by_distance(subject.positions, queries, np.arange(-9, 10), 0, most)
        assert max(asked) <= most
    np.testing.assert_allclose(found[2**22], found[2000], rtol=1e-12, atol=1e-12)
