"""Translation quality by length: sacrebleu's corpus BLEU, TER and chrF, and BERTScore, of each length group.

A group's score is the corpus score of its pairs, never a mean of sentence scores (BERTScore is defined as one).
Everything is cased; sacrebleu's TER is not by default, ours is (`case_sensitive=True`); every other setting is
sacrebleu's default, and the signatures in the result say so. Groups are those of Rosendahl et al., "Analysis of
Positional Encodings for Neural Machine Translation", IWSLT 2019 (https://aclanthology.org/2019.iwslt-1.20), unless
`edges` says otherwise.
"""

# `evaluate` finds this file's requirements by a regular expression: one module a line, and flat imports of our own.
import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterable

import datasets
import evaluate
import numpy as np

from .scorers import (
    EDGES,
    METRICS,
    SCORERS,
    SIDES,
    TOKENIZERS,
    CorpusScorer,
    TokenizerOrName,
    bucket_bounds,
    require,
    sacrebleu_seed,
    score_fields,
    sentence_statistics,
    token_counts,
    validate_choice,
    validate_edges,
    validate_metrics,
    validate_number,
    validate_pairs,
)

# Of the files here `evaluate` copies only those that this one imports.
from .ter import TER as TER

DESCRIPTION = """\
Scores translations by the length of their source: sacrebleu's cased corpus BLEU, TER and chrF, and BERTScore, of each
length group and of all pairs together, with bootstrap confidence intervals.
"""

INPUTS_DESCRIPTION = """
Inputs of length_buckets:
    predictions: list of str, detokenised translations.
    references: list of str, or list of lists of str: one or several references of each prediction.
    source_lengths: list of int, the source tokens of each pair (subwords without special tokens);
    or sources: list of str, whose tokens `tokenizer` counts.
    edges: the upper edges of the groups, inclusive; (25, 50, 75, 100) gives [0,25] [26,50] [51,75] [76,100] >100.
    by: "source", or "reference" or "prediction" to group by the tokens of the first reference or of the translation
        itself, which `tokenizer` counts.
    tokenizer: a tokenizer of transformers, or its name or folder.
    metrics: any of "bleu", "ter", "chrf", "bertscore", "exact_match", "token_accuracy".
    bootstrap: how many samples the 95 % confidence intervals are made from; 0 for none.
    bleu_tokenize: sacrebleu's tokenizer for BLEU, "13a", "intl", "char", "zh" or "none".
    bertscore_model, bertscore_layers: the model of BERTScore, by name or folder, and the layer to compare.
    num_proc: processes that read the pairs.
    progress: is called with a number of pairs whenever so many more have been read; no bar is drawn then.

Returns a dict: "all" (the scores of all pairs), "groups" (one dict per group, shortest first), "signatures"
(sacrebleu's, bert_score's) and "by". The scores of a group without pairs are None. `statistics` of the metric then has
the rows that the scores are sums of, an array (pairs, counts) for each metric, and `lengths` the pairs' lengths.
"""

CITATION = """\
@inproceedings{post-2018-call,
  title = {A Call for Clarity in Reporting {BLEU} Scores},
  author = {Post, Matt},
  booktitle = {Proceedings of the Third Conference on Machine Translation: Research Papers},
  year = {2018},
  url = {https://aclanthology.org/W18-6319}
}
@inproceedings{rosendahl-etal-2019-analysis,
  title = {Analysis of Positional Encodings for Neural Machine Translation},
  author = {Rosendahl, Jan and Tran, Viet Anh Khoa and Wang, Weiyue and Ney, Hermann},
  booktitle = {Proceedings of the 16th International Conference on Spoken Language Translation},
  year = {2019},
  url = {https://aclanthology.org/2019.iwslt-1.20}
}
"""


class LengthBuckets(evaluate.Metric):
    """An `evaluate` metric; `compute` documents its inputs. Nothing is scored before every input has been checked."""

    statistics: dict[str, np.ndarray]
    lengths: list[int]
    has_missing_lengths = False  # whether a pair was added without

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS_DESCRIPTION,
            features=datasets.Features(
                {
                    "predictions": datasets.Value("string"),
                    "references": datasets.Sequence(datasets.Value("string")),
                    "source_lengths": datasets.Value("int64"),
                }
            ),
            codebase_urls=["https://github.com/mjpost/sacrebleu"],
            reference_urls=["https://aclanthology.org/W18-6319", "https://aclanthology.org/2019.iwslt-1.20"],
        )

    def add(
        self,
        *,
        prediction: object = None,
        reference: object = None,
        source_lengths: object = None,
        predictions: object = None,
        references: object = None,
    ) -> None:
        """Add one pair; `source_lengths=17` is its source length in tokens.

        Combined metrics of `evaluate` name the one prediction `predictions` and its reference `references`.
        """
        prediction = predictions if prediction is None else prediction
        reference = references if reference is None else reference
        lengths = None if source_lengths is None else [source_lengths]
        self.add_batch(predictions=[prediction], references=[reference], source_lengths=lengths)

    def add_batch(
        self,
        *,
        predictions: object = None,
        references: object = None,
        source_lengths: object = None,
        sources: object = None,
        tokenizer: TokenizerOrName = None,
    ) -> None:
        """Add pairs with `source_lengths`, or with `sources` and their `tokenizer`."""
        # `evaluate` validates the first row only and converts values in other rows to strings.
        super().add_batch(**validate_pairs(predictions, references, source_lengths, sources, tokenizer))
        self.has_missing_lengths |= source_lengths is None and sources is None

    def compute(
        self,
        *,
        predictions: object = None,
        references: object = None,
        source_lengths: object = None,
        sources: object = None,
        edges: Iterable[int] = EDGES,
        metrics: Iterable[str] = METRICS,
        by: str = "source",
        tokenizer: TokenizerOrName = None,
        bootstrap: int = 0,
        bleu_tokenize: str = TOKENIZERS[0],
        bertscore_model: str | None = None,
        bertscore_layers: int | None = None,
        num_proc: int = 1,
        progress: Callable[[int], object] | None = None,
    ) -> dict[str, object] | None:
        """Score these pairs and all pairs added before; None on every process except the first."""
        side = validate_choice("by", by, SIDES)
        options: dict[str, dict[str, object]] = {
            "bleu": {"tokenize": validate_choice("bleu_tokenize", bleu_tokenize, TOKENIZERS)},
            "bertscore": {"model": bertscore_model, "layers": bertscore_layers},
        }
        options_checked = {
            "edges": validate_edges(edges),
            "scorers": {name: SCORERS[name](**options.get(name, {})) for name in validate_metrics(metrics)},
            "by": side,
            "tokenizer": tokenizer,
            "bootstrap": validate_number("bootstrap", bootstrap, 0),
            "num_proc": validate_number("num_proc", num_proc, 1),
            "progress": progress,
        }
        has_pairs = predictions is not None or references is not None
        has_lengths = source_lengths is not None or sources is not None or not has_pairs
        require(
            side != "source" or (has_lengths and not self.has_missing_lengths),
            "pairs are grouped by source length, but some come without; pass source_lengths=[...], or "
            'sources=[...] with tokenizer=..., with the pairs (of those added before, to add), or by="reference"',
        )
        require(
            side == "source" or tokenizer is not None,
            f"the length of {side}s is counted by a tokenizer, but none is given; pass tokenizer=...",
        )
        if has_pairs:
            self.add_batch(
                predictions=predictions,
                references=references,
                source_lengths=source_lengths,
                sources=sources,
                tokenizer=tokenizer,
            )
        self.has_missing_lengths = False  # `evaluate` drops the pairs, even after an error
        result: dict[str, object] | None = super().compute(**options_checked)
        return result

    def _compute(
        self,
        predictions: list[str],
        references: list[list[str]],
        source_lengths: list[int],
        edges: tuple[int, ...],
        scorers: dict[str, CorpusScorer],
        by: str,
        tokenizer: TokenizerOrName,
        bootstrap: int,
        num_proc: int,
        progress: Callable[[int], object] | None,
    ) -> dict[str, object]:
        texts = {"reference": [texts[0] for texts in references], "prediction": predictions}
        self.lengths = list(source_lengths) if by == "source" else token_counts(f"{by}s", texts[by], tokenizer)
        # Each pair is read once although it counts twice (in its group and in "all"), and in every bootstrap sample.
        self.statistics = sentence_statistics(scorers, predictions, references, num_proc, progress)

        def score_bucket(label: str, rows: np.ndarray) -> dict[str, object]:
            """The scores of the pairs with these indices."""
            fields: dict[str, object] = {"label": label, "n": len(rows)}
            if bootstrap and len(rows) == 1:
                warnings.warn(f"a confidence interval needs two pairs; {label} has one and gets none", stacklevel=2)
            for name, scorer in scorers.items():
                fields |= score_fields(name, scorer, self.statistics[name][rows], bootstrap)
            return fields

        bucket_ids = np.array([bisect_left(edges, length) for length in self.lengths], dtype=int)
        all_pairs = {"low": 0, "high": None} | score_bucket("all", np.arange(len(predictions)))
        buckets = [
            bounds | score_bucket(bounds["label"], np.flatnonzero(bucket_ids == bucket))
            for bucket, bounds in enumerate(bucket_bounds(edges))
        ]
        signatures = {name: signature(scorer, bootstrap) if predictions else None for name, scorer in scorers.items()}
        return {"all": all_pairs, "groups": buckets, "signatures": signatures, "by": by}


def signature(scorer: CorpusScorer, bootstrap: int) -> str:
    """sacrebleu's signature of a scorer, with number and seed of bootstrap samples."""
    text = scorer.get_signature()
    if bootstrap:
        text.update("bs", bootstrap)
        text.update("seed", str(sacrebleu_seed()).lower())
    return str(text)
