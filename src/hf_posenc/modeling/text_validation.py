# SPDX-License-Identifier: Apache-2.0
"""Validation of texts before a tokenizer or a model reads them; an error names the text."""

from collections.abc import Callable, Iterable, Sequence

UNBOUNDED_ENCODING_REMEDY = "choose a model whose encoding is defined at every length"


def text_label(number: int) -> str:
    """How a message names one of the `texts`."""
    return f"texts[{number}]"


def validate_texts(texts: Iterable[str], label: Callable[[int], str] = text_label) -> list[str]:
    """As a list; a TypeError for a bare string or what is no text, a ValueError for one that is no UTF-8."""
    if isinstance(texts, str):
        raise TypeError("translate takes a list of sentences, but was given one string; write translate([text], ...).")
    texts = list(texts)
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"translate takes strings, but {label(number)} is {text!r:.40}; leave it out or write ''.")
        validate_utf8(text, label(number))
    return texts


def validate_source_lengths(
    sources: Sequence[list[int]],
    max_length: int | None,
    label: Callable[[int], str] = text_label,
    remedy: str = UNBOUNDED_ENCODING_REMEDY,
) -> None:
    """A ValueError for the first source, as token ids, that is longer than an encoding's table."""
    for number, ids in enumerate(sources):
        if max_length is not None and len(ids) > max_length:
            raise ValueError(
                f"A source must have at most {max_length} tokens, as many as the table of the encoder's positions, but "
                f"{label(number)} has {len(ids)}; shorten it, or {remedy}."
            )


def validate_utf8(text: str, label: str) -> None:
    """A ValueError for a text with a lone surrogate, half of a character that JSON or a cut string can have."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"A text must be UTF-8, but {label} has half a character, {text[error.start]!a}, at index "
            f"{error.start} ({text[:40]!a}); take it out, such as by text.encode(errors='ignore').decode()."
        ) from None
