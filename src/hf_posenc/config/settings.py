"""Settings of an experiment and of its systems. `loading.py` builds and validates them.

A run folder records the settings of each system, and a hash of each file that the system reads (`System.fingerprint`).
With other settings or files, no result in the folder is reused or continued.
"""

import json
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from huggingface_hub.errors import StrictDataclassError
from transformers import CONFIG_MAPPING

from ..data.readers import CorpusSpec, corpus_file_hashes, expand_home, file_hashes, resolve_name_or_path
from ..metrics.length_buckets.scorers import SCORERS
from ..metrics.length_buckets.validation import EDGES, METRICS, TOKENIZERS
from ..modeling.configuration_base import BaseConfig
from ..modeling.configuration_posenc import PosEncConfig
from ..modeling.tokenization_posenc import SUBWORD_MODELS
from ..utils.atomic_io import first_difference, short_hash
from ..utils.manifest import verified
from ..utils.renamed_keys import downgrade_settings, upgrade_settings
from ..utils.run_folder import RunPaths
from .corpus_keys import CORPUS_SPEC, NormalizationKeys
from .schema import Constraint, MappingOf, NonEmptyStr, PositiveInt, Section, at_least, in_range, one_of
from .yaml_io import read_yaml

# What plain text is scored by: each position of the longest context, windows of each length read at once, and the same
# read by a sliding window of the training length.
TEXT_SCORES = ("position", "whole", "sliding")
VOCABULARY_KEYS = ("vocab_size", "joint_vocabulary", "subwords", "tokenizer", "tags", "normalize")

ConcatenationSizes = Annotated[
    list[PositiveInt],
    Constraint("different whole numbers from 1 on, such as [1, 2]", lambda ks: 0 < len(ks) == len(set(ks))),
]
test_sets_by_name = Constraint("test sets by their names, such as {{news: {{files: [news.de, news.en]}}}}", bool)
ascending = Constraint(
    "a list of ascending whole numbers from 1 on, such as [25, 50]",
    lambda edges: bool(edges) and all(low < high for low, high in pairwise([0, *edges])),
)
OTHER_METRICS = [name for name in SCORERS if name != "bleu"]
includes_bleu = Constraint(
    f"a list of bleu, which the figures show, and others of {', '.join(OTHER_METRICS)}, each once",
    lambda names: "bleu" in names and len(names) == len(set(names)),
)
PublishedScores = Annotated[
    dict[str, float | list[float | None] | None], Constraint("scores by their metrics, {{bleu: 31.7}}", bool)
]


@dataclass(frozen=True)
class DataSettings:
    """Corpora, vocabulary and length filter. Lengths are in subwords and hold for both sides.

    With plain text (`train: {text: [...]}`) `max_length` is the length of a block in tokens. Keys of pairs are refused.

    `source_language`, `target_language`: language codes, such as de and en.
    `train`: the training pairs.
    `test`: the test sets, by name.
    `validation`: pairs for evaluations during training.
    `data_dir`: folder of the files below; the current folder if left out.
    `vocab_size`: number of subwords, trained on the text before the length filter.
    `joint_vocabulary`: one vocabulary for both sides; false for one of `vocab_size` each.
    `subwords`: the algorithm that makes subwords.
    `tokenizer`: an existing tokenizer in place of these three, by its folder or its name on the Hub.
    `tags`: language tags, tokens of the vocabulary that are never split.
    `normalize`: steps that change all text of a side first, remembered in the tokenizer; keys below.
    `max_length`: longer pairs are not trained on.
    `min_length`: shorter pairs are not trained on.
    `concatenate`: each k adds the training pairs concatenated k by k; 1 is the pairs as they are.
    `balance_lengths`: resample so that all source lengths are equally frequent, each pair at most this many times.
    `language`: language code of plain text, in place of source_language and target_language.
    `allow_overlap`: test sets, or `validation`, that may share pairs with the training text.
    `license`: licence of the training data for the model card, by the Hub's name (cc-by-4.0) or as free text.
    """

    source_language: NonEmptyStr
    target_language: NonEmptyStr
    train: Annotated[CorpusSpec, CORPUS_SPEC]
    test: Annotated[dict[str, Annotated[CorpusSpec, CORPUS_SPEC]], test_sets_by_name]
    validation: Annotated[CorpusSpec | None, CORPUS_SPEC] = None
    data_dir: NonEmptyStr | None = None
    vocab_size: PositiveInt = 8000
    joint_vocabulary: bool = True
    subwords: Annotated[str, one_of(SUBWORD_MODELS)] = "bpe"
    tokenizer: NonEmptyStr | None = None
    tags: list[NonEmptyStr] = field(default_factory=list)
    normalize: Annotated[dict[str, Any], MappingOf(NormalizationKeys)] = field(default_factory=dict)
    max_length: PositiveInt | None = None
    min_length: Annotated[int, at_least(0)] | None = None
    concatenate: ConcatenationSizes = field(default_factory=lambda: [1])
    balance_lengths: PositiveInt | None = None
    allow_overlap: list[NonEmptyStr] = field(default_factory=list)
    license: NonEmptyStr | None = None
    language: NonEmptyStr | None = None

    @property
    def is_text(self) -> bool:
        """Whether the corpora are plain text, not pairs."""
        return self.train.get("text") is not None


@dataclass(frozen=True)
class ScoreSettings:
    """How test sets are translated and scored; plain text is scored by perplexity, whatever `metrics` says.

    `bucket_edges`: upper bounds of the length buckets, in source subwords; with plain text, context lengths in tokens.
    `metrics`: sacrebleu's metrics, BERTScore, exact match and token accuracy.
    `concatenate`: each k makes a test set of k concatenated pairs; 1 is the set as it is.
    `num_beams`: width of the beam search; 1 is greedy.
    `max_new_tokens`: at most so many tokens in each translation; without it, 2 x source + 50.
    `batch_size`: sentences that share a batch.
    `max_per_bucket`: at most this many pairs of each bucket, sampled once, so that long inputs take less time.
    `bootstrap_samples`: samples behind a 95 % interval.
    `bertscore_model`: model of the metric `bertscore`, by its folder or its name on the Hub.
    `bertscore_num_layers`: layer of that model which is compared.
    `bleu_tokenize`: sacrebleu's tokenizer for BLEU; char or zh for languages that do not separate words.
    `max_context`: with plain text, the longest context in tokens; twice the last of `bucket_edges` if left out.
    `stride`: with plain text, how far a sliding window moves, in tokens; half of `data.max_length` if left out.
    """

    bucket_edges: Annotated[list[int], ascending] = field(default_factory=lambda: list(EDGES))
    metrics: Annotated[list[Annotated[str, one_of(SCORERS)]], includes_bleu] = field(
        default_factory=lambda: list(METRICS)
    )
    concatenate: ConcatenationSizes = field(default_factory=lambda: [1])
    num_beams: Annotated[int, in_range(1, 1000)] = 5
    max_new_tokens: PositiveInt | None = None
    batch_size: PositiveInt = 32
    max_per_bucket: Annotated[int, at_least(2)] | None = None
    bootstrap_samples: Annotated[int, in_range(100, 10**6)] = 1000
    bertscore_model: NonEmptyStr | None = None
    bertscore_num_layers: PositiveInt | None = None
    bleu_tokenize: Annotated[str, one_of(TOKENIZERS)] = TOKENIZERS[0]
    max_context: PositiveInt | None = None
    stride: PositiveInt | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "bleu_tokenize", self.bleu_tokenize or TOKENIZERS[0])

    @property
    def bertscore_name_or_path(self) -> str | None:
        """The model's name, or its folder with `~` expanded."""
        return self.bertscore_model and expand_home(self.bertscore_model)

    @property
    def context_lengths(self) -> list[int]:
        """The lengths in tokens of the windows that plain text is scored in, one for each bucket."""
        return [*self.bucket_edges, self.max_context or 2 * self.bucket_edges[-1]]


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
        """The system of saved settings under today's names. Settings newer than the run have their defaults."""
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
        """The first setting or file that differs from the fingerprint saved in `path`, None if there is none."""
        with verified(path):
            saved = upgrade_settings(read_yaml(path, "The settings of a run"))
            saved_settings = System.from_saved(self.name, self.base_name, saved).settings()
        current = self.fingerprint()
        # Files without a saved hash, and files that are not read any more, make no difference.
        saved_hashes = {name: digest for name, digest in saved.get("files", {}).items() if name in current["files"]}
        return first_difference(saved_settings | {"files": current["files"] | saved_hashes}, current)

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
        """Settings and file hashes that determine the weights, with the key names of 0.2.0, so that the hash is stable.

        Settings at their defaults are left out, so that a new setting changes no hash.
        """
        settings, data = self.settings(), self.data
        for name, default in asdict(DataSettings("", "", {}, {})).items():
            if settings["data"].get(name) == default or name in ("test", "license"):
                settings["data"].pop(name, None)
        del settings["score"]
        files = [corpus_file_hashes(corpus_spec, data.data_dir) for corpus_spec in (data.train, data.validation or {})]
        start = self.init_file_hashes()
        return downgrade_settings(settings) | {"files": files, "start": start}

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
