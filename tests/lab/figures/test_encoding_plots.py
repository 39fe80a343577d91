"""Figures of encodings and of attention: plotted values are those of the hooks."""

from __future__ import annotations

import functools
import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from support.models import REGISTERED, SUMS, tiny_config, tiny_model, translator
from torch import Tensor

from hf_posenc import (
    POSITION_ENCODINGS,
    AttentionContext,
    PositionEncoding,
    RnnNmtForConditionalGeneration,
    register_position_encoding,
)
from hf_posenc.__main__ import main
from hf_posenc.encodings.base import MASK_VALUE
from hf_posenc.lab.analysis.probes import EncodingProbe, PlotExtent, trained_probes, untrained_probes, wavelengths
from hf_posenc.lab.figures.attention_figures import attention_figures, save_attention_figures, translate_with_attention
from hf_posenc.lab.figures.encoding_plots import named_figures, save_encoding_figures
from hf_posenc.lab.figures.style import save_figure
from hf_posenc.lab.figures.vector_plots import (
    many_positions_figure,
    norms_by_distance_figure,
    positions_per_row,
    row_means,
    score_bias_figure,
)

pytestmark = pytest.mark.full

EXTENT = PlotExtent(positions=5, max_positions=400, distances=6, tokens=4)
WIDTH, LAYERS = 16, 2
SIZES = {"d_model": WIDTH, "encoder_layers": LAYERS, "encoder_attention_heads": 2}
SETTINGS = SIZES | {"relative_clip": 4, "learned_max_positions": 400}
DRAWN = [name for name in REGISTERED + SUMS if name != "none"]
ADDING = ["sinusoidal", "learned", "sinusoidal+relative"]
SCORING = ["relative", "relative_key", "relative_sinusoidal", "rotary+relative_key", "gru+relative"]
READING = ["gru", "lstm", "sinusoidal+gru"]


def knobs_of(name: str) -> dict[str, Any]:
    """The settings that an encoding has."""
    own = {field.name for part in name.split("+") for field in POSITION_ENCODINGS[part].config_parameters}
    return {key: value for key, value in SETTINGS.items() if key in own or key in SIZES}


@functools.cache
def subject(name: str, use: str = "attention") -> EncodingProbe:
    return untrained_probes(name, knobs_of(name), "encoder", EXTENT)[use]


@functools.cache
def drawn(name: str) -> dict[str, Figure]:
    """The figures, by what stands behind the encoding's name in theirs."""
    return {
        key.removeprefix(f"{name}-"): one
        for key, one in named_figures(untrained_probes(name, knobs_of(name), "encoder", EXTENT))
    }


def image(figure: Figure, panel: int = 0) -> np.ndarray:
    """What a heat map shows, masked where it is white."""
    panels = [axes for axes in figure.axes if axes.images]
    array = panels[panel].images[0].get_array()
    return array if np.ma.is_masked(array) else np.asarray(array)


def lines(figure: Figure, panel: int = 0) -> dict[str, np.ndarray]:
    """The curves of a panel that has some, by label."""
    panels = [axes for axes in figure.axes if any(not str(line.get_label()).startswith("_") for line in axes.lines)]
    return {str(line.get_label()): np.asarray(line.get_ydata()) for line in panels[panel].lines}


def normal(*shape: int, seed: int = 5) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@torch.no_grad()
def added_at(name: str, position: int) -> np.ndarray:
    """What `embed` adds to one random token that stands alone at a position."""
    x_11D = normal(1, 1, WIDTH, seed=position)
    at = torch.tensor([[position]])
    out_11D = subject(name, "vectors").positions.embed(x_11D, AttentionContext(at, at))
    return (out_11D - x_11D)[0, 0].numpy()


@pytest.mark.full
@pytest.mark.parametrize("name", DRAWN)
def test_the_hooks_determine_the_plots(name: str) -> None:
    answers = subject(name).hooks
    names = set(drawn(name))
    assert ("positions" in names) != ("influence" in names) or "embed" not in answers
    assert ("influence" in names) == any(POSITION_ENCODINGS[part].is_sequential for part in name.split("+"))
    assert ("rotation" in names) == ("rotate_queries" in answers)
    assert ("scores" in names) == ("score_bias" in answers)
    assert ("vectors" in names) >= ("value_bias" in answers)
    assert names and pyplot.get_fignums() == []


@pytest.mark.full
@pytest.mark.parametrize("name", ["sinusoidal+relative", "learned", "rotary", "lstm"])
def test_print_is_readable(name: str) -> None:
    for figure in drawn(name).values():
        check_print(figure)


def check_print(figure: Figure) -> None:
    figure.draw_without_rendering()
    texts = [label for axes in figure.axes for label in (*axes.get_yticklabels(), *axes.get_xticklabels(), *axes.texts)]
    texts += [label for legend in figure.legends for label in legend.get_texts()]
    assert all(float(text.get_fontsize()) >= 8 for text in texts if text.get_text())
    box = figure.get_tightbbox()
    assert figure.get_figwidth() >= 6.5
    assert box.x0 >= -0.01 and box.x1 <= figure.get_figwidth() + 0.01
    assert box.y0 >= -0.01 and box.y1 <= figure.get_figheight() + 0.01
    below = [legend.get_window_extent() for legend in figure.legends]
    assert not any(
        box.overlaps(axes.xaxis.label.get_window_extent()) for box in below for axes in figure.axes if axes.axison
    )


@pytest.mark.parametrize("name", ADDING)
def test_plotted_vectors_are_those_that_embed_adds(name: str) -> None:
    values = np.stack([added_at(name, position) for position in range(EXTENT.max_positions)])
    np.testing.assert_allclose(image(drawn(name)["positions"]), values[: EXTENT.positions], atol=1e-12)
    for panel in (0, 1):
        for channel, curve in lines(drawn(name)["channels"], panel).items():
            np.testing.assert_allclose(curve, values[: EXTENT.positions, int(channel)], atol=1e-12)
    near = values[: 2 * EXTENT.distances + 1]
    np.testing.assert_allclose(image(drawn(name)["products"]), near @ near.T, atol=1e-10)
    (mean,) = lines(drawn(name)["products"]).values()
    expected = [np.mean([near[p] @ near[p + d] for p in range(len(near) - d)]) for d in range(EXTENT.distances + 1)]
    np.testing.assert_allclose(mean, expected, atol=1e-10)
    np.testing.assert_allclose(image(drawn(name)["many"]), values[: 133 * 3 : 3], atol=1e-12)
    means = image(drawn(name)["many"], 1)
    for row in (0, 50, 132):
        nearby = [(position, position - (3 * row + 1.0)) for position in range(EXTENT.max_positions)]
        weights = {p: math.cos(math.pi * away / 12) ** 2 for p, away in nearby if abs(away) < 6}
        weighted = sum(weight * values[position] for position, weight in weights.items()) / sum(weights.values())
        np.testing.assert_allclose(means[row], weighted, atol=1e-10)


def test_two_widths_are_compared_unless_one_is_given() -> None:
    subjects = untrained_probes("sinusoidal", {}, "encoder", EXTENT)
    figure = dict(named_figures(subjects))["sinusoidal-widths"]
    assert [image(figure, panel).shape for panel in (0, 1)] == [(5, 20), (5, 50)]
    np.testing.assert_allclose(image(figure, 0)[:, :2], image(figure, 1)[:, :2], atol=1e-12)
    assert "widths" not in drawn("sinusoidal")


def test_wavelengths_are_those_of_the_formula_even_from_few_positions() -> None:
    formula = 2 * math.pi * 10000 ** (np.arange(0, WIDTH, 2).repeat(2) / WIDTH)
    (dots,) = [line for line in drawn("sinusoidal")["wavelengths"].axes[0].lines if len(line.get_xdata()) > 2]
    np.testing.assert_allclose(dots.get_ydata(), formula, rtol=1e-6)
    np.testing.assert_allclose(
        wavelengths(np.stack([added_at("sinusoidal", p) for p in range(12)])), formula, rtol=1e-6
    )
    assert "wavelengths" not in drawn("learned")
    few = untrained_probes("learned", knobs_of("learned"), "encoder", replace(EXTENT, max_positions=3))
    assert "learned-wavelengths" not in dict(named_figures(few)), "three numbers are a wave of every length"
    odd = np.stack([np.zeros(99), np.ones(99), np.random.default_rng(0).normal(size=99)], axis=1)
    assert np.isnan(wavelengths(odd)).tolist() == [True, False, True] and wavelengths(odd)[1] > 1e6


def test_no_sinusoid_is_plotted_without_one() -> None:
    """A wave that rows cannot hold leaves grey, at every phase and wavelength; one of many rows stays."""
    positions = np.arange(9000)
    step = positions_per_row(len(positions))
    short = np.stack(
        [np.cos(2 * np.pi * positions / (w * step) + w) for w in (0.13, 0.5, 0.98, 1.0, 1.02, 1.5, 2.0)], 1
    )
    assert np.abs(row_means(short, step)[2:-2]).max() < 0.03
    # One position a row makes waves of them that are as high as real ones.
    assert np.abs(short[::step]).max(0).min() > 0.4
    long = np.cos(2 * np.pi * positions / (20 * step))[:, None]
    assert np.abs(row_means(long, step)[2:-2] - long[step // 2 :: step][2:-2]).max() < 0.05
    figure = many_positions_figure(np.concatenate((short, long), 1), np.array([1.0] * 7 + [20.0]) * step, title="waves")
    assert all(line.get_xdata()[0] == 6.5 for axes in figure.axes[:2] for line in axes.lines)
    assert f"two rows ({2 * step} positions)" in figure.get_suptitle()


@pytest.mark.parametrize("name", SCORING)
def test_plotted_scores_are_those_of_the_hooks(name: str) -> None:
    asked, q_NK = subject(name), normal(EXTENT.queries, 1, WIDTH // 2, seed=0)[:, 0]
    for layer in range(LAYERS):
        panels = [axes for axes in drawn(name)["scores"].axes if axes.lines]
        curves = lines(drawn(name)["scores"], min(layer, len(panels) - 1))  # layers that are alike share one
        for query in range(3):
            for at, distance in enumerate(range(-6, 7)):
                here, there = torch.tensor([[20]]), torch.tensor([[20 + distance]])
                q_1H1K = q_NK[query].expand(1, 2, 1, -1)
                contexts = asked.positions.prepare(q_1H1K, AttentionContext(here, there, layer=layer))
                bias = asked.positions.score_bias(q_1H1K, q_1H1K, contexts)
                assert curves[f"random query {query + 1}"][at] == pytest.approx(bias[0, 1, 0, 0].item(), abs=1e-12)


@torch.no_grad()
def test_scores_that_depend_on_tokens_are_plotted_for_random_ones() -> None:
    """A line for each head, of the gates between the query in the middle and a key."""
    asked, at = subject("forgetting"), torch.arange(13)[None]
    x_1SD, q_1HSK = normal(1, 13, WIDTH, seed=0), normal(1, 2, 13, WIDTH // 2)
    panels = [axes for axes in drawn("forgetting")["scores"].axes if axes.lines]
    assert len(panels) == LAYERS
    for layer in range(LAYERS):
        contexts = asked.positions.prepare(x_1SD, AttentionContext(at, at, layer=layer, inputs_BTD=x_1SD))
        expected = asked.positions.score_bias(q_1HSK, q_1HSK, contexts)[0, :, 6]
        curves = lines(drawn("forgetting")["scores"], layer)
        for head, curve in enumerate((curves["head 1"], curves["head 2"])):
            np.testing.assert_allclose(curve, expected[head], atol=1e-12)
            assert np.diff(curve[:7]).min() > 0 > np.diff(curve[6:]).max()


@pytest.mark.parametrize("name", SCORING)
@torch.no_grad()
def test_vectors_by_distance_explain_biases_on_scores_and_values(name: str) -> None:
    asked, figure, width = subject(name), drawn(name)["vectors"], WIDTH // 2
    here, there = torch.tensor([[6]]), torch.arange(13)[None]
    q_1H1K, p_1H1S = normal(1, 2, 1, width), normal(1, 2, 1, 13).softmax(-1)
    columns = 2 if "value_bias" in asked.hooks else 1
    for layer in range(LAYERS):
        keys_KS = image(figure, columns * layer)
        contexts = asked.positions.prepare(q_1H1K, AttentionContext(here, there, layer=layer))
        bias = asked.positions.score_bias(q_1H1K, torch.zeros(1, 2, 13, width).double(), contexts)
        np.testing.assert_allclose(q_1H1K[0, :, 0].numpy() @ keys_KS / width**0.5, bias[0, :, 0], atol=1e-12)
        if columns == 2:
            values_KS = image(figure, columns * layer + 1)
            out = asked.positions.value_bias(p_1H1S, contexts)
            np.testing.assert_allclose(p_1H1S[0, :, 0].numpy() @ values_KS.T, out[0, :, 0], atol=1e-12)


@pytest.mark.parametrize("name", ["rotary", "learned+rotary"])
def test_plotted_rotated_products_are_those_of_the_hooks(name: str) -> None:
    width = WIDTH // 2
    q_NK = normal(EXTENT.queries, 1, width, seed=0)[:, 0]
    of_queries = {f"random query {n + 1}": q_NK[n] for n in range(3)} | {
        "all channels alike": torch.ones(width).double()
    }

    def product(q_K: Tensor, distance: int) -> float:
        both_1H2K = (q_K / q_K.norm()).expand(1, 2, 2, -1)
        positions, at = subject(name).positions, torch.tensor([[11, 11 + distance]])
        contexts = positions.prepare(both_1H2K, AttentionContext(at, at, layer=0))
        q, k = positions.rotate_queries(both_1H2K, contexts), positions.rotate_keys(both_1H2K, contexts)
        return float(q[0, 0, 0] @ k[0, 0, 1])

    for line, q_K in of_queries.items():
        expected = [product(q_K, distance) for distance in range(-6, 7)]
        np.testing.assert_allclose(lines(drawn(name)["rotation"])[line], expected, atol=1e-12)
    expected = [[product(unit, distance) for distance in range(-6, 7)] for unit in torch.eye(width).double()]
    np.testing.assert_allclose(image(drawn(name)["rotation"]), expected, atol=1e-12)


@pytest.mark.parametrize("name", READING)
@torch.no_grad()
def test_influence_is_the_derivative_of_the_hook(name: str) -> None:
    asked, tiny = subject(name, "influence"), 1e-6
    x_NTD = asked.sample_inputs()

    def made(x_NTD: Tensor) -> Tensor:
        at = torch.arange(x_NTD.shape[1])[None]
        return asked.positions.embed(x_NTD, AttentionContext(at, at))

    squares_TT = torch.zeros(4, 4, dtype=torch.float64)
    for j in range(4):
        for channel in range(WIDTH):
            step = torch.zeros_like(x_NTD)
            step[:, j, channel] = tiny
            slope_NTD = (made(x_NTD + step) - made(x_NTD - step)) / (2 * tiny)
            squares_TT[:, j] += slope_NTD.square().sum(-1).mean(0)
    expected = (squares_TT / WIDTH).sqrt().numpy()
    shown = image(drawn(name)["influence"])
    np.testing.assert_allclose(
        np.ma.filled(shown, 0), np.where(expected < 1e-4 * expected.max(), 0, expected), rtol=1e-5
    )
    (curve,) = [line for line in drawn(name)["influence"].axes[1].lines if len(line.get_xdata()) > 2]
    for distance, mean in zip(curve.get_xdata(), curve.get_ydata(), strict=True):
        assert mean == pytest.approx(expected.diagonal(int(distance)).mean(), rel=1e-5)


@pytest.mark.full
def test_a_decoder_is_plotted_up_to_the_query() -> None:
    made = dict(named_figures(untrained_probes("relative", {}, "decoder", EXTENT)))
    assert image(made["relative-decoder-vectors"]).shape[1] == 7
    (reading,) = dict(named_figures(untrained_probes("lstm", {}, "decoder", EXTENT))).values()
    assert np.ma.filled(image(reading), 0)[np.triu_indices(4, 1)].max() == 0, "nothing is read that is yet to come"


OWN = '''
import torch
from hf_posenc import PositionEncoding, register_position_encoding

class Slopes(PositionEncoding):
    """Each head its own slope, and the query's place counts."""
    summary = "Slopes."
    shift_invariant = False
    def score_bias(self, q_BHQK, k_BHSK, ctx):
        slopes_H = torch.arange(1, self.side.heads + 1, dtype=q_BHQK.dtype)[:, None, None]
        return -slopes_H * (1 + ctx.layer) * ctx.distance_BQS[:, None].abs() / (1 + ctx.query_pos_BQ[:, None, :, None])

register_position_encoding("slopes", Slopes)
'''


def test_a_custom_encoding_is_plotted_without_an_edit(
    tmp_path: Path, unregistered_after: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    small = ["--distances", "6", "--positions", "3", "--max-positions", "9"]
    command(monkeypatch, "figures", "slopes", "--register", tmp_path / "own.py", "--output", tmp_path, *small,
            "d_model=16", "encoder_layers=2")  # fmt: skip
    written = [Path(line).name for line in capsys.readouterr().out.splitlines()]
    assert written == ["slopes-scores.png", "slopes-scores.svg"]
    made = dict(named_figures(untrained_probes("slopes+sinusoidal", {"encoder_layers": 2}, "encoder", EXTENT)))
    assert {"slopes+sinusoidal-scores", "slopes+sinusoidal-positions"} <= set(made)
    figure = made["slopes+sinusoidal-scores"]
    for layer in range(2):
        for head in range(8):
            expected = [-(head + 1) * (1 + layer) * abs(distance) / 7 for distance in range(-6, 7)]
            np.testing.assert_allclose(lines(figure, layer)[f"head {head + 1}"], expected)
    assert "query at position 6" in figure.get_suptitle()
    assert "query at" not in drawn("sinusoidal+relative")["scores"].get_suptitle()


class Bent(PositionEncoding):
    """A bias that is no product with a vector, and a rotation that differs from head to head and layer to layer."""

    def score_bias(self, q_BHQK: Tensor, k_BHSK: Tensor, ctx: AttentionContext) -> Tensor:
        return q_BHQK.sum(-1, keepdim=True).tanh() * ctx.distance_BQS[:, None]

    def rotate_keys(self, k_BHTK: Tensor, ctx: AttentionContext) -> Tensor:
        heads_H11 = torch.arange(1, k_BHTK.shape[1] + 1)[:, None, None]
        return k_BHTK * 0.9 ** (heads_H11 * (ctx.layer + 1) * ctx.new_key_pos_BT[:, None, :, None])


def test_an_encoding_whose_rotation_is_no_vector_has_no_vector_figure(unregistered_after: None) -> None:
    register_position_encoding("bent", Bent, summary="Bent.", shift_invariant=False)
    made = dict(named_figures(untrained_probes("bent", {"encoder_layers": 2}, "encoder", EXTENT)))
    assert set(made) == {"bent-rotation-layer-1", "bent-rotation-layer-2", "bent-scores"}
    for layer in (1, 2):
        figure = made[f"bent-rotation-layer-{layer}"]
        for head in range(1, 9):
            expected = 0.9 ** (head * layer * np.arange(13.0))
            np.testing.assert_allclose(lines(figure)[f"all channels alike, head {head}"], expected, rtol=1e-5)
        np.testing.assert_allclose(image(figure), np.tile(0.9 ** (layer * np.arange(13.0)), (64, 1)), rtol=1e-5)


@pytest.mark.full
def test_marks_of_wavelengths_do_not_hide_each_other() -> None:
    for positions, many, expected in (
        (20, 45000, ["45000 positions", "20 positions", "500 positions (two rows)"]),
        (100, 110, ["110 positions"]),
        (20, 40, ["40 positions", "20 positions"]),
    ):
        extent = PlotExtent(positions=positions, max_positions=many)
        (figure,) = [
            one
            for name, one in named_figures(untrained_probes("sinusoidal", {}, "encoder", extent))
            if "waveleng" in name
        ]
        assert [text.get_text() for text in figure.axes[0].texts] == expected


def test_many_channels_are_shown_by_some_of_them() -> None:
    extent = PlotExtent(distances=3, channels=8)
    (figure,) = dict(named_figures(untrained_probes("rotary", {"d_model": 96}, "encoder", extent))).values()
    (all_channels,) = dict(
        named_figures(untrained_probes("rotary", {"d_model": 96}, "encoder", PlotExtent(distances=3)))
    ).values()
    np.testing.assert_allclose(image(figure), image(all_channels)[[0, 2, 3, 5, 6, 8, 9, 11]])
    assert figure.axes[1].get_ylim() == all_channels.axes[1].get_ylim() == (11.5, -0.5)


def command(monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", ["hf_posenc", *map(str, words)])
    main()


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    for name in ("relative", "learned"):
        translator(name).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    RnnNmtForConditionalGeneration(tiny_config("rnn_nmt")).save_pretrained(folder / "rnn_nmt")
    return folder


def test_a_checkpoint_shows_its_own_tables(checkpoints: Path) -> None:
    for side, layers in (("encoder", 2), ("decoder", 3)):
        tables = dict(named_figures(trained_probes(checkpoints / "relative", side, EXTENT)))
        figure = tables[f"relative-trained{'' if side == 'encoder' else '-decoder'}-vectors"]
        positions = getattr(translator("relative").model, side).positions
        rows = np.clip(np.arange(-6, 7 if side == "encoder" else 1), -3, 3) + 3
        for layer in range(layers):
            for name, table in (("keys", positions[0].keys), ("values", positions[0].values)):
                expected = np.linalg.norm(table[layer].detach().numpy()[rows], axis=1)
                np.testing.assert_allclose(lines(figure, layer)[name], expected, atol=1e-6)
    learned = dict(named_figures(trained_probes(checkpoints / "learned", "encoder", EXTENT)))
    table = translator("learned").model.encoder.positions[0].table.detach().numpy()
    (norms,) = [line.get_ydata() for line in learned["learned-trained-lengths"].axes[0].lines]
    np.testing.assert_allclose(norms, np.linalg.norm(table, axis=1), rtol=1e-6)
    np.testing.assert_allclose(image(learned["learned-trained-many"]), table, rtol=1e-6)


@pytest.mark.full
def test_layers_without_attention_and_truncated_translations_are_noted(tokenizer: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="1 to 1, but it is 2"):
        list(save_attention_figures(translator("rnn_nmt"), tokenizer, "Ein Hund.", tmp_path, layer=2))
    with pytest.raises(ValueError, match="UTF-8, but the sentence has"):
        list(
            save_attention_figures(translator("relative"), tokenizer, "Ein H\udce4nd.", tmp_path)
        )  # of a latin-1 terminal
    said, *_ = save_attention_figures(translator("relative"), tokenizer, "Ein Hund.", tmp_path, layer=1, max_tokens=12)
    assert said.endswith(" ... (truncated at 12 tokens, the maximum of the figure or the model)")


@pytest.mark.full
@pytest.mark.parametrize("attending", ["relative", "sinusoidal+gru", "rnn_nmt"])
def test_plotted_attention_is_that_of_the_model(attending: str, tokenizer: Any) -> None:
    model = translator(attending)
    back_end = model.config._attn_implementation
    sentence = "Ein Hund. $"
    translation, maps = translate_with_attention(model, tokenizer, sentence, num_beams=2, max_tokens=12)
    assert model.config._attn_implementation == back_end
    assert list(maps) == (["cross"] if attending == "rnn_nmt" else ["encoder", "decoder", "cross"])
    written = model.generate(**tokenizer([sentence], return_tensors="pt"), num_beams=2, max_length=13, do_sample=False)
    assert translation.partition(" ... (truncated at 12 ")[0] == tokenizer.decode(written[0], skip_special_tokens=True)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        outputs = model(**tokenizer([sentence], return_tensors="pt"), decoder_input_ids=written[:, :-1],
                        output_attentions=True)  # fmt: skip
    made = dict(attention_figures(maps))
    for name, weights in (("encoder", outputs.encoder_attentions), ("decoder", outputs.decoder_attentions),
                          ("cross", outputs.cross_attentions)):  # fmt: skip
        for layer, layer_1HQS in enumerate(weights or ()):
            figure = made[f"attention-{name}-layer-{layer + 1}"]
            for head, weights_QS in enumerate(layer_1HQS[0]):
                np.testing.assert_allclose(image(figure, head), weights_QS, atol=1e-12)
            labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
            assert len(labels) == weights_QS.shape[0]
    assert maps["cross"].keys[-2:] == ["<0x24>", "</s>"]
    assert not any(label.get_parse_math() for label in figure.axes[0].get_yticklabels())
    check_print(made["attention-cross-layer-1"])


def test_subwords_are_marked_in_the_picture(tokenizer: Any) -> None:
    _, maps = translate_with_attention(translator("relative"), tokenizer, "Hund Hunde.", num_beams=1)
    joined = "".join(piece[1:] if piece[0] == "\u00b7" else f" {piece}" for piece in maps["encoder"].keys)
    assert joined.replace(" .", ".").split() == ["Hund", "Hunde.", "</s>"]
    assert maps["decoder"].keys[0] == "<s>" and maps["decoder"].keys[1:] == maps["decoder"].queries[:-1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sinusoid"], "'sinusoid' is no registered.*nearest is 'sinusoidal'"),
        (["none"], "`none` answers none; name another"),
        ([], "none is named; name one"),
        (["sinusoidal", "gru+lstm"], "both read the embeddings in order"),
        (["relative", "relative_clips=3"], "'relative_clips' is no field.*nearest one is 'relative_clip'"),
        (["relative", "relative_clip=0"], "`relative_clip` must be a whole number of tokens"),
        (["sinusoidal", "d_model=0"], "d_model must be from 1 to 16777216, but it is 0"),
        (["sinusoidal", "d_model=wide"], "d_model"),
        (["sinusoidal", "d_model=9999999"], "at most 67108864 numbers, but d_model=9999999"),
        (["sinusoidal", "--max-positions", "999999999"], "max_positions=999999999 of d_model=50 needs"),
        (["relative", "--distances", "99999"], "distances=99999 needs"),
        (["gru", "--tokens", "1"], "`tokens` must be 2 or more"),
        (["learned", "learned_max_positions=2"], "at least 3 positions, but the encoding has 2"),
        (["relative", "--checkpoint", "{}/learned"], "'learned' in its encoder, but relative was given"),
        (["relative_clip=3", "--checkpoint", "{}/relative"], "its own parameters, but relative_clip would"),
        (["--checkpoint", "{}/rnn_nmt"], "model_type='posenc', but .*'posenc_rnn_nmt'|model_type='posenc'\\), but"),
        (["--checkpoint", "{}"], "has no config.json; .*name"),
        (["relative", "--register", "{}/own.py"], "there is none at .*own.py; name one"),
    ],
)
def test_invalid_plot_requests_are_refused_first(
    words: list[str], said: str, checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compute(*_: object, **__: object) -> None:
        raise AssertionError("something was computed")

    for name in ("added_vectors", "score_biases_by_distance", "rotated_products", "embed_influence"):
        monkeypatch.setattr(f"hf_posenc.lab.figures.encoding_plots.{name}", compute)
    with pytest.raises(SystemExit, match=f"(?s){said}"):
        command(monkeypatch, "figures", *(word.format(checkpoints) for word in words), "--output", tmp_path / "to")
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize(
    ("folder", "sentence", "options", "said"),
    [
        ("relative", " ", [], "has no words"),
        ("relative", "Hund " * 101, [], "a figure has labels for, 100, but this one has"),
        ("learned", "Hund " * 22, [], "position encoding has, 64, but this one has .*shorten"),
        ("relative", "Hund", ["--layer", "4"], "1 to 3, but it is 4"),
    ],
)
def test_attention_that_cannot_be_plotted_is_refused_first(
    folder: str, sentence: str, options: list[str], said: str, checkpoints: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr("transformers.GenerationMixin.generate", lambda *_, **__: pytest.fail("it translated"))
    with pytest.raises(SystemExit, match=said):
        command(monkeypatch, "attention", checkpoints / folder, sentence, "--output", tmp_path / "to", *options)
    assert not (tmp_path / "to").exists()


@pytest.mark.full
def test_the_command_writes_both_formats_and_says_where(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, figures = tmp_path / "model", tmp_path / "figures"
    for part in (translator("learned", learned_max_positions=13), tokenizer):
        part.save_pretrained(model)
    command(monkeypatch, "attention", model, "Ein Hund.", "--output", figures, "--layer", "1")
    _, *paths = capsys.readouterr().out.splitlines()
    assert sorted(Path(path).name for path in paths) == sorted(path.name for path in figures.iterdir())
    assert {Path(path).suffix for path in paths} == {".png", ".svg"} and len(paths) == 6
    with pytest.raises(SystemExit):
        command(monkeypatch, "encodings", "too", "many")


@pytest.mark.full
def test_both_formats_are_whole_and_the_same_every_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def paths(folder: str) -> list[Path]:
        return list(save_encoding_figures(["rotary", "d_model=16"], tmp_path / folder, extent=EXTENT))

    once, again = paths("once"), paths("again")
    assert [path.name for path in once] == ["rotary-rotation.png", "rotary-rotation.svg"]
    assert [path.read_bytes() for path in once] == [path.read_bytes() for path in again]
    assert once[0].read_bytes().startswith(b"\x89PNG") and b"</svg>" in once[1].read_bytes()[-20:]

    def fail_half_way(part: Path, data: bytes) -> None:
        with open(part, "wb") as file:
            file.write(data[: len(data) // 2])
        raise OSError("disk full")

    whole = once[1].read_bytes()
    monkeypatch.setattr(Path, "write_bytes", fail_half_way)
    with pytest.raises(OSError, match="disk full"):
        save_figure(Figure(), once[1])
    assert once[1].read_bytes() == whole and len(list(once[1].parent.iterdir())) == 2


def test_the_gallery_shows_what_its_folder_holds() -> None:
    docs = Path(__file__).parents[3] / "docs"
    page = (docs / "explain" / "gallery.md").read_text(encoding="utf-8")
    files = sorted((docs / "gallery").iterdir())
    assert sorted(re.findall(r"\]\(\.\./gallery/(.*?)\)", page)) == [file.name for file in files]
    assert len(files) <= 15
    assert max(file.stat().st_size for file in files) < 150_000


def test_plots_of_untrained_encodings_leave_the_random_state() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    dict(named_figures(untrained_probes("gru", {"d_model": 8}, "encoder", EXTENT)))
    assert torch.rand(1) == expected
    assert tiny_model("gru") is not None


def shaded(axes: Axes) -> list[tuple[float, float]]:
    """From where to where."""
    (shade,) = [one for one in axes.collections if one.get_label() == "not seen"]
    return sorted((path.vertices[:, 0].min(), path.vertices[:, 0].max()) for path in shade.get_paths())


def test_vectors_outside_the_window_are_shaded() -> None:
    parameters = {"window_size": 2, "relative_clip": 3, "d_model": 16, "encoder_layers": 2}
    figure = dict(named_figures(untrained_probes("relative+window", parameters, "encoder", EXTENT)))[
        "relative+window-vectors"
    ]
    reach = EXTENT.distances + 0.5
    panels = [axes for axes in figure.axes if axes.get_xlabel() or axes.get_title()]
    assert [shaded(axes) for axes in panels] == [[(-reach, -2.5), (2.5, reach)]] * len(panels)
    assert len(panels) >= 3
    distances = np.arange(-EXTENT.distances, EXTENT.distances + 1)
    tables = {"keys": np.ones((2, 1, len(distances), 4))}
    norms = norms_by_distance_figure(tables, distances, np.abs(distances) > 2, title="trained")
    assert [shaded(axes) for axes in norms.axes] == [[(-reach, -2.5), (2.5, reach)]] * 2
    assert not [
        one for axes in drawn("relative")["vectors"].axes for one in axes.collections if one.get_label() == "not seen"
    ]


def test_masked_scores_are_shaded_and_excluded_from_the_axis() -> None:
    distances, scores = np.arange(-4, 5), np.full((1, 3, 2, 9), MASK_VALUE)
    scores[..., 2:7] = np.linspace(-1, 1, 5)
    (axes,) = score_bias_figure(scores, distances, title="near").axes
    low, high = axes.get_ylim()
    assert -1.5 < low < -1 and 1 < high < 1.5
    (line,) = [line for line in axes.lines if line.get_label() == "every head"]
    assert np.isnan(line.get_ydata()).tolist() == [True] * 2 + [False] * 5 + [True] * 2
    assert shaded(axes) == [(-4.5, -2.5), (2.5, 4.5)]
    (plain,) = score_bias_figure(np.zeros((1, 3, 2, 9)), distances, title="all").axes
    assert not [one for one in plain.collections if one.get_label() == "not seen"]
