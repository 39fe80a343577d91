"""Source reach: how far around its source position a decoding step reads the source.

The encoder's state of token i depends on the tokens i - left .. i + right. A layer adds its window to both, and an
encoding what it reads besides (`left_context` and `lookahead` in encodings/base.py):

    left = layers x window + left_context,    right = layers x window_lookahead + lookahead

A step at source position g attends to the keys less than `cross_window` before it and less than `cross_lookahead` after
it, and the alignment to no others. Where all of these are finite, a translation can be computed while its source is
still being read, and is exactly the translation of the whole source.
"""

import math
from dataclasses import dataclass

import torch

from ..alignments.base import Alignment
from ..alignments.registry import build_alignment
from ..encodings.base import StackSpec
from ..encodings.registry import build_position_encodings, side_entries
from ..encodings.sum import PositionEncodingSum
from ..transformer.configuration_posenc import PosEncConfig


@dataclass(frozen=True)
class SourceReach:
    """Numbers of source tokens that one decoding step reads.

    `encoder_left`, `encoder_right`: the tokens before and after a token on which its encoder state depends.
    `cross_window`, `cross_lookahead`: the distances from which keys before and after the source position are hidden.
    """

    encoder_left: int
    encoder_right: int
    cross_window: int
    cross_lookahead: int

    @property
    def left_context(self) -> int:
        """The source tokens before the source position of a target token on which that token can depend."""
        return self.encoder_left + self.cross_window

    @property
    def lookahead(self) -> int:
        """The source tokens after the source position of a target token that must be read before it is written."""
        return self.encoder_right + self.cross_lookahead

    def last_key(self, source_position: float) -> int:
        """The last key that a step at this source position can attend to, in an endless source."""
        return math.ceil(source_position + self.cross_lookahead) - 1

    def first_key(self, source_position: float) -> int:
        """The first key that a step at this source position can attend to."""
        return max(0, math.floor(source_position - self.cross_window) + 1)

    def sees(self, key: int, source_position: float) -> bool:
        """Whether a step at this source position can attend to this key, or is beyond it."""
        return key - source_position < self.cross_lookahead


def compute_source_reach(config: PosEncConfig) -> SourceReach:
    """The reach of a model with this config; a ValueError (rule, value, remedy) if it is not finite."""
    encoder, decoder, cross = map(config.side, ("encoder", "decoder", "cross"))
    with torch.device("meta"):  # their properties alone are read
        encoder_positions, decoder_positions, cross_positions = (
            build_position_encodings(config, side) for side in (encoder, decoder, cross)
        )
        alignment = build_alignment(config)
    window, window_lookahead = local_window(encoder_positions, encoder)
    left, right = encoding_reach(encoder_positions, encoder)
    local_window(decoder_positions, decoder)
    cross_window, cross_lookahead = local_window(cross_positions, cross)
    validate_local_alignment(alignment, config.alignment_type)
    layers = encoder.layers
    encoder_left, encoder_right = layers * (window - 1) + left, layers * (window_lookahead - 1) + right
    return SourceReach(encoder_left, encoder_right, cross_window, cross_lookahead)


def local_window(positions: PositionEncodingSum, side: StackSpec) -> tuple[int, int]:
    """The distances from which keys before and after a query are hidden.

    A ValueError where none are hidden, or where positions are absolute.
    """
    for name, entry in side_entries(side).items():
        if not entry.shift_invariant:
            raise ValueError(
                f"Streaming must not depend on how many tokens came before, but `{name}` in the {stack_name(side)} "
                "uses absolute positions; choose a shift-invariant encoding, such as 'relative+window'."
            )
    before, after = positions.hiding_distance, positions.hiding_lookahead
    if before is None or after is None:
        raise ValueError(
            f"Streaming must have a window in every attention, but {side.encoding!r} in the {stack_name(side)} attends "
            f"to all keys; add the encoding `window`, as in 'relative+window', and train the model with it."
        )
    return before, after


def encoding_reach(positions: PositionEncodingSum, side: StackSpec) -> tuple[int, int]:
    """The tokens before and after a token that encodings read for it; a ValueError if these are all tokens."""
    left = right = 0
    for name, encoding in zip(positions.names, positions, strict=True):
        if encoding.left_context is None or encoding.lookahead is None:
            direction = "after" if encoding.lookahead is None else "before"
            raise ValueError(
                f"Streaming must have a finite reach, but `{name}` in the {stack_name(side)} reads all tokens "
                f"{direction} a token; leave it out, as in 'relative+window'."
            )
        left, right = max(left, encoding.left_context), max(right, encoding.lookahead)
    return left, right


def validate_local_alignment(alignment: Alignment, name: str) -> None:
    """Raise a ValueError unless source positions follow from a cached state and never move backwards."""
    if alignment.next_source_position is None or alignment.shift_source_positions is None:
        raise ValueError(
            f"Streaming must have an alignment that reads no more of the source than the window, but alignment_type="
            f"{name!r} is not local; choose 'length_ratio' or 'fertility', and train the model with it."
        )
    if not alignment.is_monotonic:
        raise ValueError(
            f"Streaming must have source positions that never move backwards, but alignment_type={name!r} with these "
            f"parameters can; set {name}_min_step to 0 or more."
        )


def stack_name(side: StackSpec) -> str:
    """What messages call the attention of a side."""
    return "cross-attention" if side.name == "cross" else side.name
