"""Keys of a config file and of the systems in it."""

from dataclasses import dataclass
from typing import Annotated

from ..data.segmentation import SEGMENTATIONS
from .schema import Constraint, MappingOf, NonEmptyStr, PositiveInt, Section, Seed, at_least, one_of
from .section_settings import DataSettings, ScoreSettings
from .settings import ReferenceTable
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
    """Keys of a system's own entry, which replace the file's. With `segment` it has none but those from there on.

    `segment`: no training; the model of that system translates its inputs segment by segment.
    `segmentation`: which segments: those that were concatenated (gold), sentences that a splitter finds (automatic), or
        chunks of words (fixed).
    `segment_words`: with `segmentation: fixed`, the number of source words of a segment.
    `overlap_words`: the number of source words that a fixed segment repeats from the one before.
    """

    data: Annotated[Section | None, MappingOf(DataSettings)] = None
    model: Section | None = None
    train: Annotated[Section | None, MappingOf(TrainKeys)] = None
    score: Annotated[Section | None, MappingOf(ScoreSettings)] = None
    seeds: Seeds | None = None
    init_from: NonEmptyStr | None = None
    segment: NonEmptyStr | None = None
    segmentation: Annotated[str, one_of(SEGMENTATIONS)] = "gold"
    segment_words: PositiveInt | None = None
    overlap_words: Annotated[int, at_least(0)] = 0


Systems = Annotated[
    dict[str, Annotated[Section | None, MappingOf(SystemKeys)]],
    Constraint("one system or more, by their names", bool),
]


@dataclass
class FileKeys:
    """Keys of a config file, once `extends` is resolved.

    `systems`: one row of the table each; a system's own entry changes what the file says.
    `data`: corpora, vocabulary and lengths; keys below.
    `model`: fields of PosEncConfig, or of the config that `model_type` names.
    `train`: fields of transformers' Seq2SeqTrainingArguments, and those of TrainingArguments.
    `score`: how test sets are translated and scored; keys below.
    `seeds`: each system is trained once for each of them.
    `init_from`: a system above this one, or a checkpoint, whose weights the training starts from.
    `baseline`: the system that significance marks compare with; the first system if left out.
    `name`: name of the run's folder in `output_dir`; the file's name if left out.
    `output_dir`: folder of all runs.
    `report_name`: a folder of this file's own for its tables, where several files share a run.
    `reference_table`: a published table, shown below ours; keys below.
    `num_parallel`: how many systems train side by side.
    `diagnose`: whether to compute the diagnostics that the figures show; they can be added later by the same command.
    `encoding_files`: Python files that register encodings of your own.
    """

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
