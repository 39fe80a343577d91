"""Settings of an experiment and of its systems. The models of `data` and `score` have their keys, types and rules.

`loading.py` builds them. A run folder records the settings of each system, and a hash of each file that
the system reads (`System.fingerprint`). With other settings or files, no result in the folder is reused or continued.
"""

import json
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Self

from annotated_types import Predicate
from huggingface_hub.errors import StrictDataclassError
from pydantic import Field, field_validator, model_validator
from transformers import CONFIG_MAPPING

from ...hub.errors import validate_names
from ...metrics.length_buckets.scorers import EDGES, METRICS, SCORERS, TOKENIZERS
from ...tokenizer.tokenization_posenc import NORMALIZATION_STEPS, SUBWORD_MODELS, validate_tags
from ...transformer.configuration_base import BaseConfig
from ...transformer.configuration_posenc import PosEncConfig
from ...utils.atomic_io import first_difference, short_hash
from ...utils.manifest import verified
from ...utils.run_folder import NAME_RULE, RunPaths, is_valid_name
from ..data.corpus import validate_corpus_keys, validate_corpus_tags
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
from .errors import Keys, KeysOf, NonNegativeInt, OneOf, PositiveInt, Text
from .yaml_io import Section, read_yaml


class GeneratorKeys(Keys):
    """Keys of a synthetic corpus of German and English sentences.

    `seed`: another seed gives other sentences.
    `pairs`: how many sentence pairs.
    `min_words`, `max_words`: length of a German sentence in words.
    """

    seed: int
    pairs: PositiveInt
    min_words: NonNegativeInt
    max_words: Annotated[int, Field(ge=6)]

    @model_validator(mode="after")
    def check_words(self) -> Self:
        if self.min_words > self.max_words:
            raise ValueError(
                f"min_words must not exceed max_words, but they are {self.min_words} and {self.max_words}; swap them."
            )
        return self


class TaskKeys(Keys):
    """Keys of a corpus of an algorithmic task.

    `name`: the task; docs/reference/tasks.md says what each asks, and what its lengths count.
    `seed`: another seed gives other pairs.
    `pairs`: how many pairs; may be left out for a task with finitely many, which then gives all.
    `min_length`, `max_length`: the lengths, all equally frequent unless the task has finitely many pairs.
    """

    name: Annotated[str, OneOf(TASKS)]
    seed: NonNegativeInt
    min_length: PositiveInt
    max_length: PositiveInt
    pairs: PositiveInt | None = None

    @model_validator(mode="after")
    def check_lengths(self) -> Self:
        if self.min_length > self.max_length:
            raise ValueError(
                f"min_length must not exceed max_length, but they are {self.min_length} and {self.max_length}; swap "
                "them."
            )
        return self


FilesOfPairs = Annotated[
    Any,
    Predicate(is_files_spec),
    Field(
        description="two aligned texts, a .tsv, a .jsonl, each plain or compressed, or a list of these (one text alone "
        "is `text`)"
    ),
]
PlainTexts = Annotated[
    Any,
    Predicate(is_text_spec),
    Field(description="one plain text or a list of these, each once, plain or compressed"),
]
Generator = Annotated[
    GeneratorKeys,
    Predicate(lambda generator: all(map(find_spec, ("babel", "num2words")))),
    Field(description="keys and values, with the extra of that name (`pip install 'hf-posenc[generator]'`)"),
]
NormalizationSteps = Annotated[
    list[Annotated[str, OneOf(NORMALIZATION_STEPS)]],
    Predicate(lambda steps: len(set(steps)) == len(steps)),
    Field(description=f"a list in which each is one of {', '.join(NORMALIZATION_STEPS)}, each once"),
]


class NormalizationKeys(Keys):
    """Keys of `data.normalize`, and of the `normalize` of a corpus: the steps of each side, in their order.

    `source`: steps of the source side: `lowercase`, and `no_punctuation`, which makes punctuation marks spaces.
    `target`: the same of the target side, references included.
    """

    source: NormalizationSteps = []
    target: NormalizationSteps = []


CORPORA = "a list of one corpus or more, such as [{files: [a.de, a.en]}, {files: pairs.tsv}]"


class CorpusKeys(Keys):
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
    `normalize`: steps that change the text of this corpus alone, not remembered in the tokenizer; keys below.
    """

    dataset: Text | None = None
    name: Text | None = None
    split: Text | None = None
    revision: Text | None = None
    files: FilesOfPairs | None = None
    document_ids: Text | None = None
    min_words: PositiveInt | None = None
    generator: Generator | None = None
    task: TaskKeys | None = None
    text: PlainTexts | None = None
    corpora: Annotated[list["CorpusKeys"], Field(min_length=1, description=CORPORA)] | None = None
    source_language: Text | None = None
    target_language: Text | None = None
    source_tag: Text | None = None
    target_tag: Text | None = None
    max_examples: PositiveInt | None = None
    concatenate: PositiveInt | None = None
    normalize: Annotated[dict[str, list[str]], KeysOf(NormalizationKeys)] | None = None

    @model_validator(mode="after")
    def check_type(self) -> Self:
        validate_corpus_keys([name for name in self.model_fields_set if getattr(self, name) is not None])
        return self


Corpus = Annotated[CorpusSpec, KeysOf(CorpusKeys), Field(description="a corpus, such as {files: [train.de, train.en]}")]
ConcatenationSizes = Annotated[
    list[PositiveInt],
    Predicate(lambda sizes: 0 < len(sizes) == len(set(sizes))),
    Field(description="different whole numbers from 1 on, such as [1, 2]"),
]
Language = Annotated[str, Predicate(is_valid_name), Field(description=NAME_RULE)]
VOCABULARY_KEYS = ("vocab_size", "joint_vocabulary", "subwords", "tokenizer", "tags", "normalize")
EXAMPLE = "{text: [train.txt]}"  # of a corpus of plain text


class DataSettings(Keys):
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
    `domain`: what the training text is, for the model card, such as news and talks.
    """

    source_language: Language
    target_language: Language
    train: Corpus
    test: Annotated[
        dict[str, Corpus],
        Field(min_length=1, description="test sets by their names, such as {news: {files: [news.de, news.en]}}"),
    ]
    validation: Corpus | None = None
    data_dir: Text | None = None
    vocab_size: PositiveInt = 8000
    joint_vocabulary: bool = True
    subwords: Annotated[str, OneOf(SUBWORD_MODELS)] = "bpe"
    tokenizer: Text | None = None
    tags: list[Text] = []
    normalize: Annotated[dict[str, list[str]], KeysOf(NormalizationKeys)] = {}
    max_length: PositiveInt | None = None
    min_length: NonNegativeInt | None = None
    concatenate: ConcatenationSizes = [1]
    balance_lengths: PositiveInt | None = None
    allow_overlap: list[Text] = []
    license: Text | None = None
    domain: Text | None = None
    language: Text | None = None

    @model_validator(mode="before")
    @classmethod
    def use_one_language(cls, section: object) -> object:
        """The section with the language of plain text as that of both sides."""
        if not isinstance(section, dict) or not isinstance(section.get("train"), dict):
            return section
        language, sides = section.get("language"), ("source_language", "target_language")
        if section["train"].get("text") is None:
            if language is None:
                return section
            raise ValueError(
                "data.language is that of plain text, but data.train has pairs; write source_language and "
                f"target_language, or train on {EXAMPLE}."
            )
        if language is None:
            raise ValueError("data needs language; add it, such as language: en, under `data:`.")
        others = [side for side in sides if section.get(side) not in (None, language)]
        if others:
            raise ValueError(f"plain text has one language, but {' and '.join(others)} is given; write language.")
        return section | dict.fromkeys(sides, language)

    @field_validator("tags")
    @classmethod
    def check_tags(cls, tags: list[str]) -> list[str]:
        validate_tags(tags)
        return tags

    @model_validator(mode="after")
    def check_corpora(self) -> Self:
        for key, corpus in self.corpora.items():
            if message := wrong_corpus_type(corpus, is_text=self.is_text):
                raise ValueError(f"{key} {message}")
            validate_corpus_tags(corpus, key, self.tags, is_test=key.startswith("data.test."))
        validate_names(self.allow_overlap, (*self.test, "validation"), "data.allow_overlap")
        return self

    @model_validator(mode="after")
    def check_lengths(self) -> Self:
        if self.min_length and self.max_length and self.min_length > self.max_length:
            raise ValueError(
                f"no pair can be at least min_length={self.min_length} and at most max_length={self.max_length} "
                "subwords long; make min_length the smaller one."
            )
        if self.concatenate != [1] and "concatenate" in self.train:
            raise ValueError(
                f"data.concatenate={self.concatenate} and data.train.concatenate={self.train['concatenate']} must not "
                "both be set, for both concatenate training pairs; leave one out."
            )
        return self

    @property
    def is_text(self) -> bool:
        """Whether the corpora are plain text, not pairs."""
        return self.train.get("text") is not None

    @property
    def corpora(self) -> dict[str, CorpusSpec]:
        """All corpora, by their keys."""
        tests = {f"data.test.{name}": corpus for name, corpus in self.test.items()}
        validation = {"data.validation": self.validation} if self.validation else {}
        return {"data.train": self.train} | tests | validation


def wrong_corpus_type(corpus: CorpusSpec, *, is_text: bool) -> str | None:
    """The error of pairs where the training corpus is plain text, or of plain text where it has pairs."""
    specs = [corpus, *(corpus.get("corpora") or [])]
    if is_text and corpus.get("text") is None:
        return (
            f"must be plain text as data.train is, but it holds {', '.join(corpus)}; write {EXAMPLE}, or train on "
            "pairs."
        )
    if not is_text and any(spec.get("text") is not None for spec in specs):
        return (
            "must have pairs as data.train has, but it is plain text; write for example {files: [test.de, test.en]}, "
            "or train on plain text alone."
        )
    return None


# Keys of `score` that another score needs no other translations for.
SCORING_KEYS = (
    "bucket_edges", "metrics", "bootstrap_samples", "bertscore_model", "bertscore_num_layers", "bleu_tokenize",
)  # fmt: skip
OTHER_METRICS = ", ".join(name for name in SCORERS if name != "bleu")


def are_ascending(edges: list[int]) -> bool:
    return bool(edges) and all(low < high for low, high in pairwise([0, *edges]))


class ScoreSettings(Keys):
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

    bucket_edges: Annotated[
        list[int],
        Predicate(are_ascending),
        Field(description="a list of ascending whole numbers from 1 on, such as [25, 50]"),
    ] = list(EDGES)
    metrics: Annotated[
        list[Annotated[str, OneOf(SCORERS)]],
        Predicate(lambda names: "bleu" in names and len(names) == len(set(names))),
        Field(description=f"a list of bleu, which the figures show, and others of {OTHER_METRICS}, each once"),
    ] = list(METRICS)
    concatenate: ConcatenationSizes = [1]
    num_beams: Annotated[int, Field(ge=1, le=1000)] = 5
    max_new_tokens: PositiveInt | None = None
    batch_size: PositiveInt = 32
    max_per_bucket: Annotated[int, Field(ge=2)] | None = None
    bootstrap_samples: Annotated[int, Field(ge=100, le=10**6)] = 1000
    bertscore_model: Text | None = None
    bertscore_num_layers: PositiveInt | None = None
    bleu_tokenize: Annotated[str, OneOf(TOKENIZERS)] = TOKENIZERS[0]
    max_context: PositiveInt | None = None
    stride: PositiveInt | None = None

    @property
    def translation_settings(self) -> dict[str, object]:
        """The settings that saved translations depend on: all but those of metrics, intervals and buckets. The buckets
        count if pairs were sampled by them."""
        settings = self.model_dump()
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
        data = {key: value for key, value in self.data.model_dump().items() if key not in ("data_dir", "allow_overlap")}
        rest = {"init_from": self.init_from, "segment": self.segment and asdict(self.segment)}
        settings = {"data": data, "model": self.model, "train": self.train, "score": self.score.model_dump()}
        return settings | {key: value for key, value in rest.items() if value is not None}

    @classmethod
    def from_saved(cls, name: str, base_name: str, saved: Section) -> "System":
        """The system of saved settings. Settings newer than the run have their defaults."""
        segment = Segmentation(**saved["segment"]) if "segment" in saved else None
        data = DataSettings.model_construct(**saved["data"])
        score = ScoreSettings.model_construct(**saved["score"])
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
        for name, field_info in DataSettings.model_fields.items():
            if settings["data"].get(name) == field_info.default or name in ("test", "license"):
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


# One number for all pairs, or a list with one for each bucket; null if the publication has none.
PublishedScore = float | list[float | None] | None
PublishedScores = Annotated[
    dict[str, PublishedScore],
    Field(min_length=1, description="scores by their metrics, {bleu: 31.7}"),
]


class ReferenceTable(Keys):
    """A published table, shown below the run's own.

    `source`: the publication, as the table names it.
    `test`: its test set, one of `data.test`.
    `rows`: by system and metric, one number for all pairs or a list with one for each length bucket.
    `num_pairs`: number of pairs in each bucket of the publication.
    """

    source: Text
    test: Text
    rows: Annotated[dict[str, PublishedScores], Field(min_length=1, description="rows by the names of systems")]
    num_pairs: Annotated[list[int], Field(description="a list with the number of pairs of each group")] | None = None


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
