"""Language tags: tokens at the head of a source, or of a target, by which one model translates between many languages.

A corpus names them beside its files: `{files: [a.de, a.en], source_tag: <2en>}`. They are no part of its texts until
these are encoded: pairs are joined, compared, cut and scored without them. What is joined has one tag, at its head.
"""

from collections.abc import Collection, Mapping
from typing import Any

from datasets import Dataset

from ..modeling.nearest import nearest
from .mapping import BATCH, LARGE, progress_bars

KEYS = ("source_tag", "target_tag")
Tags = tuple[str | None, str | None]


def tagged_parts(where: Mapping[str, Any], inherited: Tags = (None, None)) -> list[tuple[dict[str, Any], Tags]]:
    """The parts of a description, in order, whose pairs have the same tags of source and target; one if all have.

    What a description does to its corpora together, `join`, it does to each part. Their first pairs are none of a part:
    `first` around several parts is a ValueError.
    """
    tags = (where.get("source_tag") or inherited[0], where.get("target_tag") or inherited[1])
    if not where.get("corpora"):
        return [(dict(where), tags)]
    parts: list[tuple[list[dict[str, Any]], Tags]] = []
    for corpus in where["corpora"]:
        for part, own in tagged_parts(corpus, tags):
            if parts and parts[-1][1] == own:
                parts[-1][0].append(part)
            else:
                parts.append(([part], own))
    if len(parts) > 1 and where.get("first") is not None:
        raise ValueError(
            f"`first` is of pairs with the same tags, but first={where['first']} stands over corpora of several; write "
            "it into each of them."
        )
    return [({**where, "corpora": corpora}, own) for corpora, own in parts]


def tags_of(where: Mapping[str, Any]) -> Tags:
    """The tags of a description whose pairs all have the same."""
    (_, tags), *others = tagged_parts(where)
    if others:
        raise ValueError(
            f"A test set has one pair of tags, but its corpora have {tags} and {others[0][1]}; make a test set of each."
        )
    return tags


def check_tagged(where: Mapping[str, Any], name: str, known: Collection[str], *, is_test: bool = False) -> None:
    """A ValueError for tags that are not among the vocabulary's, and for a test set of several; `name` is where the
    description stands."""
    try:
        parts = tagged_parts(where)
        if is_test:
            tags_of(where)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    for tag in (tag for _, tags in parts for tag in tags if tag is not None):
        if tag not in known:
            near = f"; the nearest one is {nearest(tag, known)!r}" if known else ""
            raise ValueError(
                f"{name}: a tag must be one of data.tags, but {tag!r} is not{near}; correct it, or add it."
            )


def with_tag(text: str, tag: str | None) -> str:
    """The text behind its tag; a blank one stays blank, and is told by that."""
    return f"{tag} {text}" if tag is not None and text.strip() else text


def tagged(pairs: Dataset, tags: Tags, *, source_language: str, target_language: str) -> Dataset:
    """The pairs with their tags at the head of their texts; whatever else they have stays."""
    if tags == (None, None):
        return pairs

    tag_of = dict(zip((source_language, target_language), tags, strict=True))

    def tag(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        rows = batch["translation"]
        return {
            "translation": [
                {language: with_tag(text, tag_of[language]) for language, text in row.items()} for row in rows
            ]
        }

    with progress_bars(shown=len(pairs) > LARGE):
        return pairs.map(tag, batched=True, batch_size=BATCH, features=pairs.features)
