"""Checks of a translation against its source, without references: what is likely lost, repeated or left as it was.

Each check is a function of one `Checked` pair that returns what it found, or None. The length ratio is judged by the
spread of the other segments of the same call, all other checks by the segment alone.
"""

import math
import unicodedata
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Any

import numpy as np
import regex

from .segments import UNSPACED

NUMBER = regex.compile(r"\d+(?:[., \u00a0\u202f'\u2019]\d{3})*(?:[.,]\d+)?")
LINK = regex.compile(r"(?:https?://|www\.)[^\s<>\"')\]]+|[\w.+-]+@[\w-]+\.[\w.]+")
TAG = regex.compile(r"</?[a-zA-Z][^<>]*>|\{\w*\}|%[sd]|\$\{\w+\}")
LINK_OR_TAG_SIGN = regex.compile(r"[@/<{%]|www\.")  # every one has one of these; the search for them takes longer
WORD = regex.compile(rf"{UNSPACED.pattern}|[\p{{L}}\p{{M}}\p{{N}}--{UNSPACED.pattern}]+", regex.V1)
MIN_SEGMENTS = 30  # for a spread of length ratios
MIN_RATIO_SPREAD = 0.13  # of log ratios; the spread of a very uniform text is not a rule
MAX_DEVIATIONS = 4.0
MIN_CHARACTERS = 20  # of a source whose length ratio, script or copying says something
MIN_PROPORTION = 0.3  # of a sentence that no spread is known for
MAX_PROPORTION = 4.0
MAX_PERIOD = 30  # words of a loop; a character is a word where a script has no blanks
MIN_LOOP_REPEATS, MIN_LOOP_WORDS = 3, 6
MAX_COMPRESSION = 2.5  # times the source's
MIN_COPIED_WORDS = 3  # without a capital, which names have
MIN_SCRIPT_SHARE = 0.5
SMALL_NUMBERS = frozenset(["", *map(str, range(1, 25))])  # without leading zeros


@dataclass(frozen=True)
class Doubt:
    """One reason to doubt a translation: the check's name, and what it found."""

    check: str
    found: str


@dataclass
class SegmentTranslation:
    """A segment, its translation, and the doubts that stay. `place`: where it stands, such as "line 3".

    `repaired`: whether another candidate than the first stays.
    """

    place: str
    source: str
    translation: str
    doubts: list[Doubt] = field(default_factory=list)
    repaired: bool = False


@dataclass
class TextTranslation:
    """A translated text, and its segments in order."""

    text: str
    segments: list[SegmentTranslation]

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "TextTranslation":
        """The translation that `dataclasses.asdict` made a record of."""
        segments = []
        for segment in record["segments"]:
            doubts = [Doubt(**doubt) for doubt in segment["doubts"]]
            segments.append(SegmentTranslation(**{**segment, "doubts": doubts}))
        return cls(record["text"], segments)

    @property
    def doubtful(self) -> list[SegmentTranslation]:
        return [segment for segment in self.segments if segment.doubts]

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Checked:
    """A source and its translation.

    `was_cut`: whether generation reached its limit. `expected_ratio`: median and spread of log(translation / source
    characters), None if too few segments are known. `target_script`: such as Latn; None if unknown.
    `same_language`: whether source and target language are the same.
    """

    source: str
    translation: str
    was_cut: bool = False
    expected_ratio: tuple[float, float] | None = None
    target_script: str | None = None
    same_language: bool = False


def find_doubts(pair: Checked) -> list[Doubt]:
    """All doubts on a translation. A blank source has none."""
    if not WORD.search(pair.source):
        return []
    if not pair.translation.strip():
        return [Doubt("empty", "the translation is empty")]
    return [Doubt(name, found) for name, check in CHECKS.items() if (found := check(pair))]


def was_cut(pair: Checked) -> str | None:
    return "the translation reached its length limit" if pair.was_cut else None


def unusual_length(pair: Checked) -> str | None:
    """A ratio of characters outside of the spread of the other segments, or of what any two languages have."""
    if len(pair.source) < MIN_CHARACTERS:
        return None
    log_ratio = math.log(len(pair.translation) / len(pair.source))
    if pair.expected_ratio is None:
        low, high = math.log(MIN_PROPORTION), math.log(MAX_PROPORTION)
    else:
        middle, spread = pair.expected_ratio
        # The ratio of a short text varies more.
        margin = MAX_DEVIATIONS * spread * math.sqrt(1 + 2 * MIN_CHARACTERS / len(pair.source))
        low, high = middle - margin, middle + margin
    if low <= log_ratio <= high:
        return None
    return f"{math.exp(log_ratio):.2f} times as many characters as the source; {math.exp(low):.2f} to " + (
        f"{math.exp(high):.2f} are usual"
    )


def loop(pair: Checked) -> str | None:
    """Words that are repeated one after another, more often than in the source; or text that compresses too well."""
    repeats, words = longest_loop(pair.translation)
    if repeats * len(words) >= MIN_LOOP_WORDS and repeats > longest_loop(pair.source)[0]:
        return f"{' '.join(words)[:60]!r} stands {repeats} times in a row"
    rates = compression(pair.translation), compression(pair.source)
    if len(pair.translation) > 100 and rates[0] > MAX_COMPRESSION * max(rates[1], 1.0):
        return f"the translation repeats itself: it can be compressed {rates[0]:.1f} times, the source {rates[1]:.1f}"
    return None


def longest_loop(text: str) -> tuple[int, list[str]]:
    """The number of repetitions in a row, and the repeated words, of the loop that covers most words.

    Without a loop of three repetitions or more they are 1 and no words.
    """
    words = words_of(text.casefold())
    best: tuple[int, list[str]] = (1, [])
    for period in range(1, min(MAX_PERIOD, len(words) // MIN_LOOP_REPEATS) + 1):
        run = 0
        for at in range(period, len(words)):
            run = run + 1 if words[at] == words[at - period] else 0
            repeats = run // period + 1
            if repeats >= MIN_LOOP_REPEATS and repeats * period > best[0] * len(best[1]):
                best = (repeats, words[at - period + 1 : at + 1])
    return best


@lru_cache(maxsize=4)
def words_of(text: str) -> list[str]:
    """The words of a text; kept, because two checks read those of a translation."""
    return WORD.findall(text)


def compression(text: str) -> float:
    data = text.encode("utf-8", "replace")
    return len(data) / len(zlib.compress(data))


def copied(pair: Checked) -> str | None:
    """Half of the source or more, word by word in the translation. Numbers and words with a capital may be names."""
    if pair.same_language or len(pair.source) < MIN_CHARACTERS:
        return None
    words = words_of(pair.source)
    source, translation = [word.casefold() for word in words], words_of(pair.translation.casefold())
    if 2 * (Counter(source) & Counter(translation)).total() < len(source):
        return None
    start, _, length = SequenceMatcher(None, source, translation, autojunk=False).find_longest_match()
    is_name = [word.isdigit() or word[0].isupper() for word in words[start : start + length]]
    if 2 * length < len(source) or is_name.count(False) < MIN_COPIED_WORDS:
        return None
    return f"{' '.join(words[start : start + length])[:60]!r} of the source stands in the translation"


def other_script(pair: Checked) -> str | None:
    """Letters that are mostly of another script than the target language's."""
    letters = "".join(filter(str.isalpha, pair.translation))
    if pair.target_script is None or len(letters) < MIN_CHARACTERS:
        return None
    pattern = SCRIPTS.get(pair.target_script)
    if pattern is None:
        return None
    share = len(pattern.findall(letters)) / len(letters)
    return None if share >= MIN_SCRIPT_SHARE else f"{share:.0%} of the letters are {pair.target_script}"


def lost_numbers(pair: Checked) -> str | None:
    """Digits of the source that the translation lacks. Numbers up to 24 may have become words, or another time."""
    digits = [Counter(map(plain_digits, NUMBER.findall(text))) for text in (pair.source, pair.translation)]
    all_digits = plain_digits(pair.translation)
    lost = [
        number
        for number in digits[0] - digits[1]
        if number.lstrip("0") not in SMALL_NUMBERS and number not in all_digits
    ]
    return f"lacks the numbers {', '.join(lost)}" if lost else None


def plain_digits(text: str) -> str:
    """The digits of a text as 0 to 9."""
    return "".join(str(unicodedata.decimal(character)) for character in text if character.isdecimal())


def lost_links_and_tags(pair: Checked) -> str | None:
    """Web and mail addresses, tags and placeholders that the translation lacks."""
    if not LINK_OR_TAG_SIGN.search(pair.source):
        return None
    kept = "".join(pair.translation.split())
    lost = [item.rstrip(".,;:!?") for pattern in (LINK, TAG) for item in pattern.findall(pair.source)]
    lost = [item for item in lost if "".join(item.split()) not in kept]
    return f"lacks {', '.join(lost)}" if lost else None


CHECKS: dict[str, Callable[[Checked], str | None]] = {
    "cut": was_cut,
    "length": unusual_length,
    "loop": loop,
    "copy": copied,
    "script": other_script,
    "numbers": lost_numbers,
    "links": lost_links_and_tags,
}
SCRIPTS = {  # codes of ISO 15924, and the scripts that text of it is written in
    code: regex.compile("|".join(rf"\p{{Script={name}}}" for name in names.split()))
    for code, names in {
        "Latn": "Latin", "Cyrl": "Cyrillic", "Grek": "Greek", "Arab": "Arabic", "Hebr": "Hebrew", "Deva": "Devanagari",
        "Beng": "Bengali", "Thai": "Thai", "Hans": "Han", "Hant": "Han", "Hani": "Han", "Geor": "Georgian",
        "Jpan": "Han Hiragana Katakana", "Kore": "Hangul Han", "Hang": "Hangul", "Armn": "Armenian", "Taml": "Tamil",
        "Telu": "Telugu", "Gujr": "Gujarati", "Guru": "Gurmukhi", "Knda": "Kannada", "Mlym": "Malayalam",
        "Sinh": "Sinhala", "Khmr": "Khmer", "Laoo": "Lao", "Mymr": "Myanmar", "Ethi": "Ethiopic", "Tibt": "Tibetan",
    }.items()
}  # fmt: skip


def usual_ratio(pairs: Sequence[tuple[str, str]]) -> tuple[float, float] | None:
    """Median and spread (1.48 median absolute deviations) of the log ratios of lengths; None of few segments."""
    known = [pair for pair in pairs if len(pair[0]) >= MIN_CHARACTERS and pair[1].strip()]
    ratios = np.array([math.log(len(translation) / len(source)) for source, translation in known])
    if len(ratios) < MIN_SEGMENTS:
        return None
    middle = float(np.median(ratios))
    return middle, max(MIN_RATIO_SPREAD, 1.48 * float(np.median(abs(ratios - middle))))
