"""Sentence statistics and corpus scores: sacrebleu's BLEU, TER and chrF, BERTScore, exact match and token accuracy.

Statistics are additive. Corpus scores, bootstrap samples and paired tests are computed from sums of the same rows, and
each pair is read once. Everything is cased; sacrebleu's TER is not by default, ours is.
"""

import math
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import partial
from itertools import zip_longest
from multiprocessing import active_children, get_context, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any, Protocol

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

    def __init__(self, model: str | None = None, layers: int | None = None) -> None:
        if model is None:
            raise ValueError("BERTScore needs a model; pass bertscore_model=..., a name on the Hub or a folder")
        try:
            import bert_score
        except ImportError:
            raise ValueError("BERTScore needs the package bert-score; pip install 'hf-posenc[bertscore]'") from None
        if layers is None and model not in bert_score.utils.model2layers:
            raise ValueError(
                f"bert_score has no default layer for {model}; pass bertscore_layers=..., the number of a layer"
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
    # Spawn, because a forked process inherits torch's locks in the state of its threads and may wait for ever.
    context = get_context("spawn")
    reader, writer = context.Pipe(duplex=False)
    others = set(active_children())
    pool = ProcessPoolExecutor(num_processes, mp_context=context, initializer=exit_when_pipe_closes, initargs=(reader,))
    try:
        # All processes are started now, without Ctrl-C, which reaches all of a terminal; this one ends them.
        resource_tracker.ensure_running()  # its start, by the first process, would unblock signals
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        for _ in range(num_processes):
            pool.submit(os.getpid)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield pool.map
        pool.shutdown()
    except BrokenProcessPool:
        raise ValueError(
            f"num_proc={num_processes} processes must stay alive until all pairs are read, but one ended; if it was "
            "killed, likely because memory ran out, take fewer; if it imported the script again, put what that does "
            "under `if __name__ == '__main__':`, or leave num_proc at 1"
        ) from None
    finally:
        writer.close()
        for process in set(active_children()) - others:  # after an error; one may still import its modules
            process.terminate()
        pool.shutdown(cancel_futures=True)
        reader.close()


def exit_when_pipe_closes(reader: Connection) -> None:
    """Initializer of a pool's process: end it when the parent process closes its end of the pipe, or ends.

    Only the parent process handles Ctrl-C.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        with suppress(EOFError, OSError):
            reader.recv_bytes()
        os._exit(1)

    Thread(target=watch, daemon=True).start()


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
