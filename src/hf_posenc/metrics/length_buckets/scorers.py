"""Sentence statistics and what a corpus score is made of: sacrebleu's for BLEU, TER and chrF, and BERTScore's.

Statistics add up: a corpus score, a bootstrap sample and a paired test are all made from sums of the same rows, so that
each pair is read once. Everything is cased; sacrebleu's TER is not by default, ours is.
"""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import partial
from itertools import zip_longest
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
from sacrebleu.metrics.base import Metric as Scorer
from sacrebleu.metrics.base import Score, Signature
from sacrebleu.metrics.bleu import BLEU, BLEUScore
from sacrebleu.metrics.chrf import CHRF
from tqdm.auto import tqdm

from .ter import TER

PAIRS_PER_CHUNK = 16  # of a share of the work, after each of which a bar moves
MIN_PAIRS_FOR_BAR = 5_000  # pairs that take long enough to deserve a progress bar


class SentenceMean:
    """The mean of sentence scores in hundredths, with the interface of sacrebleu's scorers; of statistics (N, 2): the
    score of each sentence, and 1."""

    name = "mean"

    def _aggregate_and_compute(self, statistics: Any) -> Score:
        return self._compute_score_from_stats(np.sum(statistics, axis=0))

    def _compute_score_from_stats(self, total: Any) -> Score:
        return Score(self.name, 100 * float(total[0] / total[1]))

    def get_signature(self) -> Signature:
        return Signature({"num_refs": None})


class BertScore(SentenceMean):
    """BERTScore's F1 (Zhang et al., "BERTScore: Evaluating Text Generation with BERT", ICLR 2020,
    https://arxiv.org/abs/1904.09675).

    `model`: a name on the Hub or a folder; `layers`: whose output is compared, bert_score's own choice for a model it
    knows. A corpus score is the mean over sentences; one with nothing in it has 0.
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
                f"bert_score knows no best layer of {model}; pass bertscore_layers=..., the number of the layer to use"
            )
        self.bert_score, self.model, self.layers = bert_score, model, layers or bert_score.utils.model2layers[model]

    def _extract_corpus_statistics(self, hypotheses: list[str], references: list[list[str]]) -> np.ndarray:
        """(N, 2): the F1 of each sentence, the best of its references', and 1."""
        rows = [row for row, text in enumerate(hypotheses) if text.strip()]
        nonempty = [[text for text in texts if text and text.strip()] for texts in zip(*references, strict=True)]
        rows = [row for row in rows if nonempty[row]]
        statistics = np.tile([0.0, 1.0], (len(hypotheses), 1))
        if rows:
            texts = [hypotheses[row] for row in rows], [nonempty[row] for row in rows]
            options = {"model_type": self.model, "num_layers": self.layers, "verbose": len(rows) > MIN_PAIRS_FOR_BAR}
            _, _, f1 = self.bert_score.score(*texts, **options)
            statistics[rows, 0] = f1.numpy()
        return statistics

    def get_signature(self) -> Signature:
        signature = super().get_signature()
        model = self.bert_score.utils.get_hash(Path(self.model).name, self.layers, False, False, False, False)
        signature.info = {"model": model, "version": self.bert_score.__version__}
        return signature


SCORERS: dict[str, Callable[..., Any]] = {
    "bleu": BLEU,
    "ter": partial(TER, case_sensitive=True),
    "chrf": CHRF,
    "bertscore": BertScore,
}
GREATER_IS_BETTER = {"bleu": True, "ter": False, "chrf": True, "bertscore": True}
# What makes a score of statistics that have been taken already, which needs no model.
PRECOMPUTED_SCORERS: dict[str, Callable[[], Any]] = {**SCORERS, "bertscore": SentenceMean}


def sentence_statistics(
    scorers: dict[str, Any],
    predictions: list[str],
    references: list[list[str]],
    num_proc: int = 1,
    progress: Callable[[int], object] | None = None,
) -> dict[str, np.ndarray]:
    """(N, what the scorer counts) for each scorer, of each prediction against all of its references; `progress` is
    told how many have been read, in place of a bar here."""
    statistics_by_name = {}
    sacrebleu_scorers = {name: scorer for name, scorer in scorers.items() if not isinstance(scorer, BertScore)}
    for name in scorers.keys() - sacrebleu_scorers.keys():  # it has batches of its own
        statistics_by_name[name] = scorers[name]._extract_corpus_statistics(predictions, reference_streams(references))
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
    for (
        scorer
    ) in sacrebleu_scorers.values():  # for the signature, as sacrebleu has it; reading a share sets that of the share
        scorer.num_refs = max(reference_counts) if len(reference_counts) == 1 else -1
    return statistics_by_name | {name: np.array(chunk_rows) for name, chunk_rows in rows.items()}


@contextmanager
def process_map(num_processes: int) -> Iterator[Callable[..., Iterator[Any]]]:
    """`map`, or the same by so many processes, in order."""
    if num_processes < 2:
        yield map
        return
    # A forked process has torch's locks as its threads held them, and may wait for them for ever.
    context = get_context("spawn")
    reader, writer = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(num_processes, mp_context=context, initializer=exit_when_pipe_closes, initargs=(reader,))
    try:
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
        pool.shutdown(cancel_futures=True)
        reader.close()


def exit_when_pipe_closes(reader: Connection) -> None:
    """End this process when the other end of the pipe is closed, which the process that started this one holds: it
    closes it, or ends in whatever way. Ctrl-C is left to that one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        with suppress(EOFError, OSError):
            reader.recv_bytes()
        os._exit(1)

    Thread(target=watch, daemon=True).start()


def chunk_statistics(chunk: tuple[dict[str, Scorer], list[str], list[list[str]]]) -> dict[str, list[list[float]]]:
    scorers, predictions, references = chunk
    streams = reference_streams(references)
    return {name: list(scorer._extract_corpus_statistics(predictions, streams)) for name, scorer in scorers.items()}


def reference_streams(references: list[list[str]]) -> list[Any]:
    """One stream per reference number, as sacrebleu wants them, with None where a sentence has fewer."""
    return list(zip_longest(*references))


def score_fields(name: str, scorer: Any, statistics: np.ndarray, bootstrap: int) -> dict[str, float | None]:
    """What one metric contributes to a group; all None where the group has no pairs.

    The confidence interval is `mean` plus or minus `ci`, as sacrebleu estimates both.
    """
    score: Any = corpus_score(scorer, statistics) if len(statistics) else None
    fields = {name: float(score.score) if score else None}
    if bootstrap:
        mean, ci = None, None
        if len(statistics) > 1:
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
    """The seed of all draws; None is another one each time."""
    seed = os.environ.get("SACREBLEU_SEED", "12345").lower()
    return None if seed == "none" else int(seed)


def bootstrap_sums(statistics: np.ndarray, samples: int) -> np.ndarray:
    """The sums (samples, counts) of bootstrap samples: sacrebleu's draws, and its sums in float32.

    One sample at a time: drawn all at once, as sacrebleu does, those of 100,000 pairs take gigabytes.
    """
    rows, rng = np.asarray(statistics, dtype=np.float32), np.random.default_rng(sacrebleu_seed())
    return np.stack([rows[rng.choice(len(rows), size=len(rows))].sum(0) for _ in range(samples)])


def corpus_score(scorer: Any, statistics: np.ndarray) -> Any:
    """The corpus score of these pairs, as sacrebleu's object."""
    return scorer._compute_score_from_stats(statistics.sum(0))


def corpus_scores(scorer: Any, totals: np.ndarray) -> np.ndarray:
    """The score of each sum of statistics, all of one type: without matches sacrebleu's chrF and TER are a number of
    Python's among numpy's, and `statistics.mean` refuses the two together."""
    return np.array([scorer._compute_score_from_stats(total).score for total in totals])
