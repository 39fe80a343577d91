"""Child processes that end with their parent, and one-line errors for killed processes and lack of memory.

A child reads a pipe whose other end only its parent holds; nothing is written to it. When the parent ends, even by
SIGKILL, the system closes that end, and a thread of the child detects it.
"""

import os
import runpy
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing import active_children, get_context, resource_tracker
from multiprocessing.connection import Connection
from threading import Thread

# Messages of torch, CTranslate2 and the system.
OUT_OF_MEMORY_MESSAGES = ("out of memory", "allocate memory", "bad_alloc")


@contextmanager
def worker_pool(number: int, remedy: str) -> Iterator[ProcessPoolExecutor]:
    """Context manager: a pool of spawned processes, which end with the block and with this process.

    An exception in the block ends them in the middle of their work. Raises a ChildProcessError with the `remedy` if one
    of them is killed.
    """
    context = get_context("spawn")  # a forked process inherits torch's locks in the state of its threads
    reader, writer = context.Pipe(duplex=False)
    others = set(active_children())
    pool = ProcessPoolExecutor(number, mp_context=context, initializer=exit_when_pipe_closes, initargs=(reader,))
    try:
        resource_tracker.ensure_running()  # its start, by the first process, would unblock signals
        with sigint_blocked():
            for _ in range(number):  # each starts a process
                pool.submit(os.getpid)
        yield pool
        pool.shutdown()
    except BrokenProcessPool:
        raise ChildProcessError(
            f"{number} processes must stay alive until the work is done, but one was killed, likely because memory ran "
            f"out; {remedy}"
        ) from None
    finally:
        writer.close()
        for process in set(active_children()) - others:  # after an error; one may still import its modules
            process.terminate()
        pool.shutdown(cancel_futures=True)
        reader.close()


def exit_when_pipe_closes(reader: Connection) -> None:
    """End this process when the other end of the pipe is closed."""

    def wait() -> None:
        with suppress(EOFError, OSError):
            reader.recv_bytes()

    ignore_sigint()
    run_after(wait, lambda: os._exit(1))


@contextmanager
def sigint_blocked() -> Iterator[None]:
    """Context manager: processes started in it never receive Ctrl-C, which this one receives after it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def watched_command(module: str, arguments: Sequence[str]) -> list[str]:
    """The command `python -m module` that ends with its standard input, even while the module is imported. The caller
    starts it with a pipe as standard input."""
    return [sys.executable, __file__, module, *arguments]


def terminate_when_stdin_closes() -> None:
    """Send this process a SIGTERM, on which a training saves its step, when its standard input is closed."""

    def wait() -> None:
        while os.read(0, 1):
            pass

    ignore_sigint()
    run_after(wait, lambda: os.kill(os.getpid(), signal.SIGTERM))


def ignore_sigint() -> None:
    """Ignore Ctrl-C, which reaches all processes of a terminal; the parent ends its children."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def run_after(wait: Callable[[], object], act: Callable[[], object]) -> Thread:
    """Call `wait`, then `act`, in a thread."""

    def run() -> None:
        wait()
        act()

    thread = Thread(target=run, daemon=True)
    thread.start()
    return thread


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means lack of memory, in torch, CTranslate2, the system or Python."""
    message = str(error).lower()
    return isinstance(error, MemoryError) or any(pattern in message for pattern in OUT_OF_MEMORY_MESSAGES)


class OutOfMemory(MemoryError):
    """Memory ran out. The message names the work and the remedy."""


@contextmanager
def explain_out_of_memory(work: str, remedy: str) -> Iterator[None]:
    """Context manager: an error of any allocator becomes an OutOfMemory of one line."""
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        if isinstance(error, OutOfMemory) or not is_out_of_memory(error):
            raise
        reason = str(error).strip().partition("\n")[0] or "no memory"
        raise OutOfMemory(f"{work} must fit into memory, but that ran out ({reason}); {remedy}") from error


if __name__ == "__main__":  # of `watched_command`: this file imports nothing that takes long
    terminate_when_stdin_closes()
    del sys.argv[0]
    sys.path[0] = os.getcwd()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
