# SPDX-License-Identifier: Apache-2.0
"""Validation of texts for translation; an error names the text."""

from collections.abc import Callable, Iterable, Sequence

import regex
from transformers import PreTrainedTokenizerBase

BLANKS = regex.compile(r"\p{White_Space}*")
TEXT_LABEL = "texts[{}]".format  # the name of a text in an error message
UNBOUNDED_ENCODING_REMEDY = "choose a model whose encoding is defined at every length"


def is_blank(text: str) -> bool:
    """Whether a text is empty or has blanks alone. Blanks are those of tokenizers; `str.isspace` has four more."""
    return BLANKS.fullmatch(text) is not None


def data_options(tokenizer: PreTrainedTokenizerBase) -> dict[str, bool]:
    """The options of a tokenizer's call that read no special token in a text; none for a class without them."""
    return getattr(tokenizer, "data_options", {})


def validate_texts(texts: Iterable[str], label: Callable[[int], str] = TEXT_LABEL) -> list[str]:
    """The texts as a list; a TypeError for a bare string or an item that is no string, a ValueError for bad UTF-8."""
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
    label: Callable[[int], str] = TEXT_LABEL,
    remedy: str = UNBOUNDED_ENCODING_REMEDY,
) -> None:
    """Raise a ValueError for the first source (token ids) of more than `max_length` tokens; None for no maximum."""
    for number, ids in enumerate(sources):
        if max_length is not None and len(ids) > max_length:
            raise ValueError(
                f"A source must have at most {max_length} tokens, as many as there are positions for, but "
                f"{label(number)} has {len(ids)}; shorten it, or {remedy}."
            )


def validate_utf8(text: str, label: str) -> None:
    """Raise a ValueError for a text with a lone surrogate, half of a character, as in JSON or truncated strings."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"A text must be UTF-8, but {label} has half a character, {text[error.start]!a}, at index "
            f"{error.start} ({text[:40]!a}); remove it, for example by text.encode(errors='ignore').decode()."
        ) from None
