"""Corpora: descriptions in config files to datasets of one format.

The format is the Hub's format of parallel text: a `datasets.Dataset` with the column `translation`, which holds
`{source_language: text, target_language: text}`.

Files are streamed into a memory-mapped Arrow file. Therefore a corpus need not fit into memory. A changed file is read
again.
"""

import glob
import os
from collections.abc import Callable, Mapping
from functools import partial

import datasets
from datasets import Dataset, Value
from datasets.exceptions import DatasetGenerationError

from ...hub.errors import validate_names
from .concatenation import concatenate_consecutive, concatenate_documents, validate_positive
from .pair_dataset import (
    PROGRESS_BAR_MIN_PAIRS,
    dataset_from_reader,
    rename_languages,
    to_translation_format,
)
from .readers import CorpusSpec, read_shards, resolve_name_or_path, resolve_shards
from .tags import TAG_KEYS

CORPUS_TYPES = {
    "dataset": ("name", "split", "revision"),
    "files": ("document_ids", "min_words"),
    "generator": (),
    "task": (),
    "text": ("document_ids",),
    "corpora": (),
}
LANGUAGE_KEYS = ("source_language", "target_language")
EXAMPLE_SPEC = "{files: [train.de, train.en]}"
GENERATOR_FIELDS = ("seed", "pairs", "min_words", "max_words")


def load_pairs(
    corpus_spec: CorpusSpec,
    *,
    source_language: str,
    target_language: str,
    folder: str | None = None,
    separator: str = " ",
) -> Dataset:
    """The pairs of a corpus, in order. `corpus_spec` has exactly one of these keys:

    - `dataset`: a dataset on the Hub or a local folder, with `name`, `split` and `revision` as in `load_dataset`;
    - `files`: two aligned texts `[a.de, a.en]`, a `.tsv` (source, tab, target), a `.jsonl` (a `{"translation": {...}}`
      a line), or a list of these; each plain, `.gz`, `.bz2` or `.xz`, relative to `folder`;
    - `generator`: `{seed, pairs, min_words, max_words}` for the synthetic German-English corpus;
    - `task`: `{name, seed, pairs, min_length, max_length}` for an algorithmic task (see tasks/registry.py);
    - `corpora`: a list of such descriptions, which are concatenated in order;

    and may have these:

    - `max_examples: n` keeps the first n pairs, and then `concatenate: k` applies (see `concatenate_consecutive`);
    - `source_language` and `target_language`, if they differ from the arguments;
    - `source_tag` and `target_tag`, which do not change these texts (see tags.py);
    - `document_ids: FILE` and `min_words: n`, with `files` (see `concatenate_documents`).

    `separator` separates concatenated texts. A key whose value is None counts as absent. Pairs with an empty side are
    kept. A null of a `dataset` is an empty side; in a .jsonl of `files` it is refused. A ValueError names the file and
    the line that cannot be read. A missing file raises a FileNotFoundError.
    """
    corpus_spec = {key: value for key, value in corpus_spec.items() if value is not None}
    corpus_type = _corpus_type(corpus_spec)
    if corpus_type == "text":
        raise ValueError(f"a corpus of pairs is needed, but {corpus_spec} is plain text: write `files` for pairs")
    names = (source_language, target_language)
    languages = (
        corpus_spec.get("source_language", source_language),
        corpus_spec.get("target_language", target_language),
    )
    if same := [source for source, target in (names, languages) if source == target]:
        raise ValueError(f"source_language and target_language must differ, but both are {same[0]!r}: name one of each")
    corpora = partial(_load_corpora, separator=separator)
    loaders: dict[str, Callable[..., Dataset]]
    loaders = {
        "dataset": _load_dataset,
        "files": _load_files,
        "generator": _load_generated,
        "task": _load_task,
        "corpora": corpora,
    }
    pairs = to_translation_format(loaders[corpus_type](corpus_spec, languages, folder), languages)
    if "document_ids" in corpus_spec or "min_words" in corpus_spec:
        pairs = concatenate_documents(pairs, corpus_spec, folder, languages[0], separator)
    if "max_examples" in corpus_spec:
        pairs = pairs.select(range(min(validate_positive("max_examples", corpus_spec["max_examples"]), len(pairs))))
    return rename_languages(
        concatenate_consecutive(pairs, corpus_spec["concatenate"], separator)
        if "concatenate" in corpus_spec
        else pairs,
        languages,
        names,
    )


def validate_corpus_spec(corpus_spec: CorpusSpec, key: str) -> None:
    """Raise a ValueError for keys of a corpus that contradict each other. `key` is the corpus's key in the config."""
    present = {field: value for field, value in corpus_spec.items() if value is not None}
    try:
        corpus_type = _corpus_type(present)
        has_document_ids = "document_ids" in present
        if corpus_type != "text" and has_document_ids != ("min_words" in present):
            raise ValueError(
                "`document_ids` and `min_words` belong together, but "
                f"{'min_words' if has_document_ids else 'document_ids'!r} is missing: add it"
            )
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None
    if corpus_type == "generator" and present[corpus_type]["min_words"] > present[corpus_type]["max_words"]:
        raise ValueError(
            f"{key}.generator: min_words must not exceed max_words, but it is {present[corpus_type]}; swap them."
        )
    if corpus_type == "task" and present["task"]["min_length"] > present["task"]["max_length"]:
        raise ValueError(f"{key}.task: min_length must not exceed max_length, but it is {present['task']}; swap them.")
    for number, spec in enumerate(present[corpus_type] if corpus_type == "corpora" else []):
        validate_corpus_spec(spec, f"{key}.corpora[{number}]")


def _corpus_type(corpus_spec: CorpusSpec) -> str:
    corpus_types = [corpus_type for corpus_type in CORPUS_TYPES if corpus_type in corpus_spec]
    known_keys = [
        key for corpus_type in corpus_types or CORPUS_TYPES for key in (corpus_type, *CORPUS_TYPES[corpus_type])
    ]
    if corpus_types != ["text"]:
        known_keys += ["max_examples", "concatenate", *LANGUAGE_KEYS, *TAG_KEYS]
    validate_names(corpus_spec, known_keys, f"a description of data ({', '.join(known_keys)})")
    if len(corpus_types) != 1:
        raise ValueError(
            f"a description of data holds exactly one of {', '.join(CORPUS_TYPES)}, but it holds "
            f"{' and '.join(corpus_types) or 'none'}: write for example {EXAMPLE_SPEC}"
        )
    return corpus_types[0]


def _load_dataset(corpus_spec: CorpusSpec, languages: tuple[str, str], folder: str | None) -> Dataset:
    name = resolve_name_or_path(corpus_spec["dataset"], folder)
    try:
        loaded = datasets.load_dataset(name, **{key: corpus_spec.get(key) for key in CORPUS_TYPES["dataset"]})
    except (DatasetGenerationError, StopIteration) as error:  # StopIteration: without any row
        raise ValueError(
            f"a dataset must have rows that its reader can read, but {name} has not "
            f"({error.__cause__ or 'it is empty'}): correct its files"
        ) from error
    if isinstance(loaded, datasets.DatasetDict):
        if len(loaded) > 1:
            raise ValueError(
                f"one split is read, but {name} has {', '.join(loaded)}: add for example split: {next(iter(loaded))}"
            )
        loaded = next(iter(loaded.values()))
    column = loaded.features.get("translation")
    texts = dict.fromkeys(column.languages, Value("string")) if isinstance(column, datasets.Translation) else column
    if not isinstance(texts, Mapping) or not all(isinstance(texts.get(language), Value) for language in languages):
        raise ValueError(
            f"a dataset needs a column `translation` with texts of {' and '.join(languages)}, but {name} has "
            f"{dict(loaded.features)}: choose other languages or another `name`, or write a .jsonl and use `files`"
        )
    return loaded


def _load_files(corpus_spec: CorpusSpec, languages: tuple[str, str], folder: str | None) -> Dataset:
    shards = resolve_shards(corpus_spec["files"], folder)
    paths = [path for shard in shards for path in shard]
    large = sum(map(os.path.getsize, paths)) > 50 * PROGRESS_BAR_MIN_PAIRS  # a compressed pair takes about 50 bytes
    return dataset_from_reader(read_shards, languages, paths, large, shards=shards, languages=languages)


def _load_corpora(corpus_spec: CorpusSpec, languages: tuple[str, str], folder: str | None, separator: str) -> Dataset:
    if not isinstance(corpus_spec["corpora"], list) or not corpus_spec["corpora"]:
        raise ValueError(
            f"`corpora` is a list of descriptions of data, but it is {corpus_spec['corpora']!r}: write for example "
            "[{files: [a.de, a.en]}, {dataset: wmt/wmt19, name: de-en, split: train}]"
        )
    source, target = languages
    load = partial(load_pairs, source_language=source, target_language=target, folder=folder, separator=separator)
    return datasets.concatenate_datasets([load(spec) for spec in corpus_spec["corpora"]])


def _load_generated(corpus_spec: CorpusSpec, languages: tuple[str, str], folder: str | None) -> Dataset:
    from .synthetic import generator

    settings = corpus_spec["generator"]
    if not isinstance(settings, Mapping) or any(type(settings.get(key)) is not int for key in GENERATOR_FIELDS):
        raise ValueError(
            f"`generator` needs {', '.join(GENERATOR_FIELDS)}, all whole numbers, but it is {settings!r}: give all four"
        )
    validate_names(settings, GENERATOR_FIELDS, "`generator`")
    if set(languages) != set(generator.LANGUAGES):
        raise ValueError(
            f"the generator writes {' and '.join(generator.LANGUAGES)}, but the languages asked for are "
            f"{' and '.join(languages)}: set source_language and target_language to its two, in either order"
        )
    code = glob.glob(os.path.join(os.path.dirname(str(generator.__file__)), "*.py"))
    written_languages = (generator.LANGUAGES[0], generator.LANGUAGES[1])
    large = settings["pairs"] > PROGRESS_BAR_MIN_PAIRS
    return dataset_from_reader(generator.generate_pairs, languages, code, large, written_languages, **settings)


def _load_task(corpus_spec: CorpusSpec, languages: tuple[str, str], folder: str | None) -> Dataset:
    from .tasks import registry

    settings = {"pairs": None} | corpus_spec["task"]
    code = glob.glob(os.path.join(os.path.dirname(str(registry.__file__)), "*.py"))
    large = (settings["pairs"] or 0) > PROGRESS_BAR_MIN_PAIRS
    return dataset_from_reader(registry.generate_task_pairs, languages, code, large, **settings)
