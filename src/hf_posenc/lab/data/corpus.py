"""Corpora: descriptions in config files to datasets of one format.

The format is the Hub's format of parallel text: a `datasets.Dataset` with the column `translation`, which holds
`{source_language: text, target_language: text}`.

Files are streamed into a memory-mapped Arrow file. Therefore a corpus need not fit into memory. A changed file is read
again.

A corpus may name language tags, tokens before a source or a target for models of several languages: `{files: [a.de,
a.en], source_tag: <2en>}`. They are added when texts are encoded. Pairs are concatenated, compared, filtered and scored
without tags. A concatenated text has one tag, at its start.

Sentence boundaries are searched, and translations scored, in the text that models read. Therefore corpora are
normalized as they are read, in training, validation and test alike.
"""

import glob
import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import Any

import datasets
from datasets import Dataset, Features, Value
from datasets.exceptions import DatasetGenerationError

from ...hub.errors import closest_name, is_blank, validate_names
from ...tokenizer.subwords import build_normalizer
from ...utils.text_io import read_lines
from .readers import CorpusSpec, absolute_path, read_shards, resolve_name_or_path, resolve_shards

Batch = dict[str, list[Any]]  # columns, as datasets gives them to a function
PROGRESS_BAR_MIN_PAIRS = 100_000  # pairs
BATCH_SIZE = 1_000


def map_batches(
    pairs: Dataset, function: Callable[[Batch], Batch], features: Features, batch_size: int = BATCH_SIZE
) -> Dataset:
    """Replace all columns by those that `function` returns for each batch."""
    with progress_bars(shown=len(pairs) > PROGRESS_BAR_MIN_PAIRS):
        return pairs.map(
            function, batched=True, batch_size=batch_size, features=features, remove_columns=pairs.column_names
        )


def rename_languages(pairs: Dataset, old_names: tuple[str, str], new_names: tuple[str, str]) -> Dataset:
    """Rename the languages of pairs."""
    if old_names == new_names:
        return pairs
    features = Features({"translation": {name: Value("string") for name in new_names}})

    def rename(batch: Batch) -> Batch:
        rows = batch["translation"]
        return {
            "translation": [
                dict(zip(new_names, (row[language] for language in old_names), strict=True)) for row in rows
            ]
        }

    return map_batches(pairs, rename, features)


def to_translation_format(pairs: Dataset, languages: tuple[str, str]) -> Dataset:
    """The column `translation` alone, with these languages as text. A missing text or pair is empty."""
    features = _features(languages)

    def convert(batch: Batch) -> Batch:
        rows = [row or {} for row in batch["translation"]]
        return {"translation": [{language: row.get(language) or "" for language in languages} for row in rows]}

    has_nulls = any(column.null_count for column in pairs.data.table.flatten().columns)
    return map_batches(pairs, convert, features) if has_nulls or pairs.features != features else pairs


def dataset_from_reader(
    read: Callable[..., Iterator[tuple[str, str]]],
    languages: tuple[str, str],
    depends_on: list[str],
    show_progress: bool,
    written_languages: tuple[str, str] | None = None,
    /,
    **options: object,
) -> Dataset:
    """The pairs of `read(**options)`, on disk. `written_languages` are their languages if the order differs.

    datasets caches by the hash of `read` and its arguments. Size and time of the input files and of the reading code
    are arguments, too. Therefore a changed file is read again.
    """
    return dataset_from_rows(
        _rows,
        _features(languages),
        depends_on,
        show_progress,
        read=read,
        options=options,
        written_languages=written_languages or languages,
    )


def dataset_from_rows(
    rows: Callable[..., Iterator[dict[str, Any]]],
    features: Features,
    depends_on: list[str],
    show_progress: bool,
    **arguments: object,
) -> Dataset:
    """The rows of `rows(**arguments, file_state=...)`, on disk."""
    code = glob.glob(os.path.join(os.path.dirname(__file__), "*.py"))
    status = [os.stat(path) for path in sorted([*code, *depends_on])]
    arguments["file_state"] = tuple((file.st_size, file.st_mtime_ns) for file in status)
    try:
        with progress_bars(shown=show_progress):
            return Dataset.from_generator(rows, features=features, gen_kwargs=arguments)
    except DatasetGenerationError as error:
        if isinstance(error.__cause__, ValueError | OSError):
            raise error.__cause__ from None
        raise


def _rows(
    read: Callable[..., Iterator[tuple[str, str]]],
    options: dict[str, object],
    written_languages: tuple[str, str],
    file_state: object,
) -> Iterator[dict[str, dict[str, str]]]:
    for texts in read(**options):
        yield {"translation": dict(zip(written_languages, texts, strict=True))}


def _features(languages: tuple[str, str]) -> Features:
    return Features({"translation": {language: Value("string") for language in languages}})


def hash_test_set(test: Dataset) -> str:
    """The SHA-256 of a test set's texts and lengths. Scores are comparable if it is equal."""
    digest = hashlib.sha256()
    for row in test:
        digest.update(json.dumps(row, sort_keys=True, ensure_ascii=False).encode())
    return digest.hexdigest()


@contextmanager
def progress_bars(*, shown: bool) -> Iterator[None]:
    """Context manager: hide datasets' progress bars unless `shown`. A user's own setting wins and is restored."""
    set_by_user = datasets.config.HF_DATASETS_DISABLE_PROGRESS_BARS is not None or datasets.are_progress_bars_disabled()
    if shown or set_by_user:
        yield
        return
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.enable_progress_bars()


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
    - `task`: `{name, seed, pairs, min_length, max_length}` for an algorithmic task (see tasks.py);
    - `corpora`: a list of such descriptions, which are concatenated in order;

    and may have these:

    - `max_examples: n` keeps the first n pairs, and then `concatenate: k` applies (see `concatenate_consecutive`);
    - `source_language` and `target_language`, if they differ from the arguments;
    - `source_tag` and `target_tag`, which do not change these texts;
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
    from . import synthetic

    settings = corpus_spec["generator"]
    if not isinstance(settings, Mapping) or any(type(settings.get(key)) is not int for key in GENERATOR_FIELDS):
        raise ValueError(
            f"`generator` needs {', '.join(GENERATOR_FIELDS)}, all whole numbers, but it is {settings!r}: give all four"
        )
    validate_names(settings, GENERATOR_FIELDS, "`generator`")
    if set(languages) != set(synthetic.LANGUAGES):
        raise ValueError(
            f"the generator writes {' and '.join(synthetic.LANGUAGES)}, but the languages asked for are "
            f"{' and '.join(languages)}: set source_language and target_language to its two, in either order"
        )
    written_languages = (synthetic.LANGUAGES[0], synthetic.LANGUAGES[1])
    large = settings["pairs"] > PROGRESS_BAR_MIN_PAIRS
    return dataset_from_reader(synthetic.generate_pairs, languages, [], large, written_languages, **settings)


def _load_task(corpus_spec: CorpusSpec, languages: tuple[str, str], folder: str | None) -> Dataset:
    from .tasks import generate_task_pairs

    settings = {"pairs": None} | corpus_spec["task"]
    large = (settings["pairs"] or 0) > PROGRESS_BAR_MIN_PAIRS
    return dataset_from_reader(generate_task_pairs, languages, [], large, **settings)


def concatenate_consecutive(pairs: Dataset, k: int, separator: str = " ") -> Dataset:
    """Concatenate each `k` consecutive pairs, with `separator` between their texts. The last pair may have fewer.

    For k = 2, 28,075 pairs become 14,038. An empty text adds no separator of whitespace.
    """
    validate_positive("concatenate", k)

    def concatenate(batch: Batch) -> Batch:
        rows = batch["translation"]
        return {"translation": [concatenate_rows(rows[i : i + k], separator) for i in range(0, len(rows), k)]}

    return map_batches(pairs, concatenate, pairs.features, batch_size=k * max(1, BATCH_SIZE // k))


def concatenate_documents(
    pairs: Dataset, corpus_spec: CorpusSpec, folder: str | None, source_language: str, separator: str = " "
) -> Dataset:
    """Concatenate the fewest consecutive pairs of one document that have `min_words` source words together.

    `document_ids` is a text, plain or compressed, whose line i names the document of pair i. The rest of a document
    with fewer words is left out. Words are separated by whitespace. The pairs are held in memory.
    """
    if missing := [key for key in ("document_ids", "min_words") if key not in corpus_spec]:
        raise ValueError(f"`document_ids` and `min_words` belong together, but {missing[0]!r} is missing: add it")
    min_words = validate_positive("min_words", corpus_spec["min_words"])
    path = absolute_path(corpus_spec["document_ids"], folder)
    names = list(read_lines(path))
    if len(names) != len(pairs):
        raise ValueError(
            f"`document_ids` names the document of each pair, but {path} has {len(names)} lines for {len(pairs)} "
            "pairs: give it a line for each of them"
        )
    concatenated: list[dict[str, str]] = []
    for _, document in groupby(zip(names, pairs["translation"], strict=True), key=lambda named_row: named_row[0]):
        for group in group_by_min_words((row for _, row in document), min_words, source_language):
            concatenated.append(concatenate_rows(group, separator))
    if not concatenated:
        raise ValueError(f"no document of {path} has min_words={min_words} source words: ask for fewer")
    return Dataset.from_dict({"translation": concatenated}, features=pairs.features)


def group_by_min_words(rows: Iterable[dict[str, str]], min_words: int, language: str) -> Iterator[list[dict[str, str]]]:
    """The shortest groups of consecutive rows with `min_words` words of the language. A rest with fewer words is left
    out."""
    group: list[dict[str, str]] = []
    for row in rows:
        group.append(row)
        if sum(len(member[language].split()) for member in group) >= min_words:
            yield group
            group = []


def concatenate_rows(rows: list[dict[str, str]], separator: str) -> dict[str, str]:
    """The texts of each language as one. A separator that is no whitespace separates empty texts too, so that both
    languages have equally many."""
    texts = {language: [row[language] for row in rows] for language in rows[0]}
    return {
        language: separator.join(filter(None, parts) if separator.isspace() else parts)
        for language, parts in texts.items()
    }


def validate_positive(key: str, value: object) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"`{key}` must be a whole number, at least 1, but it is {value!r}: change or omit it")
    return value


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


def normalize_pairs(
    pairs: Dataset,
    normalize: Mapping[str, Sequence[str]],
    *,
    source_language: str,
    target_language: str,
    separator: str = " ",
) -> Dataset:
    """The pairs with the steps of `normalize`, by side: `{"source": ["lowercase"]}`. Other columns stay.

    Texts that were concatenated with a `separator` are normalized one by one. Those that become empty stay, because the
    other side has as many.
    """
    languages = {"source": source_language, "target": target_language}
    steps_by_language = {languages[side]: list(steps) for side, steps in normalize.items() if steps}
    if not steps_by_language:
        return pairs

    def normalize_batch(batch: Batch) -> Batch:
        normalizers = {language: build_normalizer(steps) for language, steps in steps_by_language.items()}
        rows = []
        for row in batch["translation"]:
            texts = dict(row)
            for language, normalizer in normalizers.items():
                parts = [row[language]] if separator.isspace() else row[language].split(separator)
                texts[language] = separator.join(map(normalizer.normalize_str, parts))
            rows.append(texts)
        return {"translation": rows}

    with progress_bars(shown=len(pairs) > PROGRESS_BAR_MIN_PAIRS):
        return pairs.map(normalize_batch, batched=True, batch_size=BATCH_SIZE, features=pairs.features)
