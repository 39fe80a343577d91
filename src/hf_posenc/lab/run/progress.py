"""Progress of a run on a terminal: a line for each running training, one for the whole run, refreshed in place.

A finished system leaves one line above them. Systems of the same process draw their own bars on the first line. A
system of another process draws them on a pseudo-terminal, and the last of them is shown on its line. What else the
process prints, such as a warning, is printed above. Without a terminal nothing is shown here, and systems print plain
lines.
"""

import codecs
import os
import re
import subprocess
import sys
import termios
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from threading import Event, Thread
from types import TracebackType
from typing import Any, Self

from tqdm.auto import tqdm

from ...utils.run_folder import RunPaths, SystemPaths
from ..results.records import TrainingSummary
from ..results.saved_files import read_record

OVERALL = "{desc}: {n_fmt} of {total_fmt} systems done, {elapsed} elapsed, about {remaining} left"
CONTROL_SEQUENCE = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")  # colours and movements of the cursor
LINE_END = re.compile(r"(\r?\n|\r)")
READ_BYTES = 2**12


class RunProgress:
    """Context manager: the lines of a run in the folder of `paths`, with `total` systems.

    `num_lines`: systems of other processes at once; 0 if all run in this one.
    """

    def __init__(self, paths: RunPaths, total: int, num_lines: int) -> None:
        self.paths = paths
        self.is_shown = sys.stderr.isatty() and total > 1
        hidden: dict[str, Any] = {"disable": not self.is_shown, "leave": False}
        self.lines = [tqdm(bar_format="{desc}", position=line, **hidden) for line in range(num_lines)]
        self.overall = tqdm(
            desc=str(paths.folder), total=total, bar_format=OVERALL, position=max(1, num_lines), **hidden
        )
        self.is_closed = Event()
        self.clock = Thread(target=self.refresh_every_second, daemon=True)

    def __enter__(self) -> Self:
        if self.is_shown:
            self.clock.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.is_closed.set()
        for line in [self.overall, *self.lines]:
            line.close()

    def refresh_every_second(self) -> None:
        """Keep the clock of the whole run going."""
        while not self.is_closed.wait(1):
            self.overall.refresh()

    def finish(self, name: str) -> None:
        """Leave a line for a system that is scored: steps, loss and seconds of its training."""
        if self.is_shown:
            tqdm.write(f"{name}: {describe_training(self.paths.system(name))}scored", file=sys.stderr)
            self.overall.update()
            self.overall.refresh()

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], name: str, line: int
    ) -> tuple[subprocess.Popen, Thread | None]:
        """Start the process of one system. The thread, None without a terminal, ends with what the process prints."""
        if not self.is_shown:
            return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE), None
        self.lines[line].set_description_str(f"{name}: starting")
        reader, terminal = os.openpty()
        termios.tcsetwinsize(terminal, termios.tcgetwinsize(sys.stderr.fileno()))
        stdout = terminal if sys.stdout.isatty() else None
        process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=stdout, stderr=terminal)
        os.close(terminal)
        thread = Thread(target=self.show, args=(reader, name, line))
        thread.start()
        return process, thread

    def show(self, reader: int, name: str, line: int) -> None:
        """Show what a process writes to its terminal: its own bars on its line, all else above."""
        for text in printed_lines(reader):
            if text.startswith(f"{name}: "):
                self.lines[line].set_description_str(text)
            else:
                tqdm.write(text, file=sys.stderr)
        self.lines[line].set_description_str("")


def printed_lines(reader: int) -> Iterator[str]:
    """The lines of a terminal without control sequences and empty ones. A carriage return ends a line, too."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pending = ""
    with os.fdopen(reader, "rb", buffering=0) as file, suppress(OSError):  # EIO: the process has ended
        while chunk := file.read(READ_BYTES):
            *lines, pending = LINE_END.split(pending + decoder.decode(chunk))
            yield from filter(None, (CONTROL_SEQUENCE.sub("", text).strip() for text in lines))
    if last := CONTROL_SEQUENCE.sub("", pending).strip():
        yield last


def describe_training(paths: SystemPaths) -> str:
    """The steps and the loss of a trained system; nothing for one that uses the model of another."""
    if not paths.training_summary.exists():
        return ""
    summary = read_record(TrainingSummary, paths.training_summary)
    loss = "" if summary.loss is None else f"loss {summary.loss:.3f}, "
    return f"{summary.steps} steps in {tqdm.format_interval(summary.seconds)}, {loss}"
