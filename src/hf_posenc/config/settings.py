"""What a config file comes to: plain values, checked by loading.py."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig

from ..metrics.length_buckets.checks import EDGES, METRICS, TOKENIZERS
from ..metrics.length_buckets.scorers import SCORERS
from ..modeling.configuration_posenc import PosEncConfig
from ..modeling.configuration_shared import SharedConfig
from ..modeling.tokenization_posenc import SUBWORDS
from ..whole_files import with_home
from .corpus_keys import A_CORPUS
from .schema import Count, Rule, Text, at_least, between, one_of

VOCABULARY = ("vocab_size", "joint_vocabulary", "subwords", "tokenizer", "tags")

Joined = Annotated[
    list[Count], Rule("different whole numbers from 1 on, such as [1, 2]", lambda ks: 0 < len(ks) == len(set(ks)))
]
named = Rule("test sets by their names, such as {{news: {{files: [news.de, news.en]}}}}", bool)
ascending = Rule(
    "a list of ascending whole numbers from 1 on, such as [25, 50]",
    lambda edges: bool(edges) and all(low < high for low, high in pairwise([0, *edges])),
)
OTHERS = [name for name in SCORERS if name != "bleu"]
with_bleu = Rule(
    f"a list of bleu, which the figures show, and others of {', '.join(OTHERS)}, each once",
    lambda names: "bleu" in names and len(names) == len(set(names)),
)
Scores = Annotated[dict[str, float | list[float | None] | None], Rule("scores by their metrics, {{bleu: 31.7}}", bool)]


@dataclass(frozen=True)
class DataSettings:
    """Corpora, vocabulary and length filter. `max_length` and `min_length` are in subwords and hold for both sides.

    `joint_vocabulary`: one vocabulary of `vocab_size` for both sides, or one for each. `subwords`: "bpe" or "unigram".
    `tokenizer`: an existing one in place of these three, by its name on the Hub or its folder.
    `tags`: language tags, tokens of the vocabulary that no text is cut into; of each corpus a `source_tag` and a
    `target_tag` (data/tags.py).
    `concatenate`: each k adds the training pairs joined by k consecutive ones; [1] is the pairs as they are.
    `flat_lengths`: training pairs are drawn so that sources of every length are as frequent as is possible when no pair
    is taken more often than so; it is their number that stays, after joining and the length filter.
    `allow_shared_pairs`: the test sets, or "validation", that may hold pairs of the training text.
    `licence`: that of the training data, for the model card; the Hub's name of it (cc-by-4.0) or free text.
    """

    source_language: Text
    target_language: Text
    train: Annotated[dict[str, Any], A_CORPUS]
    test: Annotated[dict[str, Annotated[dict[str, Any], A_CORPUS]], named]
    validation: Annotated[dict[str, Any] | None, A_CORPUS] = None
    folder: Text | None = None
    vocab_size: Count = 8000
    joint_vocabulary: bool = True
    subwords: Annotated[str, one_of(SUBWORDS)] = "bpe"
    tokenizer: Text | None = None
    tags: list[Text] = field(default_factory=list)
    max_length: Count | None = None
    min_length: Annotated[int, at_least(0)] | None = None
    concatenate: Joined = field(default_factory=lambda: [1])
    flat_lengths: Count | None = None
    allow_shared_pairs: list[Text] = field(default_factory=list)
    licence: Text | None = None


@dataclass(frozen=True)
class ScoreSettings:
    """How test sets are translated and scored. `concatenate`: each k makes a test set of k consecutive pairs joined.

    `per_group`: at most so many pairs of each length group, drawn once, so that a small machine has time for the rare
    long ones; the scores of a group then stand for the whole group, those of all pairs for no real text.
    `bootstrap`: the samples that 95 % confidence intervals are made from. `bleu_tokenize`: sacrebleu's tokenizer for
    BLEU, "char" or "zh" where words are not written apart. `bertscore_model`: a name on the Hub or a
    folder, for the metric "bertscore"; `bertscore_layers`: the layer of it that is compared.
    """

    edges: Annotated[list[int], ascending] = field(default_factory=lambda: list(EDGES))
    metrics: Annotated[list[Annotated[str, one_of(SCORERS)]], with_bleu] = field(default_factory=lambda: list(METRICS))
    concatenate: Joined = field(default_factory=lambda: [1])
    num_beams: Annotated[int, between(1, 1000)] = 5
    batch_size: Count = 32
    per_group: Annotated[int, at_least(2)] | None = None
    bootstrap: Annotated[int, between(100, 10**6)] = 1000
    bertscore_model: Text | None = None
    bertscore_layers: Count | None = None
    bleu_tokenize: Annotated[str, one_of(TOKENIZERS)] = TOKENIZERS[0]

    def __post_init__(self) -> None:
        object.__setattr__(self, "bleu_tokenize", self.bleu_tokenize or TOKENIZERS[0])

    @property
    def bertscore_place(self) -> str | None:
        """The model's name or, with the home folder for `~`, its folder."""
        return self.bertscore_model and with_home(self.bertscore_model)


def test_sets(data: DataSettings, score: ScoreSettings) -> dict[str, tuple[dict[str, Any], int]]:
    """As `System.test_sets`; sets of k joined pairs are `name-xk`."""
    ks = sorted(set(score.concatenate))
    return {name if k == 1 else f"{name}-x{k}": (where, k) for name, where in data.test.items() for k in ks}


@dataclass(frozen=True)
class Split:
    """How a system translates that trains nothing: with the model of the `system` named here, piece by piece.

    `boundaries`: those of the pieces, "known" where pairs were joined or "found" as a user of sentences finds them.
    """

    system: str
    boundaries: str = "known"


@dataclass(frozen=True)
class System:
    """One training: a name and everything that makes it, as plain values. Trainings of one `row` differ in the seed.

    With `split` it is no training but another use of one, whose settings it has.
    `start_from`: what is trained already, another system's name or a checkpoint's; None for new weights (starting.py).
    """

    name: str
    row: str
    data: DataSettings
    score: ScoreSettings
    model: dict[str, Any]
    train: dict[str, Any]
    start_from: str | None = None
    split: Split | None = None

    def settings(self) -> dict[str, Any]:
        """What a run directory remembers of the system; where files lie and what they may share changes nothing."""
        data = {key: value for key, value in asdict(self.data).items() if key not in ("folder", "allow_shared_pairs")}
        rest = {"start_from": self.start_from, "split": self.split and asdict(self.split)}
        settings = {"data": data, "model": self.model, "train": self.train, "score": asdict(self.score)}
        return settings | {key: value for key, value in rest.items() if value is not None}

    @property
    def trained_as(self) -> str:
        """The name of the training whose model translates."""
        return self.split.system if self.split else self.name

    def origin_in(self, systems: Mapping[str, "System"]) -> "System | None":
        """That of the systems whose model it needs: to translate with, or to start from, and then of one with several
        seeds that with its own."""
        names = (f"{self.start_from}-seed{self.train.get('seed')}", str(self.start_from))
        return next((systems[name] for name in ((self.trained_as,) if self.split else names) if name in systems), None)

    @property
    def test_sets(self) -> dict[str, tuple[dict[str, Any], int]]:
        """Where each test set comes from and how many of its consecutive pairs are joined."""
        return test_sets(self.data, self.score)

    def model_config(self, vocab_size: int, **tokenizer_facts: int) -> SharedConfig:
        """The config of the model, of the type that `model_type` names."""
        fields = {"model_type": PosEncConfig.model_type} | self.model
        try:
            return AutoConfig.for_model(vocab_size=vocab_size, **tokenizer_facts, **fields)
        except (StrictDataclassError, ValueError) as error:
            raise ValueError(f"systems.{self.name}: model: {' '.join(str(error).split())}") from None


@dataclass(frozen=True)
class Paper:
    """A published table: where it stands, which test set it is of, and its numbers.

    `rows`: by row and metric, a number for all pairs or a list with one for each length group. `n`: the pairs of each.
    """

    source: Text
    test: Text
    rows: Annotated[dict[str, Scores], Rule("rows by the names of systems", bool)]
    n: Annotated[list[int] | None, Rule("a list with the number of pairs of each group", lambda n: True)] = None


@dataclass(frozen=True)
class Experiment:
    """A config file, resolved: its systems, those that split behind all others, where its run goes, and how many
    systems train side by side.

    `baseline` is the row that the others are compared with; `diagnose` whether models are looked into, which scores
    and tables do not need.
    """

    name: str
    output: Path
    jobs: int
    systems: dict[str, System]
    baseline: str
    table: str | None = None
    paper: Paper | None = None
    diagnose: bool = True

    @property
    def folder(self) -> Path:
        return self.output / self.name

    def origin(self, system: System) -> System | None:
        """The system of this file from which that one starts, if it starts from one."""
        return system.origin_in(self.systems)

    @property
    def tables_folder(self) -> Path:
        return self.folder / self.table if self.table else self.folder
