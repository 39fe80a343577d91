"""Translation quality by source length: sacrebleu's corpus BLEU, TER and chrF of each length group.

A group's score is the corpus score of its pairs, never a mean of sentence scores. Everything is cased; sacrebleu's TER
is not by default, ours is (`case_sensitive=True`); every other setting is sacrebleu's default, and the signatures in
the result say so. Groups are those of Rosendahl et al., "Analysis of Positional Encodings for Neural Machine
Translation", IWSLT 2019 (https://aclanthology.org/2019.iwslt-1.20), unless `edges` says otherwise.
"""

# `evaluate` finds this file's requirements by a regular expression: one module a line, and nothing of our own.
import difflib
import operator
from bisect import bisect_left
from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise, zip_longest

import datasets
import evaluate
from sacrebleu.metrics.base import Metric as Scorer
from sacrebleu.metrics.base import Score
from sacrebleu.metrics.bleu import BLEU, BLEUScore
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

EDGES = (25, 50, 75, 100)
METRICS = ("bleu", "ter")
SCORERS: dict[str, Callable[[], Scorer]] = {"bleu": BLEU, "ter": partial(TER, case_sensitive=True), "chrf": CHRF}

DESCRIPTION = """\
Scores translations by the length of their source: sacrebleu's cased corpus BLEU, TER and chrF of each length group and
of all pairs together.
"""

INPUTS_DESCRIPTION = """
Inputs of length_buckets:
    predictions: list of str, detokenised translations.
    references: list of str, or list of lists of str: one or several references of each prediction.
    source_lengths: list of int, the source tokens of each pair (subwords without special tokens).
    edges: the upper edges of the groups, inclusive; (25, 50, 75, 100) gives [0,25] [26,50] [51,75] [76,100] >100.
    metrics: any of "bleu", "ter", "chrf".

Returns a dict: "all" (the scores of all pairs), "groups" (one dict per group, shortest first), "signatures"
(sacrebleu's). The scores of a group without pairs are None.
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

    def add(self, *, prediction: object = None, reference: object = None, **columns: object) -> None:
        """Adds one pair; its source length is passed as `source_lengths=17`."""
        example = {"predictions": prediction, "references": reference, **columns}
        self.add_batch(**{name: [value] for name, value in example.items()})

    def add_batch(
        self, *, predictions: object = None, references: object = None, source_lengths: object = None
    ) -> None:
        """Adds some pairs."""
        # `evaluate` looks at the first row only and turns whatever it finds in the others into strings.
        super().add_batch(**checked_pairs(predictions, references, source_lengths))

    def compute(
        self,
        *,
        predictions: object = None,
        references: object = None,
        source_lengths: object = None,
        edges: Iterable[int] = EDGES,
        metrics: Iterable[str] = METRICS,
    ) -> dict[str, object] | None:
        """Scores these pairs and all that were added before; None on every process but the first."""
        result: dict[str, object] | None = super().compute(
            predictions=predictions,
            references=references,
            source_lengths=source_lengths,
            edges=checked_edges(edges),
            metrics=checked_metrics(metrics),
        )
        return result

    def _compute(
        self,
        predictions: list[str],
        references: list[list[str]],
        source_lengths: list[int],
        edges: tuple[int, ...],
        metrics: tuple[str, ...],
    ) -> dict[str, object]:
        scorers = {name: SCORERS[name]() for name in metrics}
        # sacrebleu wants one stream per reference number, with None where a sentence has fewer. Its statistics are
        # additive, so each pair is read once although it counts twice (in its group and in "all"): TER is slow.
        streams = list(zip_longest(*references))
        statistics = {
            name: scorer._extract_corpus_statistics(predictions, streams) if streams else []
            for name, scorer in scorers.items()
        }

        def scored(rows: list[int]) -> dict[str, object]:
            fields: dict[str, object] = {"n": len(rows)}
            for name, scorer in scorers.items():
                score = scorer._aggregate_and_compute([statistics[name][row] for row in rows]) if rows else None
                fields.update(score_fields(name, score))
            return fields

        group_of = [bisect_left(edges, length) for length in source_lengths]
        groups: list[dict[str, object]] = []
        for group, (low, high) in enumerate(zip((0, *(edge + 1 for edge in edges)), (*edges, None), strict=True)):
            label = f">{low - 1}" if high is None else f"[{low},{high}]"
            rows = [row for row, its_group in enumerate(group_of) if its_group == group]
            groups.append({"low": low, "high": high, "label": label, **scored(rows)})
        return {
            "all": {"low": 0, "high": None, "label": "all", **scored(list(range(len(predictions))))},
            "groups": groups,
            "signatures": {name: str(scorer.get_signature()) if streams else None for name, scorer in scorers.items()},
        }


def score_fields(name: str, score: Score | None) -> dict[str, float | None]:
    """What one metric contributes to a group; all None where the group has no pairs."""
    fields = {name: score.score if score else None}
    if name == "bleu":
        bleu = score if isinstance(score, BLEUScore) else None
        fields["brevity_penalty"] = bleu.bp if bleu else None
        fields["length_ratio"] = bleu.sys_len / bleu.ref_len if bleu and bleu.ref_len else None
    return fields


def checked_edges(edges: Iterable[int]) -> tuple[int, ...]:
    edges = tuple(edges) if isinstance(edges, Iterable) else (edges,)
    if not edges or not all(type(edge) is int and edge > 0 for edge in edges):
        raise ValueError(f"edges must be positive whole numbers, at least one; edges={edges}; write e.g. {EDGES}")
    if any(low >= high for low, high in pairwise(edges)):
        raise ValueError(f"edges must ascend; edges={edges}; sort them and write each once")
    return edges


def checked_metrics(metrics: Iterable[str]) -> tuple[str, ...]:
    known = ", ".join(SCORERS)
    names = tuple(metrics) if isinstance(metrics, Iterable) and not isinstance(metrics, str) else (metrics,)
    if not names:
        raise ValueError(f"metrics must name at least one metric; metrics={metrics!r}; choose from {known}")
    for name in names:
        if name not in SCORERS:
            nearest = difflib.get_close_matches(str(name).lower(), SCORERS, n=1)
            remedy = f"did you mean {nearest[0]!r}?" if nearest else f"choose from {known}"
            raise ValueError(f"metrics must be names this metric knows; {name!r} is not one; {remedy}")
    return names


def checked_pairs(
    predictions: object, references: object, source_lengths: object
) -> dict[str, list[str] | list[list[str]] | list[int]]:
    """The three columns as `evaluate` stores them: every prediction with the list of its references."""
    given = {"predictions": predictions, "references": references, "source_lengths": source_lengths}
    columns = {name: checked_column(name, column) for name, column in given.items()}
    numbers = {name: len(column) for name, column in columns.items()}
    if len(set(numbers.values())) > 1:
        found = ", ".join(f"{number} {name}" for name, number in numbers.items())
        raise ValueError(
            f"predictions, references and source_lengths must have one entry per pair each; there are {found}; "
            "several references belong to their prediction, [[first, second], ...], not in one list per translator"
        )
    return {
        "predictions": [checked_text("predictions", row, text) for row, text in enumerate(columns["predictions"])],
        "references": [checked_references(row, texts) for row, texts in enumerate(columns["references"])],
        "source_lengths": [checked_length(row, length) for row, length in enumerate(columns["source_lengths"])],
    }


def checked_column(name: str, column: object) -> list[object]:
    if isinstance(column, str) or not isinstance(column, Iterable):
        kind = "missing" if column is None else f"of type {type(column).__name__}"
        raise ValueError(f"{name} must be a list, one entry per pair; it is {kind}; pass {name}=[...]")
    return list(column)


def checked_text(name: str, row: int, text: object) -> str:
    if not isinstance(text, str):
        raise ValueError(
            f"{name} must be strings; {name}[{row}] is of type {type(text).__name__}: {text!r:.60}; "
            "pass detokenised text, and references as a string or a flat list of strings per prediction"
        )
    return text


def checked_references(row: int, texts: object) -> list[str]:
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        return [checked_text("references", row, texts)]
    texts = [checked_text("references", row, text) for text in texts]
    if not texts:
        raise ValueError(f"each prediction must have a reference; references[{row}] is empty; drop the pair or add one")
    return texts


def checked_length(row: int, length: object) -> int:
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
