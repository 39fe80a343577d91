"""Segments of long sources, which are translated one by one: concatenated texts, sentences, or chunks of words.

`gold` segments are the texts that were concatenated. The corpus is read again with a separator that occurs in no text.
`automatic` segments are the sentences of the package sentence-splitter, which has the rules of Europarl's tools. Users
have no gold segments. `fixed` segments are chunks of a number of words, for text without any boundaries. Chunks may
overlap. Their translations are then joined where both have the same words, in the manner of

Sukanta Sen, Ondřej Bojar, Barry Haddow. Simultaneous Translation for Unsegmented Input: A Sliding Window Approach.
2022. https://arxiv.org/abs/2210.09754

Departures: models are not trained on windows. Words are compared without case and punctuation, among the last words of
one translation and the first of the next, as many as source words overlap. Where no two words in sequence are the same,
half of the overlap is cut from each of the two translations, unless one of them is no longer than the overlap. Nothing
is cut next to a segment without a translation.
"""

from collections.abc import Callable, Iterable
from difflib import SequenceMatcher

from datasets import Dataset

from ...metrics.translation_audit.lexicon import comparable_word

SEGMENTATIONS = ("gold", "automatic", "fixed")
MIN_COMMON_WORDS = 2  # where two translations are joined; one word may be the same by chance
# A noncharacter of Unicode, reserved for internal use by programs.
SEGMENT_SEPARATOR = "\ufdd0"


def gold_segments(concatenated: Dataset, pairs: Dataset, language: str) -> list[list[str]]:
    """The texts that one side of each of the `pairs` was concatenated from, empty ones too.

    `concatenated` has the same pairs with SEGMENT_SEPARATOR between texts. A ValueError if the pairs differ.
    """
    segments = [row[language].split(SEGMENT_SEPARATOR) for row in concatenated["translation"]]
    for number, (row, texts) in enumerate(zip(pairs["translation"], segments, strict=True)):
        if row[language] != " ".join(filter(None, texts)):
            raise ValueError(
                f"Gold segments are the texts that a test set was concatenated from, but source {number} is "
                f"{row[language][:80]!r} and they are {texts[:3]!r}; take U+FDD0 out of the texts, or use "
                "segmentation: automatic."
            )
    return segments


def automatic_segments(pairs: Dataset, language: str) -> list[list[str]]:
    """The sentences of each source. A source without sentences is one segment."""
    split_sentences = load_sentence_splitter(language)
    return [split_sentences(row[language]) or [row[language]] for row in pairs["translation"]]


def fixed_segments(pairs: Dataset, language: str, segment_words: int, overlap_words: int = 0) -> list[list[str]]:
    """Chunks of `segment_words` words of each source. A chunk begins with the last `overlap_words` of the one before.

    The last chunk may be shorter. Whitespace separates words.
    """
    step = segment_words - overlap_words
    segments = []
    for row in pairs["translation"]:
        words = row[language].split()
        starts = range(0, max(len(words) - overlap_words, 1), step)
        segments.append([" ".join(words[start : start + segment_words]) for start in starts])
    return segments


def join_translations(texts: Iterable[str], overlap_words: int = 0) -> str:
    """The translations of consecutive segments as one text; those of `overlap_words` source words are there once."""
    if not overlap_words:
        return " ".join(filter(None, texts))
    parts: list[list[str]] = [[]]
    is_next = True
    for words in map(str.split, texts):
        if words:
            parts[-1:] = merge_overlap(parts[-1], words, overlap_words, is_next=is_next)
        is_next = bool(words)
    return " ".join(word for part in parts for word in part)


def merge_overlap(
    left: list[str], right: list[str], overlap_words: int, *, is_next: bool
) -> tuple[list[str], list[str]]:
    """The words of two translations, cut where they meet: at the longest sequence of words that the end of `left` and
    the beginning of `right` have in common.

    `is_next`: whether no segment is between them. If the translation of one is missing, they may have nothing in
    common. Then they are cut only if such words end the one and begin the other.
    """
    start = max(len(left) - overlap_words, 0)
    tail = [comparable_word(word) for word in left[start:]]
    head = [comparable_word(word) for word in right[:overlap_words]]
    match = SequenceMatcher(None, tail, head, autojunk=False).find_longest_match()
    is_seam = match.a + match.size == len(tail) and match.b == 0
    if match.size >= MIN_COMMON_WORDS and (is_next or is_seam):
        return left[: start + match.a], right[match.b :]
    if is_next and min(len(left), len(right)) > overlap_words:
        num_cut = overlap_words // 2
        return left[: len(left) - num_cut], right[overlap_words - num_cut :]
    return left, right


def load_sentence_splitter(language: str) -> Callable[[str], list[str]]:
    """The function that splits a text of that language into sentences. A ValueError if the package lacks the
    language."""
    try:
        from sentence_splitter import SentenceSplitter, SentenceSplitterException
    except ModuleNotFoundError:
        raise ValueError(
            'segmentation: automatic needs the extra "segmentation", but the package sentence-splitter is not '
            "installed; run `pip install 'hf-posenc[segmentation]'`, in a clone `pip install '.[segmentation]'`, or "
            "use segmentation: gold or fixed."
        ) from None
    try:
        return SentenceSplitter(language=language).split
    except SentenceSplitterException:
        raise ValueError(
            "segmentation: automatic needs rules for the ends of sentences, but the package sentence-splitter has none "
            f"for data.source_language={language!r}; use segmentation: gold or fixed, or a language that it has, by "
            "two letters."
        ) from None
