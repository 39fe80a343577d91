"""A check of all segments of a document together: translations that have nothing of their source.

The audit learns from the segments which words translate which, and aligns the translations to the sources. A segment
that it finds dropped has a translation of something else, of a length that no other check doubts. A part that is
missing inside a segment is not found, since the rest is evidence enough.
"""

from collections.abc import Sequence
from typing import Any

from ..metrics.loading import load_translation_audit
from .checks import Doubt, SegmentTranslation, words_of

# Chosen on human translations of debates and talks, German to English, of which fewer segments had more false alarms.
MIN_SEGMENTS = 1000
MAX_SEGMENTS = 5000  # that are aligned together, in about 400 MB of memory
MIN_WORDS = 8  # of a source; free translations of short sentences share no word with others
SEGMENTS_PER_DOCUMENT = 20  # of the audit, which takes time in proportion


def doubt_uncovered(segments: Sequence[SegmentTranslation]) -> None:
    """Add the doubt `coverage` to segments without a counterpart in their translation; fewer than 1000 get none."""
    if len(segments) < MIN_SEGMENTS:
        return
    num_blocks = -(-len(segments) // MAX_SEGMENTS)
    size = -(-len(segments) // num_blocks)  # equal blocks, so that the last one is not too short
    for start in range(0, len(segments), size):
        doubt_dropped(segments[start : start + size])


def doubt_dropped(segments: Sequence[SegmentTranslation]) -> None:
    starts = range(0, len(segments), SEGMENTS_PER_DOCUMENT)
    documents = [segments[start : start + SEGMENTS_PER_DOCUMENT] for start in starts]
    result: Any = load_translation_audit(keep_in_memory=True).compute(
        predictions=[[segment.translation for segment in document] for document in documents],
        sources=[[segment.source for segment in document] for document in documents],
        scores=False,
    )
    for document, record in zip(documents, result["documents"], strict=True):
        for dropped in record["dropped"]:
            segment = document[dropped["segment"]]
            if len(words_of(segment.source)) >= MIN_WORDS:
                segment.doubts.append(Doubt("coverage", "its words are no likely translations of the source's"))
