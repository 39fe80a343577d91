"""Child processes end with their parent; killed workers and exhausted memory are reported."""

import os
import signal
import subprocess
import sys
import time
from multiprocessing import Pipe
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace

import pytest
import torch
import yaml
from support.experiments import ROOT, TINY

import hf_posenc
from hf_posenc.lab.run.train import run_parallel
from hf_posenc.utils import worker_processes
from hf_posenc.utils.worker_processes import explain_out_of_memory, run_after

PACKAGE = Path(hf_posenc.__file__).parent
# Two pools: where they are, without the package, which takes long to import; how one is made, and
# how it calls a function on numbers.
POOLS = {
    "worker_pool": (PACKAGE / "utils", "worker_processes", "pool(2, 'take fewer.')", "made.map(work, [1, 2])"),
    "process_map": (PACKAGE / "metrics", "length_buckets.scorers", "pool(2)", "made(work, [1, 2])"),
}


@pytest.fixture
def interrupts_as_before():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_run_after_acts_when_the_wait_is_over():
    over, acted = Event(), []
    thread = run_after(over.wait, lambda: acted.append(True))
    assert not acted
    over.set()
    thread.join()
    assert acted


def test_a_worker_ends_when_its_parent_holds_the_pipe_no_more(monkeypatch, interrupts_as_before):
    codes, ended = [], Event()
    monkeypatch.setattr(worker_processes.os, "_exit", lambda code: (codes.append(code), ended.set()))
    reader, writer = Pipe(duplex=False)
    worker_processes.exit_when_pipe_closes(reader)
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN and not ended.is_set()
    writer.close()
    ended.wait()
    assert codes == [1]


def test_a_system_is_told_to_stop_when_its_standard_input_ends():
    code = (
        f"import sys, threading; sys.path.insert(0, {str(PACKAGE / 'utils')!r}); import worker_processes\n"
        "worker_processes.terminate_when_stdin_closes(); print('begun', flush=True); threading.Event().wait()"
    )
    command = [sys.executable, "-S", "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "begun\n"
        child.send_signal(signal.SIGINT)
        child.stdin.close()
        assert child.wait() == -signal.SIGTERM, "and an interrupt is its parent's to answer"


def test_a_watched_script_ends_with_its_parent_while_it_still_imports(tmp_path):
    (tmp_path / "program.py").write_text("import sys; print(*sys.argv[1:], flush=True)\nimport slow\n")
    (tmp_path / "slow.py").write_text("import threading; threading.Event().wait()\n")
    command = worker_processes.watched_command("program", ["--system", "relative"])
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "--system relative\n"
        child.send_signal(signal.SIGINT)
        child.stdin.close()
        assert child.wait() == -signal.SIGTERM


def test_a_process_that_starts_with_ctrl_c_blocked_never_receives_it():
    code = "import sys, signal; signal.raise_signal(signal.SIGINT); print('alive')"
    with worker_processes.sigint_blocked():
        assert subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True).stdout == "alive\n"
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."), "(CUDA out of memory. Tried"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to\nmore"), "can't allocate memory: you"),
        (RuntimeError("std::bad_alloc"), "(std::bad_alloc)"),
        (OSError(12, os.strerror(12)), "Cannot allocate memory)"),
        (RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"), "(MPS backend out of memory"),
        (MemoryError(), "(no memory)"),
    ],
    ids=["cuda", "cpu", "ctranslate2", "system", "mps", "python"],
)
def test_out_of_memory_is_one_error_line_with_the_remedy(error, said):
    with (
        pytest.raises(MemoryError, match=r"^A step must .*; take less\.$") as told,
        explain_out_of_memory("A run", "another."),
        explain_out_of_memory("A step", "take less."),
    ):
        raise error
    assert said in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), OSError(2, os.strerror(2))])
def test_what_is_no_lack_of_memory_stays_as_it_was(error):
    with pytest.raises(type(error)) as told, explain_out_of_memory("A step", "take less."):
        raise error
    assert told.value is error


def started(tmp_path: Path, pool: str, work: str) -> subprocess.Popen:
    """A script whose two processes do some work; all that they print comes through one pipe, which ends when none of
    them is left."""
    folder, module, opened, call = POOLS[pool]
    (tmp_path / "script.py").write_text(
        f"""
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, {str(folder)!r})
from {module} import {pool} as pool

def work(number):
{work}

if __name__ == "__main__":
    with {opened} as made:
        list({call})
"""
    )
    command = [sys.executable, str(tmp_path / "script.py")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("pool", POOLS)
def test_no_worker_outlives_its_parent(tmp_path, pool, number):
    """One that did would go to the end of its work, and say that."""
    # `print` writes a line and its end apart, and another process may write between them.
    work = "    os.write(1, b'begun\\n'); time.sleep(300); os.write(1, b'survived\\n'); os._exit(0)"
    with started(tmp_path, pool, work) as parent:
        assert [parent.stdout.readline(), parent.stdout.readline()] == ["begun\n", "begun\n"]
        parent.send_signal(number)
        assert parent.stdout.read() == ""
        assert parent.wait() == -number


@pytest.mark.slow
@pytest.mark.parametrize("pool", POOLS)
def test_a_killed_worker_is_reported(tmp_path, pool):
    with started(tmp_path, pool, "    os.kill(os.getpid(), signal.SIGKILL)") as parent:
        assert "likely because memory ran out" in parent.stderr.read().splitlines()[-1]
        assert parent.wait() == 1


CHILD = """
import sys
print(sys.argv[2], file=open({begun!r}, "a"))
sys.stdin.read()  # SIGTERM ends it; a handler in Python would not run if the signal came just before a blocking call
"""


def run_two(code: str, num_parallel: int = 2) -> None:
    """Two systems side by side, each of which runs that code."""
    systems = [SimpleNamespace(name=name, dependency=None) for name in ("one", "two")]
    run_parallel(systems, [sys.executable, "-S", "-c", code], num_parallel=num_parallel, num_threads=1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_signal_stops_the_systems_that_run_and_begins_no_other(tmp_path, number, jobs):
    begun = tmp_path / "begun"

    def tell() -> None:
        while not begun.exists() or len(begun.read_text().split()) < jobs:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    thread = Thread(target=tell, daemon=True)
    thread.start()
    with pytest.raises(SystemExit, match=rf"^{number.name} stopped one, two; the same command .*\.$"):
        run_two(CHILD.format(begun=str(begun)), jobs)
    thread.join()
    assert sorted(begun.read_text().split()) == ["one", "two"][:jobs]
    assert signal.getsignal(number) == before


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys; sys.exit(sys.argv[2] == 'one')", r"^An error, printed above, stopped one; .* there\.$"),
        (
            "import os; os.kill(os.getpid(), 9)",
            r"^SIGKILL stopped one, two; .* one, two: killed, .*; lower `num_parallel`\.$",
        ),
        (
            "import os, sys\nif sys.argv[2] == 'one': os.kill(os.getpid(), 9)\nsys.exit(1)",
            r"^An error, printed above, stopped one, two; .* there\. one: killed, likely because memory ran out",
        ),
    ],
    ids=["error", "killed", "both"],
)
def test_the_error_says_why_systems_stopped(code, said):
    with pytest.raises(SystemExit, match=said):
        run_two(code)


@pytest.mark.slow
def test_no_system_goes_on_training_when_its_parent_is_killed(tmp_path):
    """Standard output ends when none of the processes is left; each saves its step before."""
    path, runs = tmp_path / "tiny.yaml", tmp_path / "runs" / "tiny"
    train = TINY["train"] | {"max_steps": 2000, "save_steps": 10_000, "logging_steps": 1}
    systems = {name: TINY["systems"][name] for name in ("absolute", "relative")}
    path.write_text(yaml.safe_dump(TINY | {"train": train, "num_parallel": 2, "systems": systems}), encoding="utf-8")
    command = [sys.executable, str(ROOT / "train.py"), str(path), f"output_dir={tmp_path / 'runs'}"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        while not all((runs / name / "training.jsonl").exists() for name in systems):
            assert parent.poll() is None
            time.sleep(0.01)
        parent.kill()
        parent.stdout.read()
    for name in systems:
        assert not (runs / name / "model").exists()
        assert list((runs / name / "checkpoints").glob("checkpoint-*"))
