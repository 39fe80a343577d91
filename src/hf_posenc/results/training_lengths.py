"""The source lengths that systems were trained on, in subwords: the shortest, `starts`, and the longest, `limits`."""

from collections.abc import Iterable, Mapping
from typing import Any

TrainingLimits = Mapping[str, int | None]


def lengths_of_rows(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """`training_limits` and `training_starts` of each row, as tables and figures take them."""
    return {
        "training_limits": {run["row"]: run["max_length"] for run in runs.values()},
        "training_starts": {run["row"]: run.get("min_length") for run in runs.values()},  # an older version has none
    }


def checked_limits(systems: Iterable[str], training_limits: TrainingLimits) -> dict[str, int | None]:
    """Each system's training limit, None where it had none."""
    checked = {}
    for system in systems:
        if system not in training_limits:
            raise ValueError(
                f"training_limits must have every system; {system!r} is not in it; "
                "add its longest training length in subwords, or None if it had no limit"
            )
        checked[system] = limit = training_limits[system]
        if limit is not None and limit <= 0:
            raise ValueError(f"a training limit must be positive; {system!r} has {limit}; write None for no limit")
    return checked


def starts_of(systems: Iterable[str], training_starts: TrainingLimits | None) -> dict[str, int | None]:
    """Each system's shortest training length, None where it is 1, not given or None: every input is as long."""
    starts = {system: (training_starts or {}).get(system) for system in systems}
    return {system: start if start and start > 1 else None for system, start in starts.items()}


def trained_on(
    systems: Iterable[str], training_limits: TrainingLimits, training_starts: TrainingLimits | None
) -> dict[str, str]:
    """Each system's training lengths in words, for a column headed "trained to"."""
    limits = checked_limits(systems, training_limits)
    ends = {system: "no limit" if limit is None else str(limit) for system, limit in limits.items()}
    starts = starts_of(limits, training_starts)
    return {system: end if starts[system] is None else f"{end}, from {starts[system]}" for system, end in ends.items()}
