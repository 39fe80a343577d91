"""The progress of several trainings on one terminal, and nothing of it without one."""

import os
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from support.experiments import ROOT

from hf_posenc.lab.run.progress import RunProgress, printed_lines
from hf_posenc.utils.run_folder import RunPaths

# A run of two systems, of which the first one is shown from its start to its end.
RUN = """
import os, sys
from pathlib import Path
from hf_posenc.lab.run.progress import RunProgress
from hf_posenc.utils.run_folder import RunPaths

child = "print('one:  10%\\\\rone:  50%\\\\nWarning: odd')"
with RunProgress(RunPaths(Path("runs/mine")), 2, 1) as progress:
    process, display = progress.start([sys.executable, "-c", child], os.environ, "one", 0)
    with process:
        assert process.wait() == 0
    display.join()
    progress.finish("one")
"""


def test_a_terminal_shows_each_training_and_the_whole_run() -> None:
    reader, terminal = os.openpty()
    termios.tcsetwinsize(terminal, (40, 100))
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    process = subprocess.Popen([sys.executable, "-c", RUN], env=environment, stdout=terminal, stderr=terminal)
    os.close(terminal)
    lines = list(printed_lines(reader))
    assert process.wait() == 0, lines
    shown = [line for line in lines if line.startswith(("one", "Warning", "runs/mine"))]
    for line in ("one: starting", "one:  10%", "one:  50%", "Warning: odd", "one: scored"):
        assert line in shown
    assert any(line.startswith("runs/mine: 0 of 2 systems done, 00:00 elapsed") for line in shown)
    assert any(line.startswith("runs/mine: 1 of 2 systems done") for line in shown)


def test_without_a_terminal_a_process_keeps_the_streams(capfd: pytest.CaptureFixture[str]) -> None:
    with RunProgress(RunPaths(Path("runs/mine")), 2, 1) as progress:
        command = [sys.executable, "-c", "import sys; print(sys.stderr.isatty(), file=sys.stderr)"]
        process, display = progress.start(command, os.environ, "one", 0)
        with process:
            process.wait()
        progress.finish("one")
    assert display is None
    assert capfd.readouterr() == ("", "False\n")


def test_lines_of_a_terminal_lose_their_control_sequences() -> None:
    reader, writer = os.pipe()
    text = "\n\x1b[1;34mone\x1b[0m: 5%\rone: 6%\x1b[A\r\ncafé: ▏\n\nlast"
    os.write(writer, text.encode())
    os.close(writer)
    assert list(printed_lines(reader)) == ["one: 5%", "one: 6%", "café: ▏", "last"]
