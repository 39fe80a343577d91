"""Corpora of many forms in, datasets of one form out.

The form is the Hub's own for parallel text: a `datasets.Dataset` with the one column `translation`, which holds
`{source_language: text, target_language: text}`. `load_pairs` reads it, `joining` makes long pairs of short
ones, `tokenize_pairs` turns text into token ids, `filter_lengths` bounds what is trained on.

Length means subwords without special tokens, everywhere. Files are streamed into a memory-mapped Arrow file, so a
corpus need not fit into memory; a file that has changed is read again.
"""

import glob
import hashlib
import json
import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import datasets
import numpy as np
from datasets import Dataset, Features, Value
from datasets.exceptions import DatasetGenerationError
from transformers import PreTrainedTokenizerBase

from ..modeling.suggestions import validate_names
from ..modeling.tokenization_posenc import PosEncTokenizer
from .concatenation import concatenate_consecutive, concatenate_documents, validate_positive
from .mapping import BATCH_SIZE, PROGRESS_BAR_MIN_PAIRS, map_batches, progress_bars, rename_languages
from .readers import read_shards, resolve_name_or_path, resolve_shards
from .tags import TAG_KEYS

logger = logging.getLogger(__name__)

CORPUS_TYPES = {
    "dataset": ("name", "split", "revision"),
    "files": ("documents", "min_words"),
    "generator": (),
    "corpora": (),
}
LANGUAGE_KEYS = ("source_language", "target_language")
EXAMPLE_SPEC = "{files: [train.de, train.en]}"
GENERATOR_FIELDS = ("seed", "pairs", "min_words", "max_words")


def load_pairs(
    corpus_spec: Mapping[str, Any],
    *,
    source_language: str,
    target_language: str,
    folder: str | None = None,
    separator: str = " ",
) -> Dataset:
    """The pairs that `corpus_spec` describes, in their order. `corpus_spec` holds exactly one of

    - `dataset`: a dataset on the Hub or a local folder, with `name`, `split` and `revision` as in `load_dataset`;
    - `files`: two aligned texts `[a.de, a.en]`, a `.tsv` (source, tab, target), a `.jsonl` (a `{"translation": {...}}`
      a line), or a list of these, read one after the other; each plain, `.gz`, `.bz2` or `.xz`, relative to `folder`;
    - `generator`: `{seed, pairs, min_words, max_words}` for the embedded German-English generator;
    - `corpora`: a list of such descriptions, read one after the other;

    and, if wanted, `first: n`, which keeps the first n pairs, and then `join: k` (see `concatenate_consecutive`);
    `source_language` and `target_language`, where the description has other ones; `source_tag` and `target_tag`, which
    are no part of these texts (see tags.py). `files` may have `documents: FILE`, a line of which names the document of
    each pair, and `min_words: n` (see `concatenate_documents`). `separator` stands between joined texts. A key
    whose value is None counts as absent. A pair with an empty side is kept. What cannot be read is a ValueError that
    names the file and the line, a missing file a FileNotFoundError.
    """
    corpus_spec = {key: value for key, value in corpus_spec.items() if value is not None}
    corpus_type = _corpus_type(corpus_spec)
    names = (source_language, target_language)
    languages = (
        corpus_spec.get("source_language", source_language),
        corpus_spec.get("target_language", target_language),
    )
    if same := [source for source, target in (names, languages) if source == target]:
        raise ValueError(f"source_language and target_language must differ, but both are {same[0]!r}: name one of each")
    corpora = partial(_load_corpora, separator=separator)
    loaders: dict[str, Callable[..., Dataset]]
    loaders = {"dataset": _load_dataset, "files": _load_files, "generator": _load_generated, "corpora": corpora}
    pairs = _to_translation_format(loaders[corpus_type](corpus_spec, languages, folder), languages)
    if "documents" in corpus_spec or "min_words" in corpus_spec:
        pairs = concatenate_documents(pairs, corpus_spec, folder, languages[0], separator)
    if "first" in corpus_spec:
        pairs = pairs.select(range(min(validate_positive("first", corpus_spec["first"]), len(pairs))))
    return rename_languages(
        concatenate_consecutive(pairs, corpus_spec["join"], separator) if "join" in corpus_spec else pairs,
        languages,
        names,
    )


def tokenize_pairs(
    pairs: Dataset, tokenizer: PreTrainedTokenizerBase, *, source_language: str, target_language: str
) -> Dataset:
    """Token ids in place of text: `input_ids` and `labels`, lists that end in `</s>`, nothing truncated or padded;
    `source_length` and `target_length`, in subwords without special tokens. All pairs stay, in their order.
    """
    num_special = tokenizer.num_special_tokens_to_add()

    def tokenize(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        sources = [row[source_language] for row in batch["translation"]]
        targets = [row[target_language] for row in batch["translation"]]
        input_ids = tokenizer(sources, truncation=False, return_attention_mask=False)["input_ids"]
        labels = tokenizer(text_target=targets, truncation=False, return_attention_mask=False)["input_ids"]
        return {
            "input_ids": input_ids,
            "labels": labels,
            "source_length": [len(ids) - num_special for ids in input_ids],
            "target_length": [len(ids) - num_special for ids in labels],
        }

    ids, length = datasets.Sequence(Value("int32")), Value("int32")
    features = Features({"input_ids": ids, "labels": ids, "source_length": length, "target_length": length})
    return map_batches(pairs, tokenize, features)


def lengths(encoded: Dataset, side: str) -> np.ndarray:
    """The lengths (N) of all sources or targets, in subwords without special tokens."""
    column = encoded.data.column(f"{side}_length").to_numpy()  # datasets would read a selection's row by row
    return column if encoded._indices is None else column[encoded._indices.column(0).to_numpy()]


def filter_lengths(encoded: Dataset, *, min_length: int | None, max_length: int | None) -> Dataset:
    """The pairs to train on: neither side is empty, shorter than `min_length` or longer than `max_length` subwords.

    How many are dropped is logged, empty ones as a warning. A ValueError if none is left. Test sets are not filtered:
    a pair with an empty side is scored like any other.
    """
    source, target = lengths(encoded, "source"), lengths(encoded, "target")
    shorter, longer = np.minimum(source, target), np.maximum(source, target)
    minimum, maximum = max(min_length or 0, 1), np.inf if max_length is None else max_length
    kept = (shorter >= minimum) & (longer <= maximum)
    if not kept.any():
        raise ValueError(
            f"training needs pairs with both sides of {minimum} to {maximum} subwords (min_length={min_length}, "
            f"max_length={max_length}), but none of {len(encoded)} is. Pairs by the length of their longer side:\n"
            f"{_histogram(longer)}\nchoose bounds that hold some of them"
        )
    if num_empty := int((shorter == 0).sum()):
        logger.warning("dropped %d of %d pairs: one side is empty", num_empty, len(encoded))
    logger.info("kept %d of %d pairs, of %s to %s subwords a side", kept.sum(), len(encoded), minimum, maximum)
    return encoded.select(np.flatnonzero(kept))


def stratified_sample(pairs: Dataset, edges: Sequence[int], per_group: int) -> Dataset:
    """At most `per_group` pairs of each length group, drawn without replacement, in their order; always the same."""
    buckets = np.searchsorted(edges, pairs["source_length"])
    rng = np.random.default_rng(0)
    rows = [rng.permutation(np.flatnonzero(buckets == bucket))[:per_group] for bucket in range(len(edges) + 1)]
    return pairs.select(np.sort(np.concatenate(rows)))


def train_tokenizer(
    pairs: Dataset,
    vocab_size: int,
    *,
    source_language: str,
    target_language: str,
    joint: bool = True,
    subwords: str = "bpe",
    tags: Sequence[str] = (),
) -> PosEncTokenizer:
    """A tokenizer learned from `pairs`, the unfiltered ones: one vocabulary, or, unless `joint`, one for each side."""

    def texts(*languages: str) -> Iterator[str]:
        for batch in pairs.iter(BATCH_SIZE):
            for row in batch["translation"]:
                yield from (row[language] for language in languages)

    sides = (source_language, target_language)
    first, second = (texts(*sides), None) if joint else map(texts, sides)
    return PosEncTokenizer.train(first, vocab_size, target_texts=second, subwords=subwords, tags=tags)


def validate_corpus_spec(corpus_spec: Mapping[str, Any], key: str) -> None:
    """A ValueError for keys of a corpus that do not go together; `key` is where it stands."""
    present = {field: value for field, value in corpus_spec.items() if value is not None}
    try:
        corpus_type = _corpus_type(present)
        if (documents := "documents" in present) != ("min_words" in present):
            raise ValueError(
                "`documents` and `min_words` belong together, but "
                f"{'min_words' if documents else 'documents'!r} is missing: add it"
            )
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None
    if corpus_type == "generator" and present[corpus_type]["min_words"] > present[corpus_type]["max_words"]:
        raise ValueError(
            f"{key}.generator: min_words must not exceed max_words, but it is {present[corpus_type]}; swap them."
        )
    for number, spec in enumerate(present[corpus_type] if corpus_type == "corpora" else []):
        validate_corpus_spec(spec, f"{key}.corpora[{number}]")


def _corpus_type(corpus_spec: Mapping[str, Any]) -> str:
    corpus_types = [corpus_type for corpus_type in CORPUS_TYPES if corpus_type in corpus_spec]
    known_keys = [
        key for corpus_type in corpus_types or CORPUS_TYPES for key in (corpus_type, *CORPUS_TYPES[corpus_type])
    ]
    known_keys += ["first", "join", *LANGUAGE_KEYS, *TAG_KEYS]
    validate_names(corpus_spec, known_keys, f"a description of data ({', '.join(known_keys)})")
    if len(corpus_types) != 1:
        raise ValueError(
            f"a description of data holds exactly one of {', '.join(CORPUS_TYPES)}, but it holds "
            f"{' and '.join(corpus_types) or 'none'}: write for example {EXAMPLE_SPEC}"
        )
    return corpus_types[0]


def _load_dataset(corpus_spec: Mapping[str, Any], languages: tuple[str, str], folder: str | None) -> Dataset:
    name = resolve_name_or_path(corpus_spec["dataset"], folder)
    loaded = datasets.load_dataset(name, **{key: corpus_spec.get(key) for key in CORPUS_TYPES["dataset"]})
    if isinstance(loaded, datasets.DatasetDict):
        if len(loaded) > 1:
            raise ValueError(
                f"one split is read, but {name} has {', '.join(loaded)}: add for example split: {next(iter(loaded))}"
            )
        loaded = next(iter(loaded.values()))
    column = loaded.features.get("translation")
    column_languages = column.languages if isinstance(column, datasets.Translation) else column
    if not isinstance(column_languages, Collection) or not set(languages) <= set(column_languages):
        raise ValueError(
            f"a dataset needs a column `translation` with {' and '.join(languages)}, but {name} has "
            f"{dict(loaded.features)}: choose other languages or another `name`, or write a .jsonl and use `files`"
        )
    return loaded


def _load_files(corpus_spec: Mapping[str, Any], languages: tuple[str, str], folder: str | None) -> Dataset:
    shards = resolve_shards(corpus_spec["files"], folder)
    paths = [path for shard in shards for path in shard]
    large = sum(map(os.path.getsize, paths)) > 50 * PROGRESS_BAR_MIN_PAIRS  # a compressed pair takes some 50 bytes
    return _dataset_from_reader(read_shards, languages, paths, large, shards=shards, languages=languages)


def _load_corpora(
    corpus_spec: Mapping[str, Any], languages: tuple[str, str], folder: str | None, separator: str
) -> Dataset:
    if not isinstance(corpus_spec["corpora"], list) or not corpus_spec["corpora"]:
        raise ValueError(
            f"`corpora` is a list of descriptions of data, but it is {corpus_spec['corpora']!r}: write for example "
            "[{files: [a.de, a.en]}, {dataset: wmt/wmt19, name: de-en, split: train}]"
        )
    source, target = languages
    options: dict[str, Any] = {
        "source_language": source,
        "target_language": target,
        "folder": folder,
        "separator": separator,
    }
    return datasets.concatenate_datasets([load_pairs(spec, **options) for spec in corpus_spec["corpora"]])


def _load_generated(corpus_spec: Mapping[str, Any], languages: tuple[str, str], folder: str | None) -> Dataset:
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
    code = glob.glob(os.path.join(os.path.dirname(str(synthetic.__file__)), "*.py"))
    written_languages = (synthetic.LANGUAGES[0], synthetic.LANGUAGES[1])
    large = settings["pairs"] > PROGRESS_BAR_MIN_PAIRS
    return _dataset_from_reader(synthetic.generate_pairs, languages, code, large, written_languages, **settings)


def _dataset_from_reader(
    read: Callable[..., Iterator[tuple[str, str]]],
    languages: tuple[str, str],
    depends_on: list[str],
    show_progress: bool,
    written_languages: tuple[str, str] | None = None,
    /,
    **options: Any,
) -> Dataset:
    """The pairs of `read(**options)`, on disk; `written_languages` names their languages where the order is another.

    datasets finds them in its cache again by `read` and its arguments alone. The state of the files they depend on, the
    reading code among them, is made an argument too: a changed file never gives yesterday's pairs.
    """
    code = glob.glob(os.path.join(os.path.dirname(__file__), "*.py"))
    status = [os.stat(path) for path in sorted([*code, *depends_on])]
    file_state = tuple((file.st_size, file.st_mtime_ns) for file in status)
    arguments = {
        "read": read,
        "options": options,
        "written_languages": written_languages or languages,
        "file_state": file_state,
    }
    try:
        with progress_bars(shown=show_progress):
            return Dataset.from_generator(_rows, features=_features(languages), gen_kwargs=arguments)
    except DatasetGenerationError as error:
        if isinstance(error.__cause__, ValueError | OSError):
            raise error.__cause__ from None
        raise


def _rows(
    read: Callable[..., Iterator[tuple[str, str]]],
    options: dict[str, Any],
    written_languages: tuple[str, str],
    file_state: object,
) -> Iterator[dict[str, Any]]:
    for texts in read(**options):
        yield {"translation": dict(zip(written_languages, texts, strict=True))}


def _to_translation_format(pairs: Dataset, languages: tuple[str, str]) -> Dataset:
    features = _features(languages)

    def convert(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        rows = batch["translation"]
        return {"translation": [{language: row[language] or "" for language in languages} for row in rows]}

    return pairs if pairs.features == features else map_batches(pairs, convert, features)


def _features(languages: tuple[str, str]) -> Features:
    return Features({"translation": {language: Value("string") for language in languages}})


def _histogram(lengths: np.ndarray) -> str:
    """A line a bucket, each bucket as wide as all before it: its bounds, its count, its share as a bar."""
    lines, low, high = [], 0, 10
    while low <= max(lengths, default=-1):
        count = int(((lengths >= low) & (lengths <= high)).sum())
        lines.append(f"{low:>6} to {high:>6} {count:>9} {'#' * round(40 * count / len(lengths))}".rstrip())
        low, high = high + 1, 2 * high
    return "\n".join(lines)


def hash_test_set(test: Dataset) -> str:
    """SHA-256 of a test set's texts and lengths: what must be equal for two scores to be comparable."""
    digest = hashlib.sha256()
    for row in test:
        digest.update(json.dumps(row, sort_keys=True, ensure_ascii=False).encode())
    return digest.hexdigest()
