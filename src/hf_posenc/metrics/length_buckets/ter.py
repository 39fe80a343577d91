"""Translation edit rate, equal to sacrebleu's edit by edit, by bit-parallel edit distances.

TER is the number of edits that turn a translation into its reference, by the reference's words; an edit inserts,
deletes or replaces a word, or moves a block of words (Snover et al., "A Study of Translation Edit Rate with Targeted
Human Annotation", AMTA 2006, https://aclanthology.org/2006.amta-papers.25). Which moves are made is Tercom's search as
sacrebleu has it: round by round the one that lowers the edit distance most, with limits on all that it tries.

The time goes into edit distances. D[i][j], between the first i words of the translation and the first j of the
reference, differs from its neighbours by at most 1, so that a row i is two integers with a bit for each column j, and
follows from the row before in some twenty operations on all columns at once (Myers, "A fast bit-vector algorithm for
approximate string matching based on dynamic programming", Journal of the ACM 46(3), 1999,
https://doi.org/10.1145/316542.316550):

    same = ((matches & rises) + rises ^ rises) | matches | falls         D[i][j] = D[i-1][j-1]
    longer = falls | ~(same | rises)                                     D[i][j] = D[i-1][j] + 1
    shorter = rises & same                                               D[i][j] = D[i-1][j] - 1
    rises' = shorter << 1 | ~(same | longer << 1)                        D[i][j] = D[i][j-1] + 1
    falls' = longer << 1 & same                                          D[i][j] = D[i][j-1] - 1

Departures: a row has only the columns of sacrebleu's beam around the diagonal; D is infinite elsewhere, by the bits
that enter at the beam's borders. The rows before a moved block are those of the unmoved words. The rows after it differ
from them by a constant as soon as one row does. A round that exhausts the limit of moves makes none of them, and here
evaluates none. Rows are Python integers: nothing is compiled.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from sacrebleu.metrics.ter import TER as SacrebleuTER

# Tercom's limits, and the last is sacrebleu's own.
MAX_BLOCK_LENGTH = 10  # words
MAX_MOVE_DISTANCE = 50  # between the positions of a block in the hypothesis and in the reference
BEAM = 25  # columns on either side of the diagonal
MAX_CANDIDATE_MOVES = 1000  # tried for a pair, in all rounds


class TER(SacrebleuTER):
    """sacrebleu's TER with another count of edits; tokens, statistics, scores and signature are sacrebleu's."""

    def _compute_segment_statistics(self, hypothesis: str, ref_kwargs: Mapping[str, list[list[str]]]) -> list[float]:
        """A private hook of sacrebleu's TER (tested with 2.6), which its `sentence_score` and `corpus_score` call.

        If it is renamed, sacrebleu counts the edits itself: equal scores, in more time.
        """
        words, references = hypothesis.split(), ref_kwargs["ref_words"]
        edits = min(count_edits(words, reference) for reference in references)
        return [edits, sum(map(len, references)) / len(references)]


class Band(NamedTuple):
    """The columns of a row within the beam; bit 0 stands for the first of them."""

    advance: int  # from the first column of the row before
    every: int  # a bit for each column
    fresh: int  # the columns that the row before did not have
    reachable: int  # the columns whose left neighbour the row before had: only there a match counts
    skipped: int  # bits of the row before, between its first column and the one left of this row's


@lru_cache(maxsize=4096)
def band(advance: int, columns: int, num_known: int) -> Band:
    """The band of `columns` columns, of which the previous row had the first `num_known`."""
    every = (1 << columns) - 1
    reachable = every & (2 << num_known) - 1 & (-1 if advance else -2)
    return Band(advance, every, every & -1 << num_known, reachable, (1 << advance) - 1 & -2)


# A plain tuple, for speed:
# rises: the columns whose distance is that of their left neighbour, and 1
# falls: or less 1
# first: the distance at the first column
# same: the columns whose distance is that of their left neighbour in the row before
# longer: the columns whose distance is that of the same column in the row before, and 1
Row = tuple[int, int, int, int, int]


def last_distance(row: Row) -> int:
    """The distance at the last column."""
    rises, falls, first, _, _ = row
    return first + rises.bit_count() - falls.bit_count()


class Move(NamedTuple):
    """A move of the `length` words from `start` on to index `target` of the unmoved words."""

    length: int
    start: int
    target: int

    def blocks(self, words: int) -> tuple[int, int, int]:
        """(a, b, c): of so many words, the move swaps those from a to b with those from b to c."""
        end = self.start + self.length
        if self.target < self.start:
            return self.target, self.start, end
        # As in Tercom, a block with a target inside itself moves by the distance of the target from its start.
        return self.start, end, self.target if self.target > end else min(words, self.target + self.length)


def count_edits(hypothesis: Sequence[str], reference: Sequence[str]) -> int:
    """The edits of sacrebleu's TER: moves of blocks, and the edit distance after them."""
    if not reference:
        return len(hypothesis)
    ids: dict[str, int] = {}
    targets = [ids.setdefault(word, len(ids)) for word in reference]
    words = [ids.get(word, len(ids)) for word in hypothesis]  # all that the reference lacks are one word
    distances = EditDistances(len(words), targets)
    rows = distances.rows(words, [distances.start])
    num_moves = num_tried = 0
    while True:
        aligned = alignment(words, targets, rows, distances)
        moves = list(
            islice(possible_moves(words, targets, distances.columns_of_word, aligned), MAX_CANDIDATE_MOVES - num_tried)
        )
        num_tried += len(moves)
        if not moves or num_tried >= MAX_CANDIDATE_MOVES:
            return num_moves + last_distance(rows[-1])
        blocks = {move: move.blocks(len(words)) for move in moves}
        saved = {swap: distances.saved(words, rows, *swap) for swap in set(blocks.values())}
        # Of moves that save as much: that of the longest block, then the first block, then the first target.
        best = max(blocks, key=lambda move: (saved[blocks[move]], move.length, -move.start, -move.target))
        if saved[blocks[best]] <= 0:
            return num_moves + last_distance(rows[-1])
        words = swap_blocks(words, *blocks[best])
        rows = distances.rows(words, rows[: blocks[best][0] + 1])
        num_moves += 1


def swap_blocks(words: list[int], a: int, b: int, c: int) -> list[int]:
    """The words with blocks a to b and b to c swapped."""
    return words[:a] + words[b:c] + words[a:b] + words[c:]


class EditDistances:
    """Edit distances between a reference and hypotheses of `length` words, within the beam."""

    def __init__(self, length: int, reference: list[int]) -> None:
        self.columns = len(reference) + 1
        self.columns_of_word = [0] * (len(reference) + 1)  # of each word, a bit for each column; the last is in none
        for column, word in enumerate(reference, start=1):
            self.columns_of_word[word] |= 1 << column
        self.start: Row = ((1 << self.columns) - 2, 0, 0, 0, 0)
        self.beam = list(self.bands(length))  # of each row after the first, which has all columns

    def bands(self, length: int) -> Iterator[tuple[int, Band]]:
        """The first column of each row, and its band."""
        slope = (self.columns - 1) / length if length else 1
        width = BEAM if slope / 2 <= BEAM else math.ceil(slope / 2 + BEAM)
        before, before_end = 0, self.columns
        for row in range(1, length + 1):
            diagonal = math.floor(row * slope)
            low, end = max(0, diagonal - width), min(self.columns, diagonal + width)
            yield low, band(low - before, end - low, before_end - low)
            before, before_end = low, end

    def rows(self, words: list[int], known: list[Row]) -> list[Row]:
        """All rows, of which the first ones are known."""
        rows, row, first = known, known[-1], len(known) - 1
        for word, (low, band) in zip(words[first:], self.beam[first:], strict=True):
            row = next_row(row, self.columns_of_word[word] >> low, band)
            rows.append(row)
        return rows

    def saved(self, words: list[int], rows: list[Row], a: int, b: int, c: int) -> int:
        """How much less the distance is where words a to b are swapped with words b to c."""
        row, behind = rows[a], c - a
        steps = zip(swap_blocks(words, a, b, c)[a:], self.beam[a:], rows[a + 1 :], strict=True)
        for number, (word, (low, band), unmoved) in enumerate(steps, start=1):
            row = next_row(row, self.columns_of_word[word] >> low, band)
            if number >= behind and row[0] == unmoved[0] and row[1] == unmoved[1]:
                return unmoved[2] - row[2]
        return last_distance(rows[-1]) - last_distance(row)


def next_row(row: Row, word_columns: int, band: Band) -> Row:
    """The row of the next word, which the reference has at these columns of the band, and others."""
    rises, falls, first, _, _ = row
    advance, every, fresh, reachable, skipped = band
    if skipped:
        first += (rises & skipped).bit_count() - (falls & skipped).bit_count()
    matches = word_columns & reachable
    rises = rises >> advance | fresh
    falls >>= advance
    same = ((matches & rises) + rises ^ rises | matches | falls) & every
    longer = falls | every ^ (same | rises)
    left = longer << 1 | 1  # Left of the beam, each row is one longer than the one before.
    rises = ((rises & same) << 1 | every ^ (same | left)) & every
    # The first column has no left neighbour, and neither bit.
    return rises, left & same & -2, first + 1 - (same & 1), same, longer


class Alignment(NamedTuple):
    """The edits between words and a reference, read from the rows of their distances."""

    reached: list[int]  # the number of aligned words after each word of the reference
    right_words: list[int]  # from each word on, how many need no edit before one does
    right_reference: list[int]


def alignment(words: list[int], reference: list[int], rows: list[Row], distances: EditDistances) -> Alignment:
    """The alignment of minimum edits; among equal ones a replacement comes before a deletion, then an insertion."""
    i, j = len(words), len(reference)
    reached = [0] * (j + 1)
    right_words, right_reference = [0] * i + [MAX_BLOCK_LENGTH], [0] * j + [MAX_BLOCK_LENGTH]
    while i or j:
        if i:
            (low, band), (_, _, _, same, longer) = distances.beam[i - 1], rows[i]
            column = 1 << j - low
            match = j > 0 and words[i - 1] == reference[j - 1]
            if band.reachable & column and (match or not same & column):
                reached[j] = i
                i, j = i - 1, j - 1
                if match:
                    right_words[i], right_reference[j] = right_words[i + 1] + 1, right_reference[j + 1] + 1
                continue
            if longer & column:
                i -= 1
                continue
        reached[j] = i
        j -= 1
    return Alignment(reached, right_words, right_reference)


def possible_moves(
    words: list[int], reference: list[int], columns_of_word: list[int], aligned: Alignment
) -> Iterator[Move]:
    """Candidate moves: blocks at other positions in the reference, where an edit is; a move may be repeated."""
    reached, right_words, right_reference = aligned
    for start, word in enumerate(words):
        if right_words[start] >= MAX_BLOCK_LENGTH:
            continue
        lowest = max(0, start - MAX_MOVE_DISTANCE)
        # Column j + 1 is that of the reference's word j.
        matching_columns = columns_of_word[word] >> lowest + 1 & (2 << start + MAX_MOVE_DISTANCE - lowest) - 1
        while matching_columns:
            position = lowest + (matching_columns & -matching_columns).bit_length() - 1
            matching_columns &= matching_columns - 1
            min_length = 1 + max(right_words[start], right_reference[position])
            max_length = min(MAX_BLOCK_LENGTH, len(words) - start, len(reference) - position)
            if start < reached[position + 1]:  # a block is not moved into itself
                max_length = min(max_length, reached[position + 1] - 1 - start)
            if min_length > max_length:
                continue
            length = 1
            while length < max_length and words[start + length] == reference[position + length]:
                length += 1
            for size in range(min_length, length + 1):
                for target in dict.fromkeys(reached[position : position + size + 1]):
                    yield Move(size, start, target)
