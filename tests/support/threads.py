"""Calls in threads whose steps take turns, so that what they share is shared at every step."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from torch import nn

NUM_THREADS = 8


@contextmanager
def steps_in_turn(module: nn.Module) -> Iterator[threading.Barrier]:
    """Every thread waits after each step until all have taken one, as long as none has finished."""
    barrier = threading.Barrier(NUM_THREADS)

    def wait(*_: object) -> None:
        with suppress(threading.BrokenBarrierError):
            barrier.wait()

    handle = module.register_forward_hook(wait)
    try:
        yield barrier
    finally:
        handle.remove()


def together(module: nn.Module, call: Callable[[str], Any], texts: list[str]) -> list[Any]:
    """The results of the calls in threads, whose steps take turns."""
    with steps_in_turn(module) as barrier, ThreadPoolExecutor(NUM_THREADS) as pool:

        def call_and_leave(text: str) -> Any:
            try:
                return call(text)
            finally:
                barrier.abort()

        return list(pool.map(call_and_leave, texts))
