"""Language tags: tokens before a source or a target, for models of several languages.

A corpus names them: `{files: [a.de, a.en], source_tag: <2en>}`. They are added when texts are encoded. Pairs are
concatenated, compared, filtered and scored without tags. A concatenated text has one tag, at its start.
"""

from collections.abc import Collection

from datasets import Dataset

from ...hub.errors import closest_name
from ...tokenizer.text import is_blank
from .pair_dataset import BATCH_SIZE, PROGRESS_BAR_MIN_PAIRS, Batch, progress_bars
from .readers import CorpusSpec

TAG_KEYS = ("source_tag", "target_tag")
TagPair = tuple[str | None, str | None]


def group_by_tags(corpus_spec: CorpusSpec, inherited: TagPair = (None, None)) -> list[tuple[CorpusSpec, TagPair]]:
    """The parts of a corpus, in order, whose pairs have the same source and target tags.

    `concatenate` of the whole applies to each part. `max_examples` of several parts is a ValueError, because it would
    not be clear which pairs are the first.
    """
    tags = (corpus_spec.get("source_tag") or inherited[0], corpus_spec.get("target_tag") or inherited[1])
    if not corpus_spec.get("corpora"):
        return [(dict(corpus_spec), tags)]
    groups: list[tuple[list[CorpusSpec], TagPair]] = []
    for corpus in corpus_spec["corpora"]:
        for spec, group_tags in group_by_tags(corpus, tags):
            if groups and groups[-1][1] == group_tags:
                groups[-1][0].append(spec)
            else:
                groups.append(([spec], group_tags))
    if len(groups) > 1 and corpus_spec.get("max_examples") is not None:
        raise ValueError(
            "`max_examples` is of pairs with the same tags, but max_examples="
            f"{corpus_spec['max_examples']} stands over corpora of several; write it into each of them."
        )
    return [({**corpus_spec, "corpora": corpora}, group_tags) for corpora, group_tags in groups]


def corpus_tags(corpus_spec: CorpusSpec) -> TagPair:
    """The tags of a corpus whose pairs all have the same. A ValueError if they differ."""
    (_, tags), *others = group_by_tags(corpus_spec)
    if others:
        raise ValueError(
            f"A test set has one pair of tags, but its corpora have {tags} and {others[0][1]}; make a test set of each."
        )
    return tags


def validate_corpus_tags(
    corpus_spec: CorpusSpec, key: str, known_tags: Collection[str], *, is_test: bool = False
) -> None:
    """Raise a ValueError for tags outside the vocabulary's, or a test set with several. `key` is the corpus's key in
    the config."""
    try:
        specs = group_by_tags(corpus_spec)
        if is_test:
            corpus_tags(corpus_spec)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None
    for tag in (tag for _, tags in specs for tag in tags if tag is not None):
        if tag not in known_tags:
            suggestion = f"; the nearest one is {closest_name(tag, known_tags)!r}" if known_tags else ""
            raise ValueError(
                f"{key}: a tag must be one of data.tags, but {tag!r} is not{suggestion}; correct it, or add it."
            )


def prepend_tag(text: str, tag: str | None) -> str:
    """The text with its tag. A blank text stays blank."""
    return f"{tag} {text}" if tag is not None and not is_blank(text) else text


def prepend_tags(pairs: Dataset, tags: TagPair, *, source_language: str, target_language: str) -> Dataset:
    """The pairs with tags before their texts. Other columns are kept."""
    if tags == (None, None):
        return pairs

    tag_by_language = dict(zip((source_language, target_language), tags, strict=True))

    def add_tags(batch: Batch) -> Batch:
        rows = batch["translation"]
        return {
            "translation": [
                {language: prepend_tag(text, tag_by_language[language]) for language, text in row.items()}
                for row in rows
            ]
        }

    with progress_bars(shown=len(pairs) > PROGRESS_BAR_MIN_PAIRS):
        return pairs.map(add_tags, batched=True, batch_size=BATCH_SIZE, features=pairs.features)
