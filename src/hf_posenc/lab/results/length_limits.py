"""Rows of tables and figures: scores, the shortest and longest training lengths in subwords, and p-values."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypedDict

from .records import Comparison, RunResults, ScoresByRow, SystemResult
from .significance import mean_over_seeds

TrainingLengths = Mapping[str, int | None]


class TrainingLengthsByRow(TypedDict):
    """The longest and the shortest training length of each row, as tables and figures take them."""

    max_training_lengths: TrainingLengths
    min_training_lengths: TrainingLengths


def training_lengths_by_row(systems: Mapping[str, SystemResult]) -> TrainingLengthsByRow:
    return {
        "max_training_lengths": {system.row: system.max_length for system in systems.values()},
        "min_training_lengths": {system.row: system.min_length for system in systems.values()},
    }


@dataclass(frozen=True, kw_only=True)
class TableRows:
    """The rows of tables and figures: scores by row and test set, training lengths and comparisons.

    Training lengths are in subwords, None for no limit. Without `max_lengths` tables have no column for them.
    `comparisons` has, for each test set, the p-values of each row against the `baseline`.
    """

    scores: ScoresByRow
    max_lengths: TrainingLengths | None = None
    min_lengths: TrainingLengths | None = None
    baseline: str | None = None
    comparisons: Mapping[str, Comparison] = field(default_factory=dict)

    @classmethod
    def of(cls, results: RunResults) -> "TableRows":
        """The rows of a run, each the mean over its seeds."""
        lengths = training_lengths_by_row(results.systems)
        scores_by_system = {name: system.tests for name, system in results.systems.items()}
        return cls(
            scores=mean_over_seeds(scores_by_system, results.row_by_system),
            max_lengths=lengths["max_training_lengths"],
            min_lengths=lengths["min_training_lengths"],
            baseline=results.baseline,
            comparisons=results.comparisons,
        )

    def described_lengths(self) -> dict[str, str]:
        """Each row's training lengths in words, for a column headed "trained to"."""
        return describe_training_lengths(self.scores, self.max_lengths or {}, self.min_lengths)


def validate_max_lengths(systems: Iterable[str], max_training_lengths: TrainingLengths) -> dict[str, int | None]:
    """Each system's maximum training length, None without a limit."""
    max_lengths = {}
    for system in systems:
        if system not in max_training_lengths:
            raise ValueError(
                f"max_training_lengths must have every system; {system!r} is not in it; "
                "add its longest training length in subwords, or None if it had no limit"
            )
        max_lengths[system] = max_length = max_training_lengths[system]
        if max_length is not None and max_length <= 0:
            raise ValueError(f"a training limit must be positive; {system!r} has {max_length}; write None for no limit")
    return max_lengths


def min_lengths_above_one(
    systems: Iterable[str], min_training_lengths: TrainingLengths | None
) -> dict[str, int | None]:
    """Each system's minimum training length, None for 1 or no minimum."""
    min_lengths = {system: (min_training_lengths or {}).get(system) for system in systems}
    return {system: min_length if min_length and min_length > 1 else None for system, min_length in min_lengths.items()}


def describe_training_lengths(
    systems: Iterable[str], max_training_lengths: TrainingLengths, min_training_lengths: TrainingLengths | None
) -> dict[str, str]:
    """Each system's training lengths in words, for a column headed "trained to"."""
    max_lengths = validate_max_lengths(systems, max_training_lengths)
    upper_bounds = {
        system: "no limit" if max_length is None else str(max_length) for system, max_length in max_lengths.items()
    }
    min_lengths = min_lengths_above_one(max_lengths, min_training_lengths)
    return {
        system: upper_bound if min_lengths[system] is None else f"{upper_bound}, from {min_lengths[system]}"
        for system, upper_bound in upper_bounds.items()
    }
