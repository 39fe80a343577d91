"""The keys of a corpus, wherever a config file describes one."""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, Any

from ..data.readers import is_files_spec
from .schema import Constraint, MappingOf, NonEmptyStr, PositiveInt, at_least

FILES_CONSTRAINT = Constraint(
    "two aligned texts, a .tsv, a .jsonl, each plain or compressed, or a list of these", is_files_spec
)
EXTRA_INSTALLED = Constraint(
    "{}, with the extra of that name (`pip install 'hf-posenc[generator]'`)",
    lambda given: given is None or all(map(find_spec, ("babel", "num2words"))),
)
CORPORA_CONSTRAINT = Constraint(
    "a list of one corpus or more, such as [{{files: [a.de, a.en]}}, {{files: pairs.tsv}}]", bool
)


@dataclass
class GeneratorKeys:
    """The embedded generator: so many sentences of so many German words."""

    seed: int
    pairs: PositiveInt
    min_words: Annotated[int, at_least(0)]
    max_words: Annotated[int, at_least(6)]


@dataclass
class CorpusKeys:
    """Where pairs come from: `dataset`, `files`, `generator` or `corpora`, and what else that one takes."""

    dataset: NonEmptyStr | None = None
    name: NonEmptyStr | None = None
    split: NonEmptyStr | None = None
    revision: NonEmptyStr | None = None
    files: Annotated[str | list[Any], FILES_CONSTRAINT] | None = None
    document_ids: NonEmptyStr | None = None
    min_words: PositiveInt | None = None
    generator: Annotated[dict[str, Any] | None, MappingOf(GeneratorKeys), EXTRA_INSTALLED] = None
    corpora: Annotated[list[Annotated[dict[str, Any], MappingOf(lambda: CorpusKeys)]], CORPORA_CONSTRAINT] | None = None
    source_language: NonEmptyStr | None = None
    target_language: NonEmptyStr | None = None
    source_tag: NonEmptyStr | None = None
    target_tag: NonEmptyStr | None = None
    max_examples: PositiveInt | None = None
    concatenate: PositiveInt | None = None


CORPUS_SPEC = MappingOf(CorpusKeys, "a corpus, such as {{files: [train.de, train.en]}}")
