"""The keys of a config file, and of the systems in it."""

from dataclasses import dataclass
from typing import Annotated, Any

from ..data.pieces import BOUNDARIES
from .schema import Count, Keys, Rule, Seed, Text, one_of
from .settings import DataSettings, Paper, ScoreSettings
from .train_keys import Train

a_folder = Rule("{}, the name of a folder and no path", lambda name: name not in ("", ".", "..") and "/" not in name)
FolderName = Annotated[str, a_folder]
Seeds = Annotated[
    list[Seed], Rule("different whole numbers, such as [1, 2, 3]", lambda seeds: 0 < len(seeds) == len(set(seeds)))
]


@dataclass
class SystemKeys:
    """What a system's own entry changes of the file's; with `split` it holds `boundaries` and nothing else."""

    data: Annotated[dict[str, Any] | None, Keys(DataSettings)] = None
    model: dict[str, Any] | None = None
    train: Annotated[dict[str, Any] | None, Keys(Train)] = None
    score: Annotated[dict[str, Any] | None, Keys(ScoreSettings)] = None
    seeds: Seeds | None = None
    start_from: Text | None = None
    split: Text | None = None
    boundaries: Annotated[str, one_of(BOUNDARIES)] = "known"


Systems = Annotated[
    dict[str, Annotated[dict[str, Any] | None, Keys(SystemKeys)]], Rule("one system or more, by their names", bool)
]


@dataclass
class FileKeys:
    """What a config file holds; `extends` is gone by then."""

    systems: Systems
    data: Annotated[dict[str, Any] | None, Keys(DataSettings)] = None
    model: dict[str, Any] | None = None
    train: Annotated[dict[str, Any] | None, Keys(Train)] = None
    score: Annotated[dict[str, Any] | None, Keys(ScoreSettings)] = None
    seeds: Seeds | None = None
    start_from: Text | None = None
    baseline: Text | None = None
    name: FolderName | None = None
    output: Text = "runs"
    table: FolderName | None = None
    paper: Annotated[dict[str, Any] | None, Keys(Paper)] = None
    jobs: Count = 1
    diagnose: bool = True
    encodings: list[Text] | None = None
