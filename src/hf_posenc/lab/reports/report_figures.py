"""The figures of a report, each with a line on what to look at. Needs the extra "plots"."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from ..figures.diagnostics_plots import (
    end_forbidden_figure,
    entropy_figure,
    loss_by_position_figure,
    loss_figure,
    source_position_figure,
)
from ..figures.score_plots import bleu_by_length_figure, perplexity_figure, ranking_by_test_set_figure, ranking_figure
from ..figures.style import LazyFigure
from ..results.records import BucketScore, LengthScores, RunResults, ScoresByRow, SystemResult
from ..results.significance import mean_over_seeds
from ..results.tables import TableRows, TrainingLengths, is_perplexity

# With more rows, crossing lines of a figure cannot be distinguished.
MAX_CROSSING_ROWS = 12


def report_figures(results: RunResults, table_rows: TableRows) -> Iterator[LazyFigure]:
    """All figures of a report."""
    rows = table_rows.scores
    curves = {name: system.loss for name, system in results.systems.items() if system.loss is not None}
    look_for = (
        "Look at how fast each system learns, by step and by minute; systems trained side by side share a machine."
    )
    yield LazyFigure("loss", look_for, partial(loss_figure, curves, results.row_by_system))
    tests = next(iter(rows.values()))
    if len(rows) > MAX_CROSSING_ROWS and len(tests) > 1 and all(result.overall.n for result in tests.values()):
        look_for = "Look at how far the marks of a line lie apart, from test set to test set."
        yield LazyFigure("ranking-of-test-sets", look_for, partial(ranking_by_test_set_figure, rows))
    for test in tests:
        for figure in figures_of_test_set(test, results, table_rows):
            yield replace(figure, test_set=test)


def figures_of_test_set(test: str, results: RunResults, table_rows: TableRows) -> Iterator[LazyFigure]:
    """The figures of one test set."""
    rows, max_lengths = table_rows.scores, table_rows.max_lengths or {}
    min_lengths = table_rows.min_lengths
    if is_perplexity(next(iter(rows.values()))[test].all_buckets):
        look_for = (
            "Look beyond the dashed line, where training ended: which system's perplexity rises, and which one's falls."
        )
        draw = partial(perplexity_figure, rows, test, max_training_lengths=max_lengths)
        yield LazyFigure("perplexity", look_for, draw)
        return
    look_for = (
        "Look beyond the dashed lines, where training ended or began: which system degrades first and which least, "
        "whether the intervals overlap, and below, which one terminates early or over-generates."
    )
    distinct = without_repeats(results, rows, test)
    draw = partial(
        bleu_by_length_figure, distinct, test, max_training_lengths=max_lengths, min_training_lengths=min_lengths
    )
    yield LazyFigure("bleu-by-length", look_for, draw)
    beyond = beyond_by_row(results, test)
    if len(rows) > MAX_CROSSING_ROWS and all(bucket.n for bucket in beyond.values()):
        look_for = "Look at how far the marks of a line lie apart: the longer the input, the darker the mark."
        yield LazyFigure("ranking", look_for, partial(ranking_figure, rows, beyond, test_set=test))
    yield from diagnostics_figures(test, results.systems, rows, max_lengths)


def without_repeats(results: RunResults, rows: ScoresByRow, test: str) -> ScoresByRow:
    """The rows without those that repeat another by construction: segmented systems on a test set in which nothing was
    segmented, where they score as their unsegmented systems do."""
    distinct = dict(rows)
    for system in results.systems.values():
        if system.segment:
            unsegmented = results.systems[system.segment.system].row
            if rows[system.row][test].all_buckets == rows[unsegmented][test].all_buckets:
                distinct.pop(system.row, None)
    return distinct


def beyond_by_row(results: RunResults, test: str) -> dict[str, BucketScore]:
    """Each row's scores of all pairs longer than any system's maximum training length."""
    scores = {}
    for name, system in results.systems.items():
        if (beyond := system.tests[test].beyond) is not None:  # in each results.json
            scores[name] = {test: LengthScores(overall=beyond, buckets=())}
    return {row: tests[test].overall for row, tests in mean_over_seeds(scores, results.row_by_system).items()}


def diagnostics_figures(
    test: str, systems: Mapping[str, SystemResult], rows: ScoresByRow, max_lengths: TrainingLengths
) -> Iterator[LazyFigure]:
    """The figures of losses, attention and decodings on one test set. Of several seeds the first is shown."""
    by_row = {system.row: system.diagnostics[test] for system in reversed(list(systems.values())) if system.diagnostics}
    diagnoses = {row: by_row[row] for row in rows if row in by_row}
    if not diagnoses:
        return
    look_for = "Look at where a line leaves the others: up to there the reference so far predicts the next token."
    yield LazyFigure(
        "loss-by-position",
        look_for,
        partial(loss_by_position_figure, diagnoses, max_training_lengths=max_lengths),
    )
    if any(diagnosis.has_entropy for diagnosis in diagnoses.values()):
        look_for = (
            "Look at lines that rise with the length: there attention spreads over more than it has to tell apart."
        )
        yield LazyFigure("attention-entropy", look_for, partial(entropy_figure, diagnoses))
    if any(diagnosis.has_centroid for diagnosis in diagnoses.values()):
        look_for = (
            "Look at where the coloured line leaves the dotted one: jumps, steps back and plateaus are lost source "
            "positions; a line that stops below the top is an early termination."
        )
        yield LazyFigure("place", look_for, partial(source_position_figure, diagnoses))
    if any(diagnosis.has_decoding for diagnosis in diagnoses.values()):
        look_for = (
            "Look at full marks above open ones: there the system terminated early and had not lost track. "
            "Where both are low, it lost track."
        )
        yield LazyFigure("end-forbidden", look_for, partial(end_forbidden_figure, diagnoses))
