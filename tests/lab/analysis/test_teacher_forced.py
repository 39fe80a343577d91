"""Teacher-forced analysis against loops over single unpadded sentences; figures against the saved values."""

import copy
import functools
import json
import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from matplotlib import pyplot
from support.analyses import (
    EXACT,
    LENGTHS,
    LIMIT,
    SAVED,
    SHARED,
    all_alone,
    alone,
    diagnosed,
    measured,
    model_of,
    read_back,
    saved,
    the_pairs,
    tokenizer,
)
from support.models import tiny_model

from hf_posenc.lab.analysis.diagnosis import measure_pairs, pair_token_ids
from hf_posenc.lab.figures.diagnostics_plots import end_forbidden_figure, loss_by_position_figure
from hf_posenc.lab.figures.style import LIMIT_COLOUR
from hf_posenc.lab.results.saved_files import to_json


@functools.cache
def diagnosis_of(sides: str) -> dict[str, Any]:
    return diagnosed(model_of(sides))


# Loss


def test_the_test_set_is_what_its_table_says():
    for row, (source, target) in zip(the_pairs()["translation"], LENGTHS, strict=True):
        assert len(tokenizer()(row["de"])["input_ids"]) == source + 1
        assert len(tokenizer()(text_target=row["en"])["input_ids"]) == target + 1


@pytest.mark.full
def test_loss_by_position_is_that_of_single_sentences(family):
    loss = diagnosis_of(family)["loss_by_position"]
    found = [nats for nats, _ in all_alone(family)]
    sums = [sum(nats[position] for nats in found if position < len(nats)) for position in range(13)]
    assert loss["nats"] == pytest.approx(sums, **EXACT)
    assert loss["tokens"] == [sum(target >= position for _, target in LENGTHS) for position in range(13)]


def test_splits_of_a_test_set_add_up_to_the_whole():
    whole = diagnosis_of("relative")["loss_by_position"]
    parts = [diagnosed(model_of("relative"), the_pairs().select(rows)) for rows in (range(0, 4), range(4, 10))]
    for field in ("nats", "tokens"):
        added = np.zeros(len(whole[field]))
        for part in parts:
            sums = part["loss_by_position"][field]
            added[: len(sums)] += sums
        assert added.tolist() == pytest.approx(whole[field], **EXACT)


@pytest.mark.parametrize("kind", ["relative", "sinusoidal+gru", "rnn_nmt"])
def test_the_size_of_a_batch_changes_nothing_and_is_bounded_by_length(kind):
    model, pairs = model_of(kind), pair_token_ids(the_pairs(), tokenizer(), "de", "en")
    options = {"bar_options": {"disable": True}, "use_cache": False}
    together = measure_pairs(model, *pairs, 32, **options)
    sizes: list[tuple[int, int]] = []
    model.register_forward_pre_hook(
        lambda _, inputs: sizes.append((len(inputs[0]), max(inputs[0].shape[1], inputs[2].shape[1])))
    )
    heads = 1 if kind == "rnn_nmt" else 2 * 2 + 2 * 3 * 4  # of tiny_config
    for batch_size in (4, 1):
        sizes.clear()
        found = measure_pairs(model, *pairs, batch_size, max_weights=150 * heads, **options)
        numbers, lengths = zip(*sizes, strict=True)
        assert (sum(numbers), max(numbers)) == (len(LENGTHS), batch_size)
        assert all(number * length**2 <= 150 or number == 1 for number, length in sizes)
        assert list(lengths) == sorted(lengths, reverse=True)
        for one, other in zip(found, together, strict=True):
            for field, expected in zip(one, other, strict=True):
                np.testing.assert_allclose(np.array(field, float), np.array(expected, float), rtol=1e-9, atol=1e-11)


def leaves(tree: Any) -> list[float]:
    """All numbers in a diagnosis."""
    if isinstance(tree, dict | list):
        return [leaf for branch in (tree.values() if isinstance(tree, dict) else tree) for leaf in leaves(branch)]
    return [float(tree)] if isinstance(tree, int | float) else []


def test_at_most_max_per_bucket_pairs_are_sampled():
    result = diagnosed(model_of("none"), pairs_per_group=2)
    assert [bucket["n"] for bucket in result["attention_entropy"]["encoder"]] == [2, 2, 0, 2, 0]
    assert (result["n"], result["pairs_per_group"]) == (6, 2)
    assert result["loss_by_position"]["tokens"][0] == 6
    assert result["test_set_sha256"] == diagnosis_of("none")["test_set_sha256"]


def test_a_model_is_left_as_it_was_and_measured_without_dropout():
    model = model_of("relative_key", dropout=0.5).train()
    model.set_attn_implementation("flex_attention")  # which has no weights to return
    assert leaves(diagnosed(model)) == pytest.approx(leaves(diagnosis_of("relative_key")), **EXACT)
    assert (model.training, model.config._attn_implementation) == (True, "flex_attention")
    short = model_of("learned", learned_max_positions=9).train()
    with pytest.raises(ValueError, match="position 13"):
        diagnosed(short)
    assert (short.training, short.config._attn_implementation) == (True, "sdpa")
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_target_longer_than_the_table_is_measured_up_to_its_end():
    model = model_of("none to learned", learned_max_positions=8)
    result = diagnosed(model)
    found = [alone(model, row, cut=8)[0] for row in the_pairs()["translation"]]
    assert result["targets_cut"] == sum(target + 1 > 8 for _, target in LENGTHS) == 2
    sums = [sum(nats[position] for nats in found if position < len(nats)) for position in range(8)]
    assert result["loss_by_position"]["nats"] == pytest.approx(sums, **EXACT)
    assert diagnosis_of("learned")["targets_cut"] == 0


def test_no_pairs_and_lengths_of_another_tokenizer_are_refused():
    with pytest.raises(ValueError, match=r"at least one pair.* has 0; give"):
        diagnosed(model_of("none"), the_pairs().select([]))
    lengths = the_pairs()["source_length"]
    other = the_pairs().remove_columns("source_length").add_column("source_length", [*lengths[:3], 7, *lengths[4:]])
    with pytest.raises(ValueError, match=r"pair 3 has 7 .* gives 9;"):
        diagnosed(model_of("none"), other)
    with pytest.raises(ValueError, match="this tokenizer has"):
        diagnosed(tiny_model("none"))


# Figures


def test_the_curves_are_the_means_of_the_sums():
    figure = loss_by_position_figure(read_back(SAVED), max_training_lengths=SHARED, bin_width=4, min_tokens=500)
    (axes,) = figure.axes
    assert [str(text.get_text()) for text in figure.legends[0].get_texts()] == list(SAVED)
    left_out = set()
    for line, result in zip(axes.lines, SAVED.values(), strict=False):
        sums = result["loss_by_position"]
        edges = [*range(0, len(sums["tokens"]), 4), len(sums["tokens"])]
        for number, ((x, y), (low, high)) in enumerate(zip(line.get_xydata(), pairwise(edges), strict=True)):
            assert x == low + 1.5
            if (tokens := sum(sums["tokens"][low:high])) < 500:
                left_out.add(number)
                assert math.isnan(y)
            else:
                assert y == pytest.approx(sum(sums["nats"][low:high]) / tokens)
    assert left_out
    assert f"in bins of 4; {len(left_out)} with fewer than 500 tokens left out" in axes.get_xlabel()
    assert (
        "left out"
        not in loss_by_position_figure(read_back(SAVED), max_training_lengths=SHARED, min_tokens=1).axes[0].get_xlabel()
    )


def uprights(axes: Any) -> list[tuple[float, str]]:
    lines = [(np.asarray(line.get_xdata(), float), str(line.get_color())) for line in axes.lines]
    return [(float(x[0]), colour) for x, colour in lines if len(x) == 2 and x[0] == x[1]]


def test_the_limit_stands_behind_the_last_position_that_training_has_seen():
    (axes,) = loss_by_position_figure(read_back(SAVED), max_training_lengths=SHARED).axes
    assert uprights(axes) == [(12.5, LIMIT_COLOUR)]
    assert [text.get_text() for text in axes.texts] == ["training\nlimit 12"]
    figure = loss_by_position_figure(
        read_back(SAVED), max_training_lengths={"relative": 12, "rnn-nmt": 20, "sinusoidal": 20}
    )
    (axes,) = figure.axes
    colours = [str(line.get_color()) for line in axes.lines[:3]]
    assert uprights(axes) == list(zip([12.5, 20.5, 20.5], colours, strict=True))
    names = ["relative (limit 12)", "rnn-nmt (limit 20)", "sinusoidal (limit 20)"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == names
    for limit in (None, 100):  # none, or out of sight
        (axes,) = loss_by_position_figure(read_back(SAVED), max_training_lengths=dict.fromkeys(SAVED, limit)).axes
        assert uprights(axes) == [] and list(axes.texts) == []
        assert axes.get_xlim()[1] < 40


def test_print_is_readable():
    many = {f"{'encoding ' * 3}{number}": saved(number) for number in range(4)}
    figure = loss_by_position_figure(read_back(many), max_training_lengths=dict.fromkeys(many, 12))
    figure.draw_without_rendering()
    assert figure.get_figwidth() == 6.5
    box = figure.get_tightbbox()
    assert box.x0 >= 0 and box.x1 <= figure.get_figwidth() and box.y0 >= 0 and box.y1 <= figure.get_figheight()
    texts = [text for axes in figure.axes for text in (*axes.get_xticklabels(), *axes.get_yticklabels(), *axes.texts)]
    assert all(float(text.get_fontsize()) >= 8 for text in (*texts, *figure.legends[0].get_texts()))
    assert pyplot.get_fignums() == []


def test_a_diagnosis_is_plotted_as_it_was_saved():
    results = json.loads(json.dumps({sides: diagnosis_of(sides) for sides in ("relative", "rnn_nmt")}))
    assert read_back(to_json(read_back(results))) == read_back(results)
    (axes,) = loss_by_position_figure(
        read_back(results), max_training_lengths=dict.fromkeys(results, LIMIT), bin_width=1, min_tokens=1
    ).axes
    loss = diagnosis_of("relative")["loss_by_position"]
    assert axes.lines[0].get_ydata() == pytest.approx(np.divide(loss["nats"], loss["tokens"]))


def test_what_cannot_be_compared_is_refused():
    other = saved(1) | {"test_set_sha256": "1" * 64}
    fewer, sampled = saved(1) | {"n": 199}, saved(1) | {"pairs_per_group": 100}
    for results in (SAVED | {"other": other}, SAVED | {"fewer": fewer}, SAVED | {"sampled": sampled}, {}):
        with pytest.raises(ValueError, match=r"on the same pairs.*diagnose"):
            loss_by_position_figure(read_back(results), max_training_lengths=dict.fromkeys(results))
    others = copy.deepcopy(measured(1))
    others["decoding"]["groups"][0]["label"] = "[0,9]"
    with pytest.raises(ValueError, match="with the same buckets"):
        end_forbidden_figure(read_back({"relative": measured(1), "other": others}))


def test_a_diagnosis_of_an_older_version_is_read_without_the_values_that_are_gone():
    of_bucket = {"nats": 2.0, "tokens": 1, "perplexity": None, "by_position": {"nats": [2.0], "tokens": [1]}}
    older = saved(1) | {"training_limit": 12, "attention_distance": {"encoder": None, "decoder": None}}
    older["loss_by_position"]["groups"] = [{"low": 0, "label": "[0,12]", "n": 1, "n_in_test_set": 1} | of_bucket]
    assert read_back({"relative": older}) == read_back({"relative": saved(1)})
