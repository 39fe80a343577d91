"""Teacher-forced analysis against loops over single unpadded sentences; figures against the saved values."""

import functools
import json
import math
import statistics
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
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
    model_of,
    read_back,
    saved,
    the_pairs,
    tokenizer,
)
from support.models import tiny_model

from hf_posenc.lab.analysis.diagnosis import bucket_loss, measure_pairs, pair_token_ids
from hf_posenc.lab.figures.diagnostics_plots import loss_by_position_figure
from hf_posenc.lab.figures.style import LIMIT_COLOUR
from hf_posenc.lab.results.saved_files import to_json
from hf_posenc.metrics.length_buckets.scorers import bucket_bounds


@functools.cache
def diagnosis_of(sides: str) -> dict[str, Any]:
    return diagnosed(model_of(sides))


def means_by_loops(sentences: list[Any], stack: str) -> list[list[float]]:
    """Per layer and head, the mean over all queries of the distance to every key, weighted."""
    layers, heads = len(sentences[0][stack]), sentences[0][stack][0].shape[1]
    means = [[0.0] * heads for _ in range(layers)]
    for layer in range(layers):
        for head in range(heads):
            distances = [
                sum(weight * abs(query - key) for key, weight in enumerate(weights))
                for outputs in sentences
                for query, weights in enumerate(outputs[stack][layer][0, head].tolist())
            ]
            means[layer][head] = sum(distances) / len(distances)
    return means


# Loss


def test_the_test_set_is_what_its_table_says():
    for row, (source, target) in zip(the_pairs()["translation"], LENGTHS, strict=True):
        assert len(tokenizer()(row["de"])["input_ids"]) == source + 1
        assert len(tokenizer()(text_target=row["en"])["input_ids"]) == target + 1


@pytest.mark.full
def test_loss_by_position_is_that_of_single_sentences(family):
    loss = diagnosis_of(family)["loss_by_position"]
    found = [nats for nats, _ in all_alone(family)]

    def sums(rows: list[int]) -> list[float]:
        longest = max((len(found[row]) for row in rows), default=0)
        return [sum(found[row][position] for row in rows if position < len(found[row])) for position in range(longest)]

    assert loss["nats"] == pytest.approx(sums(list(range(len(found)))), **EXACT)
    assert loss["tokens"] == [sum(target >= position for _, target in LENGTHS) for position in range(13)]
    bounds = [(0, 2), (3, 5), (6, 6), (7, 30), (31, None)]
    assert [(group["low"], group["high"]) for group in loss["groups"]] == bounds
    assert [group["label"] for group in loss["groups"]] == ["[0,2]", "[3,5]", "[6,6]", "[7,30]", ">30"]
    for group, (low, high) in zip(loss["groups"], bounds, strict=True):
        rows = [row for row, (source, _) in enumerate(LENGTHS) if low <= source <= (high or math.inf)]
        assert group["n"] == group["n_in_test_set"] == len(rows)
        assert group["by_position"]["nats"] == pytest.approx(sums(rows), **EXACT)
        tokens = sum(LENGTHS[row][1] + 1 for row in rows)
        assert (group["tokens"], group["nats"]) == (tokens, pytest.approx(sum(sums(rows)), **EXACT))
        if rows:
            assert group["perplexity"] == pytest.approx(math.exp(sum(sums(rows)) / tokens), **EXACT)
            assert group["nats_standard_error"] > 0
        else:
            assert (group["perplexity"], group["nats_standard_error"]) == (None, None)


def test_buckets_and_splits_of_a_test_set_add_up_to_the_whole():
    whole = diagnosis_of("relative")["loss_by_position"]
    parts = [diagnosed(model_of("relative"), the_pairs().select(rows)) for rows in (range(0, 4), range(4, 10))]
    for some in (whole["groups"], [part["loss_by_position"]["groups"][k] for part in parts for k in range(5)]):
        for field in ("nats", "tokens"):
            added = np.zeros(len(whole[field]))
            for group in some:
                added[: len(group["by_position"][field])] += group["by_position"][field]
            assert added.tolist() == pytest.approx(whole[field], **EXACT)
            assert sum(group[field] for group in some) == pytest.approx(sum(whole[field]), **EXACT)


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
    groups = result["loss_by_position"]["groups"]
    assert [group["n"] for group in groups] == [2, 2, 0, 2, 0]
    assert [group["n_in_test_set"] for group in groups] == [3, 4, 0, 3, 0]
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
    assert result["attention_distance"]["decoder"]["beyond"]["queries"] == 8 + 7 + 8
    assert diagnosis_of("learned")["targets_cut"] == 0


def test_the_standard_error_is_that_of_a_mean_where_lengths_are_equal_and_the_bootstraps_elsewhere():
    chance = np.random.default_rng(0)
    (bounds, _), equal = bucket_bounds([40]), [chance.normal(3, 1, 4) for _ in range(7)]
    of_means = statistics.stdev(float(one.mean()) for one in equal) / math.sqrt(7)
    assert bucket_loss(equal, bounds, 7).standard_error == pytest.approx(of_means)
    assert bucket_loss(equal[:1], bounds, 1).standard_error is None
    unequal = [chance.normal(2 + length / 20, 1, length) + chance.normal() for length in chance.integers(1, 40, 300)]
    sums, tokens = np.array([one.sum() for one in unequal]), np.array([len(one) for one in unequal])
    again = chance.integers(0, 300, (4000, 300))
    bootstrap = (sums[again].sum(1) / tokens[again].sum(1)).std()
    assert bucket_loss(unequal, bounds, 300).standard_error == pytest.approx(bootstrap, rel=0.06)


def test_no_pairs_and_lengths_of_another_tokenizer_are_refused():
    with pytest.raises(ValueError, match=r"at least one pair.* has 0; give"):
        diagnosed(model_of("none"), the_pairs().select([]))
    lengths = the_pairs()["source_length"]
    other = the_pairs().remove_columns("source_length").add_column("source_length", [*lengths[:3], 7, *lengths[4:]])
    with pytest.raises(ValueError, match=r"pair 3 has 7 .* gives 9;"):
        diagnosed(model_of("none"), other)
    with pytest.raises(ValueError, match="this tokenizer has"):
        diagnosed(tiny_model("none"))


# Attention


@pytest.mark.full
def test_distance_of_attention_is_a_double_loop_over_single_sentences(family):
    found = diagnosis_of(family)["attention_distance"]
    outputs = [one for _, one in all_alone(family)]
    if family == "rnn_nmt":  # which attends to its source alone
        assert outputs[0].cross_attentions is not None
        assert found == {"encoder": None, "decoder": None}
        return
    for side, (stack, lengths) in enumerate(found.items()):
        own = [pair[side] for pair in LENGTHS]
        for where, rows in (
            ("inside", [row for row, length in enumerate(own) if length <= LIMIT]),
            ("beyond", [row for row, length in enumerate(own) if length > LIMIT]),
        ):
            expected = means_by_loops([outputs[row] for row in rows], f"{stack}_attentions")
            assert np.array(lengths[where]["mean"]) == pytest.approx(np.array(expected), **EXACT)
            assert lengths[where]["queries"] == sum(own[row] + 1 for row in rows)


@pytest.mark.parametrize("limit", [LIMIT, None, 4])
def test_attention_to_all_keys_alike_has_the_distance_that_is_known(limit):
    """Without queries it is (n^2 - 1) / 3n in a sentence of n keys, and (n - 1) / 4 where later keys are hidden."""
    model = model_of("none")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "self_attn.q_proj" in name:
                parameter.zero_()
    one = diagnosed(model, the_pairs().select([3]), training_limit=limit)["attention_distance"]
    where = "inside" if limit is None else "beyond"
    for stack, heads, layers, known in (("encoder", 2, 2, (10**2 - 1) / 30), ("decoder", 4, 3, (13 - 1) / 4)):
        assert np.array(one[stack][where]["mean"]) == pytest.approx(np.full((layers, heads), known), **EXACT)
        assert one[stack][where]["uniform"] == pytest.approx(known)
    for side in diagnosed(model, training_limit=limit)["attention_distance"].values():
        for lengths in filter(None, side.values()):
            assert np.array(lengths["mean"]) == pytest.approx(lengths["uniform"], **EXACT)


@pytest.mark.full
def test_a_sentence_at_the_limit_is_inside_and_the_limit_is_that_of_the_sentence_which_attends():
    def queries(limit: int | None) -> list[tuple[int | None, int | None]]:
        found = diagnosed(model_of("none"), training_limit=limit)["attention_distance"]
        return [
            tuple(side[where] and side[where]["queries"] for where in ("inside", "beyond")) for side in found.values()
        ]

    def expected(limit: float) -> list[tuple[int | None, int | None]]:
        return [
            tuple(
                sum(pair[side] + 1 for pair in LENGTHS if (pair[side] <= limit) == inside) or None for inside in (1, 0)
            )
            for side in (0, 1)
        ]

    for limit in (0, 4, 5, 12, 13):
        assert queries(limit) == expected(limit)
    assert queries(None) == expected(math.inf)
    assert queries(None)[0][1] is None
    assert expected(5)[0] != expected(4)[0]
    none_inside = diagnosed(model_of("none"), the_pairs().select([3]), training_limit=4)["attention_distance"]
    assert none_inside["encoder"]["inside"] is None


# Figures


@pytest.mark.parametrize("group", [None, "[0,12]"])
def test_the_curves_are_the_means_of_the_sums(group):
    figure = loss_by_position_figure(
        read_back(SAVED), max_training_lengths=SHARED, group=group, bin_width=4, min_tokens=500
    )
    (axes,) = figure.axes
    assert [str(text.get_text()) for text in figure.legends[0].get_texts()] == list(SAVED)
    left_out = set()
    for line, result in zip(axes.lines, SAVED.values(), strict=False):
        loss = result["loss_by_position"]
        sums = loss if group is None else loss["groups"][0]["by_position"]
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
    fewer = saved(1)
    fewer["loss_by_position"]["groups"][0]["n"] = 149
    for results in (SAVED | {"other": other}, SAVED | {"fewer": fewer}, {}):
        with pytest.raises(ValueError, match=r"on the same pairs.*diagnose"):
            loss_by_position_figure(read_back(results), max_training_lengths=dict.fromkeys(results))
    for group in (">99", "all"):
        with pytest.raises(ValueError, match=rf"'{group}'; .* \[0,12\], >12"):
            loss_by_position_figure(read_back(SAVED), max_training_lengths=SHARED, group=group)
