"""Segments of a text that a model translates one by one: sentences, and parts of sentences that are too long.

Sentence ends are those of the package sentencex, which has rules for some 240 languages. A sentence of more tokens than
a segment may have is divided at the last sign between clauses that fits, else between words, else between characters,
so no text is ever left out: the segments of a text, put one after another, are the text.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile

import regex
import sentencex

CLAUSE_ENDS = (
    regex.compile(r"[;:—–；：]\s*"),
    regex.compile(r"[,،、，]\s*"),
    regex.compile(r"\s+"),
    regex.compile(r"\X"),  # a character with its marks
)

CountTokens = Callable[[str], int]


@dataclass(frozen=True)
class Segment:
    """A part of a text, and the blanks around it, which are kept and not translated."""

    before: str
    text: str
    after: str


def split_segments(text: str, language: str | None, max_tokens: int, count_tokens: CountTokens) -> list[Segment]:
    """The segments of a text, of at most `max_tokens` tokens by `count_tokens`, in order."""
    sentences = sentencex.segment(primary_language(language), text) if text.strip() else [text]
    assert "".join(sentences) == text
    pieces = [piece for sentence in sentences for piece in split_long(sentence, max_tokens, count_tokens)]
    return [with_blanks_apart(piece) for piece in pieces]


def split_long(sentence: str, max_tokens: int, count_tokens: CountTokens) -> Iterator[str]:
    """The sentence itself, or parts of at most `max_tokens` tokens."""
    while count_tokens(sentence) > max_tokens:
        end = longest_part(sentence, max_tokens, count_tokens)
        yield sentence[:end]
        sentence = sentence[end:]
    if sentence:
        yield sentence


def longest_part(sentence: str, max_tokens: int, count_tokens: CountTokens) -> int:
    """Where the longest part ends that has at most `max_tokens`: at the strongest sign in its second half."""
    ends: list[int] = []
    for pattern in CLAUSE_ENDS:
        candidates = [match.end() for match in pattern.finditer(sentence) if 0 < match.end() < len(sentence)]
        # Tokens of a longer part are not always more by one, but never fewer: the search may stop at the first excess.
        ends = list(takewhile(lambda end: count_tokens(sentence[:end]) <= max_tokens, candidates))
        if ends and 2 * count_tokens(sentence[: ends[-1]]) >= max_tokens:
            return ends[-1]
    return ends[-1] if ends else len(sentence)


def with_blanks_apart(piece: str) -> Segment:
    text = piece.strip()
    start = piece.find(text) if text else len(piece)
    return Segment(piece[:start], text, piece[start + len(text) :])


def primary_language(language: str | None) -> str:
    """The language that sentencex has rules for: without script and region; rules for all languages if unknown."""
    return (language or "en").split("-")[0]
