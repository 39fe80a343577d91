"""Commands that read finished runs: `table`, `compare` and `score` of `hf-posenc`, whose options `cli.py` parses."""

import argparse
from functools import partial
from pathlib import Path

from ...utils.atomic_io import atomic_write
from ...utils.run_folder import RunPaths
from ...utils.text_io import read_lines
from ..data.readers import expand_home
from ..results.rendering import TABLE_FORMATS, TABLE_SUFFIXES, render_notes, render_text
from ..results.saved_runs import SavedRow


def table(options: argparse.Namespace) -> None:
    """Make the table, and print it or write it."""
    from ..results.run_table import table_of_runs

    suffix_format = TABLE_SUFFIXES.get(options.output.suffix, "markdown") if options.output else "markdown"
    made = table_of_runs(options.runs, options.rows, options.columns, options.metrics, options.baseline)
    text = TABLE_FORMATS[options.format or suffix_format](made)
    if options.output:
        atomic_write(options.output, text)
    else:
        print(text, end="")


def compare(options: argparse.Namespace) -> None:
    """Print the tests of two systems."""
    from ..results.comparison import compare_systems

    if len(options.runs) > 2:
        raise ValueError(f"compare takes one run or two, but {len(options.runs)} are given; leave the others out.")
    made = compare_systems(
        options.runs, options.systems, options.metric, options.test, partial(unit_labels, options), options.margin
    )
    print(f"{render_text(made)}{render_notes([made])}", end="")


def unit_labels(options: argparse.Namespace, row: SavedRow, test: str) -> list[str] | None:
    """The label of each scored pair of a row's test set, None if each is a unit of its own."""
    if options.units == "sentence":
        return None
    if options.units == "document":
        from .saved_test_sets import document_labels, read_test_set

        test_set = read_test_set(RunPaths(row.folder), row.results, row.systems[0], test)
        return document_labels(test_set, options.data_dir)
    return list(read_lines(Path(expand_home(options.units))))


def score(options: argparse.Namespace) -> None:
    """Score the run again, and print its tables."""
    from ..reports.report import write_report
    from ..results.aggregation import aggregate
    from .rescoring import score_run

    given = {
        "bucket_edges": options.buckets,
        "bertscore_model": options.bertscore_model,
        "bertscore_num_layers": options.bertscore_layers,
    }
    changes = {key: value for key, value in given.items() if value is not None}
    experiment = score_run(options.run, changes, options.metrics)
    print(write_report(aggregate(experiment), options.run))
