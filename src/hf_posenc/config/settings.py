"""What a config file comes to: plain values, checked by loading.py."""

from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig

from ..data.readers import CorpusSpec
from ..metrics.length_buckets.scorers import SCORERS
from ..metrics.length_buckets.validation import EDGES, METRICS, TOKENIZERS
from ..modeling.configuration_posenc import PosEncConfig
from ..modeling.configuration_shared import SharedConfig
from ..modeling.tokenization_posenc import SUBWORD_MODELS
from ..utils.atomic_io import expand_home
from ..utils.run_folder import RunPaths
from .corpus_keys import CORPUS_SPEC, NormalizationKeys
from .schema import Constraint, MappingOf, NonEmptyStr, PositiveInt, Section, at_least, in_range, one_of

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


@dataclass(frozen=True)
class ScoreSettings:
    """How test sets are translated and scored.

    `bucket_edges`: upper bounds of the length buckets, in source subwords.
    `metrics`: sacrebleu's metrics, and BERTScore.
    `concatenate`: each k makes a test set of k concatenated pairs; 1 is the set as it is.
    `num_beams`: width of the beam search; 1 is greedy.
    `batch_size`: sentences that share a batch.
    `max_per_bucket`: at most this many pairs of each bucket, sampled once, so that long inputs take less time.
    `bootstrap_samples`: samples behind a 95 % interval.
    `bertscore_model`: model of the metric `bertscore`, by its folder or its name on the Hub.
    `bertscore_num_layers`: layer of that model which is compared.
    `bleu_tokenize`: sacrebleu's tokenizer for BLEU; char or zh for languages that do not separate words.
    """

    bucket_edges: Annotated[list[int], ascending] = field(default_factory=lambda: list(EDGES))
    metrics: Annotated[list[Annotated[str, one_of(SCORERS)]], includes_bleu] = field(
        default_factory=lambda: list(METRICS)
    )
    concatenate: ConcatenationSizes = field(default_factory=lambda: [1])
    num_beams: Annotated[int, in_range(1, 1000)] = 5
    batch_size: PositiveInt = 32
    max_per_bucket: Annotated[int, at_least(2)] | None = None
    bootstrap_samples: Annotated[int, in_range(100, 10**6)] = 1000
    bertscore_model: NonEmptyStr | None = None
    bertscore_num_layers: PositiveInt | None = None
    bleu_tokenize: Annotated[str, one_of(TOKENIZERS)] = TOKENIZERS[0]

    def __post_init__(self) -> None:
        object.__setattr__(self, "bleu_tokenize", self.bleu_tokenize or TOKENIZERS[0])

    @property
    def bertscore_name_or_path(self) -> str | None:
        """The model's name or, with the home folder for `~`, its folder."""
        return self.bertscore_model and expand_home(self.bertscore_model)


def test_sets(data: DataSettings, score: ScoreSettings) -> dict[str, tuple[CorpusSpec, int]]:
    """As `System.test_sets`; sets of k joined pairs are `name-xk`."""
    ks = sorted(set(score.concatenate))
    return {name if k == 1 else f"{name}-x{k}": (corpus_spec, k) for name, corpus_spec in data.test.items() for k in ks}


@dataclass(frozen=True)
class Segmentation:
    """How a system translates that trains nothing: with the model of the `system` named here, segment by segment.

    `segmentation`: "gold" where pairs were concatenated, "automatic" by a sentence splitter, or "fixed" every
    `segment_words` words, of which each segment repeats the `overlap_words` last ones of the segment before.
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
    """One training: a name and everything that makes it, as plain values. Those of one `base_name` differ in the seed.

    With `segment` it is no training but another use of one, whose settings it has.
    `init_from`: what is trained already, another system's name or a checkpoint's; None for new weights (init_from.py).
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
        """What a run directory remembers of the system; where files lie and what they may share changes nothing."""
        data = {key: value for key, value in asdict(self.data).items() if key not in ("data_dir", "allow_overlap")}
        rest = {"init_from": self.init_from, "segment": self.segment and asdict(self.segment)}
        settings = {"data": data, "model": self.model, "train": self.train, "score": asdict(self.score)}
        return settings | {key: value for key, value in rest.items() if value is not None}

    @property
    def model_system_name(self) -> str:
        """The name of the training whose model translates."""
        return self.segment.system if self.segment else self.name

    @property
    def test_sets(self) -> dict[str, tuple[CorpusSpec, int]]:
        """Where each test set comes from and how many of its consecutive pairs are joined."""
        return test_sets(self.data, self.score)

    def model_config(self, vocab_size: int, **special_token_ids: int) -> SharedConfig:
        """The config of the model, of the type that `model_type` names."""
        fields = {"model_type": PosEncConfig.model_type} | self.model
        try:
            return AutoConfig.for_model(vocab_size=vocab_size, **special_token_ids, **fields)
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
    """A config file, resolved: its systems, those that split behind all others, where its run goes, and how many
    systems train side by side.

    `baseline` is the row that the others are compared with; `diagnose` whether models are looked into, which scores
    and tables do not need.
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
        """Where the files of its run lie."""
        return RunPaths(self.folder)

    @property
    def tables_folder(self) -> Path:
        return self.folder / self.report_name if self.report_name else self.folder
