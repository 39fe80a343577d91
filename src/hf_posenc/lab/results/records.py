"""Records of saved results: `RunResults` is results.json, and `SystemScores` is a system's scores.json.

pydantic validates them where a file is read, and where a record is made. A file has the names of the fields, with a few
older ones in a diagnosis. Keys without a field are dropped. What is None is left out of a file.

A `Diagnosis` is what `diagnose` has measured of a system on a test set. It holds sums and means, never attention
weights: losses by target position, entropy of attention by head, and source positions of greedy decodings.
`analysis/diagnosis.py` defines each value. P are target positions, L layers, H heads, T generated
tokens.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

from annotated_types import Predicate
from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from ...utils.run_folder import NAME_RULE, is_valid_name, name_conflict
from ..config.settings import ReferenceTable

# The lowest and the highest possible value of each metric that is no percentage from 0 to 100.
SCALES = {
    "ter": (0.0, math.inf), "bertscore": (-100.0, 100.0), "perplexity": (1.0, math.inf),
    "length_ratio": (0.0, math.inf), "bleu_lost": (-100.0, 100.0),
}  # fmt: skip
WITHOUT_INTERVAL = ("brevity_penalty", "length_ratio")  # scores that the metric estimates no interval for
VERSION = 4  # of results.json and scores.json
RECORD = ConfigDict(extra="ignore", validate_by_name=True, validate_by_alias=True)


def is_line(value: str) -> bool:
    """Whether a text is one that cannot change the look of the page or of the terminal that it is shown in."""
    return len(value) <= 1000 and value.isprintable()


Number = Annotated[float, Field(strict=True, allow_inf_nan=False, description="a number")]
Count = Annotated[int, Field(strict=True, gt=-(2**63), lt=2**63, description="a whole number")]
Flag = Annotated[bool, Field(strict=True)]
Name = Annotated[str, Predicate(is_valid_name), Field(description=NAME_RULE)]
Line = Annotated[str, Predicate(is_line), Field(description="a line of text")]
Label = Annotated[
    str,
    Field(
        pattern=r"^(all|beyond|\[\d+,\d+\]|>\d+)$",
        description="the label of a length group, such as [0,25] or >100",
    ),
]
Version = Annotated[
    int,
    Predicate(lambda version: version == VERSION),
    Field(strict=True, description=f"{VERSION}, the version that this hf_posenc reads"),
]


@dataclass(frozen=True, kw_only=True, config=RECORD)
class LossSums:
    """Sums over sentences at each target position (P): nats of negative log likelihood, and tokens."""

    nll: Annotated[tuple[Number, ...], Field(alias="nats")]
    tokens: tuple[Count, ...]


@dataclass(frozen=True, kw_only=True, config=RECORD)
class EntropyBucket:
    """The mean entropy of attention in nats (L, H) in a length bucket, and `uniform`, that of equal weights.

    Both are None without queries.
    """

    low: Count
    high: Count | None = None
    label: Label
    n: Count
    queries: Count
    mean: tuple[tuple[Number, ...], ...] | None = None
    uniform: Number | None = None


@dataclass(frozen=True, kw_only=True, config=RECORD)
class AttentionEntropy:
    """The entropy of the encoder's self-attention and of cross-attention, by length; None for a model without."""

    encoder: tuple[EntropyBucket, ...] | None = None
    cross: tuple[EntropyBucket, ...] | None = None

    @property
    def by_side(self) -> dict[str, tuple[EntropyBucket, ...] | None]:
        return {"encoder": self.encoder, "cross": self.cross}


@dataclass(frozen=True, kw_only=True, config=RECORD)
class DecodingScore:
    """BLEU of some decodings with half of its 95 % interval, and their length ratio."""

    bleu: Number | None = None
    half_width: Annotated[Number | None, Field(alias="bleu_ci")] = None
    length_ratio: Number | None = None


@dataclass(frozen=True, kw_only=True, config=RECORD)
class CentroidMovement:
    """The movement of the centroid of cross-attention: number of steps, fractions of jumps and backward steps, and the
    final position."""

    steps: Count
    jumps: Number
    backwards: Number
    final: Number


@dataclass(frozen=True, kw_only=True, config=RECORD)
class DecodingExample:
    """One decoding: the numbers of source and reference tokens, and at each generated token (T) the centroid of
    cross-attention and the source position of the alignment, None without them."""

    source: Count
    target: Count
    ended: Flag
    centroid: Annotated[tuple[Number, ...] | None, Field(alias="centre")] = None
    source_position: Annotated[tuple[Number, ...] | None, Field(alias="place")] = None


@dataclass(frozen=True, kw_only=True, config=RECORD)
class DecodingBucket:
    """The decodings of a length bucket's pairs; without pairs it has only its bounds."""

    low: Count
    high: Count | None = None
    label: Label
    n: Count
    greedy: DecodingScore | None = None
    end_forbidden: DecodingScore | None = None
    ended: Number | None = None
    movement: Annotated[CentroidMovement | None, Field(alias="centre")] = None
    examples: tuple[DecodingExample, ...] | None = None

    @property
    def first_example(self) -> DecodingExample | None:
        return self.examples[0] if self.examples else None


@dataclass(frozen=True, kw_only=True, config=RECORD)
class DecodingDiagnosis:
    """Greedy decodings of a few pairs of each length bucket; a step of more than `far` tokens is a jump."""

    pairs_per_group: Count
    tokens_per_group: Count
    far: Count
    buckets: Annotated[tuple[DecodingBucket, ...], Field(alias="groups")]


@dataclass(frozen=True, kw_only=True, config=RECORD)
class Diagnosis:
    """The diagnosis of one system on one test set. Older ones have neither entropies nor decodings."""

    test_set_sha256: Line
    n: Count
    pairs_per_group: Count | None = None
    targets_cut: Count
    lengths_known: Flag | None = None
    loss_by_position: LossSums
    attention_entropy: AttentionEntropy | None = None
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


@dataclass(frozen=True, kw_only=True, config=RECORD)
class Score:
    """A corpus score with its 95 % interval. From scoring to tables and figures it is this record.

    `value`: None without pairs.
    `half_width`: half of the interval, None without one: for a score that has none, and for fewer than two pairs.
    `middle`: the middle of the interval if that is the mean of the bootstrap samples, not the score.
    `lowest`, `highest`: of the seeds that the score is a mean of.
    """

    value: Number | None = None
    half_width: Number | None = None
    middle: Number | None = None
    lowest: Number | None = None
    highest: Number | None = None

    def leaves_scale(self, metric: str) -> bool:
        """Whether score ± half of the interval has values that the metric cannot have."""
        if self.value is None or self.half_width is None:
            return False
        lowest, highest = SCALES.get(metric, (0.0, 100.0))
        return round(self.value - self.half_width, 9) < lowest or round(self.value + self.half_width, 9) > highest

    def seed_range(self, metric: str) -> tuple[float, float] | None:
        """The lowest and the highest seed, which tables show in place of an interval that leaves the metric's scale."""
        if self.lowest is None or self.highest is None or not self.leaves_scale(metric):
            return None
        return self.lowest, self.highest


@dataclass(frozen=True, kw_only=True, config=RECORD)
class BucketScore:
    """The corpus scores of a test set's pairs from source length `low` to `high`, or of all its pairs.

    `scores` has them by the metric's name. A mean over seeds has the mean number `n` of pairs, and the number of
    `seeds` that have any.
    """

    low: Count
    high: Count | None = None
    label: Label
    n: Count | Number
    scores: Mapping[Name, Score]
    seeds: Annotated[int, Field(exclude=True)] = 1

    def score(self, metric: str) -> float | None:
        return self.scored(metric).value

    def scored(self, metric: str) -> Score:
        """The score with its interval. One without a value if the metric was not computed."""
        return self.scores.get(metric, Score())

    @property
    def has_intervals(self) -> bool:
        return any(score.half_width is not None for score in self.scores.values())


@dataclass(frozen=True, kw_only=True, config=RECORD)
class LengthScores:
    """The scores of a test set: of all its pairs, and of each length bucket, shortest first."""

    overall: BucketScore
    buckets: tuple[BucketScore, ...]

    @property
    def all_buckets(self) -> tuple[BucketScore, ...]:
        """All pairs first."""
        return (self.overall, *self.buckets)


ScoresByRow = Mapping[str, Mapping[str, LengthScores]]  # of each row of a table, each test set


@dataclass(frozen=True, config=RECORD)
class TranslationTime:
    """The time of translating a test set: seconds of the slowest process, and of all processors together."""

    seconds: Number
    processor_seconds: Number
    processes: Count


@dataclass(frozen=True, kw_only=True, config=RECORD)
class TestSetTranslations:
    """A system's translations of a test set, in the order of its sources.

    `truncated`: whether a translation, or that of one of its segments, was cut at its maximum length. `time` is None if
    it was not measured.
    """

    __test__ = False  # no class of tests

    texts: tuple[str, ...]
    truncated: tuple[Flag, ...]
    time: TranslationTime | None = None


@dataclass(frozen=True, kw_only=True, config=RECORD)
class ScoredTestSet(LengthScores):
    """The scores of one system on one test set.

    `signatures`: of the scorers.
    `by`: the side whose length defines the buckets.
    `truncated`: the number of translations that were cut at their maximum length.
    `time`: None if it was not measured.
    `by_prediction`: the scores by the translations' lengths, None if they were not scored so.
    `beyond`: the scores of all pairs longer than any system's maximum training length. scores.json has none, because
        other systems may be added to a run.
    """

    signatures: Mapping[Name, Line | None] | None = None
    by: Line = "source"
    truncated: Count
    time: TranslationTime | None = None
    test_set_sha256: Line
    by_prediction: tuple[BucketScore, ...] | None = None
    beyond: BucketScore | None = None


@dataclass(frozen=True, kw_only=True, config=RECORD)
class TrainingSummary:
    """The outcome of a training: steps, seconds, last loss, the step of the saved model, parameters, pairs."""

    steps: Count | None = None
    seconds: Number | None = None
    loss: Number | None = None
    best_step: Count | None = None
    processes: Count | None = None
    parameters: Count
    pairs: Count | None = None


@dataclass(frozen=True, config=RECORD)
class SegmentedSystem:
    """The system whose model translates the segments, and the kind of segmentation."""

    system: Name
    segmentation: Line


@dataclass(frozen=True, kw_only=True, config=RECORD)
class SystemRecord:
    """The scores of a system on each test set. Segmented systems have no training.

    `tokenizer` is its hash. `max_length` is the maximum training length in subwords, None without a limit.
    """

    tokenizer: Line
    max_length: Count | None = None
    tests: Mapping[Name, ScoredTestSet]
    training: TrainingSummary | None = None
    segment: SegmentedSystem | None = None


@dataclass(frozen=True, kw_only=True, config=RECORD)
class SystemScores(SystemRecord):
    """A system's scores.json."""

    version: Version = VERSION

    @model_validator(mode="after")
    def validate_test_set_names(self) -> "SystemScores":
        if conflict := name_conflict(self.tests):
            raise ValueError(conflict)
        return self


class CurvePoint(NamedTuple):
    """A value in a training's log, with its step and the seconds of training."""

    step: Count
    seconds: Number
    value: Number


Curve = tuple[CurvePoint, ...]


@dataclass(frozen=True, kw_only=True, config=RECORD)
class TrainingCurves:
    """Loss in nats per token, of training (label-smoothed) and of the validation set, and the validation set's BLEU.

    `lengths_known`: whether the model is given each target's length.
    """

    loss: Curve
    eval_loss: Curve
    eval_bleu: Curve | None = None
    lengths_known: Flag | None = None


@dataclass(frozen=True, kw_only=True, config=RECORD)
class SystemResult(SystemRecord):
    """The results of one system. `loss` and `diagnostics` are None without a training."""

    row: Name
    min_length: Count | None = None
    loss: TrainingCurves | None = None
    diagnostics: Mapping[Name, Diagnosis] | None = None


@dataclass(frozen=True, config=RECORD)
class PValues:
    """P-values of a difference from the baseline.

    `randomisation`, `bootstrap`: by paired approximate randomisation and by paired bootstrap, the largest of the seeds,
        and 1 where seeds disagree on which row is better.
    `pooled`: by approximate randomisation of the mean over seeds; None if rows have different numbers of seeds.
    """

    randomisation: Number
    bootstrap: Number
    pooled: Number | None = None

    @property
    def deciding(self) -> float:
        """The p-value that marks a difference as significant."""
        return self.randomisation if self.pooled is None else self.pooled


BucketPValues = Mapping[Name, PValues]  # by metric
RowPValues = Mapping[Label, BucketPValues]  # by bucket, "all" among them
Comparison = Mapping[Name, RowPValues]  # of a test set, by row


@dataclass(frozen=True, kw_only=True, config=RECORD)
class RunResults:
    """A run's results.json. `max_per_bucket` is the maximum number of pairs sampled from each bucket."""

    version: Version = VERSION
    baseline: Name
    systems: Mapping[Name, SystemResult]
    comparisons: Mapping[Name, Comparison]
    reference_table: ReferenceTable | None = None
    max_per_bucket: Count | None = None

    @property
    def row_by_system(self) -> dict[str, str]:
        return {name: system.row for name, system in self.systems.items()}

    @property
    def test_sets(self) -> list[str]:
        """Every system has the same."""
        return list(next(iter(self.systems.values())).tests)

    @model_validator(mode="after")
    def validate_names(self) -> "RunResults":
        """Refuse a name that is not one of the run's systems, test sets or rows."""
        if violation := self.violation():
            raise ValueError(violation)
        return self

    def violation(self) -> str | None:
        """The first name that is not one of the run's systems, test sets or rows; None without one."""
        rows = set(self.row_by_system.values())
        if self.baseline not in rows:
            named = ", ".join(rows) or "but there are none"
            return f"baseline must be a row of its systems, {named}; it is {self.baseline!r}"
        if not (tests := self.test_sets):
            return f"{next(iter(self.systems))}.tests must have a test set or more, but there is none"
        for name, system in self.systems.items():
            if system.tests.keys() != set(tests):
                return f"{name}.tests must have the test sets {', '.join(tests)}, but it has {', '.join(system.tests)}"
        if missing := set(tests) - self.comparisons.keys():
            return f"comparisons must have all test sets, but {', '.join(sorted(missing))} is not in it"
        published = self.reference_table
        if published and (published.test not in tests or not published.rows or not published.rows.keys() <= rows):
            return (
                "reference_table must be of a test set and rows of its own, but it is of "
                f"{published.test} and {list(published.rows)}"
            )
        return name_conflict(tests, self.systems)
