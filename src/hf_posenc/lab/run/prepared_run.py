"""A run with its shared files built, and its systems: settings, tokenizer, pairs, test sets and initial models.

`prepare.py` builds the files once. Each process opens them by `PreparedRun(experiment)`. A file is read at its first
use. An initial model has new weights, or those of a trained checkpoint with the system's encodings.
"""

import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from datasets import Dataset, concatenate_datasets
from transformers import PreTrainedModel

from ...convert.checkpoints import convert_checkpoint
from ...convert.encodings import ARCHITECTURES, TUNABLE_FIELDS
from ...convert.folders import auto_model_class
from ...encodings.base import PositionEncoding
from ...encodings.registry import side_entries
from ...generation.translate import validate_tokenizer
from ...transformer.configuration_base import BaseConfig
from ...transformer.configuration_encodings import EncodingsConfig
from ...transformer.configuration_posenc import PosEncConfig
from ...utils.manifest import COPY_AGAIN, verify_folder
from ...utils.run_folder import RunPaths, SystemPaths
from ..config.init_from import checkpoint_model_section
from ..config.settings import Experiment, System
from ..data.corpus import corpus_tags, group_by_tags, prepend_tag
from ..data.lengths import balance_lengths, filter_lengths, lengths
from ..data.readers import CorpusSpec, resolve_name_or_path
from ..data.tokenization import ExperimentTokenizer
from ..training.arguments import TrainingArguments, training_arguments
from .corpora import CorpusStore, sampled_pairs
from .shared_tokenizer import load_shared_tokenizer


@dataclass(frozen=True)
class PreparedTestSet:
    """A test set of one system. Datasets load at their first use."""

    name: str
    settings: System
    corpora: CorpusStore

    @cached_property
    def pairs(self) -> Dataset:
        """The pairs that are scored, with their `source_length` in subwords, without tags."""
        return sampled_pairs(self.all_pairs, self.settings.score)

    @cached_property
    def segments(self) -> list[list[str]]:
        """The segments of each source, which are translated one by one, each with its tag. An unsegmented source is one
        segment."""
        tag, _ = corpus_tags(self.corpus_spec)
        if self.settings.segment is None:
            language = self.settings.data.source_language
            return [[prepend_tag(row[language], tag)] for row in self.pairs["translation"]]
        segments = self.corpora.segments(self.name, self.corpus_spec, self.num_concatenated, self.settings.segment)
        with_segments = concatenate_datasets([self.all_pairs, segments], axis=1)
        rows = sampled_pairs(with_segments, self.settings.score)["pieces"]
        return [[prepend_tag(segment, tag) for segment in row] for row in rows]

    @property
    def tagged_pairs(self) -> Dataset:
        """`pairs` with language tags before their texts."""
        return self.corpora.prepend_tags(self.pairs, corpus_tags(self.corpus_spec))

    @property
    def target_tag(self) -> str | None:
        """The token that each translation begins with, if any."""
        return corpus_tags(self.corpus_spec)[1]

    @property
    def all_pairs(self) -> Dataset:
        """All pairs, before `max_per_bucket` is applied."""
        return self.corpora.test_set(self.name, self.corpus_spec, self.num_concatenated)

    @property
    def corpus_spec(self) -> CorpusSpec:
        return self.settings.test_sets[self.name][0]

    @property
    def num_concatenated(self) -> int:
        return self.settings.test_sets[self.name][1]


def system_arguments(system: System, paths: SystemPaths) -> TrainingArguments:
    """The Trainer's arguments of a system. A ValueError for settings that contradict each other."""
    return training_arguments(system.train, paths.folder, has_validation=system.data.validation is not None)


@dataclass(frozen=True)
class PreparedSystem:
    """One system of a prepared run. Datasets load at their first use and are kept as long as this object."""

    run: "PreparedRun"
    settings: System

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def tokenizer(self) -> ExperimentTokenizer:
        return self.run.tokenizer

    @property
    def paths(self) -> SystemPaths:
        return self.run.paths.system(self.name)

    @property
    def model_folder(self) -> Path:
        """The folder of the model that translates: the system's own, or that of the system it segments for."""
        return self.run.paths.system(self.settings.model_system_name).model

    @property
    def external_checkpoint(self) -> str | None:
        """The folder or Hub name of the initial checkpoint; None for new weights and for another system's model."""
        settings = self.settings
        if settings.init_from is None or settings.dependency is not None:
            return None
        return resolve_name_or_path(settings.init_from, settings.data.data_dir)

    @property
    def init_checkpoint(self) -> str | Path | None:
        """The initial checkpoint, or the model of another system that training starts from; None for new weights."""
        origin = self.settings.dependency
        if origin is None or self.settings.init_from is None:
            return self.external_checkpoint
        if not (checkpoint := self.run.paths.system(origin.name).model).exists():
            raise ValueError(
                f"systems.{self.name}: it starts from {origin.name}, but {checkpoint} is not there yet; give the "
                "command without --system, which trains that first, or goes on where that had stopped."
            )
        return checkpoint

    @property
    def training_arguments(self) -> TrainingArguments:
        """The Trainer's arguments, new ones each time: the Trainer changes them."""
        return system_arguments(self.settings, self.paths)

    @cached_property
    def corpora(self) -> CorpusStore:
        return CorpusStore(self.settings.data, self.tokenizer, self.run.paths)

    @cached_property
    def training_pairs(self) -> Dataset:
        """The encoded training pairs within the length filter, resampled if `balance_lengths` is set. Of a plain text,
        the blocks."""
        data = self.settings.data
        if data.is_text:
            return self.blocks("data.train", data.train)
        corpus_specs = [data.train if k == 1 else data.train | {"concatenate": k} for k in data.concatenate]
        encoded = concatenate_datasets([self.corpora.encoded(corpus_spec) for corpus_spec in corpus_specs])
        filtered = filter_lengths(encoded, min_length=data.min_length, max_length=data.max_length)
        return filtered if data.balance_lengths is None else balance_lengths(filtered, data.balance_lengths)

    @cached_property
    def validation_pairs(self) -> Dataset | None:
        """The encoded validation pairs of all lengths, or the blocks of a plain text; None if the config has no
        validation set."""
        corpus_spec = self.settings.data.validation
        if corpus_spec and self.settings.data.is_text:
            return self.blocks("data.validation", corpus_spec)
        return self.corpora.encoded(corpus_spec) if corpus_spec else None

    def blocks(self, key: str, corpus_spec: CorpusSpec) -> Dataset:
        """A plain text in blocks of the training length."""
        assert self.settings.data.max_length is not None  # validated for plain text
        return self.corpora.blocks(corpus_spec, key, self.settings.data.max_length)

    def test_windows(self, name: str) -> Dataset:
        """A plain test text in windows of the longest context."""
        settings = self.settings
        return self.corpora.test_windows(name, settings.data.test[name], settings.score.context_lengths[-1])

    @property
    def validation_references(self) -> list[str] | None:
        """The target texts of the validation pairs, None if the validation set is not translated. Pairs of other tags
        are concatenated separately, as they are encoded."""
        data = self.settings.data
        if not data.validation or not self.settings.train.get("predict_with_generate"):
            return None
        parts = [self.corpora.read(corpus_spec) for corpus_spec, _ in group_by_tags(data.validation)]
        return [row[data.target_language] for pairs in parts for row in pairs["translation"]]

    @cached_property
    def test_sets(self) -> dict[str, PreparedTestSet]:
        return {name: PreparedTestSet(name, self.settings, self.corpora) for name in self.settings.test_sets}

    @property
    def diagnosed_test_sets(self) -> list[str]:
        """The names of the test sets on which the model is diagnosed. Diagnostics are of encoder and decoder."""
        is_diagnosed = self.run.experiment.diagnose and self.settings.is_encoder_decoder
        return list(self.settings.test_sets) if is_diagnosed else []

    def write_times(self) -> dict[str, str]:
        """The modification times of the system's files. They are equal in processes that see the same files."""
        paths = self.paths
        times = {}
        for path in (paths.settings, paths.model, paths.scores, paths.push_record):
            time = f"written at {path.stat().st_mtime_ns}" if path.exists() else "missing"
            times[f"{self.name}/{path.name}"] = time
        return times

    def validate_prepared(self) -> None:
        """Raise a ValueError unless the system was prepared with its current settings."""
        if not self.paths.settings.exists():
            raise ValueError(
                f"A system goes on where its run has been prepared, but {self.run.paths.folder} has not been for "
                f"{self.name!r}; give the command without --system, which prepares the run and trains what is missing."
            )
        if difference := self.settings.difference_from(self.paths.settings):
            raise ValueError(
                f"{self.paths.folder} was prepared with other settings, by which {difference}; undo the change, or "
                "give the command without --system, which prepares the run anew."
            )


@dataclass(frozen=True)
class PreparedRun:
    """The systems of an experiment, and the files that they share."""

    experiment: Experiment

    @property
    def paths(self) -> RunPaths:
        return self.experiment.paths

    @cached_property
    def tokenizer(self) -> ExperimentTokenizer:
        """The tokenizer that all systems share."""
        return load_shared_tokenizer(self.paths)

    def system(self, name: str) -> PreparedSystem:
        """The system of that name. Its datasets are freed with the returned object."""
        if (settings := self.experiment.systems.get(name)) is None:
            known = ", ".join(self.experiment.systems)
            raise ValueError(f"There is no system {name!r} in this config; choose from {known}.")
        return PreparedSystem(self, settings)

    def __iter__(self) -> Iterator[PreparedSystem]:
        return (self.system(name) for name in self.experiment.systems)


logger = logging.getLogger(__name__)


def initial_model(system: PreparedSystem, config: BaseConfig) -> PreTrainedModel:
    """The model of that `config` before training, in float32."""
    if not isinstance(config, EncodingsConfig) or (checkpoint := system.init_checkpoint) is None:
        return auto_model_class(config).from_config(config)
    verify_folder(Path(checkpoint), COPY_AGAIN)
    cross_fields = [
        f"cross_{parameter.name}"
        for side in config.sides
        if side.name == "cross"
        for entry in side_entries(side).values()
        for parameter in entry.config_parameters
    ]
    fields = (
        *ARCHITECTURES[config.model_type].encoding_fields,
        *config.parameter_fields_in_use,
        *(name for name in cross_fields if name in config.known_keywords()),
        *TUNABLE_FIELDS,
        "initializer",
    )
    overrides = {field: getattr(config, field) for field in fields}
    return convert_checkpoint(checkpoint, **overrides).float()


def training_config(system: PreparedSystem) -> BaseConfig:
    """The config of the model for the run's vocabulary. Alignment parameters that the config file leaves out are
    estimated on the training pairs. A ValueError for estimates that the other parameters do not allow."""
    settings, tokenizer = system.settings, system.tokenizer
    ids = {f"{kind}_token_id": getattr(tokenizer, f"{kind}_token_id") for kind in ("pad", "bos", "eos")}
    sizes = {"vocab_size": len(tokenizer), "decoder_vocab_size": tokenizer.target_vocab_size}
    config_fields = sizes | ids | {"decoder_start_token_id": tokenizer.bos_token_id}
    config = settings.model_config(**config_fields)
    if not isinstance(config, PosEncConfig):
        return config
    special = tokenizer.num_special_tokens_to_add()
    sides = (lengths(system.training_pairs, side) + special for side in ("source", "target"))
    estimated = config.alignment.estimate(*(side.tolist() for side in sides))
    try:
        return replace(settings, model=estimated | settings.model).model_config(**config_fields)
    except ValueError as error:
        values = ", ".join(f"{name}={value}" for name, value in estimated.items())
        raise ValueError(f"{error} (Of data.train was estimated: {values}.)") from None


def build_meta_model(system: System) -> PreTrainedModel:
    """A model on the meta device, with parameter shapes but without weights. No vocabulary is needed."""
    config = system.model_config(vocab_size=system.data.vocab_size, decoder_vocab_size=system.data.vocab_size)
    with torch.device("meta"):
        return auto_model_class(config).from_config(config)


def warn_of_untrained_distances(systems: Iterable[System]) -> None:
    """Warn, before training, of encodings that distinguish distances beyond the training length. Their parameters for
    these distances stay untrained, and longer input uses them."""
    systems_by_warning: dict[str, dict[str, None]] = defaultdict(dict)
    for system in systems:
        if system.segment or system.init_from is not None or (max_length := system.data.max_length) is None:
            continue
        for encoding in build_meta_model(system).modules():
            if isinstance(encoding, PositionEncoding) and max_length < (encoding.max_distance or 0) < math.inf:
                prefix = "cross_" if encoding.side.name == "cross" else ""
                parameter_names = [
                    f"{prefix}{parameter.name}={getattr(encoding.config, parameter.name)}"
                    for parameter in encoding.config_parameters
                ]
                warning = (
                    f"{type(encoding).__name__} tells distances of up to {encoding.max_distance} tokens apart, but of "
                    f"those beyond data.max_length={max_length} it learns nothing, and longer input may fail at once; "
                    f"lower what sets it ({', '.join(parameter_names)}), or take longer training pairs"
                )
                systems_by_warning[warning][system.name] = None
    for warning, names in systems_by_warning.items():
        logger.warning("systems.%s: %s", ", ".join(names), warning)


def validate_init_checkpoint(system: PreparedSystem) -> None:
    """Refuse, before training, a checkpoint and a tokenizer that do not match."""
    settings, checkpoint = system.settings, system.external_checkpoint
    if settings.init_from is None or checkpoint is None:
        return
    verify_folder(Path(checkpoint), COPY_AGAIN)
    try:
        validate_tokenizer(checkpoint_model_section(settings.init_from, settings.data.data_dir)[1], system.tokenizer)
    except ValueError as error:
        raise ValueError(
            f"systems.{settings.name}: init_from={settings.init_from!r}, data.tokenizer: {error}"
        ) from None
