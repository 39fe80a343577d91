"""Translations of whole documents, cut into the segments of their references, to score them segment by segment.

The cut is that with the lowest total word error rate against the references. Then every metric of sentences applies,
however a system segments its input.

Evgeny Matusov, Gregor Leusch, Oliver Bender, Hermann Ney. Evaluating Machine Translation Output with Automatic Sentence
Segmentation. IWSLT 2005. https://aclanthology.org/2005.iwslt-1.19

The alignment is computed by the package mweralign, on words, without case. Its licence is GPL-3.0-or-later: it is an
extra, "resegmentation", and is imported only when a text is cut. Departure: in about 6 % of random cases of a few
words, its cut has one word error more than the best.
"""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from threading import Lock

# Standard error belongs to the process: two threads would restore it in a wrong order.
STDERR_LOCK = Lock()


def resegment(translation: str, references: Sequence[str]) -> list[str]:
    """As many segments of `translation` as there are `references`, in order; a segment may be empty.

    That of an empty reference is, unless all references are.

    Together the segments have all words of the translation. Raises a ValueError without references, and without the
    package mweralign.
    """
    if not references:
        raise ValueError(
            "A translation must be cut into the segments of its references, but there are no references; give at least "
            "one."
        )
    align = load_aligner()
    lines = [" ".join(reference.split()) for reference in references]
    text = " ".join(translation.split())
    segments = [""] * len(lines)
    # mweralign cuts off the last empty lines, and crashes without any other.
    nonempty = [number for number, line in enumerate(lines) if line]
    if not nonempty:
        return [text, *segments[1:]]
    with without_native_messages():
        aligned = align("\n".join(lines[number] for number in nonempty), text)
    for number, line in zip(nonempty, aligned.split("\n"), strict=True):
        segments[number] = " ".join(line.split())
    return segments


@cache
def load_aligner() -> Callable[[str, str], str]:
    """mweralign's function, of references and a hypothesis."""
    # Importing mweralign would otherwise configure logging for the whole process.
    handler = logging.NullHandler()
    logging.root.addHandler(handler)
    try:
        from mweralign import align_texts
    except ModuleNotFoundError:
        raise ValueError(
            'Resegmentation needs the extra "resegmentation", but the package mweralign is not installed; run '
            "`pip install 'hf-posenc[resegmentation]'`, in a clone `pip install '.[resegmentation]'`."
        ) from None
    finally:
        logging.root.removeHandler(handler)
    return align_texts


@contextmanager
def without_native_messages() -> Iterator[None]:
    """Send what compiled code writes to standard error to nowhere: mweralign prints two lines for each text."""
    with STDERR_LOCK:
        saved = os.dup(2)
        try:
            with open(os.devnull, "wb") as null:
                os.dup2(null.fileno(), 2)
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
