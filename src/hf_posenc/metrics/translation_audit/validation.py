"""Validation of the inputs of translation_audit, before any alignment: rule, value, remedy."""

from collections.abc import Iterable
from typing import TypedDict

MAX_CHARACTERS = 5_000_000  # of a document


class Columns(TypedDict):
    """Documents as the metric stores them; `references` has empty lists if there are none."""

    predictions: list[str]
    sources: list[list[str]]
    references: list[list[str]]


def validate_documents(predictions: object, sources: object, references: object) -> Columns:
    """The columns of the documents.

    Raises a ValueError for a missing column, different numbers of documents or of segments, and values that are no
    text. A prediction may be a list of lines; an empty document is allowed.
    """
    given = {"predictions": predictions, "sources": sources}
    given |= {} if references is None else {"references": references}
    columns = {name: validate_list(name, column, "document") for name, column in given.items()}
    if len({len(column) for column in columns.values()}) > 1:
        counts = ", ".join(f"{len(column)} {name}" for name, column in columns.items())
        raise ValueError(
            f"{', '.join(columns)} must have one entry for each document, but there are {counts}; give an empty text "
            "for a document without translation."
        )
    texts = [
        "\n".join(validate_segments("predictions", row, [text] if isinstance(text, str) else text))
        for row, text in enumerate(columns["predictions"])
    ]
    segments = [validate_segments("sources", row, document) for row, document in enumerate(columns["sources"])]
    translations = [
        validate_segments("references", row, document) for row, document in enumerate(columns.get("references", []))
    ]
    for row, (source, reference) in enumerate(zip(segments, translations, strict=False)):
        if len(source) != len(reference):
            raise ValueError(
                f"A reference must have one segment for each source segment, but document {row} has {len(source)} "
                f"source and {len(reference)} reference segments; align them, or leave the references out."
            )
    return {"predictions": texts, "sources": segments, "references": translations or [[] for _ in segments]}


def validate_pairs(pairs: object) -> list[tuple[str, str]]:
    """Parallel texts as tuples (source, target)."""
    rows = [] if pairs is None else validate_list("pairs", pairs, "pair")
    validated = []
    for row, pair in enumerate(rows):
        sides = validate_segments("pairs", row, pair)
        if len(sides) != 2:
            raise ValueError(
                f"pairs must be (source, target), but pairs[{row}] has {len(sides)} texts; give two texts."
            )
        validated.append((sides[0], sides[1]))
    return validated


def validate_list(name: str, column: object, entry: str) -> list[object]:
    if isinstance(column, str) or not isinstance(column, Iterable):
        kind = "missing" if column is None else f"of type {type(column).__name__}"
        raise ValueError(f"{name} must be a list with one entry for each {entry}, but it is {kind}; pass {name}=[...].")
    return list(column)


def validate_segments(name: str, row: int, segments: object) -> list[str]:
    """The segments of one document."""
    if isinstance(segments, str) or not isinstance(segments, Iterable):
        raise ValueError(
            f"{name} must be a list of segments for each document, but {name}[{row}] is of type "
            f"{type(segments).__name__}; split it into sentences, [[first, second], ...]."
        )
    texts = list(segments)
    for text in texts:
        if not isinstance(text, str):
            raise ValueError(
                f"{name} must be texts, but {name}[{row}] has an entry of type {type(text).__name__}; pass strings."
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{name} must be UTF-8, but {name}[{row}] has half a character, {text[error.start]!a}; remove it, for "
                "example by text.encode(errors='ignore').decode()."
            ) from None
    if (size := sum(map(len, texts))) > MAX_CHARACTERS:
        raise ValueError(
            f"A document must have at most {MAX_CHARACTERS} characters, but {name}[{row}] has {size}; give its "
            "chapters as documents of their own."
        )
    return texts
