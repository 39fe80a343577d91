"""Child processes: they end with the process that started them, and one line says why one of them, or memory, is gone.

A child reads a pipe whose other end its parent alone holds, and nothing is ever written to it. However the parent ends,
the system closes that end, and a thread of the child sees it. This holds on every system, for SIGKILL too.
"""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from threading import Thread

# How torch, CTranslate2 and the system say it.
OUT_OF_MEMORY_MESSAGES = ("out of memory", "allocate memory", "bad_alloc")


@contextmanager
def worker_pool(number: int, remedy: str) -> Iterator[ProcessPoolExecutor]:
    """A pool of spawned processes. They end when the block is left, in the middle of their work if it is left by an
    exception, and when this process ends. A ChildProcessError with the `remedy` where one of them is killed."""
    context = get_context("spawn")  # a forked process has torch's locks as its threads held them
    reader, writer = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(number, mp_context=context, initializer=exit_when_pipe_closes, initargs=(reader,))
    try:
        yield pool
        pool.shutdown()
    except BrokenProcessPool:
        raise ChildProcessError(
            f"{number} processes must stay alive until the work is done, but one was killed, likely because memory ran "
            f"out; {remedy}"
        ) from None
    finally:
        writer.close()
        pool.shutdown(cancel_futures=True)
        reader.close()


def exit_when_pipe_closes(reader: Connection) -> None:
    """End this process when the other end of the pipe is closed."""

    def wait() -> None:
        with suppress(EOFError, OSError):
            reader.recv_bytes()

    ignore_sigint()
    run_after(wait, lambda: os._exit(1))


def terminate_when_stdin_closes() -> None:
    """Send this process a SIGTERM, by which a training saves its step, when its standard input is closed. Its parent
    starts it with a pipe there."""

    def wait() -> None:
        while os.read(0, 1):
            pass

    ignore_sigint()
    run_after(wait, lambda: os.kill(os.getpid(), signal.SIGTERM))


def ignore_sigint() -> None:
    """Ctrl-C reaches all processes of a terminal. The parent ends its children."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def run_after(wait: Callable[[], object], act: Callable[[], object]) -> Thread:
    """Call `wait`, and when it returns `act`, beside everything else."""

    def run() -> None:
        wait()
        act()

    thread = Thread(target=run, daemon=True)
    thread.start()
    return thread


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, of whatever allocator: torch, CTranslate2, the system and Python each have an error."""
    message = str(error).lower()
    return isinstance(error, MemoryError) or any(pattern in message for pattern in OUT_OF_MEMORY_MESSAGES)


@contextmanager
def explain_out_of_memory(remedy: str) -> Iterator[None]:
    """A MemoryError that ends in `remedy` for whatever fails because memory ran out."""
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        if not is_out_of_memory(error):
            raise
        first_line = str(error).strip().partition("\n")[0]
        raise MemoryError(f"Memory ran out{f' ({first_line})' if first_line else ''}; {remedy}") from error
