"""The keys of a config file, and of the systems in it."""

from dataclasses import dataclass
from typing import Annotated, Any

from ..data.segmentation import SEGMENTATIONS
from .schema import Constraint, MappingOf, NonEmptyStr, PositiveInt, Seed, one_of
from .settings import DataSettings, ReferenceTable, ScoreSettings
from .train_keys import TrainKeys

is_folder_name = Constraint(
    "{}, the name of a folder and no path", lambda name: name not in ("", ".", "..") and "/" not in name
)
FolderName = Annotated[str, is_folder_name]
Seeds = Annotated[
    list[Seed],
    Constraint("different whole numbers, such as [1, 2, 3]", lambda seeds: 0 < len(seeds) == len(set(seeds))),
]


@dataclass
class SystemKeys:
    """What a system's own entry changes of the file's; with `split` it holds `boundaries` and nothing else."""

    data: Annotated[dict[str, Any] | None, MappingOf(DataSettings)] = None
    model: dict[str, Any] | None = None
    train: Annotated[dict[str, Any] | None, MappingOf(TrainKeys)] = None
    score: Annotated[dict[str, Any] | None, MappingOf(ScoreSettings)] = None
    seeds: Seeds | None = None
    start_from: NonEmptyStr | None = None
    split: NonEmptyStr | None = None
    boundaries: Annotated[str, one_of(SEGMENTATIONS)] = "known"


Systems = Annotated[
    dict[str, Annotated[dict[str, Any] | None, MappingOf(SystemKeys)]],
    Constraint("one system or more, by their names", bool),
]


@dataclass
class FileKeys:
    """What a config file holds; `extends` is gone by then."""

    systems: Systems
    data: Annotated[dict[str, Any] | None, MappingOf(DataSettings)] = None
    model: dict[str, Any] | None = None
    train: Annotated[dict[str, Any] | None, MappingOf(TrainKeys)] = None
    score: Annotated[dict[str, Any] | None, MappingOf(ScoreSettings)] = None
    seeds: Seeds | None = None
    start_from: NonEmptyStr | None = None
    baseline: NonEmptyStr | None = None
    name: FolderName | None = None
    output: NonEmptyStr = "runs"
    table: FolderName | None = None
    paper: Annotated[dict[str, Any] | None, MappingOf(ReferenceTable)] = None
    jobs: PositiveInt = 1
    diagnose: bool = True
    encodings: list[NonEmptyStr] | None = None
