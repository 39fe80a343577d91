"""The figure and the table of perplexity by context length."""

import numpy as np
import pytest

from hf_posenc.lab.figures.score_plots import perplexity_figure
from hf_posenc.lab.results.records import BucketScore, LengthScores, Score
from hf_posenc.lab.results.tables import TableRows, length_table

BOUNDS = ((0, 64, "[0,64]"), (65, 128, "[65,128]"), (129, None, ">128"))


def scores(*perplexities: float, half_width: float = 20.0, seeds: int = 3) -> dict[str, LengthScores]:
    """A row's scores on the test set `talks-whole`."""
    buckets = [
        BucketScore(
            low=low,
            high=high,
            label=label,
            n=50,
            scores={"perplexity": Score(value=value, half_width=half_width)},
            seeds=seeds,
        )
        for (low, high, label), value in zip(BOUNDS, perplexities, strict=True)
    ]
    overall = BucketScore(low=0, high=None, label="all", n=150, scores=buckets[0].scores, seeds=seeds)
    return {"talks-whole": LengthScores(overall=overall, buckets=tuple(buckets))}


def test_perplexities_above_100_have_whole_bars_and_labels_at_their_lines() -> None:
    rows = {"rotary": scores(105.0, 110.0, 125.0), "alibi": scores(106.0, 104.0, 103.0)}
    figure = perplexity_figure(rows, "talks-whole", max_training_lengths=dict.fromkeys(rows, 64))
    [axes] = figure.axes
    assert axes.get_yscale() == "linear"
    lines = {line.get_label(): line.get_ydata() for line in axes.get_lines()}
    assert np.array_equal(lines["rotary"], [105.0, 110.0, 125.0])
    first_bar = axes.containers[0].lines[2][0].get_segments()[0]
    assert [point[1] for point in first_bar] == [85.0, 125.0]
    assert {"rotary", "alibi"} <= {text.get_text() for text in axes.texts}
    assert "context length in tokens" in axes.get_xlabel() and "Student's over the seeds" in axes.get_xlabel()


def test_an_explosion_is_drawn_on_a_logarithmic_axis_with_bars_of_possible_values() -> None:
    """A perplexity is 1 or more."""
    rows = {"none": scores(10.0, 15.0, 4000.0)}
    [axes] = perplexity_figure(rows, "talks-whole", max_training_lengths={"none": 64}).axes
    assert axes.get_yscale() == "log"
    assert [point[1] for point in axes.containers[0].lines[2][0].get_segments()[0]] == [1.0, 30.0]


@pytest.mark.parametrize(("number", "has_legend"), [(12, False), (13, True)])
def test_up_to_twelve_systems_are_named_at_their_lines(number: int, has_legend: bool) -> None:
    rows = {f"system-{index}": scores(10.0, 11.0, 12.0 + index) for index in range(number)}
    figure = perplexity_figure(rows, "talks-whole", max_training_lengths=dict.fromkeys(rows, 64))
    drawn = {text.get_text() for legend in figure.legends for text in legend.get_texts()}
    labels = {text.get_text() for axes in figure.axes for text in axes.texts}
    assert drawn == (set(rows) if has_legend else set())
    assert has_legend or set(rows) <= labels


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_table_says_what_its_columns_are(seeds: int) -> None:
    table = length_table(TableRows(scores={"rotary": scores(105.0, 110.0, 125.0, seeds=seeds)}), "talks-whole")
    assert table.caption == "talks-whole, by context length in tokens: perplexity"
    assert "over windows" in table.legend and "sentences" not in table.legend
    assert "sliding: the same windows" in table.legend
    assert "125.00 ±20.00" in table.rows[0]
