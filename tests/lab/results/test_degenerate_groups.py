"""Empty, tiny and degenerate buckets: scores and intervals are sacrebleu's, in every metric and table."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF, TER
from support.run_folders import TRAINING, run_folder
from support.saved_runs import by_length

from hf_posenc.lab.reports.card import model_card
from hf_posenc.lab.reports.report import report_tables
from hf_posenc.lab.reports.report_figures import report_figures
from hf_posenc.lab.results.aggregation import scores_beyond_limit, scores_by_length
from hf_posenc.lab.results.records import RunResults
from hf_posenc.lab.results.rendering import render_csv, render_latex, render_markdown, render_text
from hf_posenc.lab.results.saved_files import parse_file, read_results, to_json, write_results
from hf_posenc.lab.results.significance import p_values
from hf_posenc.lab.results.tables import TableRows
from hf_posenc.metrics.length_buckets.scorers import bucket_bounds
from hf_posenc.metrics.loading import load_length_buckets

pytestmark = pytest.mark.full

SACREBLEU = {"bleu": BLEU, "chrf": CHRF, "ter": lambda: TER(case_sensitive=True)}
ALIKE = ("a b c d e", "a b c d e")
# Each pair is a translation and its reference or references.
PAIRS: dict[str, list[tuple[str, Any]]] = {
    "one empty translation": [("", "q r"), ALIKE, ("e f g h", "e f g i")],
    "one empty reference": [("x", ""), ALIKE],
    "one pair with nothing in common": [("zzz", "q r"), ALIKE],
    "one pair of two empty sides": [("", ""), ALIKE],
    "empty translations": [("", "q r"), ("", "a b")],
    "empty references": [("x", ""), ("y z", "")],
    "empty sides": [("", ""), ("", "")],
    "white space": [(" ", "\t"), ("\u3000", " a "), ("a", "  ")],
    "single characters": [("a", "a"), ("b", "c"), ("", ".")],
    "identical pairs": [ALIKE, ALIKE],
    "an empty one of several references": [("a b", ["", "a b"]), ("c", ["d", ""]), ("", ["", ""])],
    "a reference less": [("a b", ["a c", "a b"]), ("", ["x"]), ("y", [""])],
    "one pair": [("", "q r")],
    "one pair of two empty sides alone": [("", "")],
}


def scored(pairs: list[tuple[str, Any]], bootstrap: int = 100, **options: Any) -> dict[str, Any]:
    predictions, references = [one for one, _ in pairs], [other for _, other in pairs]
    result = load_length_buckets(keep_in_memory=True).compute(
        predictions=predictions, references=references, source_lengths=[1] * len(pairs),
        metrics=tuple(SACREBLEU), bootstrap=bootstrap, **options,
    )  # fmt: skip
    assert result is not None
    return result


def streams(pairs: list[tuple[str, Any]]) -> list[list[str | None]]:
    references = [[other] if isinstance(other, str) else other for _, other in pairs]
    return [
        [one[number] if number < len(one) else None for one in references]
        for number in range(max(map(len, references)))
    ]


@pytest.mark.filterwarnings("ignore:a confidence interval needs two pairs")
@pytest.mark.parametrize("name", PAIRS)
def test_scores_and_intervals_of_odd_groups_are_those_of_sacrebleu(name: str) -> None:
    """The interval is that of sacrebleu's samples, scored in double precision."""
    pairs = PAIRS[name]
    result = scored(pairs)
    drawn = np.random.default_rng(12345).choice(len(pairs), size=(100, len(pairs)))
    for metric, scorer in ((metric, make()) for metric, make in SACREBLEU.items()):
        texts = [one for one, _ in pairs], streams(pairs)
        for group in (result["all"], result["groups"][0]):
            assert group[metric] == pytest.approx(scorer.corpus_score(*texts).score, abs=1e-9)
            assert math.isfinite(group[metric])
            if len(pairs) == 1:
                assert group[f"{metric}_mean"] is group[f"{metric}_ci"] is None
                continue
            rows = np.array(scorer._extract_corpus_statistics(*texts), dtype=float)
            samples = sorted(float(scorer._compute_score_from_stats(rows[rows_of].sum(0)).score) for rows_of in drawn)
            assert group[f"{metric}_mean"] == pytest.approx(sum(samples) / 100, rel=1e-6, abs=1e-9)
            assert group[f"{metric}_ci"] == pytest.approx((samples[97] - samples[2]) / 2, rel=1e-6, abs=1e-9)
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_no_pairs_have_no_scores() -> None:
    result = scored([])
    assert result["all"]["n"] == 0 and all(result["all"][metric] is None for metric in SACREBLEU)
    assert set(result["signatures"].values()) == {None}


SIDES = {"no pair": [], **PAIRS}


def results_of(pairs: list[tuple[str, Any]], edges: tuple[int, ...]) -> RunResults:
    """The results of a baseline and of a row of two seeds, all with these translations, a third in each group."""
    lengths = [5 + 10 * (row % 3) for row in range(len(pairs))]
    metric = load_length_buckets(keep_in_memory=True)
    texts = {"predictions": [one for one, _ in pairs], "references": [other for _, other in pairs]}
    tested = metric.compute(**texts, source_lengths=lengths, edges=edges, metrics=tuple(SACREBLEU), bootstrap=100)
    statistics = {"lengths": np.array(metric.lengths), **metric.statistics}
    run = {
        "tokenizer": "3a15",
        "max_length": edges[0],
        "training": TRAINING,
        "tests": {
            "news": by_length(tested)
            | {
                "truncated": 0,
                "test_set_sha256": "17",
                "beyond": to_json(scores_beyond_limit(statistics, edges[0], 100)),
                "by_prediction": to_json(scores_by_length(statistics, lengths, edges, 100).buckets),
            }
        },
        "loss": {"loss": [[10, 5.0, 3.0]], "eval_loss": [], "eval_bleu": []},
    }
    runs = {"plain": run | {"row": "plain"}, "good-seed1": run | {"row": "good"}, "good-seed2": run | {"row": "good"}}
    labels = ["all", *(bounds["label"] for bounds in bucket_bounds(edges))]
    compared = {"good": to_json(p_values([statistics] * 2, [statistics], edges, labels, 100))}
    results = {"baseline": "plain", "systems": runs, "comparisons": {"news": compared}, "reference_table": None}
    return parse_file(RunResults, results, Path("results.json"))


@pytest.mark.filterwarnings("ignore:a confidence interval needs two pairs")
@pytest.mark.parametrize("name", SIDES)
def test_degenerate_buckets_have_tables(name: str, tmp_path: Path) -> None:
    """As they are saved and read again; no number in them is none, and what does not differ is not marked."""
    results = results_of(SIDES[name], (10, 20))
    write_results(tmp_path, results)
    assert read_results(tmp_path) == results
    rows = TableRows.of(results)
    renderings = [render_csv(rows)]
    for table in report_tables(results, rows).values():
        renderings += [render_text(table), render_markdown(table), render_latex(table)]
    assert not re.search(r"\b(nan|inf|None)\b|\d\*", "".join(renderings))


@pytest.mark.filterwarnings("ignore:a confidence interval needs two pairs")
@pytest.mark.parametrize("name", ["no pair", "one pair of two empty sides alone", "empty references", "white space"])
def test_degenerate_buckets_are_plotted(name: str) -> None:
    results = results_of(SIDES[name], (10, 20))
    for figure in report_figures(results, TableRows.of(results)):
        figure.draw().draw_without_rendering()


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:a confidence interval needs two pairs")
@pytest.mark.parametrize("name", SIDES)
def test_degenerate_buckets_have_a_card(name: str, tmp_path: Path) -> None:
    tested = results_of(SIDES[name], (10, 20)).systems["plain"].tests
    made = model_card(run_folder(tmp_path, tests=to_json(tested)), "tiny")
    assert not re.search(r"\b(None|nan|inf)\b", str(made))
    assert len(made.data.eval_results or []) == len(SACREBLEU) * (tested["news"].overall.n > 0)
