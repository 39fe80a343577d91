"""Segments of a text that a model translates one by one: sentences, and parts of sentences that are too long.

Sentence ends are those of the package sentencex, which has rules for some 240 languages. A sentence of more tokens than
a segment may have is divided at the last sign between clauses that fits, else between words, else between characters,
so no text is ever left out: the segments of a text, put one after another, are the text.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import regex

from ..convert.folders import missing_extra_error

CLAUSE_ENDS = (
    regex.compile(r"[;:\u2014\u2013\uff1b\uff1a]\s*"),
    regex.compile(r"[,\u060c\u3001\uff0c]\s*"),
    regex.compile(r"\s+"),
    regex.compile(r"\X"),  # a character with its marks
)
UNSPACED = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]")
OTHER_BLANK = regex.compile(r"[\s--\x00-\x7f]", regex.V1)  # beside a letter, some of them stop sentencex with a panic
INITIAL = regex.compile(r"(?<!\p{L})\p{Lu}\.\s*$")
CHARACTERS_PER_TOKEN = 16  # few texts have more

CountTokens = Callable[[str], int]


@dataclass(frozen=True)
class Segment:
    """A part of a text, and the blanks around it, which are kept and not translated."""

    before: str
    text: str
    after: str


def split_segments(text: str, language: str | None, max_tokens: int, count_tokens: CountTokens) -> list[Segment]:
    """The segments of a text, of at most `max_tokens` tokens by `count_tokens`, in order."""

    def count(piece: str) -> int:
        return count_tokens(piece.strip())  # the blanks around a piece are not translated

    sentences = split_sentences(text, language)
    assert "".join(sentences) == text
    pieces = [piece for sentence in sentences for piece in split_long(sentence, max_tokens, count)]
    return [with_blanks_apart(piece) for piece in pieces]


def split_sentences(text: str, language: str | None) -> list[str]:
    """The sentences of a text with the blanks after them. A ValueError without the extra "translate"."""
    try:
        import sentencex
    except ImportError:
        raise missing_extra_error("translate", "sentencex") from None
    if not text.strip():
        return [text]
    sentences: list[str] = []
    start = 0
    for found in sentencex.segment(primary_language(language), OTHER_BLANK.sub(" ", text)):
        piece = text[start : start + len(found)]
        start += len(found)
        if sentences and continues(sentences[-1], piece):
            sentences[-1] += piece
        else:
            sentences.append(piece)
    return sentences


def continues(before: str, after: str) -> bool:
    """Whether a sentence goes on where the package divides it: after an initial, such as "M." of a French name, and in
    Japanese after a quotation."""
    return INITIAL.search(before) is not None or (before.endswith("\u300d") and after.startswith("\u3068"))


def split_long(sentence: str, max_tokens: int, count_tokens: CountTokens) -> Iterator[str]:
    """The sentence itself, or parts of at most `max_tokens` tokens."""
    while is_too_long(sentence, max_tokens, count_tokens):
        end = longest_part(sentence, max_tokens, count_tokens)
        yield sentence[:end]
        sentence = sentence[end:]
    if sentence:
        yield sentence


def is_too_long(sentence: str, max_tokens: int, count_tokens: CountTokens) -> bool:
    """Whether a sentence has more than `max_tokens`; only the start of a very long one is counted, mostly."""
    start = sentence[: CHARACTERS_PER_TOKEN * max_tokens]
    return count_tokens(start) > max_tokens or (len(start) < len(sentence) and count_tokens(sentence) > max_tokens)


def longest_part(sentence: str, max_tokens: int, count_tokens: CountTokens) -> int:
    """Where the longest part ends that has at most `max_tokens`: at the strongest sign in its second half.

    It has one character at least.
    """
    ends: list[int] = []
    for pattern in CLAUSE_ENDS:
        candidates = (match.end() for match in pattern.finditer(sentence) if match.end() < len(sentence))
        # Tokens of a longer part are not always more by one, but never fewer: the search may stop at the first excess.
        ends = list(takewhile(lambda end: count_tokens(sentence[:end]) <= max_tokens, candidates))
        if ends and 2 * count_tokens(sentence[: ends[-1]]) >= max_tokens:
            return ends[-1]
    first_character = CLAUSE_ENDS[-1].match(sentence)
    assert first_character is not None
    return ends[-1] if ends else first_character.end()


def with_blanks_apart(piece: str) -> Segment:
    text = piece.strip()
    start = piece.find(text) if text else len(piece)
    return Segment(piece[:start], text, piece[start + len(text) :])


def primary_language(language: str | None) -> str:
    """The language that sentencex has rules for: without script and region; rules for all languages if unknown."""
    return (language or "en").split("-")[0]


def join_segments(segments: Sequence[Segment], translations: Sequence[str]) -> str:
    """The translations with the blanks that stand around the segments, and one where the source's script needs none."""
    text = ""
    for segment, translation in zip(segments, translations, strict=True):
        is_word_next = bool(translation) and not UNSPACED.match(translation[0])
        if not segment.before and text and not text[-1].isspace() and is_word_next and not UNSPACED.match(text[-1]):
            text += " "
        text += segment.before + translation + segment.after
    return text
