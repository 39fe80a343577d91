"""The values of a config file: refused before any compute, with the rule, the value and what to do about it."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, get_args

from ..data import check_description
from ..data.joining import positive
from ..data.tags import check_tagged
from ..metrics.length_buckets.checks import TOKENIZERS, checked_choice, checked_edges, checked_metrics, checked_number
from ..metrics.length_buckets.scorers import SCORERS, BertScore
from ..modeling.nearest import refuse_unknown
from ..modeling.tokenization_posenc import SUBWORDS, check_tags
from ..names import validate_folder_name, validate_name, validate_test_set_names
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
    missing = [key for key in ("source_language", "target_language", "train", "test") if not given.get(key)]
    if missing:
        raise ValueError(f"systems.{name}: data needs {', '.join(missing)}; add what is missing under `data:`.")
    if not isinstance(tests := given["test"], Mapping):
        raise ValueError(
            f"systems.{name}: data.test has the test sets by their names, but it is {tests!r}; write for example "
            "{news: {files: [news.de, news.en]}}."
        )
    for key in ("source_language", "target_language"):
        validate_name(given[key], f"systems.{name}: data.{key}")
    data = DataSettings(**given)
    try:
        check_tags(data.tags)
    except ValueError as error:
        raise ValueError(f"systems.{name}: data.tags: {error}") from None
    described = {"train": data.train, **{f"test.{test}": where for test, where in data.test.items()}}
    for key, where in (described | ({"validation": data.validation} if data.validation else {})).items():
        check_description(where, f"systems.{name}: data.{key}")
        check_tagged(where, f"systems.{name}: data.{key}", data.tags, is_test=key.startswith("test."))
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
    if data.flat_lengths is not None:
        positive(f"systems.{name}: data.flat_lengths", data.flat_lengths)
    if data.subwords not in SUBWORDS:
        raise ValueError(
            f"systems.{name}: data.subwords must be one of {', '.join(SUBWORDS)}, but it is {data.subwords!r}."
        )
    if not (data.joint_vocabulary or data.tokenizer) and shared_embeddings:
        raise ValueError(
            f"systems.{name}: two vocabularies have no embeddings in common; set data.joint_vocabulary=true or "
            "model.share_encoder_decoder_embeddings=false."
        )
    return data


def only(*types: type) -> Callable[[Any], bool]:
    return lambda value: type(value) in types


def only_lists_of(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(type(one) is kind for one in value)


# What a value is called of which a field holds nothing else, and whether it is one.
KINDS: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    bool: ("true or false", only(bool)),
    int: ("a whole number", only(int)),
    float: ("a number", only(int, float)),
    list[int]: ("a list of whole numbers, such as [1, 2]", only_lists_of(int)),
    list[str]: ("a list of names, such as [bleu, ter]", only_lists_of(str)),
}


def refuse_other_kinds(given: Mapping[str, Any], kind: type, where: str) -> None:
    """A ValueError for a value that is not of the one kind that the dataclass `kind` has for it."""
    for field in fields(kind):
        types = {*get_args(field.type)} - {type(None)} if isinstance(field.type, UnionType) else {field.type}
        if field.name not in given or given[field.name] is None or len(types) > 1 or not types <= KINDS.keys():
            continue
        called, is_one = KINDS[types.pop()]
        if not is_one(given[field.name]):
            raise ValueError(f"{where}.{field.name} must be {called}, but it is {given[field.name]!r}.")


def check_score(name: str, score: ScoreSettings) -> None:
    """Refuse before training what could not be scored after it. No table of ours is without intervals."""
    try:
        checked_edges(score.edges)
        metrics = checked_metrics(score.metrics)
        checked_number("bootstrap", score.bootstrap, 100)
        checked_choice("bleu_tokenize", score.bleu_tokenize, TOKENIZERS)
        if score.per_group is not None:
            checked_number("per_group", score.per_group, 2)
        if "bleu" not in metrics:
            raise ValueError(f"metrics must name bleu, which the figures show, but they are {list(metrics)}; add it")
        if "bertscore" in metrics:
            BertScore(score.bertscore_model, score.bertscore_layers)
    except ValueError as error:
        raise ValueError(f"systems.{name}: score: {error}") from None


def checked_paper(given: Mapping[str, Any], system: System, rows: list[str]) -> Paper:
    """The published table beside which ours is put: of a test set, rows and groups that there are."""
    refuse_unknown(given, [f.name for f in fields(Paper)], "paper")
    if missing := [key for key in ("source", "test", "rows") if not given.get(key)]:
        raise ValueError(f"paper needs {', '.join(missing)}; add what is missing under `paper:`.")
    paper = Paper(**given)
    refuse_unknown([paper.test], system.test_sets, "paper.test")
    refuse_unknown(paper.rows, rows, "paper.rows")
    for row, found in paper.rows.items():
        if not found or not isinstance(found, Mapping):
            raise ValueError(
                f"paper.rows.{row} must have scores by their metrics, such as bleu: 31.7, but it is {found!r}."
            )
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
            check_numbers(f"paper.rows.{row}.{metric}", of if isinstance(of, list) else [of], columns, what)
    if paper.n is not None and not (isinstance(paper.n, list) and len(paper.n) == columns and None not in paper.n):
        raise ValueError(f"paper.n must be a list with the number of pairs of {what}, but it is {paper.n!r}.")
    return paper


def check_numbers(where: str, numbers: list[Any], columns: int, what: str) -> None:
    """A ValueError if a published table has other than one number, or null, in each column."""
    if len(numbers) != columns or not all(type(number) in (int, float, NoneType) for number in numbers):
        raise ValueError(
            f"{where} must have a number, or null, for {what}, as the first metric of the first row has, but it is "
            f"{numbers}."
        )
