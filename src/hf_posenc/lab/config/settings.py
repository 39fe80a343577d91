"""Settings of an experiment and of its systems, with the keys, types, defaults and rules of `data` and `score`.

`loading.py` builds and validates them. A run folder records the settings of each system, and a hash of each file that
the system reads (`System.fingerprint`). With other settings or files, no result in the folder is reused or continued.
"""

import json
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from huggingface_hub.errors import StrictDataclassError
from transformers import CONFIG_MAPPING

from ...metrics.length_buckets.scorers import EDGES, METRICS, SCORERS, TOKENIZERS
from ...tokenizer.tokenization_posenc import NORMALIZATION_STEPS, SUBWORD_MODELS
from ...transformer.configuration_base import BaseConfig
from ...transformer.configuration_posenc import PosEncConfig
from ...utils.atomic_io import first_difference, short_hash
from ...utils.manifest import verified
from ...utils.run_folder import RunPaths
from ..data.readers import (
    CorpusSpec,
    corpus_file_hashes,
    expand_home,
    file_hashes,
    is_files_spec,
    is_text_spec,
    resolve_name_or_path,
)
from ..data.tasks import TASKS
from .schema import Constraint, MappingOf, NonEmptyStr, PositiveInt, Section, at_least, each_once, in_range, one_of
from .yaml_io import read_yaml

FILES_CONSTRAINT = Constraint(
    "two aligned texts, a .tsv, a .jsonl, each plain or compressed, or a list of these (one text alone is `text`)",
    is_files_spec,
)
TEXT_CONSTRAINT = Constraint("one plain text or a list of these, each once, plain or compressed", is_text_spec)
EXTRA_INSTALLED = Constraint(
    "{}, with the extra of that name (`pip install 'hf-posenc[generator]'`)",
    lambda given: given is None or all(map(find_spec, ("babel", "num2words"))),
)
CORPORA_CONSTRAINT = Constraint(
    "a list of one corpus or more, such as [{{files: [a.de, a.en]}}, {{files: pairs.tsv}}]", bool
)


@dataclass
class GeneratorKeys:
    """Keys of a synthetic corpus of German and English sentences.

    `seed`: another seed gives other sentences.
    `pairs`: how many sentence pairs.
    `min_words`, `max_words`: length of a German sentence in words.
    """

    seed: int
    pairs: PositiveInt
    min_words: Annotated[int, at_least(0)]
    max_words: Annotated[int, at_least(6)]


@dataclass
class TaskKeys:
    """Keys of a corpus of an algorithmic task.

    `name`: the task; docs/reference/tasks.md says what each asks, and what its lengths count.
    `seed`: another seed gives other pairs.
    `pairs`: how many pairs; may be left out for a task with finitely many, which then gives all.
    `min_length`, `max_length`: the lengths, all equally frequent unless the task has finitely many pairs.
    """

    name: Annotated[str, one_of(TASKS)]
    seed: Annotated[int, at_least(0)]
    min_length: PositiveInt
    max_length: PositiveInt
    pairs: PositiveInt | None = None


@dataclass
class CorpusKeys:
    """Keys of a corpus: one of `dataset`, `files`, `generator`, `task`, `text` and `corpora`, and what that one takes.

    `dataset`: a dataset's name on the Hub, or its folder, with a column `translation`; a null is an empty side.
    `name`, `split`, `revision`: configuration, split and revision of the dataset.
    `files`: `[a.de, a.en]`, `pairs.tsv` or `pairs.jsonl`; plain, .gz, .bz2 or .xz; a null in a .jsonl is refused.
    `document_ids`: a file with the document of each line, of pairs or of a `text`.
    `min_words`: consecutive pairs of one document are concatenated until they have this many words.
    `generator`: synthetic sentences, German and English; keys below.
    `task`: pairs of an algorithmic task; keys below.
    `text`: plain text for a decoder-only language model; a document ends at an empty line and at the end of a file.
    `corpora`: several corpora, one after the other.
    `source_language`, `target_language`: of this corpus alone; those of `data` if left out.
    `source_tag`, `target_tag`: language tags, each one of `data.tags`.
    `max_examples`: only the first pairs.
    `concatenate`: this many consecutive pairs become one.
    """

    dataset: NonEmptyStr | None = None
    name: NonEmptyStr | None = None
    split: NonEmptyStr | None = None
    revision: NonEmptyStr | None = None
    files: Annotated[str | list, FILES_CONSTRAINT] | None = None
    document_ids: NonEmptyStr | None = None
    min_words: PositiveInt | None = None
    generator: Annotated[Section | None, MappingOf(GeneratorKeys), EXTRA_INSTALLED] = None
    task: Annotated[Section | None, MappingOf(TaskKeys)] = None
    text: Annotated[str | list, TEXT_CONSTRAINT] | None = None
    corpora: Annotated[list[Annotated[Section, MappingOf(lambda: CorpusKeys)]], CORPORA_CONSTRAINT] | None = None
    source_language: NonEmptyStr | None = None
    target_language: NonEmptyStr | None = None
    source_tag: NonEmptyStr | None = None
    target_tag: NonEmptyStr | None = None
    max_examples: PositiveInt | None = None
    concatenate: PositiveInt | None = None


NormalizationSteps = Annotated[list[Annotated[str, one_of(NORMALIZATION_STEPS)]], each_once]


@dataclass
class NormalizationKeys:
    """Keys of `data.normalize`: the steps of each side, in their order.

    `source`: steps of the source side: `lowercase`, and `no_punctuation`, which makes punctuation marks spaces.
    `target`: the same of the target side, references included.
    """

    source: NormalizationSteps = field(default_factory=list)
    target: NormalizationSteps = field(default_factory=list)


CORPUS_SPEC = MappingOf(CorpusKeys, "a corpus, such as {{files: [train.de, train.en]}}")


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
# Keys of `score` that another score needs no other translations for.
SCORING_KEYS = (
    "bucket_edges", "metrics", "bootstrap_samples", "bertscore_model", "bertscore_num_layers", "bleu_tokenize",
)  # fmt: skip
OTHER_METRICS = [name for name in SCORERS if name != "bleu"]
includes_bleu = Constraint(
    f"a list of bleu, which the figures show, and others of {', '.join(OTHER_METRICS)}, each once",
    lambda names: "bleu" in names and len(names) == len(set(names)),
)


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
    def translation_settings(self) -> dict[str, object]:
        """The settings that saved translations depend on: all but those of metrics, intervals and buckets. The buckets
        count if pairs were sampled by them."""
        settings = asdict(self)
        for name in SCORING_KEYS:
            if name != "bucket_edges" or self.max_per_bucket is None:
                del settings[name]
        return settings

    @property
    def bertscore_name_or_path(self) -> str | None:
        """The model's name, or its folder with `~` expanded."""
        return self.bertscore_model and expand_home(self.bertscore_model)

    @property
    def context_lengths(self) -> list[int]:
        """The lengths in tokens of the windows that plain text is scored in, one for each bucket."""
        return [*self.bucket_edges, self.max_context or 2 * self.bucket_edges[-1]]


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

    @classmethod
    def read_saved(cls, path: Path, name: str, base_name: str) -> tuple["System", Section]:
        """The system of a settings.yaml, and the content of the file."""
        with verified(path):
            saved = read_yaml(path, "The settings of a run")
            return cls.from_saved(name, base_name, saved), saved

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
        saved_system, saved = self.read_saved(path, self.name, self.base_name)
        saved_settings, current = saved_system.settings(), self.fingerprint()
        if not self.data.is_text:  # other scores of plain text need the model
            saved_settings |= {"score": saved_system.score.translation_settings}
            current |= {"score": self.score.translation_settings}
        # Files without a saved hash, and files that are not read any more, make no difference.
        saved_hashes = {name: digest for name, digest in saved.get("files", {}).items() if name in current["files"]}
        return first_difference(saved_settings | {"files": current["files"] | saved_hashes}, current)

    def is_scored_by(self, path: Path) -> bool:
        """Whether the settings saved in `path` have the same section `score`."""
        saved_system, _ = self.read_saved(path, self.name, self.base_name)
        return saved_system.score == self.score

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
