"""Words, blanks, sentence ends and line ends of any script, by Unicode properties.

- A word is letters with their marks and joiners (Word_Break of Unicode Standard Annex 29). Vowel signs, points and a
  zero-width non-joiner divide no word. Words are compared in NFC, without case and without ignorable characters.
- Scripts that put no spaces between words (Line_Break of Annex 14) have no words here, but characters with their marks.
  A token is two consecutive ones.
- A sentence ends with Sentence_Terminal or an ellipsis. Three ends have no such property: the Tibetan shad, the Greek
  question mark, and the space in Thai and Lao.
- A line ends with a mandatory break of Annex 14 or a paragraph separator (Bidi_Class), as for `str.splitlines`.
- A blank is White_Space, as `\\s` for tokenizers. `str.isspace` has four more characters.

And a lexical translation model that is trained on the audited documents themselves: IBM Model 1, t(target word | source
word), by expectation maximization. A diagonal prior on the relative word positions replaces its uniform alignments, as
in fast_align.

- Peter F. Brown, Stephen A. Della Pietra, Vincent J. Della Pietra, Robert L. Mercer. The Mathematics of Statistical
  Machine Translation: Parameter Estimation. Computational Linguistics 19(2), 1993. https://aclanthology.org/J93-2003
- Chris Dyer, Victor Chahuneau, Noah A. Smith. A Simple, Fast, and Effective Reparameterization of IBM Model 2. NAACL
  2013. https://aclanthology.org/N13-1073

Departures: the tension of the prior is fixed, words are cut to PREFIX_LENGTH letters, and the counts of a fold of
documents are left out of the table for that fold. A word pair is therefore evidence only if other documents have it:
otherwise a hallucinated text would explain itself.
"""

import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
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
INSIDE, SENTENCE, LINE, UNMARKED = 0, 1, 2, 3  # what starts at a token; UNMARKED: any unit of a text without ends


class Tokens(NamedTuple):
    """The tokens of a text: compared forms, character spans, and what starts at a token."""

    keys: list[str]
    spans: list[tuple[int, int]]
    starts: list[int]  # INSIDE, SENTENCE, LINE or UNMARKED
    is_ended: bool  # whether a sentence ends with the text


def tokenize(text: str) -> Tokens:
    """Words, numbers, punctuation marks, and pairs of characters in scripts without spaces."""
    tokens = Tokens([], [], [], False)
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
    return tokens._replace(is_ended=start != INSIDE or ends_by_space(previous, " ", previous))


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


NULL_WORD = 0  # source word of target words without a counterpart
TENSION, NULL_PROBABILITY = 4.0, 0.08  # of the alignment prior; those of fast_align
NUM_ITERATIONS = 5
NUM_FOLDS = 8
MIN_PROBABILITY, MIN_COUNT = 1e-3, 0.05  # smaller entries are left out of the tables
MAX_TEXT_PAIRS = 250_000  # word pairs of one text, 500 times 500; longer texts teach little
MAX_WORD_PAIRS = 30_000_000  # that are kept in memory in training, about 1 GB


class Vocabulary(dict[str, int]):
    """Token ids from 1 on, of both languages: a name or number has one id in both."""

    def ids(self, keys: Iterable[str]) -> np.ndarray:
        return np.array([self.setdefault(key, len(self) + 1) for key in keys], dtype=np.int64)

    @property
    def size(self) -> int:
        return len(self) + 1


class TranslationTable(NamedTuple):
    """t(target | source): the entries of source word f are `targets[starts[f] : starts[f + 1]]`, and so for values."""

    starts: np.ndarray
    targets: np.ndarray
    values: np.ndarray


class WordPairs(NamedTuple):
    """All pairs of a source and a target word of parallel texts, as flat arrays, target word by target word."""

    sources: np.ndarray
    targets: np.ndarray
    tokens: np.ndarray  # number of the target token
    priors: np.ndarray
    folds: np.ndarray


def word_pairs(texts: Sequence[tuple[np.ndarray, np.ndarray]], folds: Sequence[int]) -> WordPairs:
    """The word pairs of the texts (source ids, target ids), with NULL_WORD before each source.

    Texts beyond MAX_WORD_PAIRS are left out.
    """
    columns: list[tuple[np.ndarray, ...]] = []
    num_tokens = num_pairs = 0
    for (source, target), fold in zip(texts, folds, strict=True):
        rows, width = len(target), len(source) + 1
        num_pairs += rows * width
        if num_pairs > MAX_WORD_PAIRS:
            break
        offsets = (np.arange(rows)[:, None] + 0.5) / rows - (np.arange(width - 1)[None] + 0.5) / max(width - 1, 1)
        diagonal = np.exp(-TENSION * np.abs(offsets))
        diagonal *= (1 - NULL_PROBABILITY) / np.maximum(diagonal.sum(1, keepdims=True), 1e-9)
        priors = np.concatenate([np.full((rows, 1), NULL_PROBABILITY), diagonal], axis=1)
        columns.append(
            (
                np.tile(np.concatenate([[NULL_WORD], source]), rows),
                np.repeat(target, width),
                np.repeat(np.arange(num_tokens, num_tokens + rows), width),
                priors.ravel().astype(np.float32),
                np.full(rows * width, fold, dtype=np.int8),
            )
        )
        num_tokens += rows
    return WordPairs(*(np.concatenate(column) for column in zip(*columns, strict=True)))


def train_tables(
    texts: Sequence[tuple[np.ndarray, np.ndarray]], folds: Sequence[int], vocabulary_size: int
) -> list[TranslationTable | None]:
    """A table for each of NUM_FOLDS folds, without the counts of the texts in that fold; None without any text.

    A text of fold -1 counts for all folds.
    """
    sizes = [len(source) * len(target) for source, target in texts]
    nonempty = [index for index, size in enumerate(sizes) if 0 < size <= MAX_TEXT_PAIRS]
    if not nonempty:
        return [None] * NUM_FOLDS
    pairs = word_pairs([texts[index] for index in nonempty], [folds[index] for index in nonempty])
    types, index = np.unique(pairs.sources * vocabulary_size + pairs.targets, return_inverse=True)
    sources, targets = types // vocabulary_size, types % vocabulary_size
    probabilities = np.ones(len(types), dtype=np.float32)
    for _ in range(NUM_ITERATIONS):
        posteriors = probabilities[index] * pairs.priors
        posteriors /= np.bincount(pairs.tokens, posteriors)[pairs.tokens].astype(np.float32)
        counts = np.bincount(index, posteriors, minlength=len(types))
        totals = np.bincount(sources, counts, minlength=vocabulary_size)
        probabilities = (counts / totals[sources]).astype(np.float32)
    tables: list[TranslationTable | None] = []
    for fold in range(NUM_FOLDS):
        inside = pairs.folds == fold
        kept_counts = counts - np.bincount(index[inside], posteriors[inside], minlength=len(types))
        totals = np.bincount(sources, np.maximum(kept_counts, 0), minlength=vocabulary_size)
        values = kept_counts / (totals[sources] + 1)  # one count for words that the other folds lack
        keep = (values > MIN_PROBABILITY) & (kept_counts > MIN_COUNT) & (sources != NULL_WORD)
        starts = np.searchsorted(sources[keep], np.arange(vocabulary_size + 1))
        tables.append(TranslationTable(starts, targets[keep], values[keep].astype(np.float32)))
    return tables
