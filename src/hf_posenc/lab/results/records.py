"""Records of saved results: `RunResults` is results.json, and `SystemScores` is a system's scores.json.

A field's metadata has its JSON key if that differs from its name.

A `Diagnosis` is what `diagnose` has measured of a system on a test set. It holds sums and means, never attention
weights: losses by target position, distance and entropy of attention by head, and source positions of greedy decodings.
`analysis/diagnosis.py` defines each value. P are target positions, L layers, H heads, T generated
tokens.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

from ...utils.run_folder import name_conflict
from .json_records import (
    OMIT,
    OTHERS,
    UNSAVED,
    Count,
    FileRecord,
    Flag,
    Label,
    Line,
    Name,
    Number,
    Rule,
    Text,
    is_number,
)

# The lowest and the highest possible value of each metric that is no percentage from 0 to 100.
SCALES = {
    "ter": (0.0, math.inf), "bertscore": (-100.0, 100.0), "perplexity": (1.0, math.inf),
    "length_ratio": (0.0, math.inf), "bleu_lost": (-100.0, 100.0),
}  # fmt: skip
VERSION = 3  # of results.json and scores.json


def is_readable_version(value: object) -> bool:
    return type(value) is int and value == VERSION


def is_published_score(value: object) -> bool:
    """Whether it is one number for all pairs, or a list with one for each bucket; null if the publication has none."""
    return all(item is None or is_number(item) for item in (value if isinstance(value, list) else [value]))


PublishedScore = Annotated[
    float | list[float | None] | None,
    Rule("a number, a list with one for each length group, or null", is_published_score),
]
Version = Annotated[
    int,
    Rule(f"{VERSION}, the version that this hf_posenc reads", is_readable_version),
]


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


@dataclass(frozen=True, kw_only=True)
class AttentionDistance:
    """The distance of self-attention; None for a stack without."""

    encoder: StackDistances | None
    decoder: StackDistances | None


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


@dataclass(frozen=True)
class Interval:
    """A 95 % confidence interval. `half_width` is None for fewer than two pairs. `mean` is its middle if that is the
    mean of the bootstrap samples, not the score."""

    half_width: float | None
    mean: float | None


@dataclass(frozen=True, kw_only=True)
class BucketScore:
    """The corpus scores of a test set's pairs from source length `low` to `high`, or of all its pairs.

    `values` has the scores by the metric's name, None without pairs. `bleu_mean` and `bleu_ci` are the interval of
    `bleu`. A mean over seeds has the mean number of pairs, the number of `seeds` that have any, and in `bleu_low` and
    `bleu_high` the lowest and the highest seed.
    """

    low: Count
    high: Count | None
    label: Label
    n: Number
    values: Mapping[Name, Number | None] = field(metadata=OTHERS)
    seeds: int = field(default=1, metadata=UNSAVED)

    def score(self, metric: str) -> float | None:
        return self.values.get(metric)

    def interval(self, metric: str) -> Interval | None:
        """None where no interval was estimated."""
        if f"{metric}_ci" not in self.values:
            return None
        return Interval(self.values[f"{metric}_ci"], self.values.get(f"{metric}_mean"))

    def half_width(self, metric: str) -> float | None:
        """Half of the 95 % interval, None without an interval."""
        return self.values.get(f"{metric}_ci")

    def leaves_scale(self, metric: str) -> bool:
        """Whether score ± half of the interval has values that the metric cannot have."""
        score, half_width = self.score(metric), self.half_width(metric)
        if score is None or half_width is None:
            return False
        lowest, highest = SCALES.get(metric, (0.0, 100.0))
        return round(score - half_width, 9) < lowest or round(score + half_width, 9) > highest

    def seed_range(self, metric: str) -> tuple[float, float] | None:
        """The lowest and the highest seed, if the interval over seeds leaves the metric's scale; else None."""
        low, high = self.values.get(f"{metric}_low"), self.values.get(f"{metric}_high")
        return (low, high) if low is not None and high is not None and self.leaves_scale(metric) else None

    @property
    def has_intervals(self) -> bool:
        return any(name.endswith("_ci") for name in self.values)


@dataclass(frozen=True, kw_only=True)
class LengthScores:
    """The scores of a test set: of all its pairs, and of each length bucket, shortest first."""

    overall: BucketScore = field(metadata={"key": "all"})
    buckets: tuple[BucketScore, ...] = field(metadata={"key": "groups"})

    @property
    def all_buckets(self) -> tuple[BucketScore, ...]:
        """All pairs first."""
        return (self.overall, *self.buckets)


ScoresByRow = Mapping[str, Mapping[str, LengthScores]]  # of each row of a table, each test set


@dataclass(frozen=True)
class TranslationTime(FileRecord):
    """The time of translating a test set: seconds of the slowest process, and of all processors together."""

    seconds: Number
    processor_seconds: Number
    processes: Count


@dataclass(frozen=True, kw_only=True)
class TestSetTranslations:
    """A system's translations of a test set, in the order of its sources.

    `truncated`: whether a translation, or that of one of its segments, was cut at its maximum length. `time` is None if
    it was not measured.
    """

    __test__ = False  # no class of tests

    texts: tuple[str, ...]
    truncated: tuple[bool, ...]
    time: TranslationTime | None = None


@dataclass(frozen=True, kw_only=True)
class ScoredTestSet(LengthScores):
    """The scores of one system on one test set. `truncated` counts translations cut at their maximum length. `by` is
    the side whose length defines the buckets, and `signatures` are the scorers'. `time` is None if it was not
    measured."""

    signatures: Mapping[Name, Line | None] | None = field(default=None, metadata=OMIT)
    by: Line = "source"
    truncated: Count
    time: TranslationTime | None = None
    test_set_sha256: Line


@dataclass(frozen=True, kw_only=True)
class TrainingSummary(FileRecord):
    """The outcome of a training: steps, seconds, last loss, the step of the saved model, parameters, pairs."""

    steps: Count | None = field(default=None, metadata=OMIT)
    seconds: Number | None = field(default=None, metadata=OMIT)
    loss: Number | None = None
    best_step: Count | None = field(default=None, metadata=OMIT)
    processes: Count | None = field(default=None, metadata=OMIT)
    parameters: Count
    pairs: Count | None = field(default=None, metadata=OMIT)


@dataclass(frozen=True)
class SegmentedSystem:
    """The system whose model translates the segments, and the kind of segmentation."""

    system: Name
    segmentation: Line


@dataclass(frozen=True, kw_only=True)
class SystemScores(FileRecord):
    """A system's scores.json. Segmented systems have no training.

    `tokenizer` is its hash. `max_length` is the maximum training length in subwords, None without a limit.
    """

    version: Version = VERSION
    tokenizer: Line
    max_length: Count | None
    tests: Mapping[Name, ScoredTestSet]
    training: TrainingSummary | None = field(default=None, metadata=OMIT)
    segment: SegmentedSystem | None = field(default=None, metadata=OMIT)

    def violation(self) -> str | None:
        return name_conflict(self.tests)


class CurvePoint(NamedTuple):
    """A value in a training's log, with its step and the seconds of training."""

    step: Count
    seconds: Number
    value: Number


Curve = tuple[CurvePoint, ...]


@dataclass(frozen=True, kw_only=True)
class TrainingCurves:
    """Loss in nats per token, of training (label-smoothed) and of the validation set, and the validation set's BLEU.

    `lengths_known`: whether the model is given each target's length.
    """

    loss: Curve
    eval_loss: Curve
    eval_bleu: Curve | None = field(default=None, metadata=OMIT)
    lengths_known: Flag | None = field(default=None, metadata=OMIT)


@dataclass(frozen=True, kw_only=True)
class SystemResult:
    """The results of one system.

    `beyond` has the scores of all pairs longer than any system's maximum training length. `by_prediction` has those by
    the translations' lengths (None if they were not scored so). `loss` and `diagnostics` are None without a training.
    """

    row: Name
    min_length: Count | None = None
    tokenizer: Line
    max_length: Count | None
    tests: Mapping[Name, ScoredTestSet]
    training: TrainingSummary | None = field(default=None, metadata=OMIT)
    segment: SegmentedSystem | None = field(default=None, metadata=OMIT)
    loss: TrainingCurves | None = field(default=None, metadata=OMIT)
    diagnostics: Mapping[Name, Diagnosis] | None = field(default=None, metadata=OMIT)
    beyond: Mapping[Name, BucketScore]
    by_prediction: Mapping[Name, tuple[BucketScore, ...]] | None = field(default=None, metadata=OMIT)


@dataclass(frozen=True)
class PValues:
    """P-values of a difference from the baseline, by paired approximate randomisation and by paired bootstrap."""

    randomisation: Number
    bootstrap: Number


BucketPValues = Mapping[Name, PValues]  # by metric
RowPValues = Mapping[Label, BucketPValues]  # by bucket, "all" among them
Comparison = Mapping[Name, RowPValues]  # of a test set, by row


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """A published table of one test set: scores by row and metric, and the number of pairs of each column."""

    source: Text
    test: Name
    rows: Mapping[Name, Mapping[Name, PublishedScore]]
    num_pairs: tuple[Count | None, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class RunResults(FileRecord):
    """A run's results.json. `max_per_bucket` is the maximum number of pairs sampled from each bucket."""

    version: Version = VERSION
    baseline: Name
    systems: Mapping[Name, SystemResult]
    comparisons: Mapping[Name, Comparison]
    reference_table: PublishedTable | None
    max_per_bucket: Count | None = None

    @property
    def row_by_system(self) -> dict[str, str]:
        return {name: system.row for name, system in self.systems.items()}

    @property
    def test_sets(self) -> list[str]:
        """Every system has the same."""
        return list(next(iter(self.systems.values())).tests)

    def violation(self) -> str | None:
        """The first name that is not one of the run's systems, test sets or rows."""
        rows = set(self.row_by_system.values())
        if self.baseline not in rows:
            named = ", ".join(rows) or "but there are none"
            return f"baseline must be a row of its systems, {named}; it is {self.baseline!r}"
        tests = self.test_sets
        for name, system in self.systems.items():
            by_test_set: dict[str, Mapping[str, object] | None] = {"tests": system.tests, "beyond": system.beyond}
            by_test_set["by_prediction"] = system.by_prediction
            for key, mapping in by_test_set.items():
                if mapping is not None and mapping.keys() != set(tests):
                    return f"{name}.{key} must have the test sets {', '.join(tests)}, but it has {', '.join(mapping)}"
        if missing := set(tests) - self.comparisons.keys():
            return f"comparisons must have all test sets, but {', '.join(sorted(missing))} is not in it"
        published = self.reference_table
        if published and (published.test not in tests or not published.rows or not published.rows.keys() <= rows):
            return (
                "reference_table must be of a test set and rows of its own, but it is of "
                f"{published.test} and {list(published.rows)}"
            )
        return name_conflict(tests, self.systems)
