"""A command ends with one line: for errors that its user can mend, for Ctrl-C, and without a word for a closed pipe."""

import errno
import os
import signal
import sys
from pathlib import Path

import pytest
from huggingface_hub.errors import StrictDataclassFieldValidationError

from hf_posenc.lab import cli, commands
from hf_posenc.utils import command_line
from hf_posenc.utils.command_line import command_errors

ERRORS = [
    ValueError("first\nsecond"),
    OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    ModuleNotFoundError("No module named 'peft'"),
    FloatingPointError("the loss is nan"),
    MemoryError("Memory ran out"),
    StrictDataclassFieldValidationError("dropout", TypeError("expected float")),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_of_the_user_is_one_line_with_its_type(error):
    with pytest.raises(SystemExit) as ended, command_errors():
        raise error
    assert str(ended.value).startswith(f"{type(error).__name__}: ")
    assert str(ended.value).split() == f"{type(error).__name__}: {error}".split() and "\n" not in str(ended.value)


def test_a_fault_of_the_program_keeps_its_traceback():
    with pytest.raises(KeyError), command_errors():
        raise KeyError("a fault")


def test_ctrl_c_is_one_line_that_says_how_to_go_on(capsys, monkeypatch):
    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # as the first lines of train.py set it
        with pytest.raises(SystemExit) as ended, command_errors():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.value.code == 128 + signal.SIGINT
    assert capsys.readouterr().err == f"{command_line.INTERRUPTED}\n"


def piped(monkeypatch: pytest.MonkeyPatch) -> int:
    """Put a pipe in the place of standard output; returns the end that is read."""
    reader, writer = os.pipe()
    monkeypatch.setattr(sys, "stdout", os.fdopen(writer, "w", encoding="utf-8"))
    return reader


@pytest.mark.parametrize("text", ["a line\n", "a line\n" * 100_000], ids=["at the end", "amid the output"])
def test_a_reader_that_has_ended_ends_the_command_without_a_word(monkeypatch, capsys, text):
    os.close(piped(monkeypatch))
    with pytest.raises(SystemExit) as ended, command_errors():
        print(text, end="")
    assert ended.value.code == 128 + signal.SIGPIPE
    sys.stdout.close()  # as at exit
    assert capsys.readouterr().err == ""


def test_an_error_is_told_though_nobody_reads_standard_output(monkeypatch):
    os.close(piped(monkeypatch))
    with pytest.raises(SystemExit, match=r"^ValueError: the reason$"), command_errors():
        print("a line")
        raise ValueError("the reason")
    sys.stdout.close()


def test_a_full_disk_below_standard_output_is_one_line(monkeypatch):
    monkeypatch.setattr(sys, "stdout", os.fdopen(os.open("/dev/full", os.O_WRONLY), "w", encoding="utf-8"))
    with pytest.raises(SystemExit, match=r"^OSError: .*No space left"), command_errors():
        print("a line")
    sys.stdout.close()


@pytest.mark.parametrize("name", ["stdin", "stdout", "stderr"])
def test_a_closed_standard_stream_does_no_harm(monkeypatch, name):
    monkeypatch.setattr(sys, name, None)
    with command_errors():
        assert sys.stdin.read() == "" if name == "stdin" else print("a line", file=getattr(sys, name)) is None
    getattr(sys, name).close()


def test_a_full_disk_is_told_of_the_folder_that_a_command_writes(monkeypatch, tmp_path: Path):
    def fail(options: object) -> None:
        raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534")

    monkeypatch.setattr(sys, "argv", ["hf_posenc", "export", "model", "--engine", "onnx", "--output", str(tmp_path)])
    monkeypatch.setattr(commands, "export", fail)
    with pytest.raises(SystemExit, match=rf"^OSError: A disk is full, likely that of {tmp_path} "):
        cli.main()
