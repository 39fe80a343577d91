"""Long sources to the pieces that a system is given one by one: texts that were joined, or sentences that are found.

Boundaries are `known` where pairs were joined: the corpus is read again with a character between joined texts that no
text has. They are `found` by the package sentence-splitter, which goes by the rules of Europarl's tools for the ends of
sentences: so do users whose texts nobody has joined.
"""

from collections.abc import Callable

from datasets import Dataset

SEGMENTATIONS = ("known", "found")
# Unicode keeps it for use inside of programs and will never make a character of it.
SEGMENT_SEPARATOR = "\ufdd0"


def gold_segments(concatenated: Dataset, pairs: Dataset, language: str) -> list[list[str]]:
    """The pieces of each source of `pairs`, given the same ones with BETWEEN between joined texts.

    A ValueError if they are not the same ones.
    """
    segments = [row[language].split(SEGMENT_SEPARATOR) for row in concatenated["translation"]]
    for number, (row, texts) in enumerate(zip(pairs["translation"], segments, strict=True)):
        if row[language] != " ".join(texts):
            raise ValueError(
                f"Known boundaries are those of the texts that a test set was joined from, but source {number} is "
                f"{row[language][:80]!r} and they are {texts[:3]!r}; take U+FDD0 out of the texts, or use "
                "boundaries: found."
            )
    return segments


def automatic_segments(pairs: Dataset, language: str) -> list[list[str]]:
    """The sentences of each source; one without any is a piece as it is."""
    split_sentences = load_sentence_splitter(language)
    return [split_sentences(row[language]) or [row[language]] for row in pairs["translation"]]


def load_sentence_splitter(language: str) -> Callable[[str], list[str]]:
    """What cuts a text of that language into sentences; a ValueError where there are no rules for it."""
    try:
        from sentence_splitter import SentenceSplitter, SentenceSplitterException
    except ModuleNotFoundError:
        raise ValueError(
            'boundaries: found needs the extra "split", but the package sentence-splitter is not installed; run '
            "`pip install 'hf-posenc[split]'`, in a clone `pip install '.[split]'`, or use boundaries: known."
        ) from None
    try:
        return SentenceSplitter(language=language).split
    except SentenceSplitterException:
        raise ValueError(
            "boundaries: found needs rules for the ends of sentences, but the package sentence-splitter has none for "
            f"data.source_language={language!r}; use boundaries: known, or a language that it has, by two letters."
        ) from None
