"""Words, blanks, sentence ends and line ends of any script, by Unicode properties.

- A word is letters with their marks and joiners (Word_Break of Unicode Standard Annex 29). Vowel signs, points and a
  zero-width non-joiner divide no word. Words are compared in NFC, without case and without ignorable characters.
- Scripts that put no spaces between words (Line_Break of Annex 14) have no words here, but characters with their marks.
  A token is two consecutive ones.
- A sentence ends with Sentence_Terminal or an ellipsis. Three ends have no such property: the Tibetan shad, the Greek
  question mark, and the space in Thai and Lao.
- A line ends with a mandatory break of Annex 14 or a paragraph separator (Bidi_Class), as for `str.splitlines`.
- A blank is White_Space, as `\\s` for tokenizers. `str.isspace` has four more characters.
"""

import unicodedata
from functools import lru_cache
from typing import NamedTuple

import regex

LINE_END = regex.compile(r"\r\n|[\p{Line_Break=BK}\p{Line_Break=CR}\p{Line_Break=LF}\p{Line_Break=NL}\p{Bidi_Class=B}]")
BLANK = regex.compile(r"\p{White_Space}")
# Marks, joiners and invisible formatting, which belong to the character before them.
EXTEND = r"\p{Word_Break=Extend}\p{Word_Break=Format}\p{Word_Break=ZWJ}"
UNSPACED = (
    r"[[\p{Line_Break=SA}\p{Line_Break=ID}\p{Line_Break=CJ}\p{Line_Break=NS}\p{Line_Break=AK}\p{Line_Break=AS}]"
    r"&&[\p{L}\p{Nl}]--[\p{Latin}\p{Hangul}]]"
)
LETTER = rf"[[\p{{Alphabetic}}\p{{Word_Break=ALetter}}\p{{Nl}}\p{{No}}]--{UNSPACED}]"
NUMBER = r"\p{Nd}+(?:[.,\u066b\u066c]\p{Nd}+)*"
ELLIPSIS = "\u2026"
SENTENCE_END = (
    rf"[\p{{Sentence_Terminal}}{ELLIPSIS}[\p{{Terminal_Punctuation}}&&[\p{{Tibetan}}\p{{Thai}}]]]"
    r"|(?<=\p{Greek}\p{M}*)[;\u037e]"
)
# Word dividers have no property of their own: the Tibetan tsheg, the Ethiopic wordspace, and those of ancient scripts.
DIVIDERS = "\u0f0b\u0f0c\u1361\u16eb\U00010100\U00010101\U0001039f\U000103d0\U0001091f\U00012470"
SYMBOL = rf"[^\p{{White_Space}}\p{{Cc}}\p{{Cf}}\p{{Default_Ignorable_Code_Point}}{DIVIDERS}]"
TOKEN = regex.compile(
    rf"(?P<unspaced>{UNSPACED}[{EXTEND}]*)|(?P<number>{NUMBER})|(?P<word>{LETTER}[{LETTER}{EXTEND}]*)"
    rf"|(?P<end>{SENTENCE_END})[{EXTEND}]*|{SYMBOL}[{EXTEND}]*",
    regex.V1,
)
IN_WORD = regex.compile(rf"[{UNSPACED}{LETTER}\p{{Nd}}{EXTEND}]", regex.V1)
SPACED = regex.compile(rf"[{LETTER}\p{{Nd}}]", regex.V1)
SPACE_ENDS_SENTENCE = regex.compile(r"[\p{Thai}\p{Lao}]")
FULL_STOPS = frozenset(".\u2024\ufe52\uff0e")  # which also end abbreviations
ABBREVIATION = regex.compile(rf"[\p{{L}}--{UNSPACED}--\p{{Hangul}}]\p{{M}}*", regex.V1)
IGNORABLE = regex.compile(r"\p{Default_Ignorable_Code_Point}")
PREFIX_LENGTH = 5  # letters of a word that are compared, in place of a stemmer
PREFIX = regex.compile(rf"(?:\P{{Alphabetic}}*\p{{Alphabetic}}){{{PREFIX_LENGTH}}}\P{{Alphabetic}}*")
INSIDE, SENTENCE, LINE = 0, 1, 2  # what starts at a token


class Tokens(NamedTuple):
    """The tokens of a text: compared forms, character spans, and what starts at a token."""

    keys: list[str]
    spans: list[tuple[int, int]]
    starts: list[int]  # INSIDE, SENTENCE or LINE


def tokenize(text: str) -> Tokens:
    """Words, numbers, punctuation marks, and pairs of characters in scripts without spaces."""
    tokens = Tokens([], [], [])
    start, end, previous = LINE, 0, ""
    for match in TOKEN.finditer(text):
        token, kind = match[0], match.lastgroup
        gap = text[end : match.start()]
        if not end or LINE_END.search(gap):
            start = LINE
        elif start == INSIDE and gap and ends_by_space(previous, gap, token):
            start = SENTENCE
        end = match.end()
        tokens.starts.append(INSIDE if kind == "end" else start)
        tokens.spans.append(match.span())
        if kind == "unspaced":
            following = TOKEN.match(text, end)
            is_pair = following is not None and following.lastgroup == kind
            tokens.keys.append(comparable(token + following[0]) if is_pair else comparable(token))
        else:
            tokens.keys.append(word_key(token))
        # A closing quotation mark belongs to the sentence before it. "e. g.", "3 p.m." and "www.x.org" end none.
        if kind == "end":
            is_abbreviation = token in FULL_STOPS and ABBREVIATION.fullmatch(previous)
            is_inside = token in FULL_STOPS and SPACED.match(text, end)
            start = INSIDE if is_abbreviation or is_inside else SENTENCE
        elif kind:
            start = INSIDE
        previous = token
    return tokens


def ends_by_space(before: str, gap: str, after: str) -> bool:
    """Whether the space between two tokens may end a sentence."""
    return all(map(SPACE_ENDS_SENTENCE.match, (before, after))) and BLANK.search(gap) is not None


def is_word(text: str) -> bool:
    """Whether a token or its key is a word, a number or characters of a script without spaces."""
    return IN_WORD.match(text) is not None


def comparable(text: str) -> str:
    """The text without case and ignorable characters, in NFC."""
    folded = unicodedata.normalize("NFD", IGNORABLE.sub("", text)).casefold()
    return unicodedata.normalize("NFC", folded)


def comparable_word(word: str) -> str:
    """The letters, marks and digits of a word as `comparable`; a word without any is compared as it is."""
    text = comparable(word)
    return "".join(IN_WORD.findall(text)) or text


@lru_cache(maxsize=2**16)
def word_key(token: str) -> str:
    """The form of a spaced token that is compared: at most PREFIX_LENGTH letters with their marks."""
    text = comparable(token)
    prefix = PREFIX.match(text) if len(text) > PREFIX_LENGTH else None
    return prefix[0] if prefix else text
