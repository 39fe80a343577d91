"""Comparisons: rows are means over seeds, p-values are sacrebleu's, and tables show saved values."""

from __future__ import annotations

import copy
import csv
import io
import json
import math
import random
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest
from support.analyses import measured
from support.analyses import saved as diagnosis
from support.saved_runs import by_length, saved_bucket

from hf_posenc.__main__ import main as command_line
from hf_posenc.lab.figures.diagnostics_plots import loss_figure
from hf_posenc.lab.figures.score_plots import interval_bars
from hf_posenc.lab.reports.report import write_report
from hf_posenc.lab.reports.report_figures import report_figures
from hf_posenc.lab.results.aggregation import scores_beyond_limit, scores_by_length
from hf_posenc.lab.results.records import (
    BucketScore,
    CurvePoint,
    LengthScores,
    PValues,
    RunResults,
    SystemResult,
)
from hf_posenc.lab.results.rendering import render_csv, render_latex
from hf_posenc.lab.results.saved_files import parse_file, read_results, to_json, validated
from hf_posenc.lab.results.significance import (
    STUDENT_T_975,
    difference_interval,
    mean_bucket_scores,
    mean_over_seeds,
    p_values,
)
from hf_posenc.lab.results.tables import (
    TableRows,
    degradation_table,
    format_cell,
    length_table,
    overview_table,
    prediction_table,
    range_notes,
    reference_table,
    time_table,
)
from hf_posenc.metrics.length_buckets.scorers import PRECOMPUTED_SCORERS
from hf_posenc.metrics.loading import load_length_buckets

EDGES = (10, 20)
LABELS = ["all", "[0,10]", "[11,20]", ">20"]
WORDS = ["the", "a", "cat", "dog", "house", "is", "was", "in", "on", "mat", "red", "green", "old"]


def corpus(pairs: int, seed: int = 0) -> tuple[list[str], list[int]]:
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=chance.randint(4, 14))) for _ in range(pairs)], [
        chance.randint(1, 30) for _ in range(pairs)
    ]


def noisy(texts: list[str], share: float, seed: int) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(w if chance.random() > share else chance.choice(WORDS) for w in t.split()) for t in texts]


def scored(
    predictions: list[str], references: list[str], lengths: list[int], metrics: tuple[str, ...] = ("bleu", "ter")
) -> tuple[Any, dict[str, np.ndarray]]:
    metric = load_length_buckets()
    result = metric.compute(
        predictions=predictions, references=references, source_lengths=lengths, edges=EDGES, metrics=metrics,
        bootstrap=100 if len(set(lengths)) > 2 else 0,
    )  # fmt: skip
    return result, {"lengths": np.array(metric.lengths), **metric.statistics}


@pytest.mark.full
def test_p_values_are_those_of_sacrebleu_on_the_texts() -> None:
    """But that trials count, too, which differ by just as much: of TER many do, of BLEU and chrF hardly any."""
    references, lengths = corpus(60)
    worse, better = noisy(references, 0.4, 1), noisy(references, 0.3, 2)
    metrics = ("bleu", "ter", "chrf")
    ours, theirs = (scored(texts, references, lengths, metrics)[1] for texts in (better, worse))
    found = p_values([ours], [theirs], EDGES, LABELS, 100)
    assert list(found) == LABELS
    for label, low, high in (("all", 0, 99), ("[0,10]", 0, 10), ("[11,20]", 11, 20), (">20", 21, 99)):
        rows = [row for row, length in enumerate(lengths) if low <= length <= high]
        texts = [[texts[row] for row in rows] for texts in (worse, better, references)]
        scorers = {"bleu": BLEU(), "ter": TER(case_sensitive=True), "chrf": CHRF()}
        for metric, scorer in scorers.items():
            for test, kind, trials in (("randomisation", "ar", 1000), ("bootstrap", "bs", 100)):
                systems = [("worse", texts[0]), ("better", texts[1])]
                made: Any = PairedTest(systems, {metric: scorer}, [texts[2]], test_type=kind, n_samples=trials)()[1]
                (result,) = (results[1] for name, results in made.items() if name != "System")
                more = 0.5 if metric == "ter" and test == "randomisation" else 0
                assert result.p_value <= getattr(found[label][metric], test) <= result.p_value + more, (
                    label,
                    metric,
                    test,
                )


@pytest.mark.full
def test_the_interval_of_a_difference_is_that_of_the_resampled_texts() -> None:
    """Both systems are resampled together; the scores are sacrebleu's of the texts themselves."""
    references, lengths = corpus(40)
    worse, better = noisy(references, 0.4, 1), noisy(references, 0.3, 2)
    ours, theirs = (scored(texts, references, lengths, ("bleu", "chrf"))[1] for texts in (better, worse))
    rng = np.random.default_rng(12345)
    draws = [rng.choice(40, size=40) for _ in range(200)]
    for metric, scorer in (("bleu", BLEU()), ("chrf", CHRF())):
        differences = []
        for rows in draws:
            texts = [[texts[row] for row in rows] for texts in (better, worse, references)]
            differences.append(np.subtract(*(scorer.corpus_score(text, [texts[2]]).score for text in texts[:2])))
        found = difference_interval(metric, [ours[metric]], [theirs[metric]], samples=200)
        assert found == pytest.approx(tuple(np.percentile(differences, [2.5, 97.5])), abs=1e-4)


def test_the_interval_of_a_difference_is_antisymmetric_and_zero_for_equal_translations() -> None:
    references, lengths = corpus(40)
    ours, theirs = (scored(noisy(references, 0.3, seed), references, lengths, ("bleu",))[1]["bleu"] for seed in (1, 2))
    low, high = difference_interval("bleu", [ours], [theirs], samples=100)
    assert difference_interval("bleu", [theirs], [ours], samples=100) == pytest.approx((-high, -low))
    assert difference_interval("bleu", [ours], [ours], samples=100) == (0, 0)


@pytest.mark.full
def test_several_seeds_must_all_differ_and_one_pair_has_no_p_value() -> None:
    references, lengths = corpus(40)
    lengths = [5] * 39 + [15]
    baseline = scored(noisy(references, 0.4, 1), references, lengths)[1]
    better = scored(noisy(references, 0.1, 2), references, lengths)[1]
    found = p_values([better], [baseline], EDGES, LABELS, 100)
    assert list(found) == ["all", "[0,10]"]  # [11,20] has one pair, >20 none
    assert found["all"]["bleu"].randomisation < 0.05
    both = p_values([better, baseline], [baseline], EDGES, LABELS, 100)
    assert both["all"]["bleu"].randomisation == 1.0  # the second seed is the baseline itself
    assert both["all"] == p_values([baseline], [baseline], EDGES, LABELS, 100)["all"]
    worse = scored(noisy(references, 0.8, 3), references, lengths)[1]
    assert p_values([worse], [baseline], EDGES, LABELS, 100)["all"]["bleu"].randomisation < 0.05
    apart = p_values([better, worse], [baseline], EDGES, LABELS, 100)["all"]["bleu"]
    assert apart == PValues(randomisation=1.0, bootstrap=1.0)  # each seed differs, but not the same way


@pytest.mark.full
@pytest.mark.parametrize("metric", ["bleu", "ter"])
def test_few_differing_pairs_are_never_significant(metric: str) -> None:
    """Of d pairs, the randomisation has 2^d outcomes: here they are all gone through."""
    references, lengths = corpus(30)
    theirs = noisy(references, 0.5, 1)
    for differing in (0, 1, 3, 5, 8):
        ours = references[:differing] + theirs[differing:]
        statistics = [scored(texts, references, lengths, (metric,))[1] for texts in (ours, theirs)]
        found = p_values([statistics[0]], [statistics[1]], (), ["all"], 200)["all"][metric]
        scorer, (a, b) = PRECOMPUTED_SCORERS[metric](), (one[metric] for one in statistics)

        def gain(swapped: tuple[int, ...], scorer: Any = scorer, a: Any = a, b: Any = b) -> float:
            mixed = [np.array([(y if row in swapped else x) for row, (x, y) in enumerate(zip(*p, strict=True))])
                     for p in ((a, b), (b, a))]  # fmt: skip
            return abs(scorer._aggregate_and_compute(mixed[0]).score - scorer._aggregate_and_compute(mixed[1]).score)

        outcomes = [gain(swapped) for size in range(differing + 1) for swapped in combinations(range(differing), size)]
        exact = sum(outcome >= outcomes[0] - 1e-9 for outcome in outcomes) / len(outcomes)
        assert found.randomisation == pytest.approx(exact, abs=0.03)
        assert found.bootstrap >= min(1, 2 ** (1 - differing))


def test_differences_of_one_edit_are_as_sure_as_a_sign_test_says() -> None:
    """Of 8 pairs that differ by an edit, 7 in favour: 18 of 256 outcomes differ by as much, 2 by more."""
    theirs = np.tile([5.0, 10.0], (100, 1))
    ours = theirs.copy()
    ours[:8, 0] += [1, -1, -1, -1, -1, -1, -1, -1]
    lengths = np.full(100, 5)
    found = p_values([{"lengths": lengths, "ter": ours}], [{"lengths": lengths, "ter": theirs}], (), ["all"], 1000)
    assert found["all"]["ter"].randomisation == pytest.approx(18 / 256, abs=0.01)


def test_a_row_is_the_mean_of_its_seeds_with_students_interval() -> None:
    seeds = [
        bucket(n=7, bleu=bleu, bleu_mean=1.0, bleu_ci=9.0, length_ratio=ratio)
        for bleu, ratio in ((10.0, 0.9), (13.0, 1.0), (16.0, 1.1))
    ]
    made = mean_bucket_scores(seeds)
    assert made.score("bleu") == pytest.approx(13) and made.score("length_ratio") == pytest.approx(1)
    half_width = 4.303 * 3 / math.sqrt(3)  # t of two degrees of freedom, deviation 3
    assert made.scored("bleu").half_width == pytest.approx(half_width)
    assert made.seeds == 3 and made.n == 7 and made.scored("length_ratio").half_width is None
    assert made.scored("bleu").middle is None
    assert mean_bucket_scores(seeds[:1]) == seeds[0]
    empty = bucket(n=0, bleu=None, bleu_ci=None)
    assert mean_bucket_scores([empty, empty]) == empty


@pytest.mark.parametrize(
    ("metric", "lowest", "highest"),
    [("bleu", 0, 100), ("exact_match", 0, 100), ("ter", 0, math.inf), ("perplexity", 1, math.inf)],
)
@pytest.mark.parametrize("spread", [0.0, 0.1, 2.0, 40.0])
@pytest.mark.parametrize("middle", [1.5, 50.0, 99.0, 260.0])
def test_no_cell_of_seeds_leaves_the_scale(
    metric: str, lowest: float, highest: float, spread: float, middle: float
) -> None:
    """± where Student's interval is on the metric's scale, else the lowest and the highest seed. Figures, too."""
    scores = [min(max(middle + spread * step, lowest), highest) for step in (-1.0, 0.2, 0.9)]
    seeds = [bucket(**{metric: score, f"{metric}_mean": score, f"{metric}_ci": 3.0}) for score in scores]
    made = mean_bucket_scores(seeds)
    mean, half_width = made.score(metric), made.scored(metric).half_width
    assert mean is not None and half_width is not None
    is_on_scale = lowest <= round(mean - half_width, 6) and round(mean + half_width, 6) <= highest
    expected = f"±{half_width:.1f}" if is_on_scale else f"[{min(scores):.1f} to {max(scores):.1f}]"
    assert format_cell(made, [(metric, metric, ".1f")], {}) == f"{mean:.1f} {expected}"
    assert bool(range_notes([made])) == (not is_on_scale)
    (below, above) = interval_bars([made], metric)[:, 0]
    assert lowest <= round(mean - below, 6) and round(mean + above, 6) <= highest
    if not is_on_scale:
        assert (mean - below, mean + above) == pytest.approx((min(scores), max(scores)))
    assert not range_notes(seeds), "one seed has no others"


def bucket(n: float = 7, **values: float | None) -> BucketScore:
    return validated(BucketScore, saved_bucket({"label": "[0,10]", "low": 0, "high": 10, "n": n, **values}))


def further_scores(statistics: dict[str, Any], place: int) -> dict[str, Any]:
    """What results.json has of a test set besides its scores by source length."""
    lengths = [3 + place] * len(statistics["lengths"])
    return {
        "truncated": 0,
        "test_set_sha256": "x",
        "beyond": to_json(scores_beyond_limit(statistics, 20, 100)),
        "by_prediction": to_json(scores_by_length(statistics, lengths, EDGES, 100).buckets),
    }


@pytest.fixture(scope="module")
def saved() -> dict[str, Any]:
    """A results.json as `aggregate` makes it: a baseline, a row of two seeds, and another."""
    references, lengths = corpus(50)
    rows = {"plain": "plain", "good-seed1": "good", "good-seed2": "good", "bad": "bad"}
    shares = {"plain": 0.4, "good-seed1": 0.1, "good-seed2": 0.12, "bad": 0.7}
    made = {
        name: scored(noisy(references, shares[name], place), references, lengths) for place, name in enumerate(rows)
    }
    runs = {
        name: {
            "row": rows[name],
            "tokenizer": "abc",
            "max_length": 10 if name == "bad" else 20,
            "training": {"parameters": 1000 * (place + 1)},
            "tests": {"news": by_length(result) | further_scores(statistics, place)},
            "loss": {"loss": [[10, 5.0, 3.0], [20, 9.0, 2.0 + place]], "eval_loss": [[20, 9.5, 2.5]]},
            "diagnostics": {"news": diagnosis(place)},
        }
        for place, (name, (result, statistics)) in enumerate(made.items())
    }
    members = {"plain": ["plain"], "good": ["good-seed1", "good-seed2"], "bad": ["bad"]}
    statistics = {row: [made[name][1] for name in names] for row, names in members.items()}
    compared = {
        row: to_json(p_values(statistics[row], statistics["plain"], EDGES, LABELS, 100)) for row in ("good", "bad")
    }
    paper = {
        "source": "Someone (2019), Table 9",
        "test": "news",
        "num_pairs": [100, 200, 300],
        "rows": {
            "good": {"bleu": [31.0, 32.0, 33.25], "ter": [50.0, 51, 52]},
            "plain": {"bleu": [1, 2, 3], "ter": [4, 5, 6]},
        },
    }
    return {"baseline": "plain", "systems": runs, "comparisons": {"news": compared}, "reference_table": paper}


@pytest.fixture(scope="module")
def results(saved: dict[str, Any]) -> RunResults:
    return read(saved)


def read(saved: dict[str, Any]) -> RunResults:
    return parse_file(RunResults, saved, Path("results.json"))


@pytest.mark.full
def test_the_table_of_time_has_seconds_of_a_source(saved: dict[str, Any]) -> None:
    """The mean of the seeds; a row of which a seed was not measured has none."""
    saved = copy.deepcopy(saved)
    runs = saved["systems"]
    assert time_table(read(saved).systems) is None, "of an older version"
    spent = {"plain": (20.0, 35.0), "good-seed1": (1.0, 2.0), "good-seed2": (2.0, 4.0)}  # for 50 sources
    for name, (seconds, busy) in spent.items():
        runs[name]["tests"]["news"]["time"] = {"seconds": seconds, "processor_seconds": busy, "processes": 1}
    runs["bad"]["tests"]["news"]["time"] = None
    table = time_table(read(saved).systems)
    assert table is not None and table.headers == ["system", "news n=50"]
    assert table.rows == [["plain", "0.4 / 0.7"], ["good", "0.03 / 0.06"], ["bad", "-"]]
    assert "compare times only if systems ran one at a time" in table.legend
    runs["good-seed2"]["tests"]["news"]["time"] = None
    assert time_table(read(saved).systems).rows[1] == ["good", "-"]  # type: ignore[union-attr]


def test_degradation_is_the_loss_across_each_training_length(saved: dict[str, Any]) -> None:
    """Each row across the limits of all, one of several seeds by their own falls; empty groups are passed over."""
    table = degradation_table(read(saved).systems)
    assert table is not None
    groups = {name: run["tests"]["news"]["buckets"] for name, run in saved["systems"].items()}
    n = [group["n"] for group in groups["plain"]]
    assert table.headers[2:] == [f"news [0,10] n={n[0]} → [11,20] n={n[1]}", f"news [11,20] n={n[1]} → >20 n={n[2]}"]
    assert [row[:2] for row in table.rows] == [["plain", "20"], ["good (2 seeds)", "20"], ["bad", "10"]]
    assert rf"news [0,10] n={n[0]} $\to$ [11,20]" in render_latex(table)
    for row, name in ((0, "plain"), (2, "bad")):
        for column in (0, 1):
            before, behind = (group["scores"]["bleu"] for group in groups[name][column : column + 2])
            interval = math.hypot(before["half_width"], behind["half_width"])
            assert table.rows[row][2 + column] == f"{before['value'] - behind['value']:.1f} ±{interval:.1f}"
    falls = []
    for seed in (1, 2):
        before, behind = (group["scores"]["bleu"]["value"] for group in groups[f"good-seed{seed}"][1:])
        falls.append(before - behind)
    half = 12.706 * abs(falls[0] - falls[1]) / 2  # Student's t of one degree of freedom, of two values
    assert table.rows[1][3] == f"{sum(falls) / 2:.1f} ±{half:.1f}"
    sparse = copy.deepcopy(saved)
    for run in sparse["systems"].values():
        run["tests"]["news"]["buckets"][1] |= {"n": 0, "scores": {"bleu": {}}}
        run["tests"]["news"]["buckets"][2]["scores"]["bleu"].pop("half_width")
    table = degradation_table(read(sparse).systems)
    assert table is not None and table.headers[2:] == [f"news [0,10] n={n[0]} → >20 n={n[2]}"]
    assert "±" not in table.rows[0][2]
    assert degradation_table(limited(read(saved), max_length=None)) is None
    del sparse["systems"]["plain"]["tests"]["news"]["overall"]["scores"]["bleu"]
    assert degradation_table(read(sparse).systems) is None, "scored by TER alone"


def limited(results: RunResults, **lengths: int | None) -> dict[str, SystemResult]:
    """The systems of a run, as if they were trained on these lengths."""
    return {name: replace(system, **lengths) for name, system in results.systems.items()}


def test_degradation_below_the_shortest_training_length_is_reported(results: RunResults) -> None:
    table = degradation_table(limited(results, max_length=None, min_length=11))
    assert table is not None
    shorter, within, longer = results.systems["plain"].tests["news"].buckets
    assert table.headers[2:] == [f"news [11,20] n={within.n} → [0,10] n={shorter.n}"]
    assert table.rows[0][1] == "no limit, from 11"
    assert table.rows[0][2].startswith(f"{within.score('bleu') - shorter.score('bleu'):.1f} ±")
    for start, below in ((21, "[11,20]"), (20, "[0,10]")):  # of [11,20] the longest are as long as 20
        other = degradation_table(limited(results, max_length=None, min_length=start))
        assert other is not None and f"news >20 n={longer.n} → {below}" in other.headers[2]
    both = degradation_table(limited(results, max_length=20, min_length=11))
    assert both is not None and len(both.headers) == 4 and both.headers[2] == table.headers[2]


LIMITS = {"plain": 20, "good": 20, "bad": 10}


def test_a_table_marks_what_differs_and_says_how_sure_it_is(results: RunResults) -> None:
    table = length_table(replace(TableRows.of(results), max_lengths=LIMITS), "news")
    assert [row[0] for row in table.rows] == ["plain", "good (2 seeds)", "bad"]
    good = TableRows.of(results).scores["good"]["news"].overall.scores
    cell = table.rows[1][2]
    bleu, ter = ([good[metric].lowest, good[metric].highest] for metric in ("bleu", "ter"))
    assert cell.startswith(
        "{:.1f} [{:.1f} to {:.1f}]* / {:.1f} [{:.1f} to {:.1f}]* / ".format(
            good["bleu"].value, *bleu, good["ter"].value, *ter
        )
    )
    assert "*" not in "".join(table.rows[0])
    assert "* p < 0.05 against plain, by approximate randomisation" in table.legend
    assert "±" in table.legend and "[ ]" in table.legend
    weak = {"good": {"all": {"bleu": PValues(randomisation=0.05, bootstrap=0.01)}}}
    assert (
        "*"
        not in length_table(TableRows(scores=TableRows.of(results).scores, comparisons={"news": weak}), "news")
        .rows[1][1]
        .split(" / ")[0]
    )
    overview = overview_table(TableRows.of(results))
    assert overview.rows[1][1] == cell


def test_the_pooled_test_marks_a_difference(results: RunResults) -> None:
    """It is the test of all seeds at once, and is saved next to those of each seed."""
    compared = results.comparisons["news"]
    assert compared["bad"]["all"]["bleu"].pooled is None, "the baseline has one seed"
    scores = TableRows.of(results).scores
    for pooled, mark in ((0.01, "*"), (0.2, "")):
        values = PValues(randomisation=0.05 - pooled / 5, bootstrap=0.01, pooled=pooled)
        rows = TableRows(scores=scores, comparisons={"news": {"good": {"all": {"bleu": values}}}})
        cell = length_table(rows, "news").rows[1][1].split(" / ")[0]
        assert cell.endswith("]" + mark)
        assert f",{pooled}" in render_csv(rows)


def test_the_papers_table_stands_beside_ours(results: RunResults) -> None:
    rows, paper = TableRows.of(results).scores, results.reference_table
    assert paper is not None
    table = reference_table(replace(TableRows.of(results), max_lengths=LIMITS), paper)
    n = [one.n for one in rows["good"]["news"].buckets]
    assert table.headers == [
        "#", "system", "trained to", "", f"[0,10] n={n[0]}, paper n=100", f"[11,20] n={n[1]}, paper n=200",
        f">20 n={n[2]}, paper n=300",
    ]  # fmt: skip
    assert [row[:4] for row in table.rows] == [
        ["1", "good (2 seeds)", "20", "ours"], ["", "", "", "paper"],
        ["2", "plain", "20", "ours"], ["", "", "", "paper"],
    ]  # fmt: skip
    assert table.rows[1][4:] == ["31.0 (50.0)", "32.0 (51.0)", "33.2 (52.0)"]
    ours = rows["good"]["news"].buckets[0].scores
    bleu, ter = ours["bleu"], ours["ter"]
    assert table.rows[0][4].startswith(f"{bleu.value:.1f} [{bleu.lowest:.1f} to {bleu.highest:.1f}]")
    assert f"({ter.value:.1f} [{ter.lowest:.1f} to {ter.highest:.1f}]" in table.rows[0][4]
    whole = paper.model_copy(update={"rows": {"good": {"bleu": 40.4, "ter": 46.7}}, "num_pairs": None})
    table = reference_table(TableRows(scores=rows, max_lengths=LIMITS), whole)
    assert table.headers[4:] == ["all n=50"] and table.rows[1][4:] == ["40.4 (46.7)"]
    assert table.legend.startswith("Someone (2019), Table 9, on news, all pairs: BLEU (TER)")
    gap = paper.model_copy(update={"rows": {"good": {"bleu": [31.0, None, 33.25]}}, "num_pairs": None})
    assert reference_table(TableRows(scores=rows, max_lengths=LIMITS), gap).rows[1][4:] == ["31.0", "-", "33.2"]


def test_csv_has_every_number_in_full(results: RunResults) -> None:
    rows = TableRows.of(results).scores
    lines = list(csv.DictReader(io.StringIO(render_csv(TableRows.of(results)))))
    assert len(lines) == 3 * 4 * 3  # rows, groups with all, and two metrics with the length ratio
    for line in lines:
        tests = rows[line["system"]]["news"]
        group = next(one for one in tests.all_buckets if one.label == line["group"])
        assert float(line["score"]) == group.score(line["metric"]) and int(line["n"]) == group.n
        p = results.comparisons["news"].get(line["system"], {}).get(line["group"], {}).get(line["metric"])
        assert line["p_randomisation"] == (str(p.randomisation) if p else "")


def test_latex_escapes_what_latex_reads(results: RunResults) -> None:
    named = {"a_b & c": TableRows.of(results).scores["good"], "plain": TableRows.of(results).scores["plain"]}
    text = render_latex(length_table(TableRows(scores=named), "news"))
    assert r"a\_b \& c (2 seeds) & " in text and r"$>$20 n=" in text and r" $\pm$" in text and r"95 \%" in text
    assert text.count(r" \\") == 3 and text.startswith(r"\begin{tabular}{lrrrr}")
    # The header has a first column without & before it: as many as columns less one in each line.
    assert {line.replace(r"\&", "").count("&") for line in text.splitlines() if line.endswith(r"\\")} == {4}


def drawn(figure: Figure, panel: int = 0) -> list[tuple[float, float]]:
    return [tuple(point) for line in figure.axes[panel].lines for point in np.asarray(line.get_xydata()).tolist()]


def test_loss_is_plotted_by_step_and_by_minute(results: RunResults) -> None:
    losses = {name: system.loss for name, system in results.systems.items() if system.loss}
    row_of = results.row_by_system
    figure = loss_figure(losses, row_of)
    assert drawn(figure, 0) == [(20, 2.5)] * 4 and drawn(figure, 1) == [(9.5 / 60, 2.5)] * 4
    assert "validation" in figure.axes[0].get_ylabel()
    assert sorted(text.get_text() for text in figure.legends[0].get_texts()) == ["bad", "good", "plain"]
    bad = losses["bad"]
    figure = loss_figure(losses | {"bad": replace(bad, eval_loss=())}, row_of)
    assert drawn(figure, 0)[:2] == [(10, 3.0), (20, 2.0)] and "training" in figure.axes[0].get_ylabel()
    assert len(figure.axes) == 2
    bleu = (CurvePoint(10, 6.0, 1.0), CurvePoint(20, 12.0, 4.0))
    scored = {name: replace(one, eval_bleu=bleu) for name, one in losses.items()}
    figure = loss_figure(scored, row_of)
    assert drawn(figure, 0) == [(20, 2.5)] * 4
    assert drawn(figure, 2) == [(10, 1.0), (20, 4.0)] * 4 and drawn(figure, 3) == [(0.1, 1.0), (0.2, 4.0)] * 4
    assert figure.axes[2].get_ylabel() == "validation BLEU"
    assert len(loss_figure(scored | {"bad": bad}, row_of).axes) == 2


def test_beyond_the_limit_is_the_corpus_score_of_what_is_longer(results: RunResults) -> None:
    references, lengths = corpus(50)
    predictions = noisy(references, 0.4, 0)
    longer = [row for row, length in enumerate(lengths) if length > 20]
    texts = [predictions[row] for row in longer], [[references[row] for row in longer]]
    made = results.systems["plain"].tests["news"].beyond
    assert made is not None
    assert made.n == len(longer) > 2 and made.low == 21
    assert made.score("bleu") == pytest.approx(BLEU().corpus_score(*texts).score)
    assert scores_beyond_limit(scored(predictions, references, lengths)[1], None, 100).score("bleu") is None


def test_groups_by_the_translations_length_are_corpus_scores_with_their_own_number_of_pairs() -> None:
    references, lengths = corpus(50)
    predictions = noisy(references, 0.4, 0)
    own = [row % 3 * EDGES[0] for row in range(len(lengths))]
    made = scores_by_length(scored(predictions, references, lengths)[1], own, EDGES, 100).buckets
    for group in made:
        high = math.inf if group.high is None else group.high
        rows = [row for row, length in enumerate(own) if group.low <= length <= high]
        assert group.n == len(rows)
        if rows:
            texts = [predictions[row] for row in rows], [[references[row] for row in rows]]
            assert group.score("bleu") == pytest.approx(BLEU().corpus_score(*texts).score)
    assert sum(group.n > 0 for group in made) > 1
    other = scores_by_length(scored(references, references, lengths)[1], [0] * len(lengths), EDGES, 0).buckets
    runs = {
        name: {"news": LengthScores(overall=groups[0], buckets=groups)} for name, groups in (("a", made), ("b", other))
    }
    (row,) = mean_over_seeds(runs, {"a": "both", "b": "both"}).values()
    scores = row["news"]
    assert scores.buckets[0].score("bleu") == pytest.approx((made[0].score("bleu") + 100) / 2)
    assert scores.buckets[0].n == (made[0].n + len(lengths)) / 2
    assert scores.buckets[1] == replace(made[1], n=made[1].n / 2), "of the seed that has pairs there"
    cells = prediction_table({"both": row}, "news").rows[0]
    assert cells[0] == "both (2 seeds)" and cells[1].endswith(f" ({scores.buckets[0].n:.0f})")
    assert cells[2].endswith(f" ({scores.buckets[1].n:.0f}; 1 seed)")
    swapped = replace(scores, buckets=(replace(scores.buckets[1], n=0.25),))
    cells = prediction_table({"both": {"news": swapped}}, "news").rows[0]
    assert cells[0] == "both (2 seeds)" and cells[1].endswith(" (0.25; 1 seed)")


@pytest.mark.full
def test_a_report_needs_only_results_json(results: RunResults, tmp_path: Path) -> None:
    printed = write_report(results, tmp_path / "a")
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == sorted(
        [
            "manifest.json",
            "results.json",
            "scores.csv",
            "loss.png",
            "bleu-by-length-news.png",
            "loss-by-position-news.png",
        ]
        + [
            f"table-{table}.{kind}"
            for table in ("overview", "fall", "news", "news-by-prediction", "paper")
            for kind in ("md", "tex")
        ]
    )
    assert write_report(read_results(tmp_path / "a"), tmp_path / "b") == printed
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


@pytest.mark.full
def test_a_report_has_a_figure_of_every_measurement(saved: dict[str, Any], tmp_path: Path) -> None:
    newer = copy.deepcopy(saved)
    for place, run in enumerate(newer["systems"].values()):
        run["diagnostics"]["news"] |= measured(place)
    kinds = ("attention-entropy", "place", "end-forbidden")
    for name, made in (("old", saved), ("new", newer)):
        write_report(read(made), tmp_path / name)
        assert [(tmp_path / name / f"{kind}-news.png").exists() for kind in kinds] == [name == "new"] * 3


@pytest.mark.full
def test_a_report_says_where_training_began(results: RunResults, tmp_path: Path) -> None:
    newer = replace(results, systems=limited(results, min_length=11))
    write_report(newer, tmp_path)
    for table in ("news", "paper", "fall"):
        assert "20, from 11" in (tmp_path / f"table-{table}.md").read_text(), table
    drawn = {figure.label: figure.draw() for figure in report_figures(newer, TableRows.of(newer))}
    assert "training\nfrom 11" in [text.get_text() for text in drawn["bleu-by-length"].axes[0].texts]


@pytest.mark.full
def test_the_command_line_makes_a_report_and_says_what_is_wrong(
    results: RunResults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = write_report(results, tmp_path / "a")
    monkeypatch.setattr("sys.argv", ["hf_posenc", "report", str(tmp_path / "a"), "--output", str(tmp_path / "b")])
    command_line()
    assert capsys.readouterr().out == printed + "\n"
    assert (tmp_path / "b" / "table-news.md").read_text() == (tmp_path / "a" / "table-news.md").read_text()
    for command in (["report", str(tmp_path)], ["card", str(tmp_path), "relative"]):
        monkeypatch.setattr("sys.argv", ["hf_posenc", *command])
        with pytest.raises(SystemExit, match=r"run train\.py first"):
            command_line()


def test_without_matplotlib_a_report_has_its_tables_and_says_what_figures_need(
    results: RunResults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [
        name for name in sys.modules if name.startswith(("hf_posenc.lab.figures", "hf_posenc.lab.reports.report_f"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    printed = write_report(results, tmp_path)
    assert 'Figures need the extra "plots", but matplotlib is not installed; run `pip install' in printed
    assert list(tmp_path.glob("table-*.md")) and not list(tmp_path.glob("*.png"))


def test_intervals_are_plotted_where_they_exist() -> None:
    groups = [
        bucket(bleu=10.0, bleu_mean=8.0, bleu_ci=5.0),  # of samples: 3 to 13
        bucket(bleu=10.0, bleu_mean=18.0, bleu_ci=5.0),  # 13 to 23, which leaves the score out
        bucket(bleu=10.0, bleu_ci=5.0),
        bucket(bleu=None, bleu_mean=None, bleu_ci=None),
    ]
    assert interval_bars(groups, "bleu").T.tolist() == [[7, 3], [0, 13], [5, 5], [0, 0]]


@pytest.mark.full
def test_a_table_of_drawn_pairs_says_so_and_one_of_a_single_row_marks_nothing(
    saved: dict[str, Any], tmp_path: Path
) -> None:
    timed = copy.deepcopy(saved)
    for run in timed["systems"].values():
        run["tests"]["news"]["time"] = {"seconds": 1.0, "processor_seconds": 2.0, "processes": 1}
    write_report(read(timed | {"max_per_bucket": 60}), tmp_path / "drawn")
    write_report(read(timed), tmp_path / "whole")
    for name in ("overview", "fall", "news", "news-by-prediction", "paper", "time"):
        for folder in ("drawn", "whole"):
            text = (tmp_path / folder / f"table-{name}.md").read_text()
            assert ("at most 60 pairs of each length group" in text) == (folder == "drawn" and name != "time")
    alone = {"plain": TableRows.of(read(saved)).scores["plain"]}
    for table in (
        overview_table(TableRows(scores=alone, baseline="plain", comparisons={"news": {}})),
        length_table(
            TableRows(scores=alone, max_lengths=LIMITS, baseline="plain", comparisons={"news": {"other": {}}}), "news"
        ),
    ):
        assert "±" in table.legend and "against" not in table.legend


@pytest.mark.full
def test_results_that_are_not_whole_or_not_alike_are_refused(results: RunResults, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is none in .*; run train\.py first"):
        read_results(tmp_path)
    write_report(results, tmp_path)
    whole = (tmp_path / "results.json").read_text()
    (tmp_path / "results.json").write_text(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"results\.json must be .* its content has changed"):
        read_results(tmp_path)
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(ValueError, match=r"results\.json must be .* JSONDecodeError"):
        read_results(tmp_path)
    (tmp_path / "results.json").write_text('{"a": 1}')
    with pytest.raises(ValueError, match=r"lacks baseline, systems, comparisons;"):
        read_results(tmp_path)
    other = json.loads(whole)
    other["systems"]["bad"]["tokenizer"] = "xyz"
    with pytest.raises(ValueError, match="between plain and bad tokenizer was 'abc' and is 'xyz'"):
        write_report(read(other), tmp_path / "c")
    other = json.loads(whole)
    other["systems"]["bad"]["tests"]["news"]["test_set_sha256"] = "y"
    with pytest.raises(ValueError, match="between plain and bad news was 'x' and is 'y'"):
        write_report(read(other), tmp_path / "c")
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(("freedom", "t"), [*enumerate(STUDENT_T_975, start=1)])
def test_95_percent_of_students_distribution_lie_within_the_tables_t(freedom, t):
    """To the table's last digit, by the integral of the density."""

    def within(t: float) -> float:
        x, step = np.linspace(-t, t, 20001, retstep=True)
        weights = np.concatenate(([1], np.tile([4, 2], 9999), [4, 1]))  # Simpson's
        log_scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2
        return float(step / 3 * (weights * np.exp(log_scale) * (1 + x**2 / freedom) ** (-(freedom + 1) / 2)).sum())

    assert within(t - 5e-4) < 0.95 < within(t + 5e-4)
