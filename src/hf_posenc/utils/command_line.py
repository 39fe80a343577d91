"""What the command lines have in common: errors and signals of one line, output in UTF-8, and encodings to register.

A Python file of a user registers encodings: `encoding_files` of a config file, `--register` of a command.
"""

import importlib.util
import io
import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# What a shell returns for a command that a signal ended.
SIGINT_EXIT_CODE, SIGPIPE_EXIT_CODE = 128 + 2, 128 + 13
# Errors of input, settings, files, packages, memory, and of a loss that diverges. Others are faults of the program.
ERRORS = (ValueError, OSError, ImportError, FloatingPointError, MemoryError)
INTERRUPTED = "Interrupted. Give the same command again: it goes on from what is saved."


def is_command_line() -> bool:
    """Whether this process was started as `hf-posenc`, `python -m hf_posenc` or `python train.py`.

    Its worker processes were not, although they have its `sys.argv`: multiprocessing starts them.
    """
    program = sys.argv[0] if sys.argv else ""
    if program == "-m":  # what Python sets while it imports the package, before __main__
        return "hf_posenc" in sys.orig_argv
    is_worker = "--multiprocessing-fork" in sys.orig_argv
    return os.path.splitext(os.path.basename(program))[0] == "hf-posenc" and not is_worker


def import_public_name(name: str) -> object:
    """The value of a name of the public API, which the command line imports after it has parsed its arguments."""
    return getattr(importlib.import_module("hf_posenc.api"), name)


@contextmanager
def command_errors() -> Iterator[None]:
    """Context manager of all that a command does: errors that its user can mend end it with one line, as does Ctrl-C.

    A standard output that nobody reads any more ends it without a word. Standard streams that are closed are opened:
    nothing comes from them, and what is written is lost.
    """
    open_standard_streams()
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:  # until here, Ctrl-C ends a program without a traceback
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
        sys.stdout.flush()
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)
        raise SystemExit(SIGINT_EXIT_CODE) from None
    except Exception as error:
        if not is_user_error(error):
            raise
        if isinstance(error, BrokenPipeError) and stdout_has_no_reader():
            raise SystemExit(SIGPIPE_EXIT_CODE) from None
        raise SystemExit(f"{type(error).__name__}: {' '.join(str(error).split())}") from None
    finally:
        try:
            sys.stdout.flush()
        except OSError:  # Python would report it once more at exit; with this, the rest goes to os.devnull
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def is_user_error(error: Exception) -> bool:
    """Whether an error is one that the user of a command can mend."""
    # Imported here, because importing it takes half a second, which a command line that is only parsed does not need.
    from huggingface_hub.errors import StrictDataclassError

    return isinstance(error, (*ERRORS, StrictDataclassError))


def open_standard_streams() -> None:
    """Open the standard streams that are closed, as in `command >&-`, on os.devnull: else they are None."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the file gets the lowest number that is free, mostly that of the stream
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  for the whole process


def stdout_has_no_reader() -> bool:
    """Whether standard output is a pipe whose reader has ended, as in `hf-posenc encodings | head -1`."""
    poll = select.poll()
    poll.register(sys.stdout.fileno())
    return any(events & select.POLLERR for _, events in poll.poll(0))


def set_stdout_utf8() -> None:
    """Set standard output to UTF-8 with line feeds. The terminal's own encoding may lack characters."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")


def register_encodings(file: Path) -> None:
    """Import a Python file that registers encodings. A second call does nothing."""
    if not file.is_file():
        raise FileNotFoundError(f"Encodings are registered by a Python file, but there is none at {file}; name one.")
    if (existing := sys.modules.get(file.stem)) is not None:
        if (existing_file := getattr(existing, "__file__", None)) and file.samefile(existing_file):
            return
        raise ValueError(
            f"A file of encodings is imported by the name {file.stem!r}, "
            f"which that of {existing_file or 'Python itself'} has already; rename {file}."
        )
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    sys.modules[file.stem] = module
    try:
        spec.loader.exec_module(module)  # type: ignore[union-attr]
    except BaseException:
        del sys.modules[file.stem]
        raise
