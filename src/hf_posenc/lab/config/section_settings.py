"""The sections `data` and `score` of a config file: their keys, types, defaults and rules."""

from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Annotated, Any

from ...metrics.length_buckets.scorers import SCORERS
from ...metrics.length_buckets.validation import EDGES, METRICS, TOKENIZERS
from ...tokenizer.tokenization_posenc import SUBWORD_MODELS
from ..data.readers import CorpusSpec, expand_home
from .corpus_keys import CORPUS_SPEC, NormalizationKeys
from .schema import Constraint, MappingOf, NonEmptyStr, PositiveInt, at_least, in_range, one_of

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
