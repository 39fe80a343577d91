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
from itertools import chain, groupby
from typing import Any

import datasets
from datasets import Dataset, Features, Value
from datasets.exceptions import DatasetGenerationError

from ...hub.errors import closest_name, is_blank, validate_names
from ...tokenizer.tokenization_posenc import build_normalizer
from ...utils.text_io import read_lines
from .readers import CorpusSpec, absolute_path, read_shards, resolve_name_or_path, resolve_shards

Texts = dict[str, str]  # the text of each language
Batch = dict[str, list[Any]]  # columns, as datasets gives them to a function
PROGRESS_BAR_MIN_PAIRS = 100_000  # pairs
BATCH_SIZE = 1_000

CORPUS_TYPES = {
    "dataset": ("name", "split", "revision"),
    "files": ("document_ids", "min_words"),
    "generator": (),
    "task": (),
    "text": ("document_ids",),
    "corpora": (),
}
LANGUAGE_KEYS = ("source_language", "target_language")
TAG_KEYS = ("source_tag", "target_tag")


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


def map_batches(
    pairs: Dataset,
    function: Callable[[Batch], Batch],
    features: Features,
    *,
    keep_columns: bool = False,
    batch_size: int = BATCH_SIZE,
) -> Dataset:
    """The columns that `function` returns for each batch; with `keep_columns` the other ones too."""
    removed = None if keep_columns else pairs.column_names
    with progress_bars(shown=len(pairs) > PROGRESS_BAR_MIN_PAIRS):
        return pairs.map(function, batched=True, batch_size=batch_size, features=features, remove_columns=removed)


def map_texts(pairs: Dataset, change: Callable[[Any], Texts], languages: Iterable[str] | None = None) -> Dataset:
    """Replace the texts of each pair by `change(texts)`, in these languages if they are others. Other columns stay."""
    features = pairs.features if languages is None else Features(pairs.features | translation_features(languages))

    def change_batch(batch: Batch) -> Batch:
        return {"translation": [change(texts) for texts in batch["translation"]]}

    return map_batches(pairs, change_batch, features, keep_columns=True)


def translation_features(languages: Iterable[str]) -> Features:
    return Features({"translation": {language: Value("string") for language in languages}})


def dataset_from_rows(
    rows: Callable[..., Iterator[dict[str, Any]]],
    features: Features,
    files: Iterable[str],
    show_progress: bool,
    **arguments: object,
) -> Dataset:
    """The rows of `rows(**arguments, file_state=...)`, on disk.

    datasets caches them by the hash of `rows` and its arguments. Size and time of the `files` that are read, and of the
    code that reads them, are an argument too. Therefore a changed file is read again.
    """
    code = glob.glob(os.path.join(os.path.dirname(__file__), "*.py"))
    status = [os.stat(path) for path in sorted([*code, *files])]
    arguments["file_state"] = tuple((file.st_size, file.st_mtime_ns) for file in status)
    try:
        with progress_bars(shown=show_progress):
            return Dataset.from_generator(rows, features=features, gen_kwargs=arguments)
    except DatasetGenerationError as error:
        if isinstance(error.__cause__, ValueError | OSError):
            raise error.__cause__ from None
        raise


def translation_rows(
    read: Callable[..., Iterator[tuple[str, str]]],
    languages: tuple[str, str],
    options: dict[str, object],
    file_state: object,
) -> Iterator[dict[str, Texts]]:
    """The pairs of `read(**options)` as rows of a dataset."""
    for texts in read(**options):
        yield {"translation": dict(zip(languages, texts, strict=True))}


def hash_test_set(test: Dataset) -> str:
    """The SHA-256 of a test set's texts and lengths. Scores are comparable if it is equal."""
    digest = hashlib.sha256()
    for row in test:
        digest.update(json.dumps(row, sort_keys=True, ensure_ascii=False).encode())
    return digest.hexdigest()


def load_pairs(
    corpus_spec: CorpusSpec,
    *,
    source_language: str,
    target_language: str,
    folder: str | None = None,
    separator: str = " ",
) -> Dataset:
    """The pairs of a corpus, in order. `CorpusKeys` describes and validates `corpus_spec`.

    Files are relative to `folder`. The languages of the result are the arguments; those of `corpus_spec`, if it has
    any, are the names in its files. `max_examples: n` keeps the first n pairs, before they are concatenated.
    `separator` separates concatenated texts. Pairs with an empty side are kept. A ValueError names the file and the
    line that cannot be read. A missing file raises a FileNotFoundError.
    """
    spec = {key: value for key, value in corpus_spec.items() if value is not None}
    names = (source_language, target_language)
    languages = (spec.get("source_language", source_language), spec.get("target_language", target_language))
    for source, target in (names, languages):
        if source == target:
            raise ValueError(
                f"source_language and target_language must differ, but both are {source!r}; name one of each."
            )

    sides = {"source_language": languages[0], "target_language": languages[1]}
    if "corpora" in spec:
        parts = [load_pairs(part, **sides, folder=folder, separator=separator) for part in spec["corpora"]]
        pairs = datasets.concatenate_datasets(parts)
    elif "dataset" in spec:
        pairs = load_dataset_pairs(spec, languages, folder)
    elif "files" in spec:
        shards = resolve_shards(spec["files"], folder)
        files = list(chain.from_iterable(shards))
        is_large = sum(map(os.path.getsize, files)) > 50 * PROGRESS_BAR_MIN_PAIRS  # a compressed pair takes 50 bytes
        options: dict[str, object] = {"shards": shards, "languages": languages}
        pairs = pairs_from_reader(read_shards, languages, options, files, is_large)
    elif "task" in spec:
        from .tasks import generate_task_pairs

        options = {"pairs": None} | spec["task"]
        is_large = (spec["task"].get("pairs") or 0) > PROGRESS_BAR_MIN_PAIRS
        pairs = pairs_from_reader(generate_task_pairs, languages, options, (), is_large)
    else:
        pairs = generate_sentence_pairs(spec["generator"], languages)

    if "document_ids" in spec:
        pairs = concatenate_documents(pairs, spec, folder, languages[0], separator)
    if "max_examples" in spec:
        pairs = pairs.select(range(min(spec["max_examples"], len(pairs))))
    if "concatenate" in spec:
        pairs = concatenate_consecutive(pairs, spec["concatenate"], separator)
    pairs = normalize_pairs(pairs, spec.get("normalize", {}), separator=separator, **sides)
    return rename_languages(pairs, languages, names)


def pairs_from_reader(
    read: Callable[..., Iterator[tuple[str, str]]],
    languages: tuple[str, str],
    options: Mapping[str, object],
    files: Iterable[str],
    show_progress: bool,
) -> Dataset:
    """The pairs of `read(**options)`, which depend on `files`."""
    features = translation_features(languages)
    arguments = {"read": read, "languages": languages, "options": dict(options)}
    return dataset_from_rows(translation_rows, features, files, show_progress, **arguments)


def generate_sentence_pairs(settings: Mapping[str, Any], languages: tuple[str, str]) -> Dataset:
    """Synthetic sentences, German and English, in either direction."""
    from .synthetic import LANGUAGES, generate_pairs

    if set(languages) != set(LANGUAGES):
        raise ValueError(
            f"The generator writes {' and '.join(LANGUAGES)}, but the languages asked for are "
            f"{' and '.join(languages)}; set source_language and target_language to its two, in either order."
        )
    is_large = settings["pairs"] > PROGRESS_BAR_MIN_PAIRS
    arguments = {"read": generate_pairs, "languages": LANGUAGES, "options": dict(settings)}
    return dataset_from_rows(translation_rows, translation_features(languages), (), is_large, **arguments)


def load_dataset_pairs(corpus_spec: CorpusSpec, languages: tuple[str, str], folder: str | None) -> Dataset:
    """The pairs of a dataset on the Hub, or in a local folder. A null is an empty side."""
    name = resolve_name_or_path(corpus_spec["dataset"], folder)
    options = {key: corpus_spec.get(key) for key in CORPUS_TYPES["dataset"]}
    try:
        loaded = datasets.load_dataset(name, **options)
    except (DatasetGenerationError, StopIteration) as error:  # StopIteration: without any row
        raise ValueError(
            f"a dataset must have rows that its reader can read, but {name} has not "
            f"({error.__cause__ or 'it is empty'}): correct its files"
        ) from error
    if isinstance(loaded, datasets.DatasetDict):
        first_split, *others = loaded
        if others:
            raise ValueError(
                f"one split is read, but {name} has {', '.join(loaded)}: add for example split: {first_split}"
            )
        loaded = loaded[first_split]
    column = loaded.features.get("translation")
    texts = dict.fromkeys(column.languages, Value("string")) if isinstance(column, datasets.Translation) else column
    if not isinstance(texts, Mapping) or not all(isinstance(texts.get(language), Value) for language in languages):
        raise ValueError(
            f"a dataset needs a column `translation` with texts of {' and '.join(languages)}, but {name} has "
            f"{dict(loaded.features)}: choose other languages or another `name`, or write a .jsonl and use `files`"
        )

    def without_nulls(texts: Mapping[str, str | None] | None) -> Texts:
        return {language: (texts or {}).get(language) or "" for language in languages}

    has_nulls = any(column.null_count for column in loaded.data.table.flatten().columns)
    if not has_nulls and loaded.features == translation_features(languages):
        return loaded
    return map_texts(loaded.select_columns("translation"), without_nulls, languages)


def rename_languages(pairs: Dataset, old_names: tuple[str, str], new_names: tuple[str, str]) -> Dataset:
    if old_names == new_names:
        return pairs
    old_source, old_target = old_names
    source, target = new_names
    return map_texts(pairs, lambda texts: {source: texts[old_source], target: texts[old_target]}, new_names)


def concatenate_consecutive(pairs: Dataset, k: int, separator: str = " ") -> Dataset:
    """Concatenate each `k` consecutive pairs, with `separator` between their texts. The last pair may have fewer.

    For k = 2, 28,075 pairs become 14,038. An empty text adds no separator of whitespace.
    """

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
    min_words, path = corpus_spec["min_words"], absolute_path(corpus_spec["document_ids"], folder)
    names = list(read_lines(path))
    if len(names) != len(pairs):
        raise ValueError(
            f"`document_ids` names the document of each pair, but {path} has {len(names)} lines for {len(pairs)} "
            "pairs: give it a line for each of them"
        )
    concatenated: list[Texts] = []
    for _, document in groupby(zip(names, pairs["translation"], strict=True), key=lambda named_row: named_row[0]):
        for group in group_by_min_words((row for _, row in document), min_words, source_language):
            concatenated.append(concatenate_rows(group, separator))
    if not concatenated:
        raise ValueError(f"no document of {path} has min_words={min_words} source words: ask for fewer")
    return Dataset.from_dict({"translation": concatenated}, features=pairs.features)


def group_by_min_words(rows: Iterable[Texts], min_words: int, language: str) -> Iterator[list[Texts]]:
    """The shortest groups of consecutive rows with `min_words` words of the language. A rest with fewer words is left
    out."""
    group: list[Texts] = []
    num_words = 0
    for row in rows:
        group.append(row)
        num_words += len(row[language].split())
        if num_words >= min_words:
            yield group
            group, num_words = [], 0


def concatenate_rows(rows: list[Texts], separator: str) -> Texts:
    """The texts of each language as one. A separator that is no whitespace separates empty texts too, so that both
    languages have equally many."""
    texts = {}
    for language in rows[0]:
        parts = [row[language] for row in rows]
        texts[language] = separator.join(filter(None, parts) if separator.isspace() else parts)
    return texts


def validate_corpus_keys(keys: Collection[str]) -> None:
    """Raise a ValueError for keys of a corpus that contradict each other."""
    types = [corpus_type for corpus_type in CORPUS_TYPES if corpus_type in keys]
    if len(types) != 1:
        raise ValueError(
            f"a description of data holds exactly one of {', '.join(CORPUS_TYPES)}, but it holds "
            f"{' and '.join(types) or 'none'}: write for example {{files: [train.de, train.en]}}"
        )
    [corpus_type] = types
    known = [corpus_type, *CORPUS_TYPES[corpus_type]]
    if corpus_type != "text":
        known += ["max_examples", "concatenate", "normalize", *LANGUAGE_KEYS, *TAG_KEYS]
    validate_names(keys, known, f"a description of data ({', '.join(known)})")
    document_keys = [key for key in ("document_ids", "min_words") if key in keys]
    if corpus_type == "files" and len(document_keys) == 1:
        missing = "min_words" if document_keys == ["document_ids"] else "document_ids"
        raise ValueError(f"`document_ids` and `min_words` belong together, but {missing!r} is missing: add it")


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
        all_tags = [corpus_tags(corpus_spec)] if is_test else [tags for _, tags in group_by_tags(corpus_spec)]
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None
    for tag in chain.from_iterable(all_tags):
        if tag is not None and tag not in known_tags:
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
    tag_by_language = {source_language: tags[0], target_language: tags[1]}
    return map_texts(
        pairs, lambda texts: {name: prepend_tag(text, tag_by_language[name]) for name, text in texts.items()}
    )


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
    normalizers = {languages[side]: build_normalizer(list(steps)) for side, steps in normalize.items() if steps}
    if not normalizers:
        return pairs

    def normalize_texts(texts: Texts) -> Texts:
        for language, normalizer in normalizers.items():
            parts = [texts[language]] if separator.isspace() else texts[language].split(separator)
            texts[language] = separator.join(map(normalizer.normalize_str, parts))
        return texts

    return map_texts(pairs, normalize_texts)
