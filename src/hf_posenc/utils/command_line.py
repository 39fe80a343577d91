"""What the command lines have in common: errors of one line, broken pipes, output in UTF-8, renamed flags."""

import argparse
import io
import os
import select
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

# What a shell returns for a command that a signal ended.
SIGINT_EXIT_CODE, SIGPIPE_EXIT_CODE = 128 + 2, 128 + 13


@contextmanager
def one_line_errors(*errors: type[Exception]) -> Iterator[None]:
    """Context manager: these errors end the program with one line, their type and their message."""
    try:
        yield
    except errors as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from None


@contextmanager
def exit_codes_of_signals() -> Iterator[None]:
    """Context manager: Ctrl-C, and a standard output that nobody reads any more, end the program with their codes."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        if not stdout_has_no_reader():
            raise
        # Python would report at exit that the rest cannot be written. With this, the rest goes to os.devnull.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(SIGPIPE_EXIT_CODE) from None
    except KeyboardInterrupt:
        raise SystemExit(SIGINT_EXIT_CODE) from None


def stdout_has_no_reader() -> bool:
    """Whether standard output is a pipe whose reader has ended, as in `python -m hf_posenc encodings | head -1`."""
    poll = select.poll()
    poll.register(sys.stdout.fileno())
    return any(events & select.POLLERR for _, events in poll.poll(0))


def set_stdout_utf8() -> None:
    """Set standard output to UTF-8 with line feeds. The terminal's own encoding may lack characters."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")


class RenamedFlag(argparse.Action):
    """A flag under its old name: an error that names the new one."""

    def __init__(self, option_strings: Sequence[str], dest: str, *, renamed: str, nargs: str, help: str) -> None:
        super().__init__(option_strings, dest, nargs=nargs, help=help)
        self.renamed = renamed

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        flag = self.option_strings[0]
        parser.error(f"{flag} must be given by its new name, {self.renamed}, but the old name is given; rename it.")
