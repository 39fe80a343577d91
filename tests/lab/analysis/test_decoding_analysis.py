"""Attention centroids, attention entropy and forced decoding, compared with known weights, loops over single sentences
and `generate`."""

import copy
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from matplotlib.colors import same_color
from support.analyses import (
    EDGES,
    EXACT,
    LENGTHS,
    SAVED,
    SHARED,
    all_alone,
    alone,
    diagnosed,
    measured,
    model_of,
    read_back,
    the_pairs,
)
from support.analyses import tokenizer as words

from hf_posenc.alignments.tracking import attention_centroid
from hf_posenc.generation.translate import evaluation_view
from hf_posenc.lab.analysis import diagnosis
from hf_posenc.lab.analysis.diagnosis import (
    JUMP_THRESHOLD,
    Decoding,
    cap_tokens,
    centroid_movement,
    decode,
    decoding_example,
    entropy_by_bucket,
    pair_token_ids,
    sum_entropies,
)
from hf_posenc.lab.figures.diagnostics_plots import (
    end_forbidden_figure,
    entropy_figure,
    loss_by_position_figure,
    loss_figure,
    source_position_figure,
)
from hf_posenc.lab.results.records import CurvePoint, TrainingCurves
from hf_posenc.lab.results.saved_files import to_json
from hf_posenc.transformer.encoder_decoder import ConditionalGeneration

ALIGNED: dict[str, Any] = {
    "cross_position_encoding_type": "rotary+window",
    "cross_window_size": 4,
    "alignment_type": "length_ratio",
    "length_ratio_step": 0.7,
    "length_ratio_gain": 0.3,
}


class Silent:
    """A bar that is not drawn."""

    def update(self, _: int) -> None:
        pass


def centre_of(weights) -> torch.Tensor:
    return attention_centroid(weights, torch.arange(weights[0].shape[-1])[None])


def aligned() -> ConditionalGeneration:
    return model_of("relative", **ALIGNED)


def decoded(
    model: ConditionalGeneration,
    limits: list[int] | None = None,
    *,
    may_end: bool = True,
    first: int | None = None,
    **options: int,
) -> list[Decoding]:
    sources, _ = pair_token_ids(the_pairs(), words(), "de", "en")
    sources = sources[:first]
    limits = model.max_target_lengths(map(len, sources)) if limits is None else limits
    return decode(evaluation_view(model, "eager"), sources, limits, Silent(), may_end=may_end, **options)


# Entropy


def test_the_entropy_of_known_weights():
    even, sure, two = [0.25] * 4, [0.0, 1.0, 0.0, 0.0], [0.5, 0.0, 0.5, 0.0]
    p_1HQS = torch.tensor([[[even, sure, two], [sure, sure, even]]], dtype=torch.float64)
    (all_queries,) = sum_entropies([p_1HQS, p_1HQS.flip(1)], torch.ones(1, 3))
    ln2, ln4 = math.log(2), math.log(4)
    assert all_queries == pytest.approx(np.array([[[ln4 + ln2, ln4], [ln4, ln4 + ln2]]] * 2))
    (first_only,) = sum_entropies([p_1HQS], torch.tensor([[1, 0, 0]]))  # the others are padding
    assert first_only == pytest.approx(np.array([[[ln4, 0]], [[ln4, 0]]]))
    skewed = torch.tensor([[[[0.5, 0.25, 0.25, 0.0]]]])
    (sums_2LH,) = sum_entropies([skewed], torch.ones(1, 1))
    assert sums_2LH[:, 0, 0] == pytest.approx([0.5 * math.log(2) + 0.5 * math.log(4), math.log(3)], rel=1e-6)
    assert sum_entropies(None, torch.ones(2, 3)) == [None, None]


def test_the_entropy_of_a_bucket_is_the_mean_over_its_queries():
    sums = [np.full((2, 1, 2), value) for value in (6.0, 2.0, 9.0)]
    groups = entropy_by_bucket(sums, np.array([3, 1, 9]), [4, 5, 20], [5, 9])
    assert [group.label for group in groups] == ["[0,5]", "[6,9]", ">9"]
    assert [(group.n, group.queries, group.mean, group.uniform) for group in groups] == [
        (2, 4, ((2.0, 2.0),), 2.0),
        (0, 0, None, None),
        (1, 9, ((1.0, 1.0),), 1.0),
    ]
    assert entropy_by_bucket([None, None], np.array([1, 1]), [1, 1], [5]) is None


@pytest.mark.full
def test_entropy_is_a_plain_loop_over_single_sentences(family):
    found = diagnosed(model_of(family))["attention_entropy"]
    outputs = [one for _, one in all_alone(family)]
    assert found["cross"] is not None
    assert (found["encoder"] is None) == (family == "rnn_nmt")
    for side, groups in found.items():
        for group in groups or []:
            high = math.inf if group["high"] is None else group["high"]
            rows = [row for row, (source, _) in enumerate(LENGTHS) if group["low"] <= source <= high]
            weights = [outputs[row][f"{side}_attentions"] for row in rows]
            assert group["n"] == len(rows)
            if rows:
                for layer, heads in enumerate(group["mean"]):
                    for head, mean in enumerate(heads):
                        each = [
                            -sum(p * math.log(p) for p in query if p > 0)
                            for sentence in weights
                            for query in sentence[layer][0, head].tolist()
                        ]
                        assert (mean, group["queries"]) == (pytest.approx(sum(each) / len(each), **EXACT), len(each))


# The centre


def test_the_centroid_of_known_weights():
    """One head at place 2 for certain, trusted 4; one half at 0 and half at 4, mean 2 and variance 4; one at 4."""
    sure, apart, last = [0, 0, 1.0, 0, 0], [0.5, 0, 0, 0, 0.5], [0, 0, 0, 0, 1.0]
    heads = {name: torch.tensor(p, dtype=torch.float64).view(1, 1, 1, 5) for name, p in
             (("sure", sure), ("apart", apart), ("last", last))}  # fmt: skip
    assert centre_of([heads["sure"]]).item() == pytest.approx(2)
    assert centre_of([heads["sure"], heads["last"]]).item() == pytest.approx(3)
    narrow, wide = 1 / 0.25, 1 / 4.25
    expected = (narrow * 4 + wide * 2) / (narrow + wide)
    assert centre_of([heads["apart"], heads["last"]]).item() == pytest.approx(expected)
    assert centre_of([torch.cat([heads["apart"], heads["last"]], 1)]).item() == pytest.approx(expected)


def test_what_is_said_of_curves_that_are_known():
    curve = np.array([0.0, 1, 7, 13, 2, 3, 4])  # two jumps on, one back
    far = np.array([0.0, JUMP_THRESHOLD])  # no more than far
    made = [Decoding([5] * 6, True, curve, curve + 0.123), Decoding([5], False, far, far)]
    found = centroid_movement([(made[0].centroid, 9), (made[1].centroid, 6)])
    assert to_json(found) == {"steps": 7, "jumps": 3 / 7, "backwards": 1 / 7, "final": (4 / 8 + 5 / 5) / 2}
    assert to_json(decoding_example(made[0], 9, 8)) == {
        "source": 9,
        "target": 8,
        "ended": True,
        "centre": curve.tolist(),
        "place": [0.12, 1.12, 7.12, 13.12, 2.12, 3.12, 4.12],
    }
    assert centroid_movement([(None, 2)] * 9) is None
    nothing = decoding_example(Decoding([5], True, None, None), 2, 2)
    assert to_json(nothing) == {"source": 2, "target": 2, "ended": True}


# Decoding


@pytest.mark.full
@pytest.mark.parametrize("kind", ["relative", "sinusoidal+gru", "rnn_nmt", "length_ratio"])
def test_a_greedy_decoding_is_generates(kind):
    model = aligned() if kind == "length_ratio" else model_of(kind)
    sources, _ = pair_token_ids(the_pairs(), words(), "de", "en")
    made = decoded(model, first=4)
    for ids, one in zip(sources[:4], made, strict=True):
        (generated,) = model.generate(torch.tensor([ids]), num_beams=1, do_sample=False).tolist()
        end = generated.index(2) if 2 in generated else len(generated)
        assert one.ids == generated[1:end]
        assert one.ended == (len(one.ids) < 2 * (len(ids) - 1) + 50)
        assert len(one.centroid) == len(one.ids) + 1
        assert one.centroid.min() >= 0 and one.centroid.max() <= len(ids) - 1
    small_batches = decoded(model, first=4, max_tokens=20)  # of one or two sentences
    for one, other in zip(made, small_batches, strict=True):
        assert one.ids == other.ids
        assert one.centroid == pytest.approx(other.centroid, abs=1e-9)


@pytest.mark.full
def test_the_centroid_is_that_of_the_weights_of_one_forward():
    model = model_of("relative")
    sources, _ = pair_token_ids(the_pairs(), words(), "de", "en")
    for ids, one in zip(sources, decoded(model), strict=True):
        read = torch.tensor([[1, *one.ids]])
        with torch.no_grad():
            outputs = evaluation_view(model, "eager")(
                torch.tensor([ids]), decoder_input_ids=read, use_cache=False, output_attentions=True
            )
        assert one.centroid == pytest.approx(centre_of(outputs.cross_attentions)[0].numpy(), abs=1e-9)
        assert one.source_position is None


@pytest.mark.full
def test_source_positions_follow_the_attention_centroid():
    for (source, _), one in zip(LENGTHS, decoded(aligned()), strict=True):
        assert one.source_position[0] == 0
        on = (0.7 + 0.3 * (one.centroid - one.source_position)[:-1]).clip(min=0.2 * 0.7)
        assert one.source_position[1:] == pytest.approx((one.source_position[:-1] + on).clip(0, source), abs=1e-6)
    for one in decoded(model_of("relative", cross_position_encoding_type="rotary")):
        assert one.source_position.tolist() == list(range(len(one.source_position)))
    assert all(one.source_position is None for one in decoded(model_of("rnn_nmt")))


@pytest.mark.full
def test_a_forbidden_end_token_is_not_generated_before_the_end_of_the_reference():
    model = model_of("relative", output_bias=True)
    with torch.no_grad():
        model.final_logits_bias[0, 2] += 100  # nothing but </s>
    assert [one.ids for one in decoded(model)] == [[]] * len(LENGTHS)
    assert all(one.ended for one in decoded(model))
    lengths = [target for _, target in LENGTHS]
    assert [len(one.ids) for one in decoded(model, lengths, may_end=False)] == lengths
    assert all(2 not in one.ids for one in decoded(model, lengths, may_end=False))
    with torch.no_grad():
        model.final_logits_bias[0, 2] -= 200  # never
    unending = decoded(model)
    assert [len(one.ids) for one in unending] == [2 * source + 50 for source, _ in LENGTHS]
    assert not any(one.ended for one in unending)
    assert [len(one.ids) for one in decoded(model, lengths, may_end=False)] == lengths


@pytest.mark.full
def test_a_bucket_has_the_scores_of_its_own_decodings(monkeypatch):
    """A model that knows the references, and ends after two tokens unless it must not.

    `decode` is patched, because no model of this size learns that in a test.
    """
    sources, targets = pair_token_ids(the_pairs(), words(), "de", "en")

    def knowing(_: Any, given: list[list[int]], limits: list[int], done: Any, *, may_end: bool) -> list[Decoding]:
        assert given == sources
        whole = [targets[row][: limits[row]] for row in range(len(given))]
        assert may_end or whole == [target[:-1] for target in targets]
        curve = np.arange(3.0)
        return [Decoding(ids[:2] if may_end else ids, True, curve, None) for ids in whole]

    monkeypatch.setattr(diagnosis, "decode", knowing)
    found = diagnosed(model_of("none"), decoded_per_group=20)["decoding"]
    assert [group["n"] for group in found["groups"]] == [3, 4, 0, 3, 0]
    empty = {key: value for key, value in found["groups"][2].items() if value is not None}
    assert empty == {"low": 6, "high": 6, "label": "[6,6]", "n": 0}
    longest = found["groups"][3]
    assert longest["end_forbidden"] == {"bleu": pytest.approx(100), "bleu_ci": 0, "length_ratio": 1}
    assert longest["greedy"]["length_ratio"] == pytest.approx(6 / (12 + 5 + 9))
    assert longest["greedy"]["bleu"] < 20
    assert longest["examples"][0] == {"source": 10, "target": 13, "ended": True, "centre": [0, 1, 2], "place": None}


@pytest.mark.full
def test_no_more_is_decoded_than_is_asked_for_and_can_be_paid():
    assert diagnosed(model_of("none"), decoded_per_group=0)["decoding"] is None
    few = diagnosed(model_of("none"), decoded_per_group=2)["decoding"]
    assert [group["n"] for group in few["groups"]] == [2, 2, 0, 2, 0]
    sources, targets = [[0] * 5] * 6, [[0] * 5] * 6
    pairs = Dataset.from_dict({"source_length": [1, 1, 9, 1, 9, 1], "row": list(range(6))})
    assert cap_tokens(pairs, sources, targets, [5], 20)["row"] == [0, 1, 2, 4]
    assert cap_tokens(pairs, sources, targets, [5], 3)["row"] == [0, 2]


def steps_by_source(**options: Any) -> list[tuple[int, int]]:
    """Of each example of an unending model, the number of source tokens, and that of steps before the end."""
    model = model_of("none", output_bias=True)
    with torch.no_grad():
        model.final_logits_bias[0, 2] -= 200
    groups = diagnosed(model, decoded_per_group=20, **options)["decoding"]["groups"]
    return [(one["source"] - 1, len(one["centre"]) - 1) for group in groups for one in (group["examples"] or [])]


@pytest.mark.full
@pytest.mark.parametrize("limit", [7, 80])
def test_the_limit_of_translations_is_that_of_decodings(limit):
    assert {steps for _, steps in steps_by_source(max_new_tokens=limit)} == {limit}
    assert all(steps == 2 * source + 50 for source, steps in steps_by_source())


@pytest.mark.full
@pytest.mark.parametrize("limit", [None, 20])
def test_a_reference_longer_than_the_table_is_written_up_to_its_end(limit):
    model = model_of("none to learned", learned_max_positions=8)
    found = diagnosed(model, decoded_per_group=20, max_new_tokens=limit)["decoding"]
    curves = [example["centre"] for group in found["groups"] for example in (group["examples"] or [])]
    assert max(map(len, curves)) == 8


# Losses of a model that is told the target's length


@pytest.mark.full
@torch.no_grad()
def test_the_loss_of_a_model_that_reads_lengths_is_that_of_reading_token_by_token():
    model = aligned()
    by_token, told = diagnosed(model), diagnosed(model, use_target_length=True)
    assert (by_token["lengths_known"], told["lengths_known"]) == (False, True)
    nats = [0.0] * 13
    for row in the_pairs()["translation"]:
        target, cache = words()(text_target=row["en"])["input_ids"], None
        memory = model.model.encoder(torch.tensor([words()(row["de"])["input_ids"]]))
        for position, (read, token) in enumerate(zip([1, *target], target, strict=False)):
            new = {"decoder_input_ids": torch.tensor([[read]]), "cache": cache, "use_cache": True}
            outputs = model(encoder_outputs=memory, **new)
            cache = outputs.past_key_values
            nats[position] += float(torch.nn.functional.cross_entropy(outputs.logits[0, 0], torch.tensor(token)))
    assert by_token["loss_by_position"]["nats"] == pytest.approx(nats, rel=1e-6)
    at_once = [alone(model, row)[0] for row in the_pairs()["translation"]]
    assert told["loss_by_position"]["nats"][0] == pytest.approx(sum(one[0] for one in at_once), rel=1e-6)
    assert told["loss_by_position"]["nats"][9] != pytest.approx(nats[9], rel=1e-4)
    assert not diagnosed(model_of("relative"), use_target_length=True)["lengths_known"]


def test_a_loss_figure_marks_models_that_read_the_target_length():
    results = SAVED | {"sinusoidal": SAVED["sinusoidal"] | {"lengths_known": True}}
    legend = [
        text.get_text()
        for text in loss_by_position_figure(read_back(results), max_training_lengths=SHARED).legends[0].get_texts()
    ]
    assert legend == ["relative", "rnn-nmt", "sinusoidal (given the target's length)"]
    losses = TrainingCurves(loss=(CurvePoint(1, 1, 3.0), CurvePoint(2, 2, 2.0)), eval_loss=())
    figure = loss_figure({"a": losses, "b": replace(losses, lengths_known=True)}, {"a": "one", "b": "two"})
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["one", "two (given the target's length)"]


# Figures


MEASURED = {"aligned": measured(1, place=True), "relative": measured(2), "rnn-nmt": measured(3, encoder=False)}
FIGURES = (source_position_figure, entropy_figure, end_forbidden_figure)


def test_source_positions_are_plotted_as_they_were_saved():
    figure = source_position_figure(read_back(MEASURED))
    assert len(figure.axes) == 3 * 2
    for axes, (one, number) in zip(
        figure.axes, [(one, number) for one in MEASURED.values() for number in (0, 1)], strict=True
    ):
        example = one["decoding"]["groups"][number]["examples"][0]
        diagonal, centre, *place = [list(line.get_ydata()) for line in axes.lines]
        assert diagonal == [0, example["source"] - 1]
        assert list(axes.lines[0].get_xdata()) == [0, example["target"] - 1]
        assert centre == example["centre"] and place == [example["place"]] * bool(example["place"])
        assert axes.get_title() == f"{('[0,12]', '>12')[number]}, 12 %"
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["centroid of the cross-attention", "source position by the alignment", "diagonal"]
    assert "more than 5 tokens" in figure.legends[0].get_title().get_text()
    alone = source_position_figure(read_back({"relative": MEASURED["relative"]}))
    assert len(alone.legends[0].get_texts()) == 2


def test_of_many_buckets_five_are_plotted():
    many = copy.deepcopy(MEASURED["relative"])
    filled = many["decoding"]["groups"][0]
    many["decoding"]["groups"] = [filled | {"label": f">{number}"} for number in range(9)]
    assert [axes.get_title() for axes in source_position_figure(read_back({"a": many})).axes] == [
        f">{k}, 12 %" for k in (0, 2, 4, 6, 8)
    ]


def test_entropies_are_means_over_heads_and_shares_of_the_most_there_can_be():
    nats, cross_nats, shares, cross_shares = entropy_figure(read_back(MEASURED)).axes
    for axes, value, systems in ((nats, 1.0, 2), (shares, 0.5, 2), (cross_nats, 1.0, 3), (cross_shares, 0.5, 3)):
        assert len(axes.lines) == systems
        for line in axes.lines:
            assert line.get_ydata() == pytest.approx([value, value])
            assert [round(x) for x in line.get_xdata()] == [0, 1]
    assert [text.get_text() for text in shares.get_xticklabels()] == ["[0,12]\nn=150", ">12\nn=50"], "no empty bucket"


def test_marks_without_an_end_are_full():
    (axes,) = end_forbidden_figure(read_back(MEASURED)).axes
    marks = [line for container in axes.containers for line in container.lines[:1]]
    drawn = [(float(mark.get_ydata()[0]), same_color(mark.get_markerfacecolor(), mark.get_color())) for mark in marks]
    assert drawn == [
        (group[kind]["bleu"], kind == "end_forbidden")
        for one in MEASURED.values()
        for group in one["decoding"]["groups"][:2]
        for kind in ("greedy", "end_forbidden")
    ]
    assert all(round(float(mark.get_xdata()[0])) in (0, 1) for mark in marks)
    assert [text.get_text() for text in axes.get_xticklabels()] == ["[0,12]\nn=150", ">12\nn=50"], "no empty bucket"


def test_a_diagnosis_of_an_older_version_is_named_and_not_plotted():
    for draw in FIGURES:
        figure = draw(read_back(MEASURED | {"old": SAVED["relative"]}))
        assert figure.legends[0].get_title().get_text().endswith("not measured: old")
        with pytest.raises(ValueError, match=r"those of old have none, .*again"):
            draw(read_back({"old": SAVED["relative"]}))
    without = {"relative": MEASURED["relative"], "none": measured(4, cross=False)}
    assert source_position_figure(read_back(without)).legends[0].get_title().get_text().endswith("not measured: none")


@pytest.mark.full
def test_print_is_readable():
    many = {f"{'encoding ' * 3}{number}": measured(number, place=True) for number in range(4)}
    for draw in FIGURES:
        figure = draw(read_back(many))
        figure.draw_without_rendering()
        assert figure.get_figwidth() == 6.5
        box = figure.get_tightbbox()
        assert box.x0 >= 0 and box.x1 <= figure.get_figwidth() and box.y0 >= 0 and box.y1 <= figure.get_figheight()
        texts = [text for axes in figure.axes for text in (*axes.get_xticklabels(), *axes.get_yticklabels())]
        assert all(float(text.get_fontsize()) >= 8 for text in (*texts, *figure.legends[0].get_texts()))


@pytest.mark.full
def test_every_measurement_is_plotted():
    results = {
        "aligned": diagnosed(aligned(), decoded_per_group=3),
        "rnn-nmt": diagnosed(model_of("rnn_nmt"), decoded_per_group=3),
    }
    assert EDGES[0] == results["aligned"]["decoding"]["groups"][0]["high"]
    saved = json.loads(json.dumps(results))
    assert read_back(to_json(read_back(saved))) == read_back(saved)
    for draw in FIGURES:
        assert draw(read_back(saved)).axes
