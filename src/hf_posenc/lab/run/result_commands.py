"""Commands that read finished runs: `table`, `compare` and `score` of `python -m hf_posenc`."""

import argparse

from ...utils.atomic_io import atomic_write
from ..results.rendering import TABLE_FORMATS, TABLE_SUFFIXES
from .commands import AddCommand, path_argument


def add_table_command(add_command: AddCommand) -> None:
    """The command that makes one table of several runs."""
    description = "make one table over the rows of one or several runs, with intervals and significance marks"
    command = add_command("table", help=description, description=description)
    command.set_defaults(run_command=table)
    command.add_argument("runs", nargs="+", type=path_argument, metavar="RUN", help="a folder with results.json")
    command.add_argument("--rows", nargs="+", metavar="ROW", help="rows in this order; RUN/ROW if several runs have it")
    columns_help = "TEST: all pairs of a test set; TEST:lengths: its length buckets; TEST:[0,25]: one of them"
    command.add_argument("--columns", nargs="+", metavar="COLUMN", help=columns_help)
    command.add_argument("--metrics", nargs="+", metavar="METRIC", help="such as bleu chrf (default: all scored)")
    command.add_argument("--baseline", metavar="ROW", help="the row that marks compare with (default: the run's)")
    format_help = "default: that of --output's suffix, else markdown"
    command.add_argument("--format", choices=TABLE_FORMATS, help=format_help)
    command.add_argument("--output", type=path_argument, metavar="FILE", help="a file (default: standard output)")


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
