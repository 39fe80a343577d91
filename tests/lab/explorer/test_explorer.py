"""The explorer: its plots and numbers are those of the hooks, and its page works in a browser."""

import importlib.util
import json
import math
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from matplotlib.figure import Figure
from PIL import Image
from support.experiments import ONE_SYSTEM
from support.models import REGISTERED, SUMS, TEXTS_VOCABULARY, tiny_model
from transformers import BartConfig

from hf_posenc import POSITION_ENCODINGS, PositionEncoding, register_position_encoding, sinusoids
from hf_posenc.lab import explorer
from hf_posenc.lab.analysis.probes import PlotExtent, added_vectors, untrained_probes
from hf_posenc.lab.data.synthetic import generate_pairs
from hf_posenc.lab.explorer.html import figure_html, render_png, table_html, translation_html
from hf_posenc.lab.explorer.runs import (
    HOOK_LABELS,
    EncodingChoice,
    ExplorerRun,
    Probes,
    TranslationResult,
    attention_of_pair,
    depends_on_heads,
    depends_on_side,
    describe_probe,
    generated_sentence,
    head_figure,
    parameter_value,
    parameters_of_encodings,
    probes_for,
    repeat_sentence,
    run_figures,
    scored_test_sets,
    translate,
)
from hf_posenc.lab.explorer.views import (
    affordable_tokens,
    encoding_views,
    explain_value,
    fit_wave,
    length_plot,
)
from hf_posenc.lab.figures.attention_figures import attention_figures, translate_with_attention
from hf_posenc.lab.figures.style import LazyFigure
from hf_posenc.lab.results.tables import Table, TableRows
from hf_posenc.lab.run.train import train_systems

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "docs" / "results" / "quickstart" / "results.json"
SENTENCE = "Ein Hund."
# Where a run's results hold something for each test set.
OF_TESTS = ("tests", "diagnostics")


def of(*encodings: str, **sizes: Any) -> Probes:
    return probes_for(EncodingChoice(encodings=encodings, **({"width": 24, "heads": 2} | sizes)))


@pytest.mark.full
@pytest.mark.parametrize("side", ["encoder", "decoder"])
@pytest.mark.parametrize("encodings", REGISTERED + SUMS)
def test_every_encoding_is_plotted_by_its_hooks(encodings, side):
    subjects = of(*encodings.split("+"), side=side)
    hooks = subjects["attention"].hooks
    labels = [HOOK_LABELS[hook] for hook in hooks] or ["changes nothing"]
    assert describe_probe(subjects["attention"]).startswith("; ".join(labels))
    for positions in (16, 70):
        made = encoding_views(subjects, positions)
        assert bool(made) == bool(hooks)
        assert {"Rotation"} & set(made) == ({"Rotation"} if "rotate_queries" in hooks else set())
        assert ("Scores" in made) == ("score_bias" in hooks)
        assert bool({"Heat map", "Influence"} & set(made)) == ("embed" in hooks)
        for picture in made.values():
            assert picture.look_for.endswith(".") and picture.draw().axes


def test_a_new_figure_of_an_encoding_brings_its_caption_with_it(monkeypatch):
    new = LazyFigure("Mirrored", "Look twice.", Figure)
    monkeypatch.setattr("hf_posenc.lab.figures.encoding_plots.score_bias_figures", lambda _: {"mirror-all": new})
    assert encoding_views(of("relative"), 16)["Mirrored"] == new
    with pytest.raises(TypeError, match="look_for"):
        LazyFigure("Mirrored", draw=Figure)


@pytest.mark.full
def test_plots_have_the_chosen_number_of_positions():
    for positions, rows in ((3, 3), (60, 60), (61, 61), (400, 133)):
        heat, distance = (
            encoding_views(of("sinusoidal", "relative"), positions)[name].draw() for name in ("Heat map", "Scores")
        )
        assert heat.axes[0].images[0].get_array().shape == (rows, 24)
        reach = min(positions - 1, 64)
        assert list(distance.axes[0].lines[0].get_xdata()) == list(range(-reach, reach + 1))


def test_the_scores_figure_of_a_decoder_has_no_future_keys():
    for side, last in (("encoder", 15), ("decoder", 0)):
        figure = encoding_views(of("relative", side=side), 16)["Scores"].draw()
        assert figure.axes[0].lines[0].get_xdata()[-1] == last


@pytest.mark.full
def test_plots_are_not_blank():
    for picture in encoding_views(of("sinusoidal"), 16).values():
        assert len(set(render_png(picture.draw()))) > 100


def test_a_custom_encoding_is_plotted_in_the_explorer(unregistered_after):
    class Near(PositionEncoding):
        def score_bias(self, q_BHQK, k_BHSK, ctx):
            return -ctx.distance_BQS.abs()[:, None].to(q_BHQK.dtype)

    register_position_encoding("near", Near, summary="Near is dear.", shift_invariant=True)
    assert set(encoding_views(of("near"), 16)) == {"Scores"}, "a bias that no query changes has no vectors"
    assert "-5.000000 in score" in " ".join(explain_value(of("near")["attention"], 5, 0).lines)


def test_what_heads_do_not_change_has_no_control_for_them():
    assert depends_on_heads(("rotary",)) and depends_on_heads(("sinusoidal", "relative"))
    assert not depends_on_heads(("sinusoidal", "gru")) and not depends_on_heads(("none",))
    assert depends_on_side(("gru",)) and depends_on_side(("rotary",)) and not depends_on_side(("learned", "sinusoidal"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 10**9}, "D must be a whole number from 1 to 1024, but it is 1000000000"),
        ({"width": 7.5}, "D must be a whole number"),
        ({"width": None}, "but it is None"),
        ({"width": math.nan}, "but it is nan"),
        ({"heads": True}, "heads must be a whole number"),
        ({"heads": 5}, "d_model must be a multiple of the number of heads"),
        ({"parameters": (("relative_clip", 10**9),)}, "`relative_clip` up to 4096"),
        ({"parameters": (("relative_clip", 0),)}, "1 or more"),
        ({"parameters": (("relative_clip", None),)}, "relative_clip"),
        ({"encodings": ()}, "none is chosen"),
        ({"encodings": ("relative", "relative_key")}, "presets of one encoding"),
        ({"encodings": ("nonsense",)}, "no registered position encoding"),
    ],
)
def test_invalid_plot_requests_are_refused_with_the_reason(change, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        encoding_views(of(*change.pop("encodings", ("relative",)), **change), 16)


@pytest.mark.parametrize("positions", [-5, 2, 4097, None, 7.5])
def test_too_many_positions_are_refused(positions):
    with pytest.raises(ValueError, match=r"positions must be .* 3 to 4096"):
        encoding_views(of("relative"), positions)


def test_positions_past_a_table_are_refused_by_the_encoding():
    with pytest.raises(ValueError, match="`learned` has the positions 0 to 9"):
        encoding_views(of("learned", parameters=(("learned_max_positions", 10),)), 20)["Heat map"].draw()


def test_requests_that_take_too_long_are_refused():
    with pytest.raises(ValueError, match=r"20000000 parameters, but .* 34078744"):
        of("lstm", parameters=(("lstm_hidden_size", 2048),))
    wide = untrained_probes("lstm", {"d_model": 1024}, "encoder", PlotExtent())["influence"]
    with pytest.raises(ValueError, match="the page has time for 2e"):
        affordable_tokens(wide, 24)
    assert affordable_tokens(of("lstm", width=8)["influence"], 3) == 3


@pytest.mark.full
def test_expensive_plots_have_fewer_tokens():
    made = encoding_views(of("lstm", width=32, heads=1, parameters=(("lstm_hidden_size", 1024),)), 24)["Influence"]
    tokens = affordable_tokens(of("lstm", width=32, heads=1, parameters=(("lstm_hidden_size", 1024),))["influence"], 24)
    assert 4 < tokens < 16
    assert made.look_for.endswith(f"drawn at D = 24 and {tokens} tokens.")


@pytest.mark.parametrize("width", [1, 7, 50])
def test_a_sinusoid_is_labelled_with_the_numbers_of_its_formula(width):
    one = of("sinusoidal", width=width, heads=1)["attention"]
    for channel in range(width):
        wave = fit_wave(one, channel)
        assert wave is not None and wave.amplitude == pytest.approx(1)
        assert wave.divisor == pytest.approx(10000 ** (2 * (channel // 2) / width), rel=1e-6)
        for position in (0, 3, 500):
            found = explain_value(one, position, channel)
            expected = float(sinusoids(torch.tensor(position), width, torch.float64)[channel])
            assert found.value == pytest.approx(expected, abs=1e-12)
            assert f"{expected:.6f}" in found.lines[0]
            assert ("cos(" if channel % 2 else "sin(") in found.lines[0]


def test_the_number_of_a_step_is_the_hooks_own(registered):
    one = of(registered)["attention"]
    found = explain_value(one, 5, 3)
    assert one.is_additive == (registered in ("sinusoidal", "learned", "shape", "cape"))
    if one.is_additive:
        assert found.value == added_vectors(one.positions, 24, 6)[5, 3]
    else:
        assert found.value is None
    assert found.lines
    reads = POSITION_ENCODINGS[registered].is_stateful and "score_bias" in one.hooks
    assert any("depends on the tokens between it and the query" in line for line in found.lines) == reads
    assert any("in score" in line for line in found.lines) == ("score_bias" in one.hooks and not reads)


def test_a_rotated_unit_vector_is_cosine_and_sine():
    (line,) = explain_value(of("rotary", heads=1)["attention"], 5, 0).lines
    assert f"{math.cos(5):+.6f} in channel 0, {math.sin(5):+.6f} in channel 1" in line


def test_the_formula_is_the_encodings_own_and_a_sum_has_those_of_its_parts():
    formula = explain_value(of("sinusoidal", "relative")["attention"], 0, 0).formula.splitlines()
    assert {"PE[p, 2c] = sin(p / b^(2c/D))", "d = clip(j - i, -tau, tau)"} <= set(formula)
    assert explain_value(of("none")["attention"], 0, 0).formula == ""


def test_a_step_off_the_vector_is_refused():
    for position, channel in ((0, 24), (0, -1), (-1, 0), (10**6, 0), (1.5, 0), (None, 0)):
        with pytest.raises(ValueError, match="must be a whole number"):
            explain_value(of("sinusoidal")["attention"], position, channel)
    with pytest.raises(ValueError, match=r"layer must be .* 1 to 1"):
        explain_value(of("relative")["attention"], 0, 0, layer=2)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory, tokenizer) -> Path:
    """Three systems, of which `short` has a table of 12 positions; one of a strange family; and saved results."""
    folder = tmp_path_factory.mktemp("run")
    sizes = {"vocab_size": TEXTS_VOCABULARY, "decoder_vocab_size": TEXTS_VOCABULARY, "dtype": torch.float32}
    for system, sides, parameters in (
        ("relative", "relative", {}),
        ("short", "learned", {"learned_max_positions": 12}),
        ("rnn", "rnn_nmt", {}),
    ):
        tiny_model(sides, **sizes, **parameters).save_pretrained(folder / system / "model")
        tokenizer.save_pretrained(folder / system / "model")
    BartConfig().save_pretrained(folder / "strange" / "model")
    shutil.copy(RESULTS, folder / "results.json")
    return folder


@pytest.fixture(scope="module")
def run(run_folder: Path) -> ExplorerRun:
    return ExplorerRun(run_folder)


def test_systems_are_those_with_a_model(run: ExplorerRun):
    assert run.systems == ["relative", "rnn", "short", "strange"], "first those of the results, in their order"


@pytest.mark.slow
def test_the_first_sentence_and_systems_are_those_of_the_run(tmp_path: Path) -> None:
    config = tmp_path / "tiny.yaml"
    systems = {"relative": {}, "rotary": {"model": {"position_encoding_type": "rotary"}}}
    settings = ONE_SYSTEM | {"systems": systems, "seeds": [1, 2]}
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    train_systems(str(config), [f"output_dir={tmp_path}", "train.max_steps=1"])
    opened = ExplorerRun(tmp_path / "tiny")
    assert opened.first_systems() == ["relative-seed1", "rotary-seed1"]
    (first, _), (second, _) = generate_pairs(**settings["data"]["test"]["generated"]["generator"])
    assert [opened.example(number)[0] for number in range(3)] == [first, second, first]
    shutil.rmtree(tmp_path / "tiny" / "data")
    assert ExplorerRun(tmp_path / "tiny").example(1) == generated_sentence(1)


@pytest.mark.full
def test_trained_encodings_are_those_of_the_checkpoint(run: ExplorerRun):
    model, _ = run.load_model("relative")
    for side, where in (("encoder", slice(None)), ("decoder", slice(0, 4))):
        subjects = run.probes("relative", side)
        table_LVK = getattr(model.model, side).positions[0].keys.detach().double().numpy()
        figure = encoding_views(subjects, 4)["Vectors"].draw()
        shown = [line.get_ydata() for axes in figure.axes for line in axes.lines if line.get_label() == "keys"]
        rows = np.arange(-3, 4)[where] + (table_LVK.shape[1] - 1) // 2
        for layer, table_VK in enumerate(table_LVK):
            np.testing.assert_allclose(shown[layer], np.linalg.norm(table_VK[rows], axis=1), atol=1e-6)
            one = subjects["attention"]
            found = explain_value(one, 2, 1, layer + 1)
            score = table_VK[rows[1], 1] / one.head_dim**0.5
            assert any(f"2 tokens back {score:+.6f} in score" in line for line in found.lines)
            assert ("ahead" in " ".join(found.lines)) == (side == "encoder")
    assert "trained: D" in describe_probe(one) and "decoder" in describe_probe(one)
    with pytest.raises(ValueError, match="posenc_rnn_nmt"):
        run.probes("rnn", "encoder")
    with pytest.raises(ValueError, match="'bart'"):
        run.probes("strange", "encoder")
    with pytest.raises(ValueError, match="`learned` has the positions 0 to 11"):
        encoding_views(run.probes("short", "encoder"), 16)["Heat map"].draw()


@pytest.mark.full
def test_a_sentence_is_translated_by_each_system_or_the_reason_is_given(run: ExplorerRun):
    found = translate(run, run.systems, f"  {SENTENCE}\n", 1, 2)
    model, tokenizer = run.load_model("relative")
    assert found["relative"].text == model.translate([SENTENCE], tokenizer, num_beams=2)[0]
    assert not found["short"].problem and not found["rnn"].problem
    assert "'bart'" in found["strange"].problem and "choose another" in found["strange"].problem


@pytest.mark.full
def test_a_sentence_past_a_table_says_so_and_keeps_no_other_from_it(run: ExplorerRun):
    found = translate(run, ["relative", "short"], "Zwei Kinder im Schnee", 10, 1)
    assert found["relative"].source_tokens > 12 and not found["relative"].problem
    assert "at most 12 tokens, as many as there are positions for" in found["short"].problem


@pytest.mark.parametrize(
    ("text", "times", "beams", "message"),
    [
        (" \n", 1, 1, "the box is empty"),
        (None, 1, 1, "the box is empty"),
        (SENTENCE, 11, 1, "from 1 to 10"),
        (SENTENCE, 1, 0, "The width of the beam"),
        ("a" * 30000, 1, 1, "at most 20000 characters"),
        ("a" * 3000, 10, 1, "up to 20000 characters, but this is 3000 x 10"),
        ("Ein \ud83d Hund", 1, 1, r"must be UTF-8, but the sentence has half a character, '\\ud83d', at index 4"),
    ],
)
def test_sentences_that_cannot_be_translated(run: ExplorerRun, text, times, beams, message):
    with pytest.raises(ValueError, match=message):
        translate(run, ["relative"], text, times, beams)
    with pytest.raises(ValueError, match="none is ticked"):
        translate(run, [], SENTENCE, 1, 1)


def test_a_sentence_of_too_many_subwords(run: ExplorerRun):
    assert "up to 400 subwords" in translate(run, ["relative"], "qx" * 900, 1, 1)["relative"].problem
    assert repeat_sentence(" a  b\n", 2) == "a b a b"


def test_attention_is_the_models_and_its_rows_sum_to_one(run: ExplorerRun):
    maps = attention_of_pair(run, "relative", SENTENCE, "Zwei Hunde")
    assert set(maps) == {"encoder", "decoder", "cross"}
    for kind, one in maps.items():
        assert one.weights.shape[2:] == (len(one.queries), len(one.keys))
        np.testing.assert_allclose(one.weights.sum(-1), 1, atol=1e-5)
        assert head_figure(maps, "relative", kind, 2, 1)
    assert np.triu(maps["decoder"].weights[0, 0], 1).max() == 0, "nobody looks ahead"
    assert set(attention_of_pair(run, "rnn", SENTENCE, "Hund")) == {"cross"}
    for layer, head in ((0, 1), (9, 1), (1, 99)):
        with pytest.raises(ValueError, match="attention must be a whole number"):
            head_figure(maps, "relative", "cross", layer, head)
    with pytest.raises(ValueError, match="has no attention of the kind"):
        head_figure({}, "rnn", "encoder", 1, 1)


def test_a_number_is_of_the_kind_that_its_field_has() -> None:
    """A browser writes 10000.0 as 10000, which is no size."""
    fields = parameters_of_encodings(("pope", "relative"))
    assert (
        parameter_value(fields["pope_theta"], 10000) == 10000.0
        and type(parameter_value(fields["pope_theta"], 10000)) is float
    )
    assert probes_for(
        EncodingChoice(encodings=("pope",), parameters=(("pope_theta", parameter_value(fields["pope_theta"], 10000)),))
    )
    assert type(parameter_value(fields["relative_clip"], 8)) is int


@pytest.mark.full
def test_attention_is_that_of_the_command_line(run: ExplorerRun, monkeypatch: pytest.MonkeyPatch):
    """The same arrays and labels of the same translation, and the same panel with a head's number above it.

    `generate` is patched, because the text of an untrained model's own translation is tokenized otherwise.
    """
    model, tokenizer = run.load_model("relative")
    written = torch.tensor([[model.config.decoder_start_token_id, *tokenizer(text_target="Zwei Hunde.")["input_ids"]]])
    monkeypatch.setattr("transformers.GenerationMixin.generate", lambda *_, **__: written)
    translation, expected = translate_with_attention(model, tokenizer, SENTENCE)
    maps = attention_of_pair(run, "relative", SENTENCE, translation)
    for kind, one in expected.items():
        np.testing.assert_array_equal(maps[kind].weights, one.weights)
        assert asdict(maps[kind]) | {"weights": None} == asdict(one) | {"weights": None}
    printed = dict(attention_figures(expected))["attention-cross-layer-2"].axes[2]
    (panel, _) = head_figure(maps, "relative", "cross", 2, 3).axes
    np.testing.assert_array_equal(panel.images[0].get_array(), printed.images[0].get_array())
    for look in ("get_title", "get_aspect"):
        assert getattr(panel, look)() == getattr(printed, look)()
    for drawn, tokens in ((panel.get_xticklabels(), "keys"), (panel.get_yticklabels(), "queries")):
        assert [text.get_text() for text in drawn] == getattr(expected["cross"], tokens)
        assert not any(text.get_parse_math() for text in drawn)


@pytest.mark.full
def test_tokens_without_space_are_numbered(run: ExplorerRun):
    maps = attention_of_pair(run, "relative", " ".join(["Hund"] * 60), "Zwei Hunde und zwei Kinder im Schnee.")
    panel, _ = (figure := head_figure(maps, "relative", "cross", 1, 1)).axes
    assert panel.get_xlim()[1] > 100 and len(panel.get_xticks()) < 20
    assert len(panel.get_yticks()) == len(maps["cross"].queries) > 15
    render_png(figure)
    assert panel.get_window_extent().height / figure.dpi / len(panel.get_yticks()) > 0.12, "inches of a label"
    narrow, _ = head_figure(maps, "relative", "decoder", 1, 1, max_labels=3).axes
    assert len(narrow.get_yticks()) != len(maps["decoder"].queries)


@pytest.mark.full
def test_the_figures_are_those_of_the_report(run: ExplorerRun):
    (test,) = scored_test_sets(run)
    made = run_figures(run, test)
    assert {"loss", "bleu-by-length"} <= set(made)
    assert {f"{one.name}.png" for one in made.values()} == {path.name for path in RESULTS.parent.glob("*.png")}
    for one in made.values():
        assert one.look_for.endswith(".") and one.draw().axes


def test_the_plot_has_every_score_of_a_large_bucket_and_marks_the_training_length(run: ExplorerRun):
    (test,) = scored_test_sets(run)
    rows = TableRows.of(run.results())
    title, note, plot = length_plot(rows, test)
    expected = {
        (bucket.high, round(bucket.score("bleu"), 2), row)
        for row, tests in rows.scores.items()
        for bucket in tests[test].buckets
        if bucket.n >= 20
    }
    points = [point[:3] for point in plot["value"]["data"]]
    found = [point for point in points if not point[2].startswith("trained")]
    assert set(found) == expected and len(found) == len(expected) >= 2 * len(rows.scores)
    mark = [point for point in points if point[2].startswith("trained")]
    assert mark == [(24, 0, "trained to 24"), (24, max(point[1] for point in found), "trained to 24")]
    longest = sorted(point[1] for point in found if point[0] == max(expected)[0])
    assert title.startswith("Trained up to 24 subwords: BLEU at ")
    assert f"is {longest[-1]:.1f} (" in title and f"to {longest[0]:.1f} (" in title
    assert {name for _, _, name in points} == plot["color_map"].keys() and "preliminary" in note
    assert test in plot["title"], "else the plot of another test set is not drawn"


def test_the_plot_of_small_buckets_alone_has_all_of_them(run: ExplorerRun, monkeypatch: pytest.MonkeyPatch):
    (test,) = scored_test_sets(run)
    rows = TableRows.of(run.results())
    _, note, plot = length_plot(rows, test)
    assert "Lengths with fewer than 20 pairs are in the table alone." in note
    monkeypatch.setattr("hf_posenc.lab.explorer.views.MIN_PAIRS", 1000)
    _, note, all_small = length_plot(rows, test)
    assert "Every length has fewer than 1000 pairs." in note and "table alone" not in note
    assert len(all_small["value"]["data"]) > len(plot["value"]["data"])


def test_a_figure_is_of_the_test_set_that_is_chosen(tmp_path: Path):
    """Also where one test set's name ends in another's."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    (test,) = results["comparisons"]
    names = ("news", "old-news", "loss")
    for scores in (results["comparisons"], *(run[part] for run in results["systems"].values() for part in OF_TESTS)):
        scores |= dict.fromkeys(names, scores.pop(test))
    (tmp_path / "results.json").write_text(json.dumps(results | {"reference_table": None}), encoding="utf-8")
    run = ExplorerRun(tmp_path)
    assert scored_test_sets(run) == list(names)
    kinds = ["loss", "bleu-by-length", "loss-by-position"]
    kinds += ["attention-entropy", "place", "end-forbidden"]
    for name in names:
        made = run_figures(run, name)
        assert list(made) == kinds
        assert [one.test_set for one in made.values()] == [None, *[name] * (len(kinds) - 1)]


def test_a_folder_without_results_or_models(tmp_path: Path):
    empty = ExplorerRun(tmp_path)
    assert empty.systems == []
    with pytest.raises(ValueError, match="there is none in"):
        scored_test_sets(empty)
    with pytest.raises(ValueError, match="is none; name one"):
        ExplorerRun(tmp_path / "nowhere")


@pytest.mark.full
def test_without_a_run_untrained_models_stand_in():
    bare = ExplorerRun()
    assert bare.systems and all("untrained" in system for system in bare.systems)
    found = translate(bare, bare.systems[:1], generated_sentence(0)[0], 1, 1)
    assert not next(iter(found.values())).problem
    with pytest.raises(ValueError, match="started without a run"):
        scored_test_sets(bare)


@pytest.mark.full
def test_what_people_write_is_no_html():
    evil = "<script>alert(1)</script>"
    written = translation_html(evil, TranslationResult(text=evil)) + translation_html(
        "a", TranslationResult(problem=evil)
    )
    written += table_html(Table([evil], [[evil]], evil))
    written += figure_html(encoding_views(of("sinusoidal"), 16)["Curves"].draw(), evil, f'"{evil}', 1000)
    assert "<script>" not in written and written.count("&lt;script&gt;") >= 6


def test_the_modules_that_know_gradio_are_those_it_says():
    modules = Path(explorer.__file__).parent.glob("*.py")
    knowing = {path.name for path in modules if "import gradio" in path.read_text(encoding="utf-8")}
    (says,) = (part for part in explorer.__doc__.split(";") if "gradio" in part)
    assert set(re.findall(r"`(\w+\.py)`", says)) == knowing


# From here on: in a browser.

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
MISSING = [name for name in ("gradio", "playwright") if importlib.util.find_spec(name) is None]
OPTIONS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
           "--disable-background-networking", "--disable-component-update"]  # fmt: skip
in_a_browser = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(MISSING), reason=f"not installed: {', '.join(MISSING)}; pip install '.[explorer]' playwright"
    ),
    pytest.mark.skipif(BROWSER is None, reason="no Chromium: apt-get install chromium"),
]
WIDTHS = {"desktop": (1280, 900), "phone": (390, 844)}


def served(*arguments: str, folder: Path | None = None) -> Iterator[str]:
    """The page of `hf-posenc explorer`, as a user starts it, or of a Space's folder, as the Hub starts it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["app.py"] if folder else ["-m", "hf_posenc", "explorer", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GRADIO_SERVER_PORT": str(port)}
    with subprocess.Popen([sys.executable, *command], env=environment, cwd=folder) as server:
        try:
            while server.poll() is None:
                with socket.socket() as asked:
                    if asked.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.1)
            assert server.poll() is None, "the explorer has stopped"
            yield f"http://127.0.0.1:{port}/"
            assert server.poll() is None, "the explorer has stopped"
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def address(run_folder: Path) -> Iterator[str]:
    yield from served(str(run_folder))


@pytest.fixture(scope="module")
def bare_address() -> Iterator[str]:
    yield from served()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        yield playwright.chromium


@pytest.fixture
def opened(chromium, tmp_path: Path) -> Iterator[Any]:
    """Opens pages, each in a browser of its own; none may ask another server, or fail in its own code."""
    browsers, flaws = [], []

    def page_at(address: str, width: str = "desktop") -> Any:
        size = dict(zip(("width", "height"), WIDTHS[width], strict=True))
        browser = chromium.launch_persistent_context(
            tmp_path / f"browser-{len(browsers)}",
            executable_path=BROWSER,
            args=OPTIONS,
            viewport=size,
            has_touch=width == "phone",
        )
        browsers.append(browser)
        page = browser.new_page()
        page.set_default_timeout(300_000)  # a machine may have much other work
        page.on(
            "request", lambda request: request.url.startswith((address, "data:", "blob:")) or flaws.append(request.url)
        )
        page.on("pageerror", lambda error: flaws.append(str(error)))
        page.goto(address)
        tab(page, "See")
        page.wait_for_selector("#see img")
        return page

    yield page_at
    for browser in browsers:
        browser.close()
    assert not flaws


def image(page: Any, where: str) -> str:
    return page.locator(f"{where} img").first.get_attribute("src")


def changed(page: Any, where: str, before: str) -> str:
    """The picture, once it is another one."""
    page.wait_for_function(
        "([where, before]) => (document.querySelector(where + ' img') || {src: before}).src != before",
        arg=[where, before],
    )
    return image(page, where)


def picture(page: Any, name: str) -> str:
    """The picture of that name, once it is chosen and shown."""
    page.get_by_label(name, exact=True).check()
    page.locator(f"#see img[alt^='{name} of']").wait_for()
    return image(page, "#see")


def typed(page: Any, label: str, value: Any) -> None:
    box = page.get_by_label(f"number input for {label}").locator("visible=true").first
    box.fill(str(value))
    box.press("Enter")


def choose(page: Any, *encodings: str) -> None:
    box = page.get_by_label("Encoding, or several for their sum").first
    box.click()
    for _ in range(3):
        page.keyboard.press("Backspace")
    for name in encodings:
        box.fill(name)
        page.keyboard.press("Enter")
    page.keyboard.press("Escape")


def tab(page: Any, name: str) -> None:
    """Open a tab, by the menu of those for which the screen is too narrow if it is there."""
    page.get_by_role("tab", name="See").wait_for()
    page.wait_for_timeout(500)  # by then the tabs that do not fit are in the menu
    if page.get_by_role("tab", name=name).count():
        page.get_by_role("tab", name=name).click()
        return
    page.get_by_label("More tabs").click()
    page.locator(".overflow-dropdown button", has_text=name).click()


class TestPage:
    pytestmark = in_a_browser

    def test_every_control_of_see_changes_the_picture(self, address, opened):
        page = opened(address)
        seen = {image(page, "#see")}
        now = next(iter(seen))
        for label, value in (("Positions", 200), ("D, the model's width", 64)):
            typed(page, label, value)
            now = changed(page, "#see", now)
        for name in ("Curves", "By distance", "Wavelengths", "Heat map"):
            now = picture(page, name)
            seen.add(now)
        assert len(seen) == 5, "the first, before positions and D, and one of each name"
        choose(page, "relative", "rotary")
        page.locator(
            "#see .facts", has_text="rotates keys; adds to attention scores"
        ).wait_for()  # the pictures of both, not of one
        before = picture(page, "Scores")
        now = picture(page, "Rotation")
        assert now != before
        typed(page, "Heads, among which D is divided", 4)
        now = changed(page, "#see", now)
        now = picture(page, "Vectors")
        page.get_by_label("relative_clip").first.focus()  # the mouse stays where it was
        colours = [page.get_by_label(name, exact=True).evaluate("radio => getComputedStyle(radio).backgroundColor")
                   for name in ("Vectors", "Scores")]  # fmt: skip
        assert colours[0] != colours[1], "what is chosen looks so"
        box = page.get_by_label("relative_clip").first
        box.fill("4")
        now = changed(page, "#see", now)
        assert "adds to attention scores" in page.locator("#see").inner_text()
        choose(page, "none")
        page.get_by_text("has nothing to draw").wait_for()

    def test_two_encodings_are_side_by_side(self, address, opened):
        page = opened(address)
        for second, expected in (("rotary", "Rotation of rotary"), ("relative, as trained", "Scores of relative")):
            box = page.get_by_label("Next to it").first
            box.fill(second)
            page.get_by_role("option", name=second, exact=True).click()
            name = expected.split()[0]
            page.get_by_label(name, exact=True).check()
            page.locator(f"#see img[alt='{expected}']").wait_for()
            page.get_by_text(f"`sinusoidal` has nothing to draw as {name}.").wait_for()
        page.get_by_label("Heat map", exact=True).check()
        page.locator("#see img[alt='Heat map of sinusoidal']").wait_for()

    def test_a_control_changed_during_a_request_takes_effect(self, address, opened):
        page = opened(address)
        for name in ("Curves", "Heat map", "By distance"):
            for value in (4096, 3000):
                typed(page, "Positions", value)
            picture(page, name)

    def test_the_number_of_a_step_is_what_the_hook_adds(self, address, opened):
        page = opened(address)
        tab(page, "Step")
        for position, channel, width in ((5, 6, 50), (0, 1, 50), (17, 40, 64), (2000, 3, 512)):
            for label, value in (("D, the model", width), ("Position p", position), ("Channel", channel)):
                typed(page, label, value)
            expected = float(sinusoids(torch.tensor(position), width, torch.float64)[channel])
            text = f"channel {channel} at position {position}, D = {width}"
            page.locator("#step .note", has_text=text).first.wait_for()
            shown = float(page.locator("#step .number").get_attribute("data-value"))
            assert shown == pytest.approx(expected, abs=1e-9)
            denominator = 10000 ** (2 * (channel // 2) / width)
            function = math.cos if channel % 2 else math.sin
            assert shown == pytest.approx(function(position / denominator), abs=1e-9), "as the formula says"

    def test_a_trained_encoding_is_seen_and_stepped_through(self, address, opened, run: ExplorerRun):
        page = opened(address)
        for name in ("See", "Step"):
            tab(page, name)
            page.get_by_label("Encodings of").locator("visible=true").click()
            page.get_by_role("option", name="relative, as trained").locator("visible=true").click()
            page.get_by_label("decoder", exact=True).locator("visible=true").check()
        typed(page, "Layer", 2)
        table_LVK = run.load_model("relative")[0].model.decoder.positions[0].keys.detach()
        score = float(table_LVK[1, 0, 6 % table_LVK.shape[2]]) / table_LVK.shape[2] ** 0.5
        page.locator("#step", has_text=f"5 tokens back {score:+.6f} in score").wait_for()
        tab(page, "See")
        page.locator("#see .facts", has_text="relative in the decoder, trained").wait_for()
        assert not page.get_by_label("D, the model's width").locator("visible=true").count()

    def test_a_sentence_is_translated_side_by_side_and_attention_is_shown(self, address, opened, run: ExplorerRun):
        page = opened(address)
        tab(page, "Translate")
        page.wait_for_selector("#attention img")
        assert "reference" in page.locator("#translations").inner_text(), "the tab opens with a translation"
        first = image(page, "#attention")
        page.get_by_label("Sentence to translate").fill(SENTENCE)
        typed(page, "Repeat", 1)
        page.get_by_role("button", name="Translate", exact=True).click()
        changed(page, "#attention", first)
        model, tokenizer = run.load_model("relative")
        text = page.locator("#translations").inner_text()
        assert " ".join(model.translate([SENTENCE], tokenizer)[0].split()) in " ".join(text.split())
        assert "'bart'" in text
        now = image(page, "#attention")
        for label, value in (("Head", 2), ("Layer", 2)):
            typed(page, label, value)
            now = changed(page, "#attention", now)
        page.get_by_label("encoder", exact=True).check()
        now = changed(page, "#attention", now)
        typed(page, "Repeat", 5)
        page.get_by_role("button", name="Translate", exact=True).click()
        page.get_by_text("at most 12 tokens, as many as there are positions for").wait_for()

    def test_a_run_is_compared(self, address, opened):
        page = opened(address)
        tab(page, "Length")
        page.locator("#length", has_text="Trained up to 24 subwords: BLEU at").wait_for()
        lines = page.locator("#length-plot svg.marks")
        lines.wait_for()
        first = json.loads(RESULTS.read_text(encoding="utf-8"))["systems"]["sinusoidal"]["tests"]["generated"][
            "overall"
        ]["scores"]["bleu"]
        page.get_by_text(f"{first['value']:.1f} ±{first['half_width']:.1f}").wait_for()
        whole = lines.text_content()
        box = lines.bounding_box()
        left, right, y = box["x"] + box["width"] / 2, box["x"] + box["width"] * 0.8, box["y"] + box["height"] / 2
        page.mouse.move(left, y)
        page.locator("#vg-tooltip-element", has_text="interval").wait_for()
        page.mouse.down()
        page.mouse.move(right, y, steps=5)
        page.mouse.up()
        axis = "([text, same]) => (document.querySelector('#length-plot svg.marks').textContent == text) == same"
        page.wait_for_function(axis, arg=[whole, False])
        page.mouse.dblclick(left, y)
        page.wait_for_function(axis, arg=[whole, True])
        page.get_by_label("Another figure of this run").first.click()
        page.get_by_role("option", name="attention-entropy").click()
        page.wait_for_selector("#length-figure img")

    def test_bad_input_gets_a_message_and_the_page_lives(self, address, opened):
        page = opened(address)
        for label, value, message in (
            ("Positions", 99999, "from 3 to 4096, but it is 99999"),
            ("Positions", "", "but it is None"),
            ("D, the model's width", 7.5, "D must be a whole number"),
        ):
            typed(page, label, value)
            page.locator("#see .problem", has_text=message).wait_for()
            typed(page, label, 64)
            page.wait_for_selector("#see img")
        choose(page)
        page.locator("#see .problem", has_text="none is chosen").wait_for()
        choose(page, "learned")
        page.wait_for_selector("#see img")
        typed(page, "Positions", 2000)
        page.locator("#see .problem", has_text="`learned` has the positions").wait_for()

    def test_two_readers_do_not_disturb_each_other(self, address, opened):
        one, other = opened(address), opened(address)
        before = image(other, "#see")
        choose(one, "rotary")
        one.get_by_text("Rotation", exact=True).wait_for()
        typed(other, "Positions", 100)
        changed(other, "#see", before)
        assert "changes embeddings" in other.locator("#see").inner_text()
        assert "rotates queries" in one.locator("#see").inner_text()

    def test_it_works_by_keyboard(self, address, opened):
        page = opened(address)
        before = image(page, "#see")
        page.get_by_label("range slider for Positions").first.focus()
        page.keyboard.press("ArrowRight")
        changed(page, "#see", before)
        page.get_by_role("tab", name="See").focus()
        for _ in range(10):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.textContent").strip() == "Step":
                break
        page.keyboard.press("Enter")
        page.locator("#step .number").wait_for()

    def test_it_works_by_finger(self, address, opened):
        page = opened(address, "phone")
        before = image(page, "#see")
        slider = page.get_by_label("range slider for Positions").first
        slider.scroll_into_view_if_needed()
        track = slider.bounding_box()
        page.touchscreen.tap(track["x"] + track["width"] / 2, track["y"] + track["height"] / 2)
        changed(page, "#see", before)
        assert 1900 < int(slider.input_value()) < 2200
        page.get_by_role("tab", name="Step").tap()
        page.locator("#step .number").wait_for()

    @pytest.mark.parametrize("width", WIDTHS)
    def test_it_fits_the_screen(self, address, opened, width, tmp_path):
        page = opened(address, width)
        for name, ready in (
            ("See", "#see img"),
            ("Step", "#step img"),
            ("Translate", "#attention img"),
            ("Length", "#length-plot svg.marks"),
        ):
            tab(page, name)
            page.locator(ready).first.wait_for()
            path = tmp_path / f"{width}-{name}.png"
            page.screenshot(path=path, full_page=True)
            with Image.open(path) as picture:
                assert picture.size[0] == WIDTHS[width][0], "nothing reaches past the screen"
            assert page.evaluate("document.documentElement.scrollWidth") <= WIDTHS[width][0]

    @pytest.mark.parametrize(("width", "margins"), [("desktop", (96, 1184)), ("phone", (10, 380))])
    def test_every_tab_is_as_wide_and_a_table_keeps_within_it(self, address, opened, width, margins):
        page = opened(address, width)
        ends = "one => [one.getBoundingClientRect().left, one.getBoundingClientRect().right]"
        for name, ready in (
            ("See", "#see img"),
            ("Step", "#step img"),
            ("Translate", ""),
            ("Length", "#length-table td"),
        ):
            tab(page, name)
            if ready:
                page.locator(ready).first.wait_for()
            panel = page.get_by_role("tabpanel").locator("visible=true")
            assert panel.evaluate(ends) == pytest.approx(margins, abs=1), name
        left, right = page.locator("#length-table .scroll").evaluate(ends)
        assert margins[0] <= left < right <= margins[1]
        if width == "phone":  # where it is scrolled
            page.locator("#length-table .scroll").evaluate("box => box.scrollLeft = box.scrollWidth")
        assert page.locator("#length-table th").last.evaluate(ends)[1] <= right + 1, "the last column is seen"
        assert page.locator("#length-table td").first.evaluate(ends)[0] >= left, "and beside it whose row it is"

    def test_a_space_runs_with_what_its_folder_holds(self, run_folder, opened, tmp_path):
        for source, to in (("space", ""), ("src/hf_posenc", "hf_posenc")):
            shutil.copytree(ROOT / source, tmp_path / "space" / to, dirs_exist_ok=True)
        shutil.copytree(run_folder, tmp_path / "space" / "run")
        for space in served(folder=tmp_path / "space"):
            page = opened(space)
            page.get_by_label("Encodings of").locator("visible=true").click()
            page.get_by_role("option", name="short, as trained").wait_for()

    def test_it_starts_with_nothing(self, bare_address, opened):
        page = opened(bare_address)
        tab(page, "Translate")
        page.get_by_text("No run was given").wait_for()
        before = page.get_by_label("Sentence to translate").input_value()
        page.get_by_role("button", name="Another sentence").click()
        page.wait_for_function("before => document.querySelector('textarea').value != before", arg=before)
        page.get_by_role("button", name="Translate", exact=True).click()
        page.wait_for_selector("#attention img")
        tab(page, "Length")
        page.get_by_text("started without a run").wait_for()
