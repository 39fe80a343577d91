"""Settings of an experiment and of its systems. `loading.py` builds and validates them.

A run folder records the settings of each system, and a hash of each file that the system reads (`System.fingerprint`).
With other settings or files, no result in the folder is reused or continued.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

from huggingface_hub.errors import StrictDataclassError
from transformers import CONFIG_MAPPING

from ...transformer.configuration_base import BaseConfig
from ...transformer.configuration_posenc import PosEncConfig
from ...utils.atomic_io import first_difference, short_hash
from ...utils.manifest import verified
from ...utils.run_folder import RunPaths
from ..data.readers import CorpusSpec, corpus_file_hashes, file_hashes, resolve_name_or_path
from .schema import Constraint, NonEmptyStr, Section
from .section_settings import DataSettings, ScoreSettings
from .yaml_io import read_yaml

# What plain text is scored by: each position of the longest context, windows of each length read at once, and the same
# read by a sliding window of the training length.
TEXT_SCORES = ("position", "whole", "sliding")
PublishedScores = Annotated[
    dict[str, float | list[float | None] | None], Constraint("scores by their metrics, {{bleu: 31.7}}", bool)
]


@dataclass(frozen=True)
class Segmentation:
    """Settings of a system that trains no model: it translates segments with the model of `system`.

    `segmentation`: "gold" for the texts that were concatenated, "automatic" for sentences of a sentence splitter, or
        "fixed" for chunks of `segment_words` words, which repeat the last `overlap_words` of the chunk before.
    """

    system: str
    segmentation: str = "gold"
    segment_words: int | None = None
    overlap_words: int = 0

    def __str__(self) -> str:
        """The segmentation, as tables name it."""
        if self.segment_words is None:
            return self.segmentation
        overlap = f", overlap {self.overlap_words}" if self.overlap_words else ""
        return f"{self.segmentation} ({self.segment_words} words{overlap})"


@dataclass(frozen=True)
class System:
    """A system: one training, with all settings that determine it. Systems of one `base_name` differ in the seed.

    `segment`: None for a trained system. Otherwise the system trains nothing, and has the settings of the system it
    uses.

    `init_from`: an earlier system's name or a checkpoint; None for new weights (init_from.py).

    `dependency`: the system of the same file whose model it needs, to translate with or to start from.
    """

    name: str
    base_name: str
    data: DataSettings
    score: ScoreSettings
    model: Section
    train: Section
    init_from: str | None = None
    segment: Segmentation | None = None
    dependency: "System | None" = field(default=None, repr=False)

    def settings(self) -> Section:
        """The settings that a run folder records. `data_dir` and `allow_overlap` are left out because they change no
        result."""
        data = {key: value for key, value in asdict(self.data).items() if key not in ("data_dir", "allow_overlap")}
        rest = {"init_from": self.init_from, "segment": self.segment and asdict(self.segment)}
        settings = {"data": data, "model": self.model, "train": self.train, "score": asdict(self.score)}
        return settings | {key: value for key, value in rest.items() if value is not None}

    @classmethod
    def from_saved(cls, name: str, base_name: str, saved: Section) -> "System":
        """The system of saved settings. Settings newer than the run have their defaults."""
        segment = Segmentation(**saved["segment"]) if "segment" in saved else None
        data, score = DataSettings(**saved["data"]), ScoreSettings(**saved["score"])
        return cls(name, base_name, data, score, saved["model"], saved["train"], saved.get("init_from"), segment)

    def fingerprint(self) -> Section:
        """The record in the system's folder: its settings, and `files`, a hash of each file that it reads."""
        data = self.data
        hashes: dict[str, str] = {}
        for corpus_spec in (data.train, data.validation or {}, *data.test.values()):
            hashes |= corpus_file_hashes(corpus_spec, data.data_dir)
        return self.settings() | {"files": hashes | self.init_file_hashes()}

    def difference_from(self, path: Path) -> str | None:
        """The first setting or file that differs from the fingerprint saved in `path`, None if there is none.

        Settings of scoring alone make no difference: `is_scored_by` compares them.
        """
        saved, saved_system = self.read_saved(path)
        saved_settings, current = saved_system.settings(), self.fingerprint()
        if not self.data.is_text:  # other scores of plain text need the model
            saved_settings |= {"score": saved_system.score.translation_settings}
            current |= {"score": self.score.translation_settings}
        # Files without a saved hash, and files that are not read any more, make no difference.
        saved_hashes = {name: digest for name, digest in saved.get("files", {}).items() if name in current["files"]}
        return first_difference(saved_settings | {"files": current["files"] | saved_hashes}, current)

    def is_scored_by(self, path: Path) -> bool:
        """Whether the settings saved in `path` have the same section `score`."""
        _, saved_system = self.read_saved(path)
        return saved_system.score == self.score

    def read_saved(self, path: Path) -> tuple[Section, "System"]:
        """The content of a settings.yaml, and the system of these settings."""
        with verified(path):
            saved = read_yaml(path, "The settings of a run")
            return saved, System.from_saved(self.name, self.base_name, saved)

    def init_file_hashes(self) -> dict[str, str]:
        """A hash of each weights file that training starts from. For a system of this run, a hash of its settings
        instead."""
        if self.init_from is None:
            return {}
        if self.dependency is not None:
            fingerprint = json.dumps(self.dependency.weights_fingerprint(), sort_keys=True)
            return {f"settings of {self.dependency.name}": short_hash(fingerprint)}
        checkpoint = Path(resolve_name_or_path(self.init_from, self.data.data_dir))
        weights = sorted(str(path) for kind in ("*.safetensors", "*.bin") for path in checkpoint.glob(kind))
        return file_hashes(weights, self.data.data_dir)

    def weights_fingerprint(self) -> Section:
        """Settings and file hashes that determine the weights.

        Settings at their defaults are left out, so that a new setting changes no hash.
        """
        settings, data = self.settings(), self.data
        for name, default in asdict(DataSettings("", "", {}, {})).items():
            if settings["data"].get(name) == default or name in ("test", "license"):
                settings["data"].pop(name, None)
        del settings["score"]
        files = [corpus_file_hashes(corpus_spec, data.data_dir) for corpus_spec in (data.train, data.validation or {})]
        start = self.init_file_hashes()
        return settings | {"files": files, "start": start}

    @property
    def model_system_name(self) -> str:
        """The name of the system whose model translates."""
        return self.segment.system if self.segment else self.name

    @property
    def test_sets(self) -> dict[str, tuple[CorpusSpec, int]]:
        """The corpus of each test set, and how many consecutive pairs are concatenated, by name."""
        return {name: (corpus_spec, k) for name, corpus_spec, k in self.named_test_sets}

    @property
    def named_test_sets(self) -> list[tuple[str, CorpusSpec, int]]:
        """Name, corpus and k of each test set: `name-xk` has k consecutive pairs of `name` as one. Names may be twice.

        A plain text makes a test set for each of TEXT_SCORES.
        """
        ks, specs = sorted(set(self.score.concatenate)), self.data.test.items()
        if self.data.is_text:
            return [(f"{name}-{score}", corpus_spec, 1) for name, corpus_spec in specs for score in TEXT_SCORES]
        return [(name if k == 1 else f"{name}-x{k}", corpus_spec, k) for name, corpus_spec in specs for k in ks]

    @property
    def config_class(self) -> type[BaseConfig]:
        """The config class that `model_type` names."""
        config_class: type[BaseConfig] = CONFIG_MAPPING[self.model.get("model_type", PosEncConfig.model_type)]
        return config_class

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether source and target are read by two stacks, not one after the other by a decoder-only model."""
        return self.config_class.is_encoder_decoder

    def model_config(self, vocab_size: int, **vocabulary: int) -> BaseConfig:
        """The config of the model. Of `vocabulary`, a size and special token ids, it has its own fields."""
        known = self.config_class.known_keywords()
        inferred = {"vocab_size": vocab_size} | {name: value for name, value in vocabulary.items() if name in known}
        fields = {name: value for name, value in self.model.items() if name != "model_type"}
        try:
            return self.config_class(**inferred, **fields)
        except (StrictDataclassError, ValueError) as error:
            raise ValueError(f"systems.{self.name}: model: {' '.join(str(error).split())}") from None


@dataclass(frozen=True)
class ReferenceTable:
    """A published table, shown below the run's own.

    `source`: the publication, as the table names it.
    `test`: its test set, one of `data.test`.
    `rows`: by system and metric, one number for all pairs or a list with one for each length bucket.
    `num_pairs`: number of pairs in each bucket of the publication.
    """

    source: NonEmptyStr
    test: NonEmptyStr
    rows: Annotated[dict[str, PublishedScores], Constraint("rows by the names of systems", bool)]
    num_pairs: Annotated[
        list[int] | None, Constraint("a list with the number of pairs of each group", lambda n: True)
    ] = None


@dataclass(frozen=True)
class Experiment:
    """A resolved config file: the systems, the run folder, and the number of systems that run in parallel.

    Segmented systems come last. `baseline` is the row that the others are compared with. `diagnose` turns on
    diagnostics, which scores and tables do not need.
    """

    name: str
    output_dir: Path
    num_parallel: int
    systems: dict[str, System]
    baseline: str
    report_name: str | None = None
    reference_table: ReferenceTable | None = None
    diagnose: bool = True

    @property
    def folder(self) -> Path:
        return self.output_dir / self.name

    @property
    def paths(self) -> RunPaths:
        """The paths of the run's files."""
        return RunPaths(self.folder)

    @property
    def tables_folder(self) -> Path:
        return self.folder / self.report_name if self.report_name else self.folder
