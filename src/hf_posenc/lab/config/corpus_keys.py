"""Keys of a corpus in config files."""

from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Annotated

from ...tokenizer.subwords import NORMALIZATION_STEPS
from ..data.readers import is_files_spec, is_text_spec
from ..data.tasks import TASKS
from .schema import Constraint, MappingOf, NonEmptyStr, PositiveInt, Section, at_least, each_once, one_of

FILES_CONSTRAINT = Constraint(
    "two aligned texts, a .tsv, a .jsonl, each plain or compressed, or a list of these (one text alone is `text`)",
    is_files_spec,
)
TEXT_CONSTRAINT = Constraint("one plain text or a list of these, each once, plain or compressed", is_text_spec)
EXTRA_INSTALLED = Constraint(
    "{}, with the extra of that name (`pip install 'hf-posenc[generator]'`)",
    lambda given: given is None or all(map(find_spec, ("babel", "num2words"))),
)
CORPORA_CONSTRAINT = Constraint(
    "a list of one corpus or more, such as [{{files: [a.de, a.en]}}, {{files: pairs.tsv}}]", bool
)


@dataclass
class GeneratorKeys:
    """Keys of a synthetic corpus of German and English sentences.

    `seed`: another seed gives other sentences.
    `pairs`: how many sentence pairs.
    `min_words`, `max_words`: length of a German sentence in words.
    """

    seed: int
    pairs: PositiveInt
    min_words: Annotated[int, at_least(0)]
    max_words: Annotated[int, at_least(6)]


@dataclass
class TaskKeys:
    """Keys of a corpus of an algorithmic task.

    `name`: the task; docs/reference/tasks.md says what each asks, and what its lengths count.
    `seed`: another seed gives other pairs.
    `pairs`: how many pairs; may be left out for a task with finitely many, which then gives all.
    `min_length`, `max_length`: the lengths, all equally frequent unless the task has finitely many pairs.
    """

    name: Annotated[str, one_of(TASKS)]
    seed: Annotated[int, at_least(0)]
    min_length: PositiveInt
    max_length: PositiveInt
    pairs: PositiveInt | None = None


@dataclass
class CorpusKeys:
    """Keys of a corpus: one of `dataset`, `files`, `generator`, `task`, `text` and `corpora`, and what that one takes.

    `dataset`: a dataset's name on the Hub, or its folder, with a column `translation`; a null is an empty side.
    `name`, `split`, `revision`: configuration, split and revision of the dataset.
    `files`: `[a.de, a.en]`, `pairs.tsv` or `pairs.jsonl`; plain, .gz, .bz2 or .xz; a null in a .jsonl is refused.
    `document_ids`: a file with the document of each line, of pairs or of a `text`.
    `min_words`: consecutive pairs of one document are concatenated until they have this many words.
    `generator`: synthetic sentences, German and English; keys below.
    `task`: pairs of an algorithmic task; keys below.
    `text`: plain text for a decoder-only language model; a document ends at an empty line and at the end of a file.
    `corpora`: several corpora, one after the other.
    `source_language`, `target_language`: of this corpus alone; those of `data` if left out.
    `source_tag`, `target_tag`: language tags, each one of `data.tags`.
    `max_examples`: only the first pairs.
    `concatenate`: this many consecutive pairs become one.
    """

    dataset: NonEmptyStr | None = None
    name: NonEmptyStr | None = None
    split: NonEmptyStr | None = None
    revision: NonEmptyStr | None = None
    files: Annotated[str | list, FILES_CONSTRAINT] | None = None
    document_ids: NonEmptyStr | None = None
    min_words: PositiveInt | None = None
    generator: Annotated[Section | None, MappingOf(GeneratorKeys), EXTRA_INSTALLED] = None
    task: Annotated[Section | None, MappingOf(TaskKeys)] = None
    text: Annotated[str | list, TEXT_CONSTRAINT] | None = None
    corpora: Annotated[list[Annotated[Section, MappingOf(lambda: CorpusKeys)]], CORPORA_CONSTRAINT] | None = None
    source_language: NonEmptyStr | None = None
    target_language: NonEmptyStr | None = None
    source_tag: NonEmptyStr | None = None
    target_tag: NonEmptyStr | None = None
    max_examples: PositiveInt | None = None
    concatenate: PositiveInt | None = None


NormalizationSteps = Annotated[list[Annotated[str, one_of(NORMALIZATION_STEPS)]], each_once]


@dataclass
class NormalizationKeys:
    """Keys of `data.normalize`: the steps of each side, in their order.

    `source`: steps of the source side: `lowercase`, and `no_punctuation`, which makes punctuation marks spaces.
    `target`: the same of the target side, references included.
    """

    source: NormalizationSteps = field(default_factory=list)
    target: NormalizationSteps = field(default_factory=list)


CORPUS_SPEC = MappingOf(CorpusKeys, "a corpus, such as {{files: [train.de, train.en]}}")
