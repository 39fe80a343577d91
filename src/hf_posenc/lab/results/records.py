"""Records of saved results: `RunResults` is results.json, and `SystemScores` is a system's scores.json.

A field's metadata has its JSON key if that differs from its name.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

from ...utils.run_folder import name_conflict
from .diagnosis_records import Diagnosis
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
