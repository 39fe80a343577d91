"""Validation of the inputs of length_buckets, before any score: rule, value, remedy."""

import difflib
import operator
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import pairwise
from os import PathLike
from typing import Protocol, TypedDict

from .scorers import SCORERS

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


def validate_edges(edges: object) -> tuple[int, ...]:
    """The bucket edges; a ValueError unless they are ascending positive integers."""
    edges = tuple(edges) if isinstance(edges, Iterable) else (edges,)
    if not edges or not all(type(edge) is int and edge > 0 for edge in edges):
        raise ValueError(f"edges must be positive whole numbers, at least one; edges={edges}; write e.g. {EDGES}")
    if any(low >= high for low, high in pairwise(edges)):
        raise ValueError(f"edges must ascend; edges={edges}; sort them and write each once")
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
    if not names:
        raise ValueError(
            f"metrics must name at least one metric; metrics={metrics!r}; choose from {', '.join(SCORERS)}"
        )
    return tuple(validate_choice("metrics", name, tuple(SCORERS)) for name in names)


def validate_choice(option: str, choice: object, choices: tuple[str, ...]) -> str:
    """The choice; a ValueError with the nearest one unless it is in `choices`."""
    if choice not in choices:
        nearest = difflib.get_close_matches(str(choice).lower(), choices, n=1)
        remedy = f"did you mean {nearest[0]!r}?" if nearest else f"choose from {', '.join(choices)}"
        raise ValueError(f"{option} must be names of this metric; {choice!r} is not one; {remedy}")
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
    if source_lengths is not None and sources is not None:
        raise ValueError("source_lengths and sources must not both be given, one is counted from the other; drop one")
    passed = {"predictions": predictions, "references": references}
    passed |= {} if source_lengths is None else {"source_lengths": source_lengths}
    passed |= {} if sources is None else {"sources": sources}
    columns = {name: validate_column(name, column) for name, column in passed.items()}
    lengths_by_column = {name: len(column) for name, column in columns.items()}
    if len(set(lengths_by_column.values())) > 1:
        counts = ", ".join(f"{count} {name}" for name, count in lengths_by_column.items())
        raise ValueError(
            f"{', '.join(lengths_by_column)} must have one entry per pair each; there are {counts}; "
            "several references belong to their prediction, [[first, second], ...], not in one list per translator"
        )
    if sources is not None:
        texts = [validate_text("sources", row, text) for row, text in enumerate(columns["sources"])]
        lengths = token_counts("sources", texts, tokenizer)
    elif source_lengths is not None:
        lengths = [validate_length(row, length) for row, length in enumerate(columns["source_lengths"])]
    else:
        lengths = [NO_LENGTH] * len(columns["predictions"])
    texts = [validate_text("predictions", row, text) for row, text in enumerate(columns["predictions"])]
    references_by_row = [validate_references(row, texts) for row, texts in enumerate(columns["references"])]
    return {"predictions": texts, "references": references_by_row, "source_lengths": lengths}


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
