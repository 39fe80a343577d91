"""Operations on datasets of pairs: map in batches, rename languages, build from a reader, hash.

A dataset of pairs has one column, `translation`, which holds `{language: text, other_language: text}`.
"""

import glob
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import datasets
from datasets import Dataset, Features, Value
from datasets.exceptions import DatasetGenerationError

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
