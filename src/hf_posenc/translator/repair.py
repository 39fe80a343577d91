"""Repair of doubtful translations: further candidates, and the choice among them.

A doubtful segment is translated again: in parts of at most half its tokens, then by beams with limits on repetition.
Nothing is sampled, so a retry has the same result each time. A segment without doubts is not tried further. The
candidate with fewest doubts stays. Of several, that with the highest mean log-probability of a token stays.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from .checks import Doubt
from .segments import Segment, join_segments

MIN_TOKENS_TO_SPLIT = 16  # of a segment; parts of fewer than half have too little context
LIMITED_REPETITION: tuple[Mapping[str, Any], ...] = (  # options of `generate`, in the order in which they are tried
    {"num_beams": 4, "no_repeat_ngram_size": 4},
    {"num_beams": 8, "repetition_penalty": 1.2},
)
Output = tuple[str, bool]  # a translation, and whether generation reached its limit
Candidate = tuple[str, list[Doubt]]
FindDoubts = Callable[[str, str, bool], list[Doubt]]  # of source, translation, and whether it was cut


class Repairable(Protocol):
    """What a repair needs of a translator."""

    generate_options: dict[str, Any]

    def generate(self, sources: Sequence[str], options: Mapping[str, Any]) -> list[Output]: ...
    def split(self, text: str, max_tokens: int) -> list[Segment]: ...
    def count(self, text: str) -> int: ...
    def log_probabilities(self, source: str, translations: Sequence[str]) -> list[float]: ...


def repair(
    translator: Repairable, sources: Sequence[str], first: Sequence[Candidate], find_doubts: FindDoubts
) -> list[Candidate]:
    """The best candidate of each doubtful source; `first` are those that there are."""
    candidates = [[candidate] for candidate in first]

    def add(rows: Sequence[int], outputs: Sequence[Output]) -> None:
        for row, (text, was_cut) in zip(rows, outputs, strict=True):
            candidates[row].append((text, find_doubts(sources[row], text, was_cut)))

    long_rows = [row for row, source in enumerate(sources) if translator.count(source) >= MIN_TOKENS_TO_SPLIT]
    add(long_rows, translate_halves(translator, [sources[row] for row in long_rows]))
    for options in LIMITED_REPETITION:
        rows = [row for row, tried in enumerate(candidates) if all(doubts for _, doubts in tried)]
        add(rows, translator.generate([sources[row] for row in rows], {**translator.generate_options, **options}))
    return [choose(translator, source, tried) for source, tried in zip(sources, candidates, strict=True)]


def translate_halves(translator: Repairable, sources: Sequence[str]) -> list[Output]:
    """The translations of sources in parts of at most half their tokens."""
    split_sources = [translator.split(source, (translator.count(source) + 1) // 2) for source in sources]
    texts = [part.text for parts in split_sources for part in parts]
    translated = iter(translator.generate(texts, translator.generate_options))
    outputs = []
    for parts in split_sources:
        of_parts = [next(translated) for _ in parts]
        text = join_segments(parts, [part_text for part_text, _ in of_parts])
        outputs.append((text.strip(), any(was_cut for _, was_cut in of_parts)))
    return outputs


def choose(translator: Repairable, source: str, candidates: Sequence[Candidate]) -> Candidate:
    """The candidate with fewest doubts, and of several the most probable one. A blank one has no probability."""
    fewest = min(len(doubts) for _, doubts in candidates)
    best = [(text, doubts) for text, doubts in candidates if len(doubts) == fewest]
    with_text = [(text, doubts) for text, doubts in best if text.strip()]
    if len(with_text) < 2:
        return (with_text or best)[0]
    scores = translator.log_probabilities(source, [text for text, _ in with_text])
    return with_text[scores.index(max(scores))]
