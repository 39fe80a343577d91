"""Sentence statistics and corpus scores: sacrebleu's BLEU, TER and chrF, BERTScore, exact match and token accuracy.

Statistics are additive. Corpus scores, bootstrap samples and paired tests are computed from sums of the same rows, and
each pair is read once. Everything is cased; sacrebleu's TER is not by default, ours is.

Inputs are validated before any score: rule, value, remedy.
"""

import difflib
import math
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from itertools import pairwise, zip_longest
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, TypedDict

import numpy as np
from sacrebleu.metrics.base import Metric, Score, Signature
from sacrebleu.metrics.bleu import BLEU, BLEUScore
from sacrebleu.metrics.chrf import CHRF
from tqdm.auto import tqdm

from .ter import TER

PAIRS_PER_CHUNK = 16  # the unit of work of a process, and the step of the progress bar
MAX_NATS = 700.0  # per token, beyond which exp is no float
MIN_PAIRS_FOR_BAR = 5_000  # with fewer pairs there is no progress bar


class CorpusScorer(Protocol):
    """The part of sacrebleu's `Metric` that is used here; SentenceMean and BertScore implement it too.

    Methods with an underscore are private in sacrebleu; tested with 2.6. They are used because the public
    `corpus_score` reads all texts again, for each bucket and each bootstrap sample. If one is renamed, scoring raises
    an AttributeError. The same holds for `estimate_ci`, `_mean` and `_ci` of a score.
    """

    def _compute_score_from_stats(self, stats: Any) -> Score:
        """The score of summed statistics."""

    def get_signature(self) -> Signature:
        """The settings, as sacrebleu's signature."""


class SentenceMean:
    """Mean of sentence scores in percent, with the interface of sacrebleu's scorers.

    Its statistics (N, 2) are the score of each sentence times its weight, and the weight.
    """

    name = "mean"

    def _extract_corpus_statistics(self, hypotheses: list[str], references: list[Any]) -> np.ndarray:
        """The statistics (N, 2) of texts. The base class has those of a file, and reads no texts."""
        raise NotImplementedError

    def _aggregate_and_compute(self, statistics: np.ndarray) -> Score:
        return self._compute_score_from_stats(np.sum(statistics, axis=0))

    def _compute_score_from_stats(self, stats: np.ndarray) -> Score:
        return Score(self.name, 100 * float(stats[0] / stats[1]))

    def get_signature(self) -> Signature:
        return Signature({"num_refs": None})


class BertScore(SentenceMean):
    """BERTScore's F1 (Zhang et al., "BERTScore: Evaluating Text Generation with BERT", ICLR 2020,
    https://arxiv.org/abs/1904.09675).

    `model` is a name on the Hub or a folder. `layers` is the layer whose output is compared, by default bert_score's
    choice for the model. A corpus score is the mean over sentences; an empty sentence scores 0.
    """

    name = "BERTScore"

    def __init__(self, model: Any = None, layers: int | None = None) -> None:
        require(model is not None, "BERTScore needs a model; pass bertscore_model=..., a name on the Hub or a folder")
        try:
            import bert_score
        except ImportError:
            raise ValueError("BERTScore needs the package bert-score; pip install 'hf-posenc[bertscore]'") from None
        require(
            layers is not None or model in bert_score.utils.model2layers,
            f"bert_score has no default layer for {model}; pass bertscore_layers=..., the number of a layer",
        )
        self.bert_score, self.model, self.layers = bert_score, model, layers or bert_score.utils.model2layers[model]

    def _extract_corpus_statistics(self, hypotheses: list[str], references: list[tuple[str, ...]]) -> np.ndarray:
        """(N, 2): the F1 of each sentence, the best of its references', and 1."""
        rows, candidates, nonempty_references = [], [], []
        for row, (hypothesis, texts) in enumerate(zip(hypotheses, zip(*references, strict=True), strict=True)):
            nonempty = [text for text in texts if text and text.strip()]
            if hypothesis.strip() and nonempty:
                rows.append(row)
                candidates.append(hypothesis)
                nonempty_references.append(nonempty)
        statistics = np.tile([0.0, 1.0], (len(hypotheses), 1))
        if rows:
            options = {"model_type": self.model, "num_layers": self.layers, "verbose": len(rows) > MIN_PAIRS_FOR_BAR}
            _, _, f1 = self.bert_score.score(candidates, nonempty_references, **options)
            statistics[rows, 0] = f1.numpy()
        return statistics

    def get_signature(self) -> Signature:
        signature = super().get_signature()
        model = self.bert_score.utils.get_hash(Path(self.model).name, self.layers, False, False, False, False)
        signature.info = {"model": model, "version": self.bert_score.__version__}
        return signature


class ExactMatch(SentenceMean):
    """The share of predictions, in percent, that equal one of their references word for word."""

    name = "exact match"

    def _extract_corpus_statistics(self, hypotheses: list[str], references: list[Any]) -> np.ndarray:
        """(N, 2): whether the words are equal, and 1."""
        statistics = np.ones((len(hypotheses), 2))
        for row, (hypothesis, *texts) in enumerate(zip(hypotheses, *references, strict=True)):
            statistics[row, 0] = hypothesis.split() in [text.split() for text in texts if text is not None]
        return statistics


class TokenAccuracy(SentenceMean):
    """The share of reference words, in percent, that the prediction has at the same place, counted from the start.

    Of several references the first counts. Whitespace separates words. Predicted words beyond the reference are not
    counted. An empty reference counts as one word, which an empty prediction has.
    """

    name = "token accuracy"

    def _extract_corpus_statistics(self, hypotheses: list[str], references: list[Any]) -> np.ndarray:
        """(N, 2): the words that are equal, and those of the reference."""
        statistics = np.ones((len(hypotheses), 2))
        first = references[0] if hypotheses else []
        for row, (hypothesis, reference) in enumerate(zip(hypotheses, first, strict=True)):
            predicted, words = hypothesis.split(), reference.split()
            equal = sum(word == other for word, other in zip(predicted, words, strict=False))
            statistics[row] = (equal, len(words)) if words else (not predicted, 1)
        return statistics


class Perplexity(SentenceMean):
    """exp of the mean negative log-likelihood in nats per token. It reads no texts: a language model computes its
    statistics (N, 2), the nats and the tokens of each window."""

    name = "perplexity"

    def _compute_score_from_stats(self, stats: np.ndarray) -> Score:
        return Score(self.name, math.exp(min(float(stats[0] / stats[1]), MAX_NATS)))


SCORERS: dict[str, Callable[..., CorpusScorer]] = {
    "bleu": BLEU,
    "ter": partial(TER, case_sensitive=True),
    "chrf": CHRF,
    "bertscore": BertScore,
    "exact_match": ExactMatch,
    "token_accuracy": TokenAccuracy,
}
GREATER_IS_BETTER = dict.fromkeys(SCORERS, True) | {"ter": False}
# Scorers of statistics that are already extracted, which need no model.
PRECOMPUTED_SCORERS: dict[str, Callable[[], CorpusScorer]] = {
    **SCORERS,
    "bertscore": SentenceMean,
    "perplexity": Perplexity,
}


def sentence_statistics(
    scorers: Mapping[str, CorpusScorer],
    predictions: list[str],
    references: list[list[str]],
    num_proc: int = 1,
    progress: Callable[[int], object] | None = None,
) -> dict[str, np.ndarray]:
    """Each scorer's statistics (N, columns), of each prediction against all of its references.

    `progress`, if given, is called with the number of pairs that were read since its last call, and replaces the bar.
    """
    statistics_by_name, sacrebleu_scorers = {}, {}
    for name, scorer in scorers.items():
        if isinstance(scorer, SentenceMean):  # BERTScore has batches of its own, and the others are fast
            statistics_by_name[name] = scorer._extract_corpus_statistics(predictions, reference_streams(references))
        elif isinstance(scorer, Metric):
            sacrebleu_scorers[name] = scorer
    starts = range(0, len(predictions), PAIRS_PER_CHUNK)
    chunks = [
        (sacrebleu_scorers, predictions[start : start + PAIRS_PER_CHUNK], references[start : start + PAIRS_PER_CHUNK])
        for start in starts
    ]
    no_bar = progress is not None or len(predictions) < MIN_PAIRS_FOR_BAR
    progress_bar = tqdm(total=len(predictions), desc="scoring", unit="pair", leave=False, disable=no_bar)
    update = progress or progress_bar.update
    with progress_bar, process_map(min(num_proc, len(chunks))) as map_chunks:
        rows: dict[str, list[list[float]]] = {name: [] for name in sacrebleu_scorers}
        for statistics, (_, texts, _) in zip(map_chunks(chunk_statistics, chunks), chunks, strict=True):
            for name, chunk_rows in statistics.items():
                rows[name].extend(chunk_rows)
            update(len(texts))
    reference_counts = {len(texts) for texts in references}
    for scorer in sacrebleu_scorers.values():  # for the signature; reading a chunk has set the number of that chunk
        scorer.num_refs = max(reference_counts) if len(reference_counts) == 1 else -1
    return statistics_by_name | {name: np.array(chunk_rows) for name, chunk_rows in rows.items()}


@contextmanager
def process_map(num_processes: int) -> Iterator[Callable[..., Iterator[dict[str, list[list[float]]]]]]:
    """`map`, or for 2 or more processes the `map` of a process pool; results are in order."""
    if num_processes < 2:
        yield map
        return
    try:  # These files also travel without their package.
        from hf_posenc.utils.worker_processes import worker_pool
    except ImportError:
        raise ValueError(
            f"num_proc={num_processes} processes need the package hf-posenc; pip install hf-posenc, or leave num_proc "
            "at 1"
        ) from None
    remedy = (
        "take a smaller num_proc; if a process imported the script again, put what that does under `if __name__ == "
        "'__main__':`, or leave num_proc at 1"
    )
    with worker_pool(num_processes, remedy) as pool:
        yield pool.map


def chunk_statistics(chunk: tuple[dict[str, Metric], list[str], list[list[str]]]) -> dict[str, list[list[float]]]:
    """Each scorer's statistics of one chunk of pairs."""
    scorers, predictions, references = chunk
    streams = reference_streams(references)
    return {name: list(scorer._extract_corpus_statistics(predictions, streams)) for name, scorer in scorers.items()}


def reference_streams(references: list[list[str]]) -> list[tuple[str, ...]]:
    """sacrebleu's form of references: one stream for each reference number, None where a sentence has fewer."""
    return list(zip_longest(*references))


def score_fields(name: str, scorer: CorpusScorer, statistics: np.ndarray, bootstrap: int) -> dict[str, float | None]:
    """One metric's fields of a length bucket; all None for a bucket without pairs.

    The confidence interval is `mean` plus or minus `ci`; sacrebleu estimates both.
    """
    score = corpus_score(scorer, statistics) if len(statistics) else None
    fields = {name: float(score.score) if score else None}
    if bootstrap:
        mean, ci = None, None
        if score is not None and len(statistics) > 1:
            samples = corpus_scores(scorer, bootstrap_sums(statistics, bootstrap))
            score.estimate_ci([Score(name, sample) for sample in samples])
            mean, ci = float(score._mean), float(score._ci)
        fields |= {f"{name}_mean": mean, f"{name}_ci": ci}
    if name == "bleu":
        bleu = score if isinstance(score, BLEUScore) else None
        fields["brevity_penalty"] = float(bleu.bp) if bleu else None
        fields["length_ratio"] = float(bleu.sys_len / bleu.ref_len) if bleu and bleu.ref_len else None
    return fields


def sacrebleu_seed() -> int | None:
    """The seed of all bootstrap samples; None for a new one in each call."""
    seed = os.environ.get("SACREBLEU_SEED", "12345").lower()
    return None if seed == "none" else int(seed)


def bootstrap_sums(statistics: np.ndarray, samples: int) -> np.ndarray:
    """The sums of bootstrap samples (samples, columns), with sacrebleu's random numbers and float32 sums.

    One sample at a time: sacrebleu's array of all samples of 100,000 pairs takes gigabytes.
    """
    rows, rng = np.asarray(statistics, dtype=np.float32), np.random.default_rng(sacrebleu_seed())
    return np.stack([rows[rng.choice(len(rows), size=len(rows))].sum(0) for _ in range(samples)])


def corpus_score(scorer: CorpusScorer, statistics: np.ndarray) -> Any:
    """The corpus score of these pairs, an object of sacrebleu with `score`."""
    return scorer._compute_score_from_stats(statistics.sum(0))


def corpus_scores(scorer: CorpusScorer, totals: np.ndarray) -> np.ndarray:
    """The score of each row of summed statistics, as one array.

    One type, because `statistics.mean` refuses mixed ones: without matches sacrebleu's chrF and TER are Python numbers,
    else numpy's.
    """
    return np.array([scorer._compute_score_from_stats(total).score for total in totals])


# Inputs of the metric.

EDGES = (25, 50, 75, 100)
METRICS = ("bleu", "ter")
SIDES = ("source", "reference", "prediction")
TOKENIZERS = ("13a", "intl", "char", "zh", "none")  # sacrebleu's without further packages; its default first
NO_LENGTH = -1  # in the column source_lengths, for pairs without a length


class TextTokenizer(Protocol):
    """The part of transformers' tokenizers that counts tokens."""

    def __call__(
        self, text: list[str] | None = None, *, text_target: list[str] | None = None, add_special_tokens: bool
    ) -> Mapping[str, list[list[int]]]: ...


# The argument `tokenizer`: one of transformers' tokenizers, its name or its folder.
TokenizerOrName = TextTokenizer | str | PathLike[str] | None


def require(condition: object, message: str) -> None:
    """Raise a ValueError with the message unless the condition holds."""
    if not condition:
        raise ValueError(message)


def validate_edges(edges: object) -> tuple[int, ...]:
    """The bucket edges; a ValueError unless they are ascending positive integers."""
    edges = tuple(edges) if isinstance(edges, Iterable) else (edges,)
    is_positive = edges and all(type(edge) is int and edge > 0 for edge in edges)
    require(is_positive, f"edges must be positive whole numbers, at least one; edges={edges}; write e.g. {EDGES}")
    ascends = all(low < high for low, high in pairwise(edges))
    require(ascends, f"edges must ascend; edges={edges}; sort them and write each once")
    return edges


class BucketBounds(TypedDict):
    """The lengths of a bucket, inclusive, None without an upper bound, and its label."""

    low: int
    high: int | None
    label: str


def bucket_bounds(edges: Sequence[int]) -> list[BucketBounds]:
    """`low`, `high` and `label` of each length bucket, shortest first; the last has no upper edge, `high` is None."""
    bounds: list[BucketBounds] = []
    low = 0
    for high in edges:
        bounds.append({"low": low, "high": high, "label": f"[{low},{high}]"})
        low = high + 1
    return [*bounds, {"low": low, "high": None, "label": f">{edges[-1]}"}]


def validate_metrics(metrics: object) -> tuple[str, ...]:
    """The metrics' names; a ValueError for an unknown one or none."""
    names = tuple(metrics) if isinstance(metrics, Iterable) and not isinstance(metrics, str) else (metrics,)
    require(names, f"metrics must name at least one metric; metrics={metrics!r}; choose from {', '.join(SCORERS)}")
    return tuple(validate_choice("metrics", name, tuple(SCORERS)) for name in names)


def validate_choice(option: str, choice: object, choices: tuple[str, ...]) -> str:
    """The choice; a ValueError with the nearest one unless it is in `choices`."""
    nearest = difflib.get_close_matches(str(choice).lower(), choices, n=1)
    remedy = f"did you mean {nearest[0]!r}?" if nearest else f"choose from {', '.join(choices)}"
    require(choice in choices, f"{option} must be names of this metric; {choice!r} is not one; {remedy}")
    return str(choice)


def validate_number(option: str, number: object, minimum: int) -> int:
    """The number; a ValueError unless it is an integer from `minimum` on."""
    if type(number) is not int or number < minimum:
        raise ValueError(f"{option} must be a whole number from {minimum} on; {option}={number!r}; change or omit it")
    return number


def validate_pairs(
    predictions: object, references: object, source_lengths: object, sources: object, tokenizer: TokenizerOrName
) -> dict[str, list[str] | list[list[str]] | list[int]]:
    """The columns in `evaluate`'s form: each prediction with its list of references and its source length or NO_LENGTH.

    Raises a ValueError for a missing column, columns of different lengths, and invalid texts or lengths.
    """
    require(
        source_lengths is None or sources is None,
        "source_lengths and sources must not both be given, one is counted from the other; drop one",
    )
    passed = {"source_lengths": source_lengths, "sources": sources}
    passed = {"predictions": predictions, "references": references} | {
        name: column for name, column in passed.items() if column is not None
    }
    columns = {name: validate_column(name, column) for name, column in passed.items()}
    counts = {name: len(column) for name, column in columns.items()}
    require(
        len(set(counts.values())) == 1,
        f"{', '.join(counts)} must have one entry per pair each; there are "
        f"{', '.join(f'{count} {name}' for name, count in counts.items())}; "
        "several references belong to their prediction, [[first, second], ...], not in one list per translator",
    )
    if sources is not None:
        texts = [validate_text("sources", row, text) for row, text in enumerate(columns["sources"])]
        lengths = token_counts("sources", texts, tokenizer)
    elif source_lengths is not None:
        lengths = [validate_length(row, length) for row, length in enumerate(columns["source_lengths"])]
    else:
        lengths = [NO_LENGTH] * len(columns["predictions"])
    return {
        "predictions": [validate_text("predictions", row, text) for row, text in enumerate(columns["predictions"])],
        "references": [validate_references(row, texts) for row, texts in enumerate(columns["references"])],
        "source_lengths": lengths,
    }


def token_counts(column: str, texts: list[str], tokenizer: TokenizerOrName) -> list[int]:
    """The number of tokens of each text, without special tokens; texts other than sources are targets."""
    if tokenizer is None:
        raise ValueError(f"the length of {column} is counted by a tokenizer, but none is given; pass tokenizer=...")
    tokenizer = load_tokenizer(tokenizer) if isinstance(tokenizer, str | PathLike) else tokenizer
    if not texts:
        return []
    side = "text" if column == "sources" else "text_target"
    return [len(ids) for ids in tokenizer(**{side: texts}, add_special_tokens=False)["input_ids"]]


def load_tokenizer(name: str | PathLike[str]) -> TextTokenizer:
    """The tokenizer of that name or folder, by an installed class; no code from the folder runs."""
    from transformers import AutoTokenizer

    with suppress(ImportError):  # This file also travels without its package, which registers the class of its models.
        import_module("hf_posenc")
    try:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except (OSError, ImportError):
        raise
    except Exception as error:  # of any type: tokenizers raises Exception itself for a file that it cannot read
        reason = " ".join(str(error).split()).partition(". ")[0]
        raise ValueError(
            f"tokenizer must be one whose class is installed, but {str(name)!r} cannot be loaded "
            f"({reason}); install the package that it is of (hf-posenc for those of its models), or load it yourself "
            "and pass the tokenizer in place of its name"
        ) from error


def validate_column(name: str, column: object) -> list[object]:
    """The column as a list; a ValueError for a string or no iterable."""
    if isinstance(column, str) or not isinstance(column, Iterable):
        kind = "missing" if column is None else f"of type {type(column).__name__}"
        raise ValueError(f"{name} must be a list, one entry per pair; it is {kind}; pass {name}=[...]")
    return list(column)


def validate_text(name: str, row: int, text: object) -> str:
    """The text of one row; a ValueError unless it is a string in UTF-8."""
    if not isinstance(text, str):
        raise ValueError(
            f"{name} must be strings; {name}[{row}] is of type {type(text).__name__}: {text!r:.60}; "
            "pass detokenised text, and references as a string or a flat list of strings per prediction"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} must be UTF-8; {name}[{row}] has half a character, {text[error.start]!a}, at index "
            f"{error.start}: {text[:40]!a}; take it out, such as by text.encode(errors='ignore').decode()"
        ) from None
    return text


def validate_references(row: int, texts: object) -> list[str]:
    """The references of one row as a list; a ValueError for none."""
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        return [validate_text("references", row, texts)]
    texts = [validate_text("references", row, text) for text in texts]
    if not texts:
        raise ValueError(f"each prediction must have a reference; references[{row}] is empty; drop the pair or add one")
    return texts


def validate_length(row: int, length: object) -> int:
    """The length of one row; a ValueError unless it is an integer from 0 on."""
    try:
        number = operator.index(length)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if number < 0:
        raise ValueError(
            f"source_lengths must be whole numbers from 0 on; source_lengths[{row}] is {length!r:.60}; "
            "pass the number of source tokens without special tokens"
        )
    return number
