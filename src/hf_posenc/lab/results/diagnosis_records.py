"""Records of diagnoses: what `diagnose` has measured of a system on a test set.

They hold sums and means, never attention weights: losses by target position, distance and entropy of attention by head,
and source positions of greedy decodings. `teacher_forced.py` and `decoding_analysis.py` define each value. P are target
positions, L layers, H heads, T generated tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from .json_records import OMIT, Count, FileRecord, Flag, Label, Line, Number


@dataclass(frozen=True, kw_only=True)
class LossSums:
    """Sums over sentences at each target position (P): nats of negative log likelihood, and tokens."""

    nll: tuple[Number, ...] = field(metadata={"key": "nats"})
    tokens: tuple[Count, ...]


@dataclass(frozen=True, kw_only=True)
class LossBucket:
    """The loss of the pairs of a length bucket; without pairs it has no perplexity, with one no standard error."""

    low: Count
    high: Count | None
    label: Label
    n: Count
    nll: Number = field(metadata={"key": "nats"})
    tokens: Count
    perplexity: Number | None = None
    standard_error: Number | None = field(default=None, metadata={"key": "nats_standard_error"})
    by_position: LossSums
    n_in_test_set: Count


@dataclass(frozen=True, kw_only=True)
class LossByPosition(LossSums):
    """The sums of all pairs, and those of each length bucket."""

    buckets: tuple[LossBucket, ...] = field(metadata={"key": "groups"})


@dataclass(frozen=True, kw_only=True)
class HeadDistances:
    """The mean distance of attention in tokens (L, H) over `queries`, and `uniform`, that of equal weights."""

    queries: Count
    mean: tuple[tuple[Number, ...], ...]
    uniform: Number


@dataclass(frozen=True, kw_only=True)
class StackDistances:
    """A stack's attention in sentences within the maximum training length, and in longer ones; None without any."""

    inside: HeadDistances | None
    beyond: HeadDistances | None

    @property
    def by_region(self) -> dict[str, HeadDistances]:
        """The regions that have queries."""
        regions = {"inside": self.inside, "beyond": self.beyond}
        return {region: distances for region, distances in regions.items() if distances is not None}


@dataclass(frozen=True, kw_only=True)
class AttentionDistance:
    """The distance of self-attention; None for a stack without."""

    encoder: StackDistances | None
    decoder: StackDistances | None

    @property
    def by_stack(self) -> dict[str, StackDistances | None]:
        return {"encoder": self.encoder, "decoder": self.decoder}

    @property
    def stacks(self) -> list[StackDistances]:
        """The stacks that have self-attention."""
        return [stack for stack in (self.encoder, self.decoder) if stack is not None]


@dataclass(frozen=True, kw_only=True)
class EntropyBucket:
    """The mean entropy of attention in nats (L, H) in a length bucket, and `uniform`, that of equal weights.

    Both are None without queries.
    """

    low: Count
    high: Count | None
    label: Label
    n: Count
    queries: Count
    mean: tuple[tuple[Number, ...], ...] | None
    uniform: Number | None


@dataclass(frozen=True, kw_only=True)
class AttentionEntropy:
    """The entropy of the encoder's self-attention and of cross-attention, by length; None for a model without."""

    encoder: tuple[EntropyBucket, ...] | None
    cross: tuple[EntropyBucket, ...] | None

    @property
    def by_side(self) -> dict[str, tuple[EntropyBucket, ...] | None]:
        return {"encoder": self.encoder, "cross": self.cross}


@dataclass(frozen=True, kw_only=True)
class DecodingScore:
    """BLEU of some decodings with half of its 95 % interval, and their length ratio."""

    bleu: Number | None
    half_width: Number | None = field(metadata={"key": "bleu_ci"})
    length_ratio: Number | None


@dataclass(frozen=True, kw_only=True)
class CentroidMovement:
    """The movement of the centroid of cross-attention: number of steps, fractions of jumps and backward steps, and the
    final position."""

    steps: Count
    jumps: Number
    backwards: Number
    final: Number


@dataclass(frozen=True, kw_only=True)
class DecodingExample:
    """One decoding: the numbers of source and reference tokens, and at each generated token (T) the centroid of
    cross-attention and the source position of the alignment, None without them."""

    source: Count
    target: Count
    ended: Flag
    centroid: tuple[Number, ...] | None = field(metadata={"key": "centre"})
    source_position: tuple[Number, ...] | None = field(metadata={"key": "place"})


@dataclass(frozen=True, kw_only=True)
class DecodingBucket:
    """The decodings of a length bucket's pairs; without pairs it has only its bounds."""

    low: Count
    high: Count | None
    label: Label
    n: Count
    greedy: DecodingScore | None = field(default=None, metadata=OMIT)
    end_forbidden: DecodingScore | None = field(default=None, metadata=OMIT)
    ended: Number | None = field(default=None, metadata=OMIT)
    movement: CentroidMovement | None = field(default=None, metadata={"key": "centre", **OMIT})
    examples: tuple[DecodingExample, ...] | None = field(default=None, metadata=OMIT)

    @property
    def first_example(self) -> DecodingExample | None:
        return self.examples[0] if self.examples else None


@dataclass(frozen=True, kw_only=True)
class DecodingDiagnosis:
    """Greedy decodings of a few pairs of each length bucket; a step of more than `far` tokens is a jump."""

    pairs_per_group: Count
    tokens_per_group: Count
    far: Count
    buckets: tuple[DecodingBucket, ...] = field(metadata={"key": "groups"})


@dataclass(frozen=True, kw_only=True)
class Diagnosis(FileRecord):
    """The diagnosis of one system on one test set. Older ones have neither entropies nor decodings."""

    test_set_sha256: Line
    n: Count
    pairs_per_group: Count | None
    training_limit: Count | None
    targets_cut: Count
    lengths_known: Flag | None = field(default=None, metadata=OMIT)
    loss_by_position: LossByPosition
    attention_distance: AttentionDistance
    attention_entropy: AttentionEntropy | None = field(default=None, metadata=OMIT)
    decoding: DecodingDiagnosis | None = None

    @property
    def has_centroid(self) -> bool:
        """Whether it has the centroid of cross-attention during decoding."""
        return any(bucket.movement is not None for bucket in self.decoding_buckets)

    @property
    def has_decoding(self) -> bool:
        return self.decoding is not None

    @property
    def has_entropy(self) -> bool:
        entropy = self.attention_entropy
        return entropy is not None and any(entropy.by_side.values())

    @property
    def decoding_buckets(self) -> Sequence[DecodingBucket]:
        return self.decoding.buckets if self.decoding else ()
