"""Segments of long sources, which are translated one by one: concatenated texts, or sentences.

`gold` segments are the texts that were concatenated. The corpus is read again with a separator that occurs in no text.
`automatic` segments are the sentences of the package sentence-splitter, which has the rules of Europarl's tools. Users
have no gold segments.
"""

from collections.abc import Callable

from datasets import Dataset

SEGMENTATIONS = ("gold", "automatic")
# A noncharacter of Unicode, reserved for internal use by programs.
SEGMENT_SEPARATOR = "\ufdd0"


def gold_segments(concatenated: Dataset, pairs: Dataset, language: str) -> list[list[str]]:
    """The segments of each source of `pairs`. `concatenated` has the same pairs with SEGMENT_SEPARATOR between texts.

    A ValueError if the pairs differ.
    """
    segments = [row[language].split(SEGMENT_SEPARATOR) for row in concatenated["translation"]]
    for number, (row, texts) in enumerate(zip(pairs["translation"], segments, strict=True)):
        if row[language] != " ".join(texts):
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


def load_sentence_splitter(language: str) -> Callable[[str], list[str]]:
    """The function that splits a text of that language into sentences. A ValueError if the package lacks the
    language."""
    try:
        from sentence_splitter import SentenceSplitter, SentenceSplitterException
    except ModuleNotFoundError:
        raise ValueError(
            'segmentation: automatic needs the extra "segmentation", but the package sentence-splitter is not '
            "installed; run `pip install 'hf-posenc[segmentation]'`, in a clone `pip install '.[segmentation]'`, or "
            "use segmentation: gold."
        ) from None
    try:
        return SentenceSplitter(language=language).split
    except SentenceSplitterException:
        raise ValueError(
            "segmentation: automatic needs rules for the ends of sentences, but the package sentence-splitter has none "
            f"for data.source_language={language!r}; use segmentation: gold, or a language that it has, by two letters."
        ) from None
