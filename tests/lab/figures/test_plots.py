"""Tables and figures: printed and plotted values are those of the results."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from support.saved_runs import by_length

from hf_posenc.lab.figures.score_plots import (
    bleu_by_length_figure,
    interval_bars,
    ranking_by_test_set_figure,
    ranking_figure,
)
from hf_posenc.lab.figures.style import COLOURS, SYSTEM_COLOURS, base_name, line_styles, save_figure
from hf_posenc.lab.reports.report_figures import without_repeats
from hf_posenc.lab.results.records import BucketScore, LengthScores, Score, SegmentedSystem
from hf_posenc.lab.results.rendering import TEXT_WIDTH, render_markdown, render_notes, render_text
from hf_posenc.lab.results.saved_files import read_results, validated
from hf_posenc.lab.results.tables import SCORE_FORMATS, Table, TableRows, length_table, overview_table
from hf_posenc.metrics.length_buckets.scorers import SCORERS

EDGES = [(0, 25), (26, 50), (51, 75), (76, 100), (101, None)]
SIZES = [14125, 11169, 2413, 318, 50]


def saved(bleu: list[float], ratio: list[float], sizes: list[int] = SIZES) -> LengthScores:
    """A result as the metric saves it, read back."""

    def entry(low: int, high: int | None, label: str, n: int, scores: tuple[float, float]) -> dict[str, Any]:
        fields = {"bleu": scores[0], "brevity_penalty": 1.0, "ter": 100 - scores[0], "length_ratio": scores[1]}
        return {"low": low, "high": high, "label": label, "n": n, **(fields if n else dict.fromkeys(fields))}

    groups = [
        entry(low, high, f"[{low},{high}]" if high else ">100", n, scores)
        for (low, high), n, scores in zip(EDGES, sizes, zip(bleu, ratio, strict=True), strict=True)
    ]
    result = {"all": entry(0, None, "all", sum(sizes), (31.66, 1.016)), "groups": groups, "signatures": {}}
    return validated(LengthScores, by_length(result))


RESULTS = {
    "relative": {"newstest": saved([99, 98, 79, 48, 21], [1, 1, 0.99, 0.97, 0.9])},
    "rotary": {"newstest": saved([99, 98, 66, 32, 5], [1, 1, 1.02, 1.3, 2.4])},
    "sinusoidal": {"newstest": saved([99, 98, 57, 46, 36], [1, 1, 0.9, 0.7, 0.5])},
}
WITH_GAP = {
    system: {"newstest": saved([40, 30, 20, 0, 10], [1, 1, 1, 1, 1], [9, 9, 9, 0, 9])}
    for system in ("relative", "rotary")
}


def bucket(bleu: float, n: int = 1) -> BucketScore:
    return BucketScore(low=0, high=None, label="all", n=n, scores={"bleu": Score(value=bleu)})


def curves(figure: Figure, panel: int) -> dict[str, list[float]]:
    """What is drawn, read back by the names at the lines' ends."""
    lines = {str(line.get_label()): line for line in figure.axes[panel].lines}
    names = [label for label in line_labels(figure) if label in lines]
    return {name: [float(y) for y in numpy.asarray(lines[name].get_ydata())] for name in names}


def line_labels(figure: Figure) -> list[str]:
    """The names of systems beside the first panel."""
    return [text.get_text() for text in figure.axes[0].texts if not text.get_text().startswith("training")]


def limit_labels(figure: Figure) -> list[str]:
    """What stands above the lines of training lengths."""
    return [text.get_text() for text in figure.axes[0].texts if text.get_text().startswith("training")]


def uprights(figure: Figure) -> list[tuple[float, str]]:
    """Place and colour of the vertical lines, the same in both panels."""

    def of(lines: list[Line2D]) -> list[tuple[float, str]]:
        places = [(numpy.asarray(line.get_xdata(), dtype=float), str(line.get_color())) for line in lines]
        return [(float(x[0]), colour) for x, colour in places if len(x) == 2 and x[0] == x[1]]

    assert of(list(figure.axes[0].lines)) == of(list(figure.axes[1].lines))
    return of(list(figure.axes[0].lines))


def colours(figure: Figure) -> dict[str, str]:
    return {str(line.get_label()): str(line.get_color()) for line in figure.axes[0].lines}


def same_limit(limit: int | None, results: dict[str, Any] = RESULTS) -> dict[str, int | None]:
    return dict.fromkeys(results, limit)


def test_plotted_curves_are_the_values_of_the_results() -> None:
    figure = bleu_by_length_figure(RESULTS, "newstest", max_training_lengths=same_limit(50))
    for panel, field in ((0, "bleu"), (1, "length_ratio")):
        assert curves(figure, panel) == {
            system: [bucket.score(field) for bucket in tests["newstest"].buckets] for system, tests in RESULTS.items()
        }
    assert [label.get_text() for label in figure.axes[1].get_xticklabels()] == [
        f"{label}\nn={n}" for label, n in zip(["[0,25]", "[26,50]", "[51,75]", "[76,100]", ">100"], SIZES, strict=True)
    ]


def hollow_marks(axes: Axes) -> dict[str, list[float]]:
    """The heights of the hollow marks, by colour; no line leads to them."""
    hollow = [line for line in axes.lines if str(line.get_markerfacecolor()) == "white"]
    assert all(line.get_linestyle() == "None" for line in hollow)
    return {str(line.get_color()): [float(y) for y in numpy.asarray(line.get_ydata())] for line in hollow}


@pytest.mark.parametrize("sizes", [[9, 9, 9, 0, 9], [30, 20, 19, 0, 25], [30, 30, 30, 0, 2], [30, 30, 30, 0, 30]])
@pytest.mark.parametrize("num_systems", [2, 6])
def test_small_buckets_are_hollow_and_empty_ones_are_left_out(sizes: list[int], num_systems: int) -> None:
    scores = [40.0, 30.0, 20.0, 0.0, 10.0]
    names = ["relative", "rotary", "alibi", "t5", "sinusoidal", "learned"][:num_systems]
    results = {name: {"newstest": saved(scores, [1] * 5, sizes)} for name in names}
    figure = bleu_by_length_figure(results, "newstest", max_training_lengths=same_limit(90, results))
    shown = [score for score, n in zip(scores, sizes, strict=True) if n]
    large = [score for score, n in zip(scores, sizes, strict=True) if n >= 20]
    small = [score for score, n in zip(scores, sizes, strict=True) if 0 < n < 20]
    axes = figure.axes[0]
    drawn = {str(line.get_label()): numpy.asarray(line.get_ydata()) for line in axes.lines}
    assert [y for y in drawn["relative"] if not math.isnan(y)] == large and len(drawn["relative"]) == len(shown)
    assert set(map(tuple, hollow_marks(axes).values())) == ({tuple(small)} if small else set())
    texts = [figure.get_supxlabel(), *(label.get_text() for axes in figure.axes for label in axes.get_xticklabels())]
    assert all(str(n) in " ".join(texts) for n in sizes if n)
    assert ("hollow" in figure.get_supxlabel()) == bool(small)


@pytest.mark.parametrize(
    ("limit", "x"),
    [
        (25, 0.5),
        (50, 1.5),
        (75, 2.5),
        (100, 3.5),
        (40, 0.5 + 15 / 25),
        (5, -0.5 + 5 / 25),
        (76, 2.5 + 1 / 25),
        (200, 4.0),
    ],
)
def test_the_limit_stands_where_training_ended(limit: int, x: float) -> None:
    figure = bleu_by_length_figure(RESULTS, "newstest", max_training_lengths=same_limit(limit))
    assert [place for place, _ in uprights(figure)] == [pytest.approx(x)]
    assert limit_labels(figure) == [f"training\nlimit {limit}"]


@pytest.mark.parametrize(("start", "x"), [(26, 0.5), (51, 1.5), (14, -0.5 + 13 / 25), (101, 3.5)])
def test_minimum_training_lengths_have_lines_too(start: int, x: float) -> None:
    starts = same_limit(start)
    limited = bleu_by_length_figure(
        RESULTS, "newstest", max_training_lengths=same_limit(None), min_training_lengths=starts
    )
    assert [place for place, _ in uprights(limited)] == [pytest.approx(x)]
    assert limit_labels(limited) == [f"training\nfrom {start}"]
    assert set(RESULTS) <= set(colours(limited)), "what all share is not in the legend"


def test_systems_with_other_initial_weights_have_their_own_line() -> None:
    starts = {"relative": 26, "rotary": 51, "sinusoidal": None}
    figure = bleu_by_length_figure(
        RESULTS, "newstest", max_training_lengths=same_limit(100), min_training_lengths=starts
    )
    of = colours(figure)
    assert sorted(uprights(figure))[:2] == [(0.5, of["relative (from 26)"]), (1.5, of["rotary (from 51)"])]
    assert "sinusoidal" in of
    first = bleu_by_length_figure(
        RESULTS, "newstest", max_training_lengths=same_limit(None), min_training_lengths=same_limit(1)
    )
    assert uprights(first) == [], "every pair has a subword"


def test_a_bucket_that_ends_at_the_training_length_ends_at_its_line() -> None:
    result = saved([40, 30, 20, 15, 10], [1] * 5)
    bounds = [(0, 40), (41, 60), (61, 80), (81, 90), (91, None)]
    buckets = [replace(one, low=low, high=high) for one, (low, high) in zip(result.buckets, bounds, strict=True)]
    result = replace(result, buckets=tuple(buckets))
    figure = bleu_by_length_figure({"relative": {"toy": result}}, "toy", max_training_lengths={"relative": 40})
    assert [place for place, _ in uprights(figure)] == [0.5]


def test_no_axis_of_bleu_goes_far_above_100_with_an_interval_of_seeds() -> None:
    result = saved([99, 98, 79, 48, 21], [1] * 5)
    wide = [replace(one, scores={"bleu": replace(one.scores["bleu"], half_width=60.0)}) for one in result.buckets]
    result = replace(result, buckets=tuple(wide))
    bleu, *_ = bleu_by_length_figure({"relative": {"toy": result}}, "toy", max_training_lengths=same_limit(None)).axes
    assert bleu.get_ylim()[1] == 105


def test_different_limits_have_their_systems_colours() -> None:
    limits = {"relative": 75, "rotary": 100, "sinusoidal": None}
    figure = bleu_by_length_figure(RESULTS, "newstest", max_training_lengths=limits)
    colour = colours(figure)
    assert uprights(figure) == [(2.5, colour["relative (limit 75)"]), (3.5, colour["rotary (limit 100)"])]
    assert "sinusoidal (no limit)" in colour
    shared_by_two = bleu_by_length_figure(RESULTS, "newstest", max_training_lengths=limits | {"sinusoidal": 75})
    assert [x for x, _ in uprights(shared_by_two)] == [2.5, 2.5, 3.5]
    assert len({drawn for _, drawn in uprights(shared_by_two)}) == 3
    assert uprights(bleu_by_length_figure(RESULTS, "newstest", max_training_lengths=same_limit(None))) == []


def test_close_limits_share_a_label() -> None:
    limits = {"relative": 74, "rotary": 75, "sinusoidal": 20}
    figure = bleu_by_length_figure(RESULTS, "newstest", max_training_lengths=limits)
    assert limit_labels(figure) == ["training\nlimit 20", "training\nlimits 74, 75"]


def test_a_ranking_has_the_best_beyond_the_training_length_at_the_top() -> None:
    beyond = {"relative": bucket(20.0), "rotary": bucket(5.0), "sinusoidal": bucket(30.0)}
    axes = ranking_figure(RESULTS, beyond, test_set="newstest").axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["rotary", "relative", "sinusoidal"]
    assert [round(float(tick)) for tick in axes.get_yticks()] == [0, 1, 2]
    drawn = {str(marks.get_label()): list(numpy.asarray(marks.lines[0].get_xdata())) for marks in axes.containers}
    assert drawn["[0,25] n=14125"] == [99, 99, 99] and drawn[">100 n=50"] == [5, 21, 36]
    for sizes in ([30, 9, 20, 0], [2, 9, 0, 9]):
        few = {}
        for system, tests in RESULTS.items():
            buckets = [replace(one, n=n) for one, n in zip(tests["newstest"].buckets, sizes, strict=False)]
            few[system] = {"newstest": replace(tests["newstest"], buckets=tuple(buckets))}
        marks = ranking_figure(few, beyond, test_set="newstest").axes[0].containers
        assert [int(str(mark.get_label()).partition("n=")[2]) for mark in marks] == [n for n in sizes if n]
        is_hollow = [str(mark.lines[0].get_markerfacecolor()) == "white" for mark in marks]
        assert is_hollow == [n < 20 for n in sizes if n]


def test_a_ranking_of_test_sets_has_the_best_of_their_mean_at_the_top() -> None:
    sets = {"a": (10.0, 30.0), "b": (25.0, 20.0), "c": (9.0, 8.0)}
    results = {
        system: {
            test: LengthScores(overall=bucket(bleu, n=7), buckets=())
            for test, bleu in zip(("one", "two"), scores, strict=True)
        }
        for system, scores in sets.items()
    }
    axes = ranking_by_test_set_figure(results).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["c", "a", "b"]
    drawn = {str(marks.get_label()): list(numpy.asarray(marks.lines[0].get_xdata())) for marks in axes.containers}
    assert drawn == {"one n=7": [9, 10, 25], "two n=7": [8, 30, 20]}


def test_systems_differ_without_colour() -> None:
    styles = line_styles([f"system {number}" for number in range(20)])
    assert len({(marker, line_style) for _, marker, line_style in styles.values()}) == 20


def test_a_system_has_one_colour_in_every_figure() -> None:
    first = line_styles(["sinusoidal", "relative-50", "aligned", "mine"])
    second = line_styles(["aligned-100-split", "relative", "theirs", "sinusoidal-seed2"])
    for one, other in (
        ("sinusoidal", "sinusoidal-seed2"),
        ("relative-50", "relative"),
        ("aligned", "aligned-100-split"),
    ):
        assert first[one][0] == second[other][0]
    assert len({colour for colour, *_ in first.values()}) == len({colour for colour, *_ in second.values()}) == 4
    variants = line_styles(["relative", "relative-50", "relative-50-split"])
    assert len({colour for colour, *_ in variants.values()}) == 1
    assert [line_style for *_, line_style in variants.values()] == ["-", "--", ":"]
    assert all(base_name(name) == name for name in SYSTEM_COLOURS)


def test_every_colour_has_a_contrast_of_3_to_1_on_white() -> None:
    def luminance(colour: str) -> float:
        channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    assert [colour for colour in COLOURS if 1.05 / (luminance(colour) + 0.05) < 3] == []


def test_more_than_five_systems_are_small_multiples() -> None:
    names = ["relative-50", "relative-100", "rotary", "lstm", "learned", "kerple"]
    many = dict.fromkeys(names, RESULTS["relative"])
    figure = bleu_by_length_figure(many, "newstest", max_training_lengths=same_limit(50, many))
    panels = [axes for axes in figure.axes if axes.axison]
    titles = [axes.get_title().replace("\n", " ") for axes in panels]
    assert titles == ["relative-50, relative-100", *names[2:]]
    for axes, members in zip(panels, [names[:2], *([name] for name in names[2:])], strict=True):
        coloured = [line for line in axes.lines if str(line.get_label()) in many]
        assert [str(line.get_label()) for line in coloured] == members
        expected = [bucket.score("bleu") for bucket in RESULTS["relative"]["newstest"].buckets]
        assert all(list(numpy.asarray(line.get_ydata())) == expected for line in coloured)
        grey = [line for line in axes.lines if line.get_color() == "#cccccc"]
        assert len(grey) == len(many) - len(members)


def test_a_segmented_system_that_repeats_another_is_no_line() -> None:
    """On a test set in which nothing was segmented; one that differs in a bucket stays."""
    results = read_results(Path(__file__).parents[3] / "docs" / "results" / "quickstart")
    segment = SegmentedSystem(system="relative", segmentation="gold")
    same = replace(results.systems["relative"], row="relative-split", segment=segment)
    other = replace(results.systems["aligned"], row="aligned-split", segment=segment)
    results = replace(results, systems={**results.systems, "relative-split": same, "aligned-split": other})
    rows = without_repeats(results, TableRows.of(results).scores, "generated")
    assert list(rows) == ["sinusoidal", "relative", "aligned", "aligned-split"]


def test_intervals_stay_within_the_scale() -> None:
    wide = [replace(bucket(score), scores={"bleu": Score(value=score, half_width=30.0)}) for score in (5.0, 50.0, 90.0)]
    assert interval_bars(wide, "bleu").T.tolist() == [[5, 30], [30, 30], [30, 10]]


def test_labels_of_lines_do_not_overlap() -> None:
    same = {f"system {number}": RESULTS["relative"] for number in range(5)}
    figure = bleu_by_length_figure(same, "newstest", max_training_lengths=same_limit(50, same))
    figure.draw_without_rendering()
    boxes = sorted(
        (text.get_window_extent() for text in figure.axes[0].texts if text.get_text() in same), key=lambda box: box.y0
    )
    assert len(boxes) == 5
    assert all(lower.y1 <= upper.y0 + 1 for lower, upper in itertools.pairwise(boxes))


def test_print_is_readable() -> None:
    long_names = {f"{'a long name ' * 12}{number}": RESULTS["rotary"] for number in range(3)}
    figure = bleu_by_length_figure(long_names, "newstest", max_training_lengths=same_limit(75, long_names))
    figure.draw_without_rendering()
    assert figure.get_figwidth() == 6.5
    axis_labels = [label for axes in figure.axes for label in (*axes.get_yticklabels(), *axes.get_xticklabels())]
    assert all(float(label.get_fontsize()) >= 8 for label in (*axis_labels, *figure.axes[0].texts))
    box = figure.get_tightbbox()
    assert box.x0 >= 0 and box.x1 <= figure.get_figwidth() and box.y0 >= 0 and box.y1 <= figure.get_figheight()


@pytest.mark.full
def test_saving_is_atomic_and_leaves_no_pyplot_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bleu.png"
    save_figure(bleu_by_length_figure(RESULTS, "newstest", max_training_lengths=same_limit(50)), path)
    whole = path.read_bytes()
    assert whole.startswith(b"\x89PNG")
    assert pyplot.get_fignums() == []

    def fail_half_way(part: Path, data: bytes) -> None:
        with open(part, "wb") as file:
            file.write(data[: len(data) // 2])
        raise OSError("disk full")

    monkeypatch.setattr(Path, "write_bytes", fail_half_way)
    with pytest.raises(OSError, match="disk full"):
        save_figure(Figure(), path)
    assert path.read_bytes() == whole
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(ValueError, match=r"saved as PNG.*bleu\.pdf.*rename"):
        save_figure(Figure(), tmp_path / "bleu.pdf")


def test_a_table_says_where_training_began() -> None:
    limits, starts = {"relative": 50, "rotary": None, "sinusoidal": 75}, {"relative": 26, "rotary": 16}
    table = length_table(TableRows(scores=RESULTS, max_lengths=limits, min_lengths=starts), "newstest")
    assert [row[1] for row in table.rows] == ["50, from 26", "no limit, from 16", "75"]


def test_table_prints_the_results_values() -> None:
    limits = {"relative": 50, "rotary": None, "sinusoidal": 75}
    table = length_table(TableRows(scores=RESULTS, max_lengths=limits), "newstest")
    assert table.headers == [
        "system",
        "trained to",
        "all n=28075",
        "[0,25] n=14125",
        "[26,50] n=11169",
        "[51,75] n=2413",
        "[76,100] n=318",
        ">100 n=50",
    ]
    assert table.rows[1] == [
        "rotary",
        "no limit",
        "31.7 / 68.3 / 1.02",
        "99.0 / 1.0 / 1.00",
        "98.0 / 2.0 / 1.00",
        "66.0 / 34.0 / 1.02",
        "32.0 / 68.0 / 1.30",
        "5.0 / 95.0 / 2.40",
    ]
    assert [row[1] for row in table.rows] == ["50", "no limit", "75"]
    assert table.legend.endswith("BLEU / TER / hypothesis:reference length")


def test_empty_groups_are_dashes() -> None:
    table = length_table(TableRows(scores=WITH_GAP), "newstest")
    assert table.headers[1] == "all n=36"
    assert [row[5] for row in table.rows] == ["-", "-"]
    only_bleu = {"a": {"t": LengthScores(overall=bucket(9.96), buckets=())}}
    assert length_table(TableRows(scores=only_bleu), "t").rows == [["a", "10.0"]]


def test_text_is_aligned_and_markdown_is_one_table() -> None:
    results = {"a|b": RESULTS["relative"], "a longer name": RESULTS["rotary"]}
    table = length_table(TableRows(scores=results), "newstest")
    caption, *lines = render_text(table).splitlines()
    blocks = [block.splitlines() for block in "\n".join(lines).strip().split("\n\n")]
    assert caption == table.caption and len(blocks) > 1
    assert [len({len(line) for line in block}) for block in blocks] == [1] * len(blocks)
    assert all(len(block[0]) <= TEXT_WIDTH and block[2].startswith("a|b  ") for block in blocks)
    assert blocks[-1][2].endswith(table.rows[0][-1])
    rows = render_markdown(table).splitlines()[:4]
    assert [row.replace("\\|", "").count("|") for row in rows] == [8] * 4
    assert rows[2].startswith("| a\\|b | 31.7 / 68.3 / 1.02 |")
    assert table.legend in render_markdown(table)


def test_a_table_keeps_each_cell_and_a_terminal_prints_each_note_once() -> None:
    table = Table(["system", *"abc"], [["one", "1" * 60, "2" * 60, "3"]], "caption", ("± half", "* p"))
    printed = render_text(table)
    assert [line.split() for line in printed.splitlines() if line.startswith("one")] == [
        ["one", "1" * 60],
        ["one", "2" * 60, "3"],
    ]
    assert "± half" not in printed
    assert render_notes([table, replace(table, notes=("* p", "new"))]) == "± half\n* p\nnew\n"


def test_unlike_test_sets_are_refused() -> None:
    other = {"other": {"newstest": saved([1] * 5, [1] * 5, [14126, 11168, 2413, 318, 50])}}
    for compare in (
        lambda results: length_table(TableRows(scores=results), "newstest"),
        lambda results: bleu_by_length_figure(results, "newstest", max_training_lengths=same_limit(50, results)),
    ):
        with pytest.raises(ValueError, match=r"share the test set.*'relative' has .*n=14125.*'other' has .*n=14126"):
            compare(RESULTS | other)


def test_the_overview_has_a_column_for_each_test_set() -> None:
    joined = saved([1] * 5, [2] * 5)
    both = {system: {"plain": tests["newstest"], "joined": joined} for system, tests in RESULTS.items()}
    table = overview_table(TableRows(scores=both))
    assert table.headers == ["system", f"plain n={sum(SIZES)}", f"joined n={sum(SIZES)}"]
    assert [row[0] for row in table.rows] == list(both)
    assert table.rows[0][1] == "31.7 / 68.3 / 1.02"


def test_every_metric_has_a_column() -> None:
    columns = {metric for metric, _, _ in SCORE_FORMATS}
    assert set(SCORERS) <= columns, "A metric of SCORERS needs a line in SCORE_FORMATS, or tables leave it out."
