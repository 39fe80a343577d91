"""What must hold between the values of a config file, each of which is of its kind already (schema.py)."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ..data import check_description
from ..data.tags import check_tagged
from ..metrics.length_buckets.scorers import SCORERS, BertScore
from ..modeling.nearest import refuse_unknown
from ..modeling.tokenization_posenc import check_tags
from ..names import validate_folder_name, validate_name, validate_test_set_names
from .schema import check_fields
from .settings import DataSettings, Paper, ScoreSettings, System


def refuse_same_names(names: Iterable[str], what: str) -> None:
    """A ValueError for a name that came about twice, such as that of a seed."""
    for name, number in Counter(names).items():
        if number > 1:
            raise ValueError(f"There are two {what} of the name {name!r}; name one of them otherwise.")


def check_name(name: str) -> None:
    validate_folder_name(name, "A system's name")


def check_test_sets(name: str, joined: list[str]) -> None:
    """Refuse names that two test sets have, or that no file can have or another table has."""
    refuse_same_names(joined, "test sets")
    validate_test_set_names(joined, f"systems.{name}")


def checked_data(name: str, given: Mapping[str, Any], shared_embeddings: bool) -> DataSettings:
    """The `data` section of a system, none of it missing, and nothing in it against the rest."""
    where = f"systems.{name}: data"
    check_fields(given, DataSettings, where)
    for key in ("source_language", "target_language"):
        validate_name(given[key], f"{where}.{key}")
    data = DataSettings(**given)
    try:
        check_tags(data.tags)
    except ValueError as error:
        raise ValueError(f"{where}.tags: {error}") from None
    described = {"train": data.train, **{f"test.{test}": corpus for test, corpus in data.test.items()}}
    for key, corpus in (described | ({"validation": data.validation} if data.validation else {})).items():
        check_description(corpus, f"{where}.{key}")
        check_tagged(corpus, f"{where}.{key}", data.tags, is_test=key.startswith("test."))
    if data.min_length and data.max_length and data.min_length > data.max_length:
        raise ValueError(
            f"systems.{name}: no pair can be at least min_length={data.min_length} and at most max_length="
            f"{data.max_length} subwords long; make min_length the smaller one."
        )
    if data.concatenate != [1] and "join" in data.train:
        raise ValueError(
            f"systems.{name}: data.concatenate={data.concatenate} joins training pairs, but data.train joins "
            f"{data.train['join']} already; leave one of them out."
        )
    refuse_unknown(data.allow_shared_pairs, (*data.test, "validation"), f"{where}.allow_shared_pairs")
    if not (data.joint_vocabulary or data.tokenizer) and shared_embeddings:
        raise ValueError(
            f"systems.{name}: two vocabularies have no embeddings in common; set data.joint_vocabulary=true or "
            "model.share_encoder_decoder_embeddings=false."
        )
    return data


def check_score(name: str, score: ScoreSettings) -> None:
    """Refuse before training a metric whose package or model is not there."""
    if "bertscore" in score.metrics:
        try:
            BertScore(score.bertscore_place, score.bertscore_layers)
        except ValueError as error:
            raise ValueError(f"systems.{name}: score: {error}") from None


def checked_paper(given: Mapping[str, Any], system: System, rows: list[str]) -> Paper:
    """The published table beside which ours is put: of a test set, rows and groups that there are."""
    check_fields(given, Paper, "paper")
    paper = Paper(**given)
    refuse_unknown([paper.test], system.test_sets, "paper.test")
    refuse_unknown(paper.rows, rows, "paper.rows")
    (first, metrics), *others = paper.rows.items()
    for row, found in others:
        if found.keys() != metrics.keys():
            raise ValueError(
                f"All rows of a published table have the same metrics, but paper.rows.{row} has {', '.join(found)} and "
                f"paper.rows.{first} has {', '.join(metrics)}; add what is missing, or leave it out of all."
            )
    groups = len(system.score.edges) + 1
    by_group = isinstance(next(iter(metrics.values())), list)
    columns, what = (groups, f"each of the {groups} groups of score.edges") if by_group else (1, "all pairs")
    for row, found in paper.rows.items():
        refuse_unknown(found, SCORERS, f"paper.rows.{row}")
        for metric, of in found.items():
            numbers = of if isinstance(of, list) else [of]
            if len(numbers) != columns:
                raise ValueError(
                    f"paper.rows.{row}.{metric} must have a number, or null, for {what}, as the first metric of the "
                    f"first row has, but it is {numbers}; write one for each."
                )
    if paper.n is not None and len(paper.n) != columns:
        raise ValueError(
            f"paper.n must be a list with the number of pairs of {what}, but it is {paper.n}; write one for each."
        )
    return paper
