"""The keys of a corpus, wherever a config file describes one."""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, Any

from ..data.files import names_files
from .schema import Count, Keys, Rule, Text, at_least

FILES = Rule("two aligned texts, a .tsv, a .jsonl, each plain or compressed, or a list of these", names_files)
INSTALLED = Rule(
    "{}, with the extra of that name (`pip install 'hf-posenc[generator]'`)",
    lambda given: given is None or all(map(find_spec, ("babel", "num2words"))),
)
CORPORA = Rule("a list of one corpus or more, such as [{{files: [a.de, a.en]}}, {{files: pairs.tsv}}]", bool)


@dataclass
class Generator:
    """The embedded generator: so many sentences of so many German words."""

    seed: int
    pairs: Count
    min_words: Annotated[int, at_least(0)]
    max_words: Annotated[int, at_least(6)]


@dataclass
class Corpus:
    """Where pairs come from: `dataset`, `files`, `generator` or `corpora`, and what else that one takes."""

    dataset: Text | None = None
    name: Text | None = None
    split: Text | None = None
    revision: Text | None = None
    files: Annotated[str | list[Any], FILES] | None = None
    documents: Text | None = None
    min_words: Count | None = None
    generator: Annotated[dict[str, Any] | None, Keys(Generator), INSTALLED] = None
    corpora: Annotated[list[Annotated[dict[str, Any], Keys(lambda: Corpus)]], CORPORA] | None = None
    source_language: Text | None = None
    target_language: Text | None = None
    source_tag: Text | None = None
    target_tag: Text | None = None
    first: Count | None = None
    join: Count | None = None


A_CORPUS = Keys(Corpus, "a corpus, such as {{files: [train.de, train.en]}}")
