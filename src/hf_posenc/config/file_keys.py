"""The keys of a config file, and of the systems in it."""

from dataclasses import dataclass
from typing import Annotated

from ..data.segmentation import SEGMENTATIONS
from .schema import Constraint, MappingOf, NonEmptyStr, PositiveInt, Section, Seed, one_of
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
    """What a system's own entry changes of the file's; with `segment` it holds `segmentation` and nothing else."""

    data: Annotated[Section | None, MappingOf(DataSettings)] = None
    model: Section | None = None
    train: Annotated[Section | None, MappingOf(TrainKeys)] = None
    score: Annotated[Section | None, MappingOf(ScoreSettings)] = None
    seeds: Seeds | None = None
    init_from: NonEmptyStr | None = None
    segment: NonEmptyStr | None = None
    segmentation: Annotated[str, one_of(SEGMENTATIONS)] = "gold"


Systems = Annotated[
    dict[str, Annotated[Section | None, MappingOf(SystemKeys)]],
    Constraint("one system or more, by their names", bool),
]


@dataclass
class FileKeys:
    """What a config file holds; `extends` is gone by then."""

    systems: Systems
    data: Annotated[Section | None, MappingOf(DataSettings)] = None
    model: Section | None = None
    train: Annotated[Section | None, MappingOf(TrainKeys)] = None
    score: Annotated[Section | None, MappingOf(ScoreSettings)] = None
    seeds: Seeds | None = None
    init_from: NonEmptyStr | None = None
    baseline: NonEmptyStr | None = None
    name: FolderName | None = None
    output_dir: NonEmptyStr = "runs"
    report_name: FolderName | None = None
    reference_table: Annotated[Section | None, MappingOf(ReferenceTable)] = None
    num_parallel: PositiveInt = 1
    diagnose: bool = True
    encoding_files: list[NonEmptyStr] | None = None
